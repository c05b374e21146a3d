//! A whole cluster in virtual time, in one thread, from one seed.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time, hostile::HostileFabric, sim::SimNet};
use squall_membership::{EndReason, Incarnation, Input, Layout, LayoutPolicy, Member, ShardId, View, VoterId};
use squall_ordered::{BulkPath, log::Hlc};

use super::{
    client::ClientNode,
    clock::Clock,
    disks::{DiskCopy, Disks},
    node::{Act, Launch, RunState, SimNode, true_time},
    options::{Options, ViewLogKind},
    raft::Raft,
    view_log::{Script, ScriptTiming},
};
use crate::{
    Group, Sharded,
    clients::serve::{ServedEntry, Server},
    config::Config,
    group::control::{GroupSpec, new_group},
    node::{
        core::CoreEffect,
        onepipe::{OnePipeHandle, OnePipeSlot},
        placements::NodePolicy,
        plan::{Plan, PlanError},
    },
    replica::replicated::Replicated,
};

/// The reason for which a simulated cluster did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotStarted {
    /// The declared groups do not fit the configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A node's part was over before the first view was formed.
    #[error(transparent)]
    NotFormed(EndReason),
    /// The first view took too long.
    #[error("the first view was not formed within {0:?}")]
    Late(Duration),
    /// A durable group can't be taken up from the node's disk, for the reason that is given.
    #[error("{node} can't start from its disk: {why}")]
    Disk {
        /// The node.
        node: NodeId,
        /// The reason.
        why: String,
    },
}

/// A cluster of simulated nodes that run real services over the real protocols. Only time, the network and the order in
/// which threads run are simulated, and all of it follows from one seed.
///
/// Declare groups, [start](Cluster::start), then use the [`Group`] handles as in a real cluster. Nothing moves until
/// virtual time does, by [`run_for`](Cluster::run_for), [`run_until`](Cluster::run_until) or [`wait`](Cluster::wait). A
/// blocking call such as `Submit::wait` would wait for ever.
///
/// Nodes [crash](Cluster::crash), [leave](Cluster::leave) and come back, and others join: [declare](Cluster::declare)
/// their groups, then [launch](Cluster::launch) them. A node that comes back finds what its durable groups have on
/// disk.
pub struct Cluster {
    pub(super) config: Config,
    pub(super) options: Options,
    pub(super) net: SimNet,
    pub(super) rng: Rng,
    specs: BTreeMap<NodeId, Vec<Box<dyn GroupSpec>>>,
    /// The servers for clients of nodes that do not run yet.
    pub(super) served: BTreeMap<NodeId, Vec<ServedEntry>>,
    pub(super) clients: Vec<ClientNode>,
    pipe_slots: BTreeMap<NodeId, Vec<Arc<OnePipeSlot>>>,
    pub(super) nodes: BTreeMap<NodeId, SimNode>,
    agenda: BinaryHeap<Reverse<(Time, u64, NodeId, Act)>>,
    /// Breaks ties of the agenda in the order of its entries.
    entries: u64,
    pub(super) script: Option<Script>,
    pub(super) raft: Raft,
    pub(super) disks: Disks,
    /// Nodes that lost power in the midst of a change to their disks, since they were last asked for.
    pub(super) fallen: Vec<NodeId>,
    /// The time of the script's next look.
    look_at: Time,
    /// The nodes that were started before.
    known: Vec<NodeId>,
    /// The nanoseconds by which wall clocks are ahead of the true time.
    pub(super) walls: BTreeMap<NodeId, i64>,
    /// The racks in which nodes stand.
    racks: BTreeMap<NodeId, String>,
    pub(super) policy: NodePolicy,
    /// The views that nodes had installed in lives that are over.
    past: Vec<(NodeId, Arc<View>)>,
    ready: Vec<NodeId>,
    pub(super) effects: Vec<CoreEffect>,
    pub(super) steps: u64,
}

/// The node of agenda entries for which no node acts.
pub(super) const NOBODY: NodeId = NodeId(0);

impl Cluster {
    /// A cluster of the configuration's members, which has not started. The configuration's own id does not matter.
    pub fn new(config: Config, options: Options, seed: u64) -> Cluster {
        let mut rng = Rng::with_seed(seed);
        let net = SimNet::new(options.net.clone(), rng.u64(..));
        Cluster {
            config,
            options,
            net,
            rng,
            specs: BTreeMap::new(),
            served: BTreeMap::new(),
            clients: Vec::new(),
            pipe_slots: BTreeMap::new(),
            nodes: BTreeMap::new(),
            agenda: BinaryHeap::new(),
            entries: 0,
            script: None,
            raft: Raft::default(),
            disks: Disks::default(),
            fallen: Vec::new(),
            look_at: Time::MAX,
            known: Vec::new(),
            walls: BTreeMap::new(),
            racks: BTreeMap::new(),
            policy: NodePolicy::default(),
            past: Vec::new(),
            ready: Vec::new(),
            effects: Vec::new(),
            steps: 0,
        }
    }

    /// Declares a group, with each member's replica of its service. Returns each member's handle, in the order of the
    /// members.
    ///
    /// # Panics
    ///
    /// If the cluster has started.
    pub fn group<R: Replicated>(&mut self, name: &str, mut service: impl FnMut(NodeId) -> R) -> Vec<Group<R>> {
        let members = self.config.members().to_vec();
        members.into_iter().map(|node| self.declare(node, name, service(node))).collect()
    }

    /// Declares a group of one node that does not run.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn declare<R: Replicated>(&mut self, node: NodeId, name: &str, service: R) -> Group<R> {
        assert!(!self.nodes.contains_key(&node), "groups are declared before a node starts");
        let (group, spec) = new_group(name, service, &self.config);
        self.add_spec(node, spec);
        group
    }

    pub(super) fn add_spec(&mut self, node: NodeId, spec: Box<dyn GroupSpec>) {
        self.specs.entry(node).or_default().push(spec);
    }

    /// Declares a group of several shards, as many as the configuration says, with each member's replicas. Returns each
    /// member's handles, in the order of the members.
    ///
    /// # Panics
    ///
    /// If the cluster has started.
    pub fn sharded<R: Replicated>(&mut self, name: &str, mut service: impl FnMut(NodeId, u32) -> R) -> Vec<Sharded<R>> {
        let (members, shards) = (self.config.members().to_vec(), self.config.group(name).shards);
        let mut of = |node| (0..shards).map(|shard| self.declare(node, name, service(node, shard))).collect();
        members.into_iter().map(|node| Sharded::new(name, of(node))).collect()
    }

    /// Declares a 1Pipe group of one node that does not run. The caller drives the group: with its own simulated
    /// network, and its own way to let time pass there.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn onepipe(&mut self, node: NodeId, name: &str) -> OnePipeHandle {
        assert!(!self.nodes.contains_key(&node), "groups are declared before a node starts");
        let handle = OnePipeHandle::new(name);
        self.pipe_slots.entry(node).or_default().push(handle.slot());
        handle
    }

    /// Starts all members and witnesses of the configuration, and runs until each member has installed the first view.
    pub fn start(&mut self) -> Result<(), NotStarted> {
        self.launch_all()?;
        self.wait_formed()
    }

    /// Starts all members and witnesses of the configuration.
    pub(super) fn launch_all(&mut self) -> Result<(), NotStarted> {
        for node in self.config.members().to_vec() {
            self.launch(node)?;
        }
        if self.options.view_log != ViewLogKind::Scripted {
            self.config.witnesses().to_vec().into_iter().for_each(|witness| self.launch_witness(witness));
        }
        Ok(())
    }

    /// Runs until each node that runs has installed a view, and knows the others' clocks.
    pub(super) fn wait_formed(&mut self) -> Result<(), NotStarted> {
        let limit = self.config.formation_timeout() + Duration::from_secs(1);
        let came = |node: &SimNode| node.installed.is_some() && node.core.bound().is_known() || node.ended.is_some();
        let formed = self.run_until(limit, |cluster| cluster.nodes.values().all(came));
        match self.nodes.values().find_map(|node| node.ended.clone()) {
            Some(reason) => Err(NotStarted::NotFormed(reason)),
            None if formed => Ok(()),
            None => Err(NotStarted::Late(limit)),
        }
    }

    /// Starts a node: for the first time, or again after it [crashed](Cluster::crash), as a process that knows nothing
    /// of its earlier life. It joins the group if there is one.
    ///
    /// # Panics
    ///
    /// If the node runs, or no group was declared for it.
    pub fn launch(&mut self, id: NodeId) -> Result<(), NotStarted> {
        assert!(!self.nodes.contains_key(&id), "{id} runs");
        let (specs, pipe_slots) = (self.specs.remove(&id), self.pipe_slots.remove(&id));
        let served = self.served.remove(&id).unwrap_or_default();
        assert!(specs.is_some() || pipe_slots.is_some(), "the groups of {id} were declared");
        let (mut specs, mut pipe_slots) = (specs.unwrap_or_default(), pipe_slots.unwrap_or_default());
        specs.sort_by(|a, b| a.name().cmp(b.name()));
        pipe_slots.sort_by(|a, b| a.name().cmp(b.name()));
        let groups = specs.iter().map(|spec| (spec.name(), spec.schema()));
        let pipes = pipe_slots.iter().map(|slot| slot.name());
        let plan = Plan::new(&self.config, BulkPath::Network, groups, pipes)?.heeding(&self.policy);
        let fabric = if self.known.contains(&id) {
            self.net.restart(id)
        } else {
            self.known.push(id);
            self.net.fabric(id)
        };
        let now = self.net.now();
        let clock = Clock::random(self.options.clock_drift, &mut self.rng);
        let (voter, rack) = (VoterId(self.rng.u64(1..)), self.racks.get(&id).cloned().unwrap_or_default());
        let me = Member { voter, rack, ..Member::new(id, Incarnation(now.as_nanos() + 1)) };
        let layout = (plan.settings.layout.clone(), plan.settings.policy.clone());
        let no_disk = |why: String| NotStarted::Disk { node: id, why };
        let (me, view_log) = match self.options.view_log {
            ViewLogKind::Scripted => (me.clone(), self.script(layout).log(me, clock, now)),
            kind => {
                let started = self.raft.start(&self.config, layout, me, (kind, clock, now), &mut self.rng);
                started.inspect_err(|_| self.net.crash(id)).map_err(|error| no_disk(error.to_string()))?
            }
        };
        let opened = self.open_logs(&me, &plan, &specs);
        if opened.is_err() {
            self.raft.crash(id);
            self.net.crash(id);
            if self.disks.has_crashed(id) {
                self.fallen.push(id);
            }
            self.disks.lose_power(id);
        }
        let logs = opened.map_err(|error| no_disk(error.to_string()))?;
        let server = self.server(id, served, specs.iter().zip(plan.shards.keys()));
        let launch =
            Launch { fabric: HostileFabric::new(fabric), clock, me, plan, view_log, specs, pipe_slots, logs, server };
        let node = SimNode::launch(self, launch);
        self.nodes.insert(id, node);
        self.begin_scrubs(id);
        // Nodes don't start at the same moment.
        self.step_within(id, Duration::from_micros(100));
        self.look();
        self.schedule_log(id);
        Ok(())
    }

    /// The server of a node's clients, if any of its groups serves clients.
    fn server<'a>(
        &self,
        id: NodeId,
        served: Vec<ServedEntry>,
        shards: impl Iterator<Item = (&'a Box<dyn GroupSpec>, &'a ShardId)>,
    ) -> Option<Arc<Server>> {
        if served.is_empty() {
            return None;
        }
        let mut by_name: BTreeMap<&str, Vec<ShardId>> = BTreeMap::new();
        shards.for_each(|(spec, &shard)| by_name.entry(spec.name()).or_default().push(shard));
        let served = served.into_iter().map(|entry| (by_name[entry.name.as_str()][entry.shard as usize], entry));
        Some(Arc::new(Server::new(id, served, self.config.client_bytes())))
    }

    /// Starts a witness of the configuration: for the first time, or again after it crashed.
    pub(super) fn launch_witness(&mut self, id: NodeId) {
        let now = self.net.now();
        let clock = Clock::random(self.options.clock_drift, &mut self.rng);
        let me = Member { voter: VoterId(self.rng.u64(1..)), ..Member::new(id, Incarnation(now.as_nanos() + 1)) };
        let timed = (self.options.view_log, clock, now);
        // It has no engine, so nothing needs its side of the log.
        drop(self.raft.start(&self.config, Default::default(), me, timed, &mut self.rng));
        self.schedule_log(id);
    }

    /// Whether a node is a witness, and runs.
    pub(super) fn is_witness_up(&self, node: NodeId) -> bool {
        self.config.witnesses().contains(&node) && self.raft.is_up(node)
    }

    fn script(&mut self, layout: (Layout, LayoutPolicy)) -> &mut Script {
        let (config, options, rng) = (&self.config, &self.options, &mut self.rng);
        self.script.get_or_insert_with(|| {
            let delay = options.log_delay;
            let timing = ScriptTiming { delay, election: 20 * delay, patience: 2 * config.failure_timeout() };
            Script::new(config.members().to_vec(), layout, timing, rng.fork())
        })
    }

    /// Takes away what a node's disk holds, as if the disk were new.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn wipe(&mut self, node: NodeId) {
        assert!(!self.nodes.contains_key(&node), "{node} runs");
        self.raft.wipe(node);
        self.disks.wipe(node);
    }

    /// A copy of all that a node has on disk, as it is now. A node that runs may be in the midst of a change to it.
    pub fn copy_disk(&self, node: NodeId) -> DiskCopy {
        DiskCopy { part: self.raft.copy_disk(node), logs: self.disks.copy(node) }
    }

    /// Puts a copy in the place of all that a node has on disk. The copy may come from another node.
    ///
    /// # Panics
    ///
    /// If the node runs.
    pub fn put_disk(&mut self, node: NodeId, copy: &DiskCopy) {
        assert!(!self.nodes.contains_key(&node), "{node} runs");
        self.raft.put_disk(node, copy.part.as_ref());
        self.disks.put(node, &copy.logs, &mut self.rng);
    }

    /// Sets the rack in which a node stands, from its next start on. Replicas of a shard are spread over racks.
    pub fn set_rack(&mut self, node: NodeId, rack: impl Into<String>) {
        self.racks.insert(node, rack.into());
    }

    /// Sets a node's wall clock ahead of the true time by so many nanoseconds; behind it if negative. Every wall clock
    /// is right at first.
    pub fn set_wall_clock(&mut self, node: NodeId, ahead: i64) {
        self.walls.insert(node, ahead);
        let now = self.net.now();
        if let Some(node) = self.nodes.get_mut(&node) {
            node.wall_ahead = ahead;
            node.set_clock(now);
        }
    }

    /// Lets a node's monotonic clock run at another rate from now on, in millionths of the true one. At 0 it stands
    /// still, while the network goes on: as in a virtual machine whose host stops its clock. With
    /// [`pause`](Cluster::pause), the host stops the machine and its clock.
    pub fn run_clock(&mut self, id: NodeId, millionths: u64) {
        let now = self.net.now();
        let Some(node) = self.nodes.get_mut(&id) else { return };
        node.clock = node.clock.at_rate(now, millionths);
        let clock = node.clock;
        if let Some(script) = &self.script {
            script.set_clock(id, clock);
        }
        self.raft.set_clock(id, clock);
        // The agenda is set anew: what is due by the clock is now due at another time of the network.
        self.schedule_log(id);
        self.schedule_deliveries(id);
        self.step_within(id, self.options.step_delay);
    }

    /// Lets a node's clock run at a random rate within the bound of the fault model.
    pub(super) fn drift_clock(&mut self, id: NodeId) {
        let millionths = Clock::rate(self.options.clock_drift, &mut self.rng);
        self.run_clock(id, millionths);
    }

    /// The true time of day.
    pub fn true_time(&self) -> Hlc {
        Hlc(true_time(self.net.now()))
    }

    /// Virtual time.
    pub fn now(&self) -> Time {
        self.net.now()
    }

    /// The network, to cut and slow links.
    pub fn net(&mut self) -> &mut SimNet {
        &mut self.net
    }

    /// The number of steps of all nodes.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The reason for which a node's part in its groups is over, if it is.
    pub fn end_reason(&self, node: NodeId) -> Option<&EndReason> {
        self.nodes.get(&node)?.ended.as_ref()
    }

    /// The view that a node has installed last, if it runs and was not dropped since.
    pub fn view(&self, node: NodeId) -> Option<&Arc<View>> {
        self.nodes.get(&node)?.installed.as_ref()
    }

    /// Whether a node's process exists.
    pub fn is_up(&self, node: NodeId) -> bool {
        self.nodes.contains_key(&node)
    }

    /// All views that nodes have installed, each with the node that did.
    pub(super) fn installed(&self) -> Vec<(NodeId, Arc<View>)> {
        let all =
            |(&id, node): (&NodeId, &SimNode)| node.views.iter().map(|view| (id, Arc::clone(view))).collect::<Vec<_>>();
        self.past.iter().cloned().chain(self.nodes.iter().flat_map(all)).collect()
    }

    /// Whether a node runs, is a member with all shards complete, and has not been disturbed in this life.
    pub(super) fn serves(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(SimNode::serves)
    }

    /// Whether two nodes run, and what each sends reaches the other.
    pub(super) fn reach(&self, a: NodeId, b: NodeId) -> bool {
        let runs = |node| {
            let acts = self.nodes.get(&node).is_some_and(|node| node.state == RunState::Running);
            acts || self.is_witness_up(node)
        };
        runs(a) && runs(b) && !self.net.is_cut(a, b) && !self.net.is_cut(b, a)
    }

    /// Stops a node's threads, until [`resume`](Cluster::resume). Its memory stays, and its NIC goes on.
    pub fn pause(&mut self, node: NodeId) {
        let now = self.net.now();
        if let Some(paused) = self.nodes.get_mut(&node).filter(|node| node.state == RunState::Running) {
            paused.pause(now);
            self.net.pause(node);
        }
    }

    /// Lets a paused node go on.
    pub fn resume(&mut self, node: NodeId) {
        let Some(paused) = self.nodes.get_mut(&node).filter(|node| node.state == RunState::Paused) else { return };
        paused.state = RunState::Running;
        let now = self.net.now();
        for act in std::mem::take(&mut paused.missed) {
            self.put(now, node, act);
        }
        self.net.resume(node);
        self.step_within(node, self.options.step_delay);
    }

    /// Ends a node's process at once, by taking its power away. What its callers wait for fails. What its disk had not
    /// synced may be lost.
    pub fn crash(&mut self, node: NodeId) {
        self.kill(node);
        self.disks.lose_power(node);
    }

    /// Ends a node's process at once. What it has written to its logs stays there, synced or not.
    pub fn kill(&mut self, node: NodeId) {
        let Some(crashed) = self.nodes.remove(&node) else { return };
        self.net.crash(node);
        self.break_connections_to(node);
        if let Some(script) = &self.script {
            script.crash(node);
        }
        self.past.extend(crashed.views.iter().map(|view| (node, Arc::clone(view))));
        self.raft.crash(node);
        crashed.crash();
        self.look();
    }

    /// Asks a node to leave the group. Once it has left, its part is over: [`end_reason`](Cluster::end_reason).
    pub fn leave(&mut self, node: NodeId) {
        self.with_core(node, |core, effects| core.input(Input::Leave, effects));
    }

    /// Asks a node to end the group for all members. Once it has, its part is over, and so is that of all members that
    /// it reached.
    pub fn shutdown_group(&mut self, node: NodeId) {
        self.with_core(node, |core, effects| core.input(Input::Close, effects));
    }

    /// Tells a node, as an operator does, that another is gone.
    pub fn suspect(&mut self, node: NodeId, gone: NodeId) {
        self.with_core(node, |core, effects| core.input(Input::Suspect(gone), effects));
    }

    /// Lets virtual time pass.
    pub fn run_for(&mut self, duration: Duration) {
        self.run_until(duration, |_| false);
    }

    /// Lets virtual time pass until `done` returns true, or for `limit` at most. Returns whether it is done.
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

    /// Lets virtual time pass until `future` resolves, or for `limit` at most. Returns its output, or None if it has
    /// none in time.
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

    /// Does the next thing that is due by `until`. Returns false if there is none; then the time is `until`.
    fn turn(&mut self, until: Time) -> bool {
        self.take_pokes();
        let next = self.agenda.peek().map_or(Time::MAX, |Reverse((at, ..))| *at);
        if self.net.now() < next {
            let mut ready = std::mem::take(&mut self.ready);
            self.net.advance(next.min(until), &mut ready);
            let now = self.net.now();
            self.nodes.values().for_each(|node| node.set_clock(now));
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
        let poked: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| node.is_poked()).map(|(&id, _)| id).collect();
        for node in poked {
            self.step_within(node, self.options.step_delay);
        }
    }

    pub(super) fn random(&mut self, most: Duration) -> Duration {
        random(&mut self.rng, most)
    }

    /// Puts something on the agenda.
    pub(super) fn put(&mut self, at: Time, node: NodeId, act: Act) {
        self.entries += 1;
        self.agenda.push(Reverse((at, self.entries, node, act)));
    }

    /// Puts a step of a node on the agenda, unless there is one as early.
    pub(super) fn step_within(&mut self, node: NodeId, delay: Duration) {
        let at = self.net.now() + self.random(delay);
        self.step_at(node, at);
    }

    pub(super) fn step_at(&mut self, id: NodeId, at: Time) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if at < node.step_at {
            node.step_at = at;
            self.put(at, id, Act::Step);
        }
    }

    fn act(&mut self, id: NodeId, act: Act) {
        if act == Act::Look {
            if self.look_at <= self.net.now() {
                self.look();
            }
            return;
        }
        if let Act::Client(number) = act {
            return self.client_turn(number);
        }
        match act {
            Act::Log if self.is_witness_up(id) => return self.run_log(id),
            Act::Letter(number) if self.is_witness_up(id) => return self.take_letter(id, number),
            _ => {}
        }
        let Some(node) = self.nodes.get_mut(&id) else { return };
        if node.state == RunState::Paused {
            if !node.missed.contains(&act) {
                node.missed.push(act);
            }
            return;
        }
        match act {
            _ if self.is_held_up(id, act) => self.put(self.net.now() + Duration::from_millis(1), id, act),
            // An earlier step found all that this one would.
            Act::Step if self.nodes[&id].step_at > self.net.now() => {}
            Act::Step => self.step(id),
            Act::Deliver(shard) => self.deliver(id, shard),
            Act::Fetch(shard) => self.fetch(id, shard),
            Act::Restore(shard) => self.restore(id, shard),
            Act::Log => self.run_log(id),
            Act::Letter(number) => self.take_letter(id, number),
            Act::Write(shard) => self.write(id, shard),
            Act::Note(shard) => self.note(id, shard),
            Act::Snapshot(shard) => self.take_snapshot(id, shard),
            Act::Scrub(shard) => self.scrub(id, shard),
            Act::Cut(shard) => self.cut(id, shard),
            Act::Gather => self.gather(id),
            Act::Look | Act::Client(_) => unreachable!("no node's"),
        }
        self.look_at_disk(id);
        self.serve_connections_of(id);
    }

    /// Lets the script look at what is pending.
    fn look(&mut self) {
        let Some(script) = &self.script else { return };
        let mut wakes = Vec::new();
        let next = script.look(self.net.now(), |a, b| self.reach(a, b), &mut wakes);
        self.look_at = next.unwrap_or(Time::MAX);
        if let Some(next) = next {
            self.put(next, NOBODY, Act::Look);
        }
        for (at, node) in wakes {
            self.step_at(node, at);
        }
    }

    /// Lets the script look, if something was asked of it.
    pub(super) fn look_if_asked(&mut self) {
        if self.script.as_ref().is_some_and(Script::is_fresh) {
            self.look();
        }
    }

    /// The members that a node can get a shard's state from: complete members that it reaches, itself excluded.
    pub(super) fn sources(&self, node: NodeId, shard: ShardId) -> Vec<NodeId> {
        let view = self.nodes.get(&node).and_then(|node| node.core.view());
        let complete = view.and_then(|view| view.shard(shard)).map_or(&[][..], |shard| &shard.complete);
        complete.iter().copied().filter(|&source| source != node && self.reach(node, source)).collect()
    }
}

pub(super) fn random(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_nanos(rng.u64(0..=most.as_nanos() as u64))
}
