//! Random clusters, loads and faults, and what must hold after each.
//!
//! Each seed makes one scenario. It decides the number of members, the nodes that send, and the sizes of the rings and
//! the messages. It also decides how bad the network is, what clients do, and which nodes crash, come back, join,
//! leave, are paused or cut off, and at which times. During the scenario and after it, the following must hold:
//!
//! - There is one view of each epoch, and the members of a view that go on to the next have delivered the same before
//!   it.
//! - All replicas applied the same messages in the same order, as far as each came: no gap, no repetition. One that
//!   joined goes on from the state that it was given.
//! - Each client's messages are applied in its order, byte for byte.
//! - No linearizable read is older than what was complete, anywhere, before it began.
//! - What was acknowledged, or said to be delivered, is in the log, and what was said not to be delivered is not.
//!   Nothing that a member submitted is lost while it stays one.
//! - Every operation that waits gets an answer.
//! - Once the faults are over, a group that has a quorum and its state serves again, in bounded virtual time.
//!
//! Some groups have a witness, or fixed voters. In some, a member or the witness dies while the first view forms. On
//! some hosts connections take so long that a view needs several failure timeouts until it is connected. Clocks run at
//! other rates from random moments on; where no member reads under a lease, they also stand still for a while.
//!
//! About half of the ordered groups are durable. Then all nodes also lose power at once, in the midst of writes too,
//! and come back in any order, some late, some never. One disk fills up, fails a sync, rots, or is replaced. After
//! that, the following must hold:
//!
//! - What was acknowledged, or shown by a linearizable read, is in every replica.
//! - All logs on disk agree with each other, version by version, and with the replicas.
//! - A group comes back by itself if enough disks do.

mod client;
mod disks;
mod faults;
mod forming;
mod ledger;
mod verify;

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time, sync::Lock};
use squall_membership::{ShardId, ShardState, ShardView, View};
use squall_ordered::Mode;
use squall_view_log::Eligibility;

use self::{
    client::{Later, WaitingOperation},
    faults::Faults,
    ledger::{Ledger, Log, Sizes},
};
use super::{
    check::Applied,
    cluster::Cluster,
    options::{Options, ViewLogKind},
};
use crate::{config::Config, group::handle::Group, sim::SimConfig};

/// The results of a run in which everything held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The number of members that the cluster had at first.
    pub members: usize,
    /// The number of messages that were acknowledged.
    pub messages: usize,
    /// The number of linearizable reads that were answered.
    pub reads: usize,
    /// The number of views that were decided after the first.
    pub views: usize,
    /// The number of faults that were carried out: nodes that crashed, left or joined, pauses, cuts and the like. The
    /// end of a fault does not count.
    pub faults: usize,
    /// The virtual time at the run's end, from 0.
    pub virtual_time: Duration,
    /// The number of steps of all nodes.
    pub steps: u64,
    /// A number over all that was applied and read: equal seeds give equal ones.
    pub digest: u64,
}

/// A violation of something that must hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, at {at}: {what}")]
pub struct Violation {
    /// The scenario's seed.
    pub seed: u64,
    /// The virtual time of the violation.
    pub at: Time,
    /// A description of what did not hold.
    pub what: String,
}

/// Runs the scenario of a seed.
pub fn run(seed: u64) -> Result<Report, Violation> {
    Scenario::new(seed, false, None).run()
}

/// Runs the scenario of a seed as [`run`] does, and tells each operation and fault as it happens; with `network` also
/// what the network does.
pub fn replay(seed: u64, network: bool, tell: &mut dyn FnMut(Time, &str)) -> Result<Report, Violation> {
    Scenario::new(seed, network, Some(tell)).run()
}

/// Takes the lines of a readable trace.
type Trace<'a> = &'a mut dyn FnMut(Time, &str);

/// A writer of a readable trace, if there is a listener.
struct Teller<'a> {
    trace: Option<Trace<'a>>,
    /// The events of the network that were not told yet.
    network: Arc<Lock<Vec<(Time, String)>>>,
}

impl Teller<'_> {
    /// Tells what the network did since the last time.
    fn tell_network(&mut self) {
        let events = std::mem::take(&mut *self.network.lock());
        if let Some(trace) = &mut self.trace {
            for (at, event) in events {
                trace(at, &event);
            }
        }
    }

    fn tell(&mut self, at: Time, line: impl FnOnce() -> String) {
        self.tell_network();
        if let Some(trace) = &mut self.trace {
            trace(at, &line());
        }
    }
}

/// A node that takes part, or did.
struct SimPeer {
    node: NodeId,
    group: Group<Ledger>,
    log: Log,
    is_up: bool,
    is_paused: bool,
    /// Whether it was asked to leave.
    leaves: bool,
}

struct Scenario<'a> {
    seed: u64,
    rng: Rng,
    cluster: Cluster,
    peers: Vec<SimPeer>,
    /// The logs of nodes' lives that are over.
    past: Vec<(NodeId, Log)>,
    senders: Vec<NodeId>,
    /// Whether the group keeps a log on disk.
    durable: bool,
    /// Whether members read under leases. If so, their clocks must run.
    leases: bool,
    /// Whether the group is in ordered mode. Else each sender's messages have only their own order, there are no reads,
    /// and no node joins.
    ordered: bool,
    /// The next number of each client, by sender and client.
    numbers: BTreeMap<(NodeId, u32), u64>,
    waiting: Vec<WaitingOperation>,
    /// The acknowledged messages, each with its place in the log.
    acknowledged: Vec<(u64, Applied)>,
    /// The messages that have no reply and are delivered, as their submitters were told, in the order of the answers.
    /// `later` has the answers to operations that began after such an answer.
    delivered: Vec<Applied>,
    later: Vec<Later>,
    /// The messages that are not delivered, as their submitters were told. `unknown` has the messages of which their
    /// submitters were told nothing certain.
    refused: BTreeSet<Applied>,
    unknown: BTreeSet<Applied>,
    /// The length of the longest log that any completed operation has shown.
    seen: u64,
    /// The longest log that was shown, in durable mode.
    shown: Vec<Applied>,
    reads: usize,
    faults: Faults,
    /// Whether no fault is expected to break anything, so that everything must come through.
    calm: bool,
    sizes: Sizes,
    teller: Teller<'a>,
    digest: squall_sst::Fingerprint,
    /// The random choices of the group's formation and its witness, drawn apart from all else.
    forming: Rng,
}

/// The mask that turns a scenario's seed into the one for the choices about a durable group.
const DURABLE: u64 = 0xd1_5c00_0000;

/// The mask that turns a scenario's seed into the one for the choices about the group's formation and its voters.
const FORMING: u64 = 0xf0_4e00_0000;

/// The node that votes and is no member, where there is one.
const WITNESS: NodeId = NodeId(100);

/// The shard of the only group.
const SHARD: ShardId = ShardId(0);

/// The time after the last fault within which every operation that waits must have an answer, and every node that can
/// serve must do so.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time for which nodes of a durable group that come back wait for the others. Not all come before it is over.
const RESTART_WAIT: Duration = Duration::from_millis(50);

/// The number of times that nodes are asked within [`PATIENCE`] whether they serve.
const ATTEMPTS: u32 = 50;

impl<'a> Scenario<'a> {
    fn new(seed: u64, network: bool, trace: Option<Trace<'a>>) -> Scenario<'a> {
        let mut rng = Rng::with_seed(seed);
        let members = rng.usize(2..=9);
        let ids: Vec<u32> = (1..=members as u32).collect();
        let ring_bytes = 1usize << rng.u32(10..=15);
        // None, one that is often full, and larger ones that take several of the large messages of most runs.
        let reserve = [0, 4 << 10, 16 << 10, 64 << 10][rng.usize(0..4)];
        let threshold = [0, 300, 1000, 10 << 10][rng.usize(0..4)];
        let sizes = Sizes::random(ring_bytes, threshold, reserve, &mut rng);
        let mut senders: Vec<u32> = ids.iter().copied().filter(|_| rng.u8(0..4) > 0).collect();
        if senders.is_empty() {
            senders.push(ids[rng.usize(0..members)]);
        }
        // With a list, a node that joins may not send.
        let all_send = rng.bool();
        if all_send {
            senders = (1..=faults::LAST_JOINER).collect();
        }
        let ordered = rng.u8(0..6) > 0;
        let mut net = if rng.u8(0..5) == 0 { SimConfig::nasty() } else { SimConfig::fast() };
        let calm = rng.u8(0..4) == 0;
        if !calm && rng.u8(0..4) == 0 {
            // Members are given up long before their leases are over.
            net.failure_timeout = Duration::from_millis(1);
        }
        // None, one that is often renewed, and two that outlast most of the run.
        let lease = [0, 200, 15_000, 20_000][rng.usize(0..4)];
        // The script tells nodes things in ways that Raft hardly would.
        let view_log =
            [ViewLogKind::Scripted, ViewLogKind::Raft, ViewLogKind::Raft, ViewLogKind::RaftOnDisks][rng.usize(0..4)];
        // Drawn apart, so that the other scenarios don't depend on it.
        let mut apart = Rng::with_seed(seed ^ DURABLE);
        let durable = ordered && apart.bool();
        let view_log = if durable { ViewLogKind::RaftOnDisks } else { view_log };
        // Even the smallest batch takes all views of a run.
        let (segment_bytes, batch_bytes) = (8192 << apart.u32(0..4), 4096 << apart.u32(0..5));
        let mut forming = Rng::with_seed(seed ^ FORMING);
        if forming.u8(0..8) == 0 {
            net.connect_time = Duration::from_micros(forming.u64(0..=10_000));
        }
        let options = Options { net, view_log, segment_bytes, batch_bytes, ..Options::default() };
        // Snapshots are taken as often as possible, or never. They take all of the log before them along, most of it,
        // or none.
        let snapshot_bytes = [64 << 10, 256 << 20][usize::from(apart.u8(0..3) == 0)];
        let retain = [None, Some(0), Some(64 << 10)][apart.usize(0..3)];
        let has_log = view_log != ViewLogKind::Scripted;
        let (with_witness, with_voters) = (has_log && forming.u8(0..4) == 0, has_log && forming.u8(0..4) == 0);
        let mut config = Config::builder("scenario", 1).members(ids.iter().copied());
        if with_witness {
            config = config.witnesses([WITNESS.0]);
        }
        if with_voters {
            let count = [1, 3, 5][forming.usize(0..3)];
            let mut voters: Vec<u32> = ids.iter().copied().chain(with_witness.then_some(WITNESS.0)).collect();
            forming.shuffle(&mut voters);
            voters.truncate(count.min(voters.len() - usize::from(voters.len().is_multiple_of(2))));
            // The first of the list begins the log, and must vote.
            if !voters.contains(&1) {
                voters[0] = 1;
            }
            config = config.voters(voters);
        }
        let config = config
            .failure_timeout(Duration::from_millis(20))
            .read_lease(Duration::from_micros(lease))
            .restart_wait(if durable { RESTART_WAIT } else { PATIENCE * 2 })
            .storage("simulated")
            .group("ledger", |group| {
                let mode = match ordered {
                    _ if durable => Mode::Durable,
                    true => Mode::Ordered,
                    false => Mode::Unordered,
                };
                group.mode(mode).ring_bytes(ring_bytes).bulk_threshold(threshold).bulk_reserve(reserve);
                group.max_waiting(64).snapshot_bytes(snapshot_bytes);
                if let Some(bytes) = retain {
                    group.retain(bytes);
                }
                if !all_send {
                    group.senders(senders.iter().copied());
                }
            })
            .build()
            .expect("the scenario's configuration is valid");
        let nodes: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let logs: Vec<Log> = nodes.iter().map(|_| Log::new(durable)).collect();
        let mut replicas = logs.iter();
        let groups = cluster.group("ledger", |_| Ledger(replicas.next().expect("a log for each node").clone()));
        let events = Arc::new(Lock::new(Vec::new()));
        if network {
            let events = Arc::clone(&events);
            cluster.net().set_trace(Some(Box::new(move |at, event| {
                events.lock().push((at, event.to_string()));
            })));
        }
        let peer = |((node, group), log)| SimPeer { node, group, log, is_up: true, is_paused: false, leaves: false };
        Scenario {
            seed,
            rng,
            cluster,
            peers: nodes.into_iter().zip(groups).zip(logs).map(peer).collect(),
            past: Vec::new(),
            senders: senders.into_iter().map(NodeId).collect(),
            durable,
            leases: lease > 0,
            ordered,
            numbers: BTreeMap::new(),
            waiting: Vec::new(),
            acknowledged: Vec::new(),
            delivered: Vec::new(),
            later: Vec::new(),
            refused: BTreeSet::new(),
            unknown: BTreeSet::new(),
            seen: 0,
            shown: Vec::new(),
            reads: 0,
            faults: Faults::default(),
            calm,
            sizes,
            teller: Teller { trace, network: events },
            digest: squall_sst::Fingerprint::default(),
            forming,
        }
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.teller.tell(self.cluster.now(), line);
    }

    fn run(mut self) -> Result<Report, Violation> {
        // A failed assertion of the protocols counts as a violation.
        let played = panic::catch_unwind(AssertUnwindSafe(|| self.play()));
        let result = played.unwrap_or_else(|panic| Err(format!("panicked: {}", words(&*panic))));
        self.teller.tell_network();
        result.map_err(|what| Violation { seed: self.seed, at: self.cluster.now(), what })
    }

    fn play(&mut self) -> Result<Report, String> {
        self.form()?;
        let (members, senders) = (self.peers.len(), self.senders.len());
        self.tell(|| format!("{members} members have formed a view; {senders} nodes may send"));
        let rounds = self.rng.usize(100..=400);
        // From members that are mostly idle to members that are always busy.
        let (slice, burst) = (self.rng.u64(1_000..=20_000), self.rng.usize(1..=members));
        self.plan_faults(Duration::from_nanos(slice / 2 * rounds as u64));
        self.plan_faults_of_the_witness(Duration::from_nanos(slice / 2 * rounds as u64));
        for _ in 0..rounds {
            let slice = Duration::from_nanos(self.rng.u64(100..=slice));
            self.cluster.run_for(slice);
            self.inject()?;
            for _ in 0..burst {
                self.begin();
            }
            self.answer()?;
        }
        self.settle()?;
        self.serve_again()?;
        self.verify()?;
        if self.durable {
            self.verify_disks()?;
        }
        Ok(Report {
            seed: self.seed,
            members,
            messages: self.acknowledged.len(),
            reads: self.reads,
            views: self.cluster.history().len() - 1,
            faults: self.faults.injected,
            virtual_time: self.cluster.now().since(Time::ZERO),
            steps: self.cluster.steps(),
            digest: self.digest.value(),
        })
    }

    fn peer(&mut self, node: NodeId) -> Option<&mut SimPeer> {
        self.peers.iter_mut().find(|peer| peer.node == node)
    }

    /// Waits until the faults are over, every operation has an answer, and all nodes that can serve have come to the
    /// same.
    fn settle(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        while waited < PATIENCE {
            self.inject()?;
            self.answer()?;
            let over = self.faults.are_over();
            if !over {
                // Clients go on while a member is cut off: it must not answer from what is over elsewhere.
                self.begin();
            }
            if over && self.waiting.is_empty() && self.is_settled() {
                return Ok(());
            }
            let slice = Duration::from_micros(if !over || waited < Duration::from_millis(5) { 100 } else { 1000 });
            self.cluster.run_for(slice);
            waited += if over { slice } else { Duration::ZERO };
        }
        match self.waiting.first() {
            Some(w) => {
                let (node, what) = (w.node, w.what);
                Err(format!("{node}: {what:?} has no answer after {PATIENCE:?}: {}", self.member_states()))
            }
            None => Err(format!("the members have not come to the same after {PATIENCE:?}: {}", self.member_states())),
        }
    }

    /// A description of how far each node is.
    fn member_states(&self) -> String {
        let one = |peer: &SimPeer| {
            let view = self.cluster.view(peer.node).map(|view| view.epoch.0);
            let end = self.cluster.end_reason(peer.node).map(ToString::to_string);
            let len = peer.log.book().entries.len();
            format!("{} (up: {}, view: {view:?}, end: {end:?}, entries: {len})", peer.node, peer.is_up)
        };
        let (last, log) = (self.cluster.decided(), self.cluster.log_leader());
        let peers = self.peers.iter().map(one).collect::<Vec<_>>().join(", ");
        format!("{peers}; the last view: {last:?}; its log: {log:?}")
    }

    /// Whether the group cannot serve: too few voters are left to decide, or less than half of the view, or no node has
    /// the state.
    fn is_lost(&self) -> bool {
        let Some(view) = self.cluster.decided() else { return !self.cluster.has_quorum() };
        let left = view.members.iter().filter(|member| self.cluster.lives(member)).count();
        let goes_on = left > 0 && 2 * left >= view.members.len() || self.durable && self.restarts(&view);
        let is_suspended = match view.shard(SHARD).map(|shard| &shard.state) {
            Some(ShardState::Suspended { .. }) => {
                let waits_for = view.shard(SHARD).map(ShardView::waits_for).unwrap_or_default();
                !self.durable || !self.reopens(&waits_for)
            }
            state => state.is_none(),
        };
        !self.cluster.has_quorum() || !goes_on || is_suspended
    }

    /// Whether enough members of a view run, again or still, with what they have on disk.
    fn restarts(&self, view: &View) -> bool {
        let back = view.members.iter().filter(|member| self.cluster.is_back(member)).count();
        2 * back > view.members.len()
    }

    /// Whether a suspended state must go on: all nodes that had it last, or before, run, and none of their disks was
    /// lost.
    fn reopens(&self, waits_for: &[NodeId]) -> bool {
        let has_lost = |node: NodeId| self.faults.has_lost && self.faults.victim == Some(node);
        waits_for.iter().all(|&node| self.cluster.is_up(node) && !has_lost(node))
    }

    /// The nodes that run, did not leave, and can find the group.
    fn living(&self) -> impl Iterator<Item = &SimPeer> {
        self.peers.iter().filter(|peer| peer.is_up && !peer.leaves && !self.cluster.is_adrift(peer.node))
    }

    fn is_settled(&self) -> bool {
        if self.is_lost() {
            return true;
        }
        let Some(last) = self.cluster.decided() else { return false };
        let shard = last.shard(SHARD).expect("the group has a shard");
        let lens: BTreeSet<usize> = self.living().map(|peer| peer.log.book().entries.len()).collect();
        let is_in = |peer: &SimPeer| self.cluster.view(peer.node) == Some(&last) && shard.is_complete(peer.node);
        let left = self.peers.iter().filter(|peer| peer.is_up && peer.leaves);
        left.into_iter().all(|peer| self.cluster.end_reason(peer.node).is_some())
            && last.members.len() == self.living().count()
            && self.living().all(is_in)
            && (lens.len() <= 1 || !self.ordered)
            && (!self.durable || self.living().all(|peer| self.cluster.is_written(peer.node)))
            && (self.cluster.config.voters().is_some()
                || self.cluster.log_leader().is_none_or(|leader| voters_follow(&leader, &last)))
    }

    /// Asks every node for one thing more, until each has served or the group is lost.
    fn serve_again(&mut self) -> Result<(), String> {
        let (mut asked, mut answered) = (0, 0);
        for _ in 0..ATTEMPTS {
            if self.is_lost() {
                self.tell(|| "too few nodes have come back to go on, or none with the state".to_owned());
                return Ok(());
            }
            let before = self.acknowledged.len() + self.reads;
            asked = 0;
            for node in self.living().map(|peer| peer.node).collect::<Vec<_>>() {
                if self.senders.contains(&node) {
                    asked += usize::from(self.append(node, 0));
                } else if self.ordered {
                    self.read(node);
                    asked += 1;
                }
            }
            self.settle()?;
            answered = self.acknowledged.len() + self.reads - before;
            if answered >= asked {
                return Ok(());
            }
            // A node may just have come back to a group that did not notice that it was away.
            self.cluster.run_for(PATIENCE / ATTEMPTS);
        }
        Err(format!("after the faults, {answered} of {asked} operations were served: {}", self.member_states()))
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without words")
}

/// Whether the right members vote: as many as make an odd number up to five. Two members keep the third voter that
/// there was.
fn voters_follow(leader: &Eligibility, view: &View) -> bool {
    let voters = leader.voters();
    let are_members = voters.iter().all(|voter| view.members.iter().any(|member| member.voter == *voter));
    let members = view.members.len().min(5);
    let odd = members - usize::from(members.is_multiple_of(2));
    !leader.is_changing() && (view.members.len() == 2 && voters.len() <= 3 || voters.len() == odd && are_members)
}
