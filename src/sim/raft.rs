//! The real view log in a simulated cluster. Each node runs its part, on its own clock. The parts' messages go through
//! the cluster's network, whose cuts and slow links affect them too.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fastrand::Rng;
use squall_fabric::{NodeId, Time, sync::Lock};
use squall_membership::{
    ClusterId, Epoch, Layout, LayoutPolicy, Member, Parameters, Proposal, Report, ReturnReport, ShardId, View,
    ViewEvent, ViewLog,
};
use squall_view_log::{
    Contact, Eligibility, NotForced, Settings, SimDisk, SimLog, Start, StartError, Timing, ViewLogStatus,
};

use super::{clock::Clock, cluster::Cluster, node::Act, options::ViewLogKind};
use crate::{config::Config, node::view_log::end_reason};

/// The parts of a cluster's view log.
#[derive(Default)]
pub(super) struct Raft {
    log_nodes: BTreeMap<NodeId, LogNode>,
    /// The disks of the parts, which outlive the lives of their nodes.
    disks: BTreeMap<NodeId, SimDisk>,
    /// Messages on their way, by number.
    letters: BTreeMap<u64, Letter>,
    sent: u64,
    decided: Arc<Lock<Decided>>,
    /// The results of each node's last force.
    forces: BTreeMap<NodeId, Came>,
}

/// The result of a force, once it is known.
type Came = Arc<Lock<Option<Result<(), NotForced>>>>;

struct LogNode {
    log: Arc<Lock<SimLog>>,
    clock: Clock,
    /// The time at which it next runs, at the latest.
    runs_at: Time,
}

struct Letter {
    from: NodeId,
    to: NodeId,
    message: Vec<u8>,
}

/// All decisions that any node was told of.
#[derive(Default)]
struct Decided {
    /// The decisions, by the life of the group, and in it by epoch.
    history: BTreeMap<(ClusterId, Epoch), Proposal>,
    /// Two decisions on the same epoch, if there ever were.
    contradiction: Option<String>,
}

impl Raft {
    /// Starts a node's part. Returns the node, as it is known to the log, and its side of the log.
    pub(super) fn start(
        &mut self,
        config: &Config,
        layout: (Layout, LayoutPolicy),
        me: Member,
        (kind, clock, now): (ViewLogKind, Clock, Time),
        rng: &mut Rng,
    ) -> Result<(Member, Box<dyn ViewLog>), StartError> {
        let node = me.node;
        let disk = (kind == ViewLogKind::RaftOnDisks)
            .then(|| self.disks.entry(node).or_insert_with(|| SimDisk::new(rng.u64(..))).clone());
        let log = SimLog::new(settings(config, layout, me), rng.u64(..), disk, clock.at(now))?;
        let me = log.me();
        let log = Arc::new(Lock::new(log));
        let side = Side { log: Arc::clone(&log), decided: Arc::clone(&self.decided) };
        self.log_nodes.insert(node, LogNode { log, clock, runs_at: Time::MAX });
        Ok((me, Box::new(side)))
    }

    /// Whether a node's part runs.
    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.log_nodes.contains_key(&node)
    }

    /// Lets a node's clock run as `clock` says from now on.
    pub(super) fn set_clock(&mut self, node: NodeId, clock: Clock) {
        if let Some(log_node) = self.log_nodes.get_mut(&node) {
            (log_node.clock, log_node.runs_at) = (clock, Time::MAX);
        }
    }

    /// Ends the part of a node whose process has ended.
    pub(super) fn crash(&mut self, node: NodeId) {
        // The power fails first: a log that is dropped in order would still write to its disk.
        if let Some(disk) = self.disks.get_mut(&node) {
            *disk = disk.crashed();
        }
        self.log_nodes.remove(&node);
        self.letters.retain(|_, letter| letter.to != node);
    }

    /// Takes away what the disk of a node that does not run holds.
    pub(super) fn wipe(&mut self, node: NodeId) {
        self.disks.remove(&node);
    }

    /// A copy of what a node's disk holds of its part, as it is now.
    pub(super) fn copy_disk(&self, node: NodeId) -> Option<SimDisk> {
        self.disks.get(&node).map(SimDisk::copy)
    }

    /// Puts a copy in the place of what a node's disk holds.
    pub(super) fn put_disk(&mut self, node: NodeId, disk: Option<&SimDisk>) {
        match disk {
            Some(disk) => drop(self.disks.insert(node, disk.copy())),
            None => drop(self.disks.remove(&node)),
        }
    }

    /// The status of a running node's part.
    pub(super) fn status(&self, node: NodeId) -> Option<ViewLogStatus> {
        Some(self.log_nodes.get(&node)?.log.lock().status())
    }

    /// Lets a node tell the others that their group lacks what it has.
    pub(super) fn say_went_back(&self, node: NodeId) {
        if let Some(log_node) = self.log_nodes.get(&node) {
            log_node.log.lock().say_went_back();
        }
    }

    /// A node that runs, as it is known to the log or as it asks to be.
    pub(super) fn me(&self, node: NodeId) -> Option<Member> {
        Some(self.log_nodes.get(&node)?.log.lock().me())
    }

    /// Whether a node that runs has anything of the log.
    pub(super) fn has_part(&self, node: NodeId) -> bool {
        let eligibility = self.log_nodes.get(&node).and_then(|log_node| log_node.log.lock().eligibility());
        eligibility.is_some_and(|eligibility| !eligibility.voters().is_empty())
    }

    /// The decisions, in order.
    pub(super) fn history(&self) -> Vec<Proposal> {
        self.decided.lock().history.values().cloned().collect()
    }

    /// Two decisions on one epoch of a life, if there ever were.
    pub(super) fn contradiction(&self) -> Option<String> {
        self.decided.lock().contradiction.clone()
    }

    /// The nodes that could lead the log, of those that run and reach each other, with their eligibility.
    pub(super) fn leaders(&self, reach: impl Fn(NodeId, NodeId) -> bool) -> Vec<(NodeId, Eligibility)> {
        let eligibility = |(&node, log_node): (&NodeId, &LogNode)| {
            let log = log_node.log.lock();
            log.eligibility().filter(|_| log.failure().is_none()).map(|eligibility| (node, eligibility))
        };
        let eligible: Vec<(NodeId, Eligibility)> = self.log_nodes.iter().filter_map(eligibility).collect();
        let can_lead = |(node, eligibility): &&(NodeId, Eligibility)| {
            let reached = eligible.iter().filter(|(other, _)| other == node || reach(*node, *other));
            reach(*node, *node) && eligibility.can_lead(reached.map(|(_, eligibility)| eligibility))
        };
        eligible.iter().filter(can_lead).cloned().collect()
    }
}

/// The settings that a part is started with. Its timing is scaled by the failure timeout: the default timing belongs to
/// a failure timeout of one second.
fn settings(config: &Config, (layout, policy): (Layout, LayoutPolicy), me: Member) -> Settings {
    let contacts = |nodes: &[NodeId]| -> Vec<Contact> {
        nodes.iter().map(|&node| Contact { node: Some(node), addresses: Vec::new() }).collect()
    };
    let (members, witnesses) = (contacts(config.members()), contacts(config.witnesses()));
    let start = if config.members().contains(&me.node) {
        Start::List { members, witnesses }
    } else if config.witnesses().contains(&me.node) {
        Start::Witness { contacts: members }
    } else {
        Start::Join { contacts: members }
    };
    let usual = Timing::default();
    let scale = |time: Duration| (time * config.failure_timeout().as_micros() as u32 / 1_000_000).max(MILLI);
    let timing = Timing {
        heartbeat: scale(usual.heartbeat),
        election: (scale(usual.election.0).max(2 * MILLI), scale(usual.election.1).max(3 * MILLI)),
        // Hellos more often than the log's own beat would only make the log forget which nodes have called.
        hello: scale(usual.hello).max(20 * MILLI),
        no_quorum: scale(usual.no_quorum),
        withdraw: scale(usual.withdraw),
        formation: Some(config.formation_timeout()),
    };
    let (parameters, voters) = (Parameters::default(), config.voters().map(<[NodeId]>::to_vec));
    Settings { cluster: config.cluster().to_owned(), me, layout, policy, parameters, start, voters, timing }
}

const MILLI: Duration = Duration::from_millis(1);

/// A node's side of its part. The log itself runs on a thread of its own.
struct Side {
    log: Arc<Lock<SimLog>>,
    decided: Arc<Lock<Decided>>,
}

impl ViewLog for Side {
    fn propose(&mut self, proposal: Proposal) {
        self.log.lock().propose(proposal);
    }

    fn join(&mut self, me: Member) {
        self.log.lock().join(me);
    }

    fn report(&mut self, to: &View, report: Report) {
        self.log.lock().report(to, report);
    }

    fn report_return(&mut self, back: ReturnReport) {
        self.log.lock().report_return(back);
    }

    fn peer_gone(&mut self, node: NodeId) {
        self.log.lock().peer_gone(node);
    }

    fn poll(&mut self, _now: Time) -> Option<ViewEvent> {
        let event = self.log.lock().event()?;
        if let ViewEvent::Committed(proposal) = &event {
            let Decided { history, contradiction } = &mut *self.decided.lock();
            let place = (proposal.view.life, proposal.view.epoch);
            let first = history.entry(place).or_insert_with(|| proposal.clone());
            if first != proposal {
                contradiction.get_or_insert_with(|| format!("both {first:?} and {proposal:?} were decided"));
            }
        }
        Some(event)
    }
}

impl Cluster {
    /// Lets a node's part of the log do what it was asked for, and what is due.
    pub(super) fn run_log(&mut self, id: NodeId) {
        let now = self.net.now();
        let Some(log_node) = self.raft.log_nodes.get_mut(&id) else { return };
        if log_node.runs_at <= now {
            log_node.runs_at = Time::MAX;
        }
        let mut log = log_node.log.lock();
        log.advance(log_node.clock.at(now));
        let (outgoing, has_events, failure) = (log.outgoing(), log.has_events(), log.failure());
        drop(log);
        for (to, message) in outgoing {
            if let Some(to) = to.node {
                self.mail(id, to, message);
            }
        }
        if let Some(failure) = failure
            && self.nodes.get(&id).is_some_and(|node| node.ended.is_none())
        {
            self.with_core(id, |core, effects| core.fail(end_reason(id, failure), effects));
        } else if has_events {
            self.step_within(id, self.options.step_delay);
        }
        self.schedule_log(id);
    }

    /// The sentences that a node has about its group, if the group has gone back, from nodes that know more of it.
    /// `squall status` shows them.
    pub fn went_back(&self, node: NodeId) -> Vec<String> {
        self.raft.status(node).map(|status| status.went_back).unwrap_or_default()
    }

    /// Lets an operator force a node to go on alone, as `squall recover --force` does. Returns the numbers of the
    /// shards that start empty in the group's new life, or the reason for a refusal. The result shows a second later,
    /// in [`recovered`](Cluster::recovered) and the node's [view](Cluster::view).
    pub fn recover(&mut self, id: NodeId, reason: &str) -> Result<Vec<u32>, String> {
        let node = self.nodes.get(&id).ok_or_else(|| format!("{id} does not run"))?;
        let log_node = self.raft.log_nodes.get(&id).ok_or("its views are decided by a script")?;
        let (log, membership) = (log_node.log.lock().status(), node.core.membership());
        let is_stuck = node.is_stalled || node.core.view().is_none() && !log.waits_for.is_empty();
        let (proposal, anew) = match node.core.view() {
            _ if !is_stuck => return Err(format!("{id} does not stand still")),
            Some(_) => membership.forced().ok_or("what follows its view is decided meanwhile")?,
            None => membership.forced_from_disk(log.outside.as_ref()).ok_or("it was no member of the last view")?,
        };
        let log_writer = |shard: &ShardId| node.groups.get(shard)?.control.log_writer();
        if let Some(shard) = anew.iter().find(|shard| log_writer(shard).is_some_and(|log_writer| log_writer.is_stale()))
        {
            return Err(format!("its replica of {shard} is not what its log says"));
        }
        let came = Came::default();
        self.raft.forces.insert(id, Arc::clone(&came));
        log_node.log.lock().force(proposal, reason.to_owned(), move |result| *came.lock() = Some(result));
        self.schedule_log(id);
        Ok(anew.into_iter().map(|ShardId(shard)| shard).collect())
    }

    /// The number of the group's life in which a node takes part, or did before its process ended.
    pub fn life(&self, node: NodeId) -> Option<u64> {
        self.raft.status(node)?.cluster.map(|ClusterId(life)| life)
    }

    /// The result of the last [force](Cluster::recover) of a node. None as long as the node asks whether it may.
    pub fn recovered(&self, node: NodeId) -> Option<Result<(), String>> {
        let came = self.raft.forces.get(&node)?.lock().clone()?;
        Some(came.map_err(|why| why.to_string()))
    }

    /// Whether nothing can be decided at a node for now, as the node tells its operators.
    pub fn is_stalled(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.is_stalled)
    }

    /// A node in another life of the group, as this node tells its operators. An operator has forced that life, and
    /// this node does not go over to it by itself.
    pub fn other_life(&self, node: NodeId) -> Option<NodeId> {
        self.raft.status(node)?.other_life
    }

    fn mail(&mut self, from: NodeId, to: NodeId, message: Vec<u8>) {
        let delay = self.net.latency(from, to) + self.random(self.options.log_delay);
        if self.net.is_cut(from, to) || !self.raft.is_up(to) {
            return;
        }
        self.raft.sent += 1;
        let number = self.raft.sent;
        self.raft.letters.insert(number, Letter { from, to, message });
        self.put(self.net.now() + delay, to, Act::Letter(number));
    }

    /// Lets a message for a node's part of the log arrive, unless the link is cut or the part does not run. A node that
    /// is paused takes it later.
    pub(super) fn take_letter(&mut self, to: NodeId, number: u64) {
        let Some(Letter { from, message, .. }) = self.raft.letters.remove(&number) else { return };
        let Some(log_node) = self.raft.log_nodes.get(&to).filter(|_| !self.net.is_cut(from, to)) else { return };
        log_node.log.lock().incoming(from, message);
        self.run_log(to);
    }

    /// Puts on the agenda what a node's part of the log has to do.
    pub(super) fn schedule_log(&mut self, id: NodeId) {
        let now = self.net.now();
        let Some(LogNode { log, clock, .. }) = self.raft.log_nodes.get(&id) else { return };
        let (log, clock) = (log.lock(), *clock);
        let (has_inputs, next) = (log.has_inputs(), log.next_run());
        drop(log);
        let at = match next {
            // A request of its engine reaches the log's thread a little later.
            _ if has_inputs => now + self.random(self.options.step_delay),
            Some(at) => clock.when(at).max(now),
            None => return,
        };
        let log_node = self.raft.log_nodes.get_mut(&id).expect("it was just there");
        if at < log_node.runs_at {
            log_node.runs_at = at;
            self.put(at, id, Act::Log);
        }
    }
}
