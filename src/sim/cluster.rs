//! A whole cluster in virtual time, in one thread, from one seed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{
    NodeId, Time, Waker,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_membership::{EndReason, ShardId};
use squall_ordered::BulkPath;

use super::{clock::Clock, view_log::Script};
use crate::{
    clock::Now,
    config::Config,
    delivery::Task,
    group::{Group, GroupControl, GroupSpec, new_group},
    node_core::{CoreEffect, NodeCore},
    plan::{Plan, PlanError},
    replicated::Replicated,
};

/// What a simulated cluster is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network.
    pub net: SimConfig,
    /// A node acts on what it sees within this time, at random: threads don't run at once.
    pub step_delay: Duration,
    /// An application is called within this time after a message may be delivered, at random.
    pub delivery_delay: Duration,
    /// By how much the rate of a node's clock is off at most, in millionths; clocks also begin anywhere within a minute.
    pub clock_drift: u32,
    /// Whether a view that wedges gets a successor from a scripted view log, so that it is cleaned up to one trim. Else it
    /// just ends, as a real node's does in this version.
    pub view_log: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            net: SimConfig::fast(),
            step_delay: Duration::from_micros(1),
            delivery_delay: Duration::from_micros(3),
            clock_drift: 83_000,
            view_log: false,
        }
    }
}

/// Why a simulated cluster did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStarted {
    /// The declared groups do not fit the configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A size of the configuration is impossible.
    #[error("a node's memory could not be set up: {0}")]
    Memory(String),
    /// The first view was not formed.
    #[error(transparent)]
    NotFormed(EndReason),
}

/// A cluster of simulated nodes that run real services over the real protocols; only time, the network and the order in
/// which threads run are simulated, and all of it follows from one seed.
///
/// Declare groups, [start](Cluster::start), then use the [`Group`] handles as in earnest; nothing moves until virtual time
/// does, by [`run_for`](Cluster::run_for), [`run_until`](Cluster::run_until) or [`wait`](Cluster::wait). A blocking call
/// such as `Submit::wait` would wait for ever.
pub struct Cluster {
    config: Config,
    options: Options,
    net: SimNet,
    rng: Rng,
    specs: BTreeMap<NodeId, Vec<Box<dyn GroupSpec>>>,
    nodes: BTreeMap<NodeId, Node>,
    agenda: BinaryHeap<Reverse<(Time, u64, NodeId, Act)>>,
    /// Breaks ties of the agenda in the order of its entries.
    entries: u64,
    script: Option<Script>,
    ready: Vec<NodeId>,
    effects: Vec<CoreEffect>,
    steps: u64,
}

/// What a node does at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Step,
    Deliver(ShardId),
}

struct Node {
    core: NodeCore<SimFabric>,
    groups: BTreeMap<ShardId, Home>,
    /// Somebody woke its engine from outside.
    poked: Arc<AtomicBool>,
    state: State,
    /// What it would have done while it was paused.
    missed: Vec<Act>,
    /// When its next step is on the agenda, at the latest.
    step_at: Time,
    formed: bool,
    ended: Option<EndReason>,
    clock: Clock,
    /// What its clock says, for the threads of its applications.
    reads: Arc<AtomicU64>,
    /// What its engine read from the clock just before it was paused.
    stale: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Paused,
    Crashed,
}

struct Home {
    task: Box<dyn Task>,
    control: Arc<dyn GroupControl>,
    /// A delivery is on the agenda at this time.
    due_at: Option<Time>,
    /// It ended, or met a faulty sender.
    over: bool,
}

impl Cluster {
    /// A cluster of the configuration's members, that has not started. The configuration's own id does not matter.
    pub fn new(config: Config, options: Options, seed: u64) -> Cluster {
        let mut rng = Rng::with_seed(seed);
        let net = SimNet::new(options.net.clone(), rng.u64(..));
        let script = options.view_log.then(|| {
            let delay = 10 * options.net.latency + Duration::from_micros(50);
            Script::new(config.members().to_vec(), delay, rng.fork())
        });
        let specs = config.members().iter().map(|&node| (node, Vec::new())).collect();
        Cluster {
            config,
            options,
            net,
            rng,
            specs,
            nodes: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            entries: 0,
            script,
            ready: Vec::new(),
            effects: Vec::new(),
            steps: 0,
        }
    }

    /// Declares a group, with each node's replica of its service. Returns each node's handle, in the order of the members.
    ///
    /// # Panics
    ///
    /// If the cluster has started.
    pub fn group<R: Replicated>(&mut self, name: &str, mut service: impl FnMut(NodeId) -> R) -> Vec<Group<R>> {
        assert!(self.nodes.is_empty(), "groups are declared before the cluster starts");
        let mut handles = Vec::new();
        for &node in self.config.members() {
            let (group, spec) = new_group(name, service(node), &self.config);
            self.specs.get_mut(&node).expect("a list for each member").push(spec);
            handles.push(group);
        }
        handles
    }

    /// Starts all nodes, and runs until each has formed the first view.
    pub fn start(&mut self) -> Result<(), NotStarted> {
        for (node, mut specs) in std::mem::take(&mut self.specs) {
            specs.sort_by(|a, b| a.name().cmp(b.name()));
            let mut plan = Plan::new(&self.config, BulkPath::Network, specs.iter().map(|spec| spec.name()))?;
            plan.settings.view_log = self.script.is_some();
            let mut effects = Vec::new();
            let fabric = self.net.fabric(node);
            let clock = Clock::random(self.options.clock_drift, &mut self.rng);
            let log = self.script.as_ref().map(|script| script.log(node, clock));
            let now = clock.at(self.net.now());
            let reads = Arc::new(AtomicU64::new(now.as_nanos()));
            let core = NodeCore::start(fabric, now, plan.settings, &plan.shards, log, &mut effects)
                .map_err(|error| NotStarted::Memory(error.to_string()))?;
            let poked = Arc::new(AtomicBool::new(false));
            let waker = {
                let poked = Arc::clone(&poked);
                Waker::new(move || poked.store(true, Ordering::Relaxed))
            };
            let mut groups = BTreeMap::new();
            let mut specs = specs.into_iter();
            let mut formed = false;
            for effect in effects {
                match effect {
                    CoreEffect::Created { shard, submitter, deliverer } => {
                        let spec = specs.next().expect("a shard for each group");
                        let (task, control) =
                            spec.attach(submitter, deliverer, waker.clone(), Now::Virtual(Arc::clone(&reads)));
                        groups.insert(shard, Home { task, control, due_at: None, over: false });
                    }
                    CoreEffect::Formed(_) => formed = true,
                    other => unreachable!("a node that starts does no more than {other:?}"),
                }
            }
            let node_state = Node {
                core,
                groups,
                poked,
                state: State::Running,
                missed: Vec::new(),
                step_at: Time::MAX,
                formed,
                ended: None,
                clock,
                reads,
                stale: None,
            };
            self.nodes.insert(node, node_state);
            // Nodes don't start at the same moment.
            self.step_within(node, Duration::from_micros(100));
        }
        let limit = self.config.formation_timeout() + Duration::from_secs(1);
        self.run_until(limit, |cluster| cluster.nodes.values().all(|node| node.formed || node.ended.is_some()));
        match self.nodes.values().find_map(|node| node.ended.clone()) {
            Some(reason) => Err(NotStarted::NotFormed(reason)),
            None => Ok(()),
        }
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// The network, to cut and slow links.
    pub fn net(&mut self) -> &mut SimNet {
        &mut self.net
    }

    /// How often any node was stepped.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Why a node's part in its groups is over, if it is.
    pub fn end_reason(&self, node: NodeId) -> Option<&EndReason> {
        self.nodes.get(&node)?.ended.as_ref()
    }

    /// What the scripted view log has decided to follow the first view.
    pub(super) fn successor(&self) -> Option<squall_membership::Proposal> {
        self.script.as_ref()?.successor(squall_membership::Epoch::FIRST)
    }

    /// Stops a node's threads, until [`resume`](Cluster::resume). Its memory stays, and its NIC goes on.
    pub fn pause(&mut self, node: NodeId) {
        let now = self.net.now();
        if let Some(paused) = self.nodes.get_mut(&node).filter(|node| node.state == State::Running) {
            paused.state = State::Paused;
            // It may stop anywhere, so also between a look at the clock and what follows from it.
            paused.stale = Some(paused.clock.at(now));
            self.net.pause(node);
        }
    }

    /// Lets a paused node go on.
    pub fn resume(&mut self, node: NodeId) {
        let Some(paused) = self.nodes.get_mut(&node).filter(|node| node.state == State::Paused) else { return };
        paused.state = State::Running;
        let now = self.net.now();
        for act in std::mem::take(&mut paused.missed) {
            self.entries += 1;
            self.agenda.push(Reverse((now, self.entries, node, act)));
        }
        self.net.resume(node);
        self.step_within(node, self.options.step_delay);
    }

    /// Ends a node's process at once. What its callers wait for fails.
    pub fn crash(&mut self, node: NodeId) {
        let Some(crashed) = self.nodes.get_mut(&node).filter(|node| node.state != State::Crashed) else { return };
        crashed.state = State::Crashed;
        self.net.crash(node);
        for group in crashed.groups.values_mut().filter(|group| !group.over) {
            group.over = true;
            group.task.end(&[], &EndReason::ShutDown);
        }
    }

    /// Lets virtual time pass.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, |_| false);
    }

    /// Lets virtual time pass until `done`, or for `limit` at most. Returns whether it is done.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut(&Cluster) -> bool) -> bool {
        let until = self.net.now() + limit;
        loop {
            if done(self) {
                return true;
            }
            if !self.turn(until) {
                return done(self);
            }
        }
    }

    /// Lets virtual time pass until `future` resolves, or for `limit` at most.
    pub fn wait<T>(&mut self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let until = self.net.now() + limit;
        let mut future = pin!(future);
        let mut context = Context::from_waker(std::task::Waker::noop());
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            if !self.turn(until) {
                return None;
            }
        }
    }

    /// Does the next thing that there is to do until `until`. Returns false if there is none; then it is `until`.
    fn turn(&mut self, until: Time) -> bool {
        self.take_pokes();
        let next = self.agenda.peek().map_or(Time::MAX, |Reverse((at, ..))| *at);
        if self.net.now() < next {
            let mut ready = std::mem::take(&mut self.ready);
            self.net.advance(next.min(until), &mut ready);
            for node in self.nodes.values() {
                node.reads.store(node.clock.at(self.net.now()).as_nanos(), Ordering::Relaxed);
            }
            let any = !ready.is_empty();
            for node in ready.drain(..) {
                self.step_within(node, self.options.step_delay);
            }
            self.ready = ready;
            if any {
                return true;
            }
        }
        if next > until {
            return false;
        }
        if let Some(Reverse((_, _, node, act))) = self.agenda.pop() {
            self.act(node, act);
        }
        true
    }

    fn take_pokes(&mut self) {
        let poked = |node: &Node| node.poked.swap(false, Ordering::Relaxed);
        let poked: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| poked(node)).map(|(&id, _)| id).collect();
        for node in poked {
            self.step_within(node, self.options.step_delay);
        }
    }

    fn random(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(0..=most.as_nanos() as u64))
    }

    /// Puts a step of a node on the agenda, unless there is one as early.
    fn step_within(&mut self, node: NodeId, delay: Duration) {
        let at = self.net.now() + self.random(delay);
        self.step_at(node, at);
    }

    fn step_at(&mut self, id: NodeId, at: Time) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if at < node.step_at {
            node.step_at = at;
            self.entries += 1;
            self.agenda.push(Reverse((at, self.entries, id, Act::Step)));
        }
    }

    fn act(&mut self, id: NodeId, act: Act) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        match node.state {
            State::Crashed => return,
            State::Paused => {
                if !node.missed.contains(&act) {
                    node.missed.push(act);
                }
                return;
            }
            State::Running => {}
        }
        match act {
            // A step came before it, that found all that this one would.
            Act::Step if node.step_at > self.net.now() => {}
            Act::Step => self.step(id),
            Act::Deliver(shard) => self.deliver(id, shard),
        }
    }

    fn step(&mut self, id: NodeId) {
        self.steps += 1;
        let now = self.net.now();
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        if node.step_at <= now {
            node.step_at = Time::MAX;
        }
        let mut effects = std::mem::take(&mut self.effects);
        let busy = node.core.step(node.stale.take().unwrap_or(node.clock.at(now)), &mut effects);
        self.carry_out(id, &mut effects);
        self.effects = effects;
        if let Some(script) = &self.script {
            for (at, node) in script.decide(now) {
                self.step_at(node, at);
            }
        }
        self.schedule_deliveries(id);
        let node = &self.nodes[&id];
        let deadline = node.clock.when(node.core.deadline());
        if busy {
            self.step_within(id, self.options.step_delay);
        } else if deadline != Time::MAX {
            self.step_at(id, deadline.max(now + Duration::from_nanos(1)));
        }
    }

    fn carry_out(&mut self, id: NodeId, effects: &mut Vec<CoreEffect>) {
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        for effect in effects.drain(..) {
            match effect {
                CoreEffect::Created { .. } => unreachable!("shards are created when a node starts"),
                CoreEffect::Formed(_) => node.formed = true,
                // What is due is found by asking.
                CoreEffect::Deliver(_) => {}
                CoreEffect::Freed(shard) => node.groups[&shard].control.on_freed(),
                CoreEffect::FreedBulk(shard) => node.groups[&shard].control.on_freed_bulk(),
                CoreEffect::End { shard, undelivered, reason } => {
                    if let Some(group) = node.groups.get_mut(&shard) {
                        group.over = true;
                        group.task.end(&undelivered, &reason);
                    }
                }
                CoreEffect::Ended(reason) => node.ended = Some(reason),
            }
        }
    }

    /// Puts on the agenda what a node's applications have to do.
    fn schedule_deliveries(&mut self, id: NodeId) {
        let now = self.net.now();
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        for (&shard, group) in node.groups.iter_mut().filter(|(_, group)| !group.over) {
            let at = if group.task.is_due() {
                now + Duration::from_nanos(self.rng.u64(0..=self.options.delivery_delay.as_nanos() as u64))
            } else if let Some(deadline) = group.task.deadline() {
                node.clock.when(deadline).max(now)
            } else {
                continue;
            };
            if group.due_at.is_none_or(|due| at < due) {
                group.due_at = Some(at);
                self.entries += 1;
                self.agenda.push(Reverse((at, self.entries, id, Act::Deliver(shard))));
            }
        }
    }

    fn deliver(&mut self, id: NodeId, shard: ShardId) {
        let now = self.net.now();
        // Mostly few turns at a time, so that the node acts while its application is behind.
        let max = if self.rng.bool() { self.rng.usize(1..=4) } else { 64 };
        let node = self.nodes.get_mut(&id).expect("the caller has looked");
        let Some(group) = node.groups.get_mut(&shard).filter(|group| !group.over) else { return };
        if group.due_at.is_some_and(|due| due <= now) {
            group.due_at = None;
        }
        if let Err(error) = group.task.step(node.clock.at(now), max) {
            group.over = true;
            let mut effects = std::mem::take(&mut self.effects);
            node.core.faulty(shard, &error, &mut effects);
            self.carry_out(id, &mut effects);
            self.effects = effects;
        }
        self.schedule_deliveries(id);
        self.step_within(id, self.options.step_delay);
    }
}
