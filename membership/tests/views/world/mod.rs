//! Members on the simulated network, whose shards are counts of messages, and a view log in memory.

mod disk;
mod log;
mod process;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{
    NodeId, Time,
    sim::{SimConfig, SimNet},
};
use squall_membership::{
    Counts, EndReason, Epoch, GroupLayout, Incarnation, Input, Layout, Member, OrderEnd, Proposal, Seq, Settings,
    ShardId, StallLimits, View,
};

pub(crate) use self::{disk::DiskLog, log::Log, process::Process};

pub(crate) const FAILURE_TIMEOUT: Duration = ms(20);
pub(crate) const CONNECT_TIMEOUT: Duration = ms(100);
pub(crate) const READ_LEASE: Duration = ms(15);
pub(crate) const RESTART_WAIT: Duration = ms(60);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub(crate) fn after(now: Time, ms: f64) -> Time {
    now + Duration::from_nanos(1 + (ms * 1e6) as u64)
}

/// The shard that hands on no state, but ends where the member that went furthest did.
pub(crate) const PASSED: ShardId = ShardId(2);

/// One shard of all, one of at most three members, and [`PASSED`].
pub(crate) fn layout() -> Layout {
    let mut layout = Layout::of_all(["all".to_owned()]);
    let few = GroupLayout { min_replicas: 2, max_replicas: Some(3), ..GroupLayout::of_all("few".into()) };
    let passed = GroupLayout { counts: Counts::Passed, ..GroupLayout::of_all("passed".into()) };
    layout.groups.extend([few, passed]);
    layout
}

pub(crate) const ENDLESS: StallLimits = StallLimits { disk: Duration::MAX, application: Duration::MAX };

pub(crate) fn settings(stall_limits: StallLimits) -> Settings {
    Settings {
        fingerprint: 7,
        layout: layout(),
        policy: Default::default(),
        failure_timeout: FAILURE_TIMEOUT,
        connect_timeout: CONNECT_TIMEOUT,
        read_lease: READ_LEASE,
        restart_wait: RESTART_WAIT,
        stall_limits,
    }
}

pub(crate) struct World {
    pub(crate) net: SimNet,
    pub(crate) rng: Rng,
    pub(crate) log: Log,
    pub(crate) processes: BTreeMap<NodeId, Process>,
    /// The number of places of each shard's order that any member delivered, by epoch.
    pub(crate) delivered: BTreeMap<(Epoch, ShardId), Seq>,
    /// The number of places of each shard that each member has received, by epoch; it stays when the member crashes.
    pub(crate) received: BTreeMap<(Epoch, ShardId, NodeId), Seq>,
    /// The number of places of each shard that are acknowledged, by epoch: the complete members of a later or the same
    /// view had them on their disks, while one of them was there to tell.
    acknowledged: BTreeMap<(Epoch, ShardId), Seq>,
    /// The number of places that members have told to be on their disks.
    persisted: BTreeMap<(Epoch, ShardId, NodeId), Seq>,
    stall_limits: StallLimits,
    next_tick: Time,
}

impl World {
    /// A world in which nodes 1 to `members` are to be the first view.
    pub(crate) fn new(seed: u64, members: u32, network: SimConfig) -> World {
        World::with(seed, members, network, ENDLESS)
    }

    fn with(seed: u64, members: u32, network: SimConfig, stall_limits: StallLimits) -> World {
        let mut rng = Rng::with_seed(seed);
        let net = SimNet::new(network, rng.u64(..));
        let list: Vec<Member> = (1..=members).map(|id| Member::new(NodeId(id), Incarnation(1))).collect();
        let log = Log::new(layout(), list.clone(), rng.fork());
        let mut world = World {
            net,
            rng,
            log,
            processes: BTreeMap::new(),
            delivered: BTreeMap::new(),
            received: BTreeMap::new(),
            acknowledged: BTreeMap::new(),
            persisted: BTreeMap::new(),
            stall_limits,
            next_tick: Time::ZERO,
        };
        for member in list {
            world.start(member);
        }
        world
    }

    /// A world whose first view is in operation.
    pub(crate) fn formed(seed: u64, members: u32) -> World {
        World::formed_on(seed, members, SimConfig::fast())
    }

    /// As [`formed`](World::formed), of members that don't wait for ever.
    pub(crate) fn impatient(seed: u64, members: u32, stall_limits: StallLimits) -> World {
        let mut world = World::with(seed, members, SimConfig::fast(), stall_limits);
        world.run_until("the first view is installed", ms(500), |world| world.all_in(Epoch::FIRST));
        world
    }

    pub(crate) fn formed_on(seed: u64, members: u32, network: SimConfig) -> World {
        let mut world = World::new(seed, members, network);
        world.run_until("the first view is installed", ms(500), |world| world.all_in(Epoch::FIRST));
        world
    }

    /// A world whose members have disks, and whose first view is in operation.
    pub(crate) fn durable(seed: u64, members: u32, network: SimConfig) -> World {
        let mut world = World::new(seed, members, network);
        world.processes.values_mut().for_each(|process| process.mount(BTreeMap::new()));
        world.run_until("the first view is installed", ms(500), |world| world.all_in(Epoch::FIRST));
        world
    }

    /// Starts a node that has crashed again with its disk. It asks to join, since it may have been dropped.
    pub(crate) fn restart(&mut self, node: u32) {
        let disk = self.process(node).disk.take().expect("it has one");
        self.join(node);
        self.process(node).mount(disk);
    }

    fn start(&mut self, member: Member) {
        let (node, now) = (member.node, self.net.now());
        let fabric = if self.processes.contains_key(&node) { self.net.restart(node) } else { self.net.fabric(node) };
        let process = Process::new(member, fabric, self.rng.fork(), self.stall_limits);
        self.processes.insert(node, process);
        self.log.begins(now, node);
    }

    /// Starts a new node, or a crashed one as a new life. It asks to join.
    pub(crate) fn join(&mut self, node: u32) {
        let node = NodeId(node);
        let lives = self.log.log_state.newest(node).map_or(0, |newest| newest.0);
        let known = self.processes.get(&node).map_or(0, |process| process.membership.me().incarnation.0);
        let member = Member::new(node, Incarnation(lives.max(known) + 1000));
        self.start(member.clone());
        self.log.join(self.net.now(), member);
    }

    pub(crate) fn crash(&mut self, node: u32) {
        self.net.crash(NodeId(node));
        let now = self.net.now();
        self.log.gone(now, NodeId(node));
        let mut rng = self.rng.fork();
        let process = self.process(node);
        process.crashed = true;
        process.disk.iter_mut().flat_map(BTreeMap::values_mut).for_each(|log| log.lose(&mut rng));
    }

    pub(crate) fn leave(&mut self, node: u32) {
        let process = self.process(node);
        process.leaving = true;
        process.input(Input::Leave);
    }

    pub(crate) fn process(&mut self, node: u32) -> &mut Process {
        self.processes.get_mut(&NodeId(node)).expect("it was started")
    }

    pub(crate) fn ended(&self, node: u32) -> Option<&EndReason> {
        self.processes[&NodeId(node)].ended.as_ref()
    }

    pub(crate) fn is_in_view(&self, node: u32) -> bool {
        self.processes[&NodeId(node)].is_in(self.log.view().epoch)
    }

    /// Steps a node with a clock that was read earlier.
    pub(crate) fn step_at(&mut self, node: u32, clock: Time) {
        let process = self.processes.get_mut(&NodeId(node)).expect("it was started");
        process.step(clock, &mut self.log, &mut self.received, &mut self.delivered);
    }

    /// The nodes whose processes are there and have not ended.
    pub(crate) fn alive(&self) -> Vec<NodeId> {
        self.processes.iter().filter(|(_, p)| !p.crashed && p.ended.is_none()).map(|(node, _)| *node).collect()
    }

    /// Whether all members of a view are in operation in it.
    pub(crate) fn all_in(&self, epoch: Epoch) -> bool {
        let view = self.log.view();
        view.epoch == epoch && view.nodes().iter().all(|node| self.processes[node].is_in(epoch))
    }

    /// Whether another view than the first is in operation.
    pub(crate) fn has_gone_on(&self) -> bool {
        let epoch = self.log.view().epoch;
        epoch > Epoch::FIRST && self.all_in(epoch)
    }

    /// Whether all nodes that are there are members of the current view, in operation in it, and complete.
    pub(crate) fn is_settled(&self) -> bool {
        let view = self.log.view();
        let (members, alive): (BTreeSet<_>, BTreeSet<_>) =
            (view.nodes().into_iter().collect(), self.alive().into_iter().collect());
        // No member can become complete in a shard whose state none holds.
        let whole = view.shards.iter().all(|shard| shard.complete == shard.members || shard.complete.is_empty());
        alive.is_empty() || members == alive && whole && self.all_in(view.epoch)
    }

    pub(crate) fn heal_all(&mut self) {
        let nodes: Vec<NodeId> = self.processes.keys().copied().collect();
        for (i, &a) in nodes.iter().enumerate() {
            nodes[i + 1..].iter().for_each(|&b| self.net.heal(a, b));
            self.net.resume(a);
            self.reach(a, true);
        }
    }

    /// Cuts a node off from the view log, or lets it find it again.
    pub(crate) fn reach(&mut self, node: NodeId, reaches: bool) {
        if !reaches {
            self.log.cut.insert(node);
        } else if self.log.cut.remove(&node) {
            self.log.look(self.net.now(), node);
        }
    }

    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.net.now() + time;
        while self.net.now() < until {
            self.advance(until);
        }
    }

    pub(crate) fn run_until(&mut self, what: &str, within: Duration, done: impl Fn(&World) -> bool) {
        let limit = self.net.now() + within;
        while !done(self) {
            assert!(self.net.now() < limit, "{what}: not within {within:?}\n{}", self.describe());
            self.advance(limit);
        }
    }

    fn advance(&mut self, limit: Time) {
        let mut ready = Vec::new();
        let timers = self.processes.iter().filter(|(node, _)| self.net.runs(**node)).map(|(_, p)| p.deadline()).min();
        let limit = limit.min(timers.unwrap_or(Time::MAX)).min(self.log.deadline()).min(self.next_tick);
        let now = self.net.advance(limit, &mut ready);
        if now >= self.next_tick {
            self.next_tick = now + ms(1);
            self.log.remind(now);
            self.traffic();
            self.acknowledge();
        }
        let nodes: Vec<NodeId> = self.processes.keys().copied().collect();
        for (node, event) in self.log.step(now, &nodes) {
            self.processes.get_mut(&node).expect("it was started").inbox.push_back(event);
        }
        for node in nodes {
            let process = self.processes.get_mut(&node).expect("it was started");
            let is_due = ready.contains(&node) || !process.inbox.is_empty() || process.deadline() <= now;
            if self.net.runs(node) && process.ended.is_none() && is_due {
                process.step(now, &mut self.log, &mut self.received, &mut self.delivered);
            }
        }
    }

    /// Lets members receive messages, and deliver those that every member of the shard has received.
    fn traffic(&mut self) {
        for (node, process) in &mut self.processes {
            let Some(view) = process.view.clone().filter(|_| self.net.runs(*node) && process.ended.is_none()) else {
                continue;
            };
            for shard in view.shards.iter().filter(|shard| shard.members.contains(node)) {
                let of = |node: &NodeId| (view.epoch, shard.shard, *node);
                // Nothing stands in the order of a shard that has no senders, as while it is suspended.
                if !process.wedged && !shard.senders.is_empty() {
                    self.received.entry(of(node)).or_default().0 += self.rng.u64(0..4);
                }
                let received =
                    shard.members.iter().map(|node| self.received.get(&of(node)).copied().unwrap_or_default());
                let stable = received.min().unwrap_or_default();
                // Places of this shard that a member has passed are of no use to others.
                let delivers = process.state.contains(&shard.shard) && shard.shard != PASSED;
                if delivers && !process.is_cleaning() && self.rng.bool() {
                    process.deliver(view.epoch, shard.shard, stable, &mut self.delivered);
                }
            }
        }
    }

    /// Writes disks. Messages that all complete members have on their disks are acknowledged.
    fn acknowledge(&mut self) {
        for (node, process) in &mut self.processes {
            if !self.net.runs(*node) || process.ended.is_some() || process.disk.is_none() {
                continue;
            }
            if self.rng.u8(0..4) == 0 {
                process.sync();
            }
            let (Some(view), Some(disk)) = (&process.view, &process.disk) else { continue };
            for (&shard, log) in disk.iter().filter(|(shard, _)| process.state.contains(shard)) {
                self.persisted.insert((view.epoch, shard, *node), log.persisted(view.epoch));
            }
        }
        for (node, process) in &self.processes {
            let Some(view) = process.view.as_ref().filter(|_| self.net.runs(*node) && process.disk.is_some()) else {
                continue;
            };
            // Members that become complete while the view lasts need not be waited for before all know it.
            for shard in view.shards.iter().filter(|shard| shard.is_complete(*node)) {
                let told = |node: &NodeId| self.persisted.get(&(view.epoch, shard.shard, *node)).copied();
                let Some(all) = shard.complete.iter().map(told).collect::<Option<Vec<Seq>>>() else { continue };
                let seq = all.into_iter().min().unwrap_or_default();
                let earlier = self.log.line(shard.shard, view.epoch);
                for end in earlier.into_iter().chain([OrderEnd { epoch: view.epoch, seq }]) {
                    let known = self.acknowledged.entry((end.epoch, shard.shard)).or_default();
                    *known = end.seq.max(*known);
                }
            }
        }
    }

    pub(crate) fn describe(&self) -> String {
        let mut text = format!("at {}: {:?}\n", self.net.now(), self.log.view());
        for (node, process) in &self.processes {
            text += &format!("{node}: runs {} {process:?}\n", self.net.runs(*node));
        }
        text += &format!("last refused: {:?}\n", self.log.refused.iter().rev().take(3).collect::<Vec<_>>());
        text
    }

    /// Checks the invariants, which hold whatever has happened.
    pub(crate) fn check(&self) {
        for (before, next) in self.log.history.iter().zip(&self.log.history[1..]) {
            self.check_trims(&before.view, next);
        }
        for view in self.processes.values().flat_map(|process| &process.views) {
            assert_eq!(self.log.history[view.epoch.0 as usize - 1].view, *view, "there is one view of an epoch");
        }
        self.check_disks();
    }

    /// Checks that acknowledged places are in the line of each shard that goes on, and that each holder of its state
    /// has that line.
    fn check_disks(&self) {
        let view = self.log.view();
        for shard in view.shards.iter().filter(|shard| !shard.complete.is_empty() && shard.shard != PASSED) {
            let line = self.log.line(shard.shard, view.epoch);
            let acknowledged = self
                .acknowledged
                .iter()
                .filter(|((epoch, id), seq)| *id == shard.shard && *epoch < view.epoch && **seq > Seq(0));
            for ((epoch, shard), seq) in acknowledged {
                let kept = line.iter().find(|end| end.epoch == *epoch).map_or(Seq(0), |end| end.seq);
                let history: Vec<_> = self.log.history.iter().map(|p| (&p.trims, &p.ends, &p.view.shards)).collect();
                assert!(kept >= *seq, "{shard}: {seq} of {epoch} were acknowledged, {kept} are left\n{history:#?}");
            }
            for (node, process) in self.processes.iter().filter(|(node, process)| {
                shard.is_complete(**node) && process.is_in(view.epoch) && self.net.runs(**node)
            }) {
                let log = process.disk.as_ref().map(|disk| disk[&shard.shard].line(view.epoch));
                let has = log.as_ref().is_none_or(|log| *log == line);
                assert!(has, "{node} has another log of {}, {log:?}: decided was {line:?}", shard.shard);
            }
        }
    }

    /// Checks that the trim of a shard covers all that any member delivered, and no more than all complete members that
    /// stay have received; or all that any of these has passed.
    fn check_trims(&self, before: &Arc<View>, next: &Proposal) {
        for shard in &before.shards {
            let delivered = self.delivered.get(&(before.epoch, shard.shard)).copied().unwrap_or_default();
            let Some(&trim) = next.trims.get(&shard.shard) else { continue };
            assert!(
                next.restart || trim >= delivered,
                "{}, {}: {delivered} was delivered, the trim is {trim}",
                before.epoch,
                shard.shard
            );
            for end in next.finals[&shard.shard].iter().filter(|end| end.complete) {
                assert!(if shard.shard == PASSED { trim >= end.count } else { trim <= end.count });
                let received = self.received.get(&(before.epoch, shard.shard, end.node)).copied().unwrap_or_default();
                assert_eq!(end.count, received, "{} received so much", end.node);
            }
        }
    }
}
