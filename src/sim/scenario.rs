//! Random clusters, loads and faults, and what must hold after each.
//!
//! One seed makes one scenario: how many members, who sends, how large the rings and the messages are, how bad the network is,
//! what clients do, who crashes, comes back, joins, leaves, is paused or cut off, and when. After it, and during it:
//!
//! - there is one view of each epoch, and the members of a view that go on to the next have delivered the same before it;
//! - all replicas applied the same messages in the same order, as far as each came: no gap, no repetition; one that joined
//!   goes on from the state that it was given;
//! - each client's messages are applied in its order, byte for byte;
//! - no linearizable read is older than what was complete, anywhere, before it began;
//! - what was acknowledged is in the log, what was said not to be delivered is not, and nothing that a member submitted is lost
//!   while it stays one;
//! - whatever waits gets an answer;
//! - once the faults are over, a group that has a quorum and its state serves again, in bounded virtual time.

mod client;
mod faults;
mod ledger;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_membership::{EndReason, ShardId, ShardState};
use squall_ordered::Mode;

use self::{
    client::Waiting,
    faults::Faults,
    ledger::{Ledger, Log, Sizes},
};
use super::{
    check::{self, Applied},
    cluster::{Cluster, Options},
};
use crate::{config::Config, group::Group, sim::SimConfig};

/// What a run did, if everything held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// How many members the cluster had.
    pub members: usize,
    /// Messages acknowledged.
    pub messages: usize,
    /// Linearizable reads answered.
    pub reads: usize,
    /// The views that were decided after the first.
    pub views: usize,
    /// Whatever went wrong on purpose: nodes that crashed, left or joined, pauses, cuts.
    pub faults: usize,
    /// How far virtual time came.
    pub virtual_time: Duration,
    /// How often a node was stepped.
    pub steps: u64,
    /// A number over all that was applied and read: equal seeds give equal ones.
    pub digest: u64,
}

/// Something that must hold did not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, at {at}: {what}")]
pub struct Violation {
    /// The scenario's seed.
    pub seed: u64,
    /// When, in virtual time.
    pub at: Time,
    /// What did not hold.
    pub what: String,
}

/// Runs the scenario of a seed.
pub fn run(seed: u64) -> Result<Report, Violation> {
    Scenario::new(seed, false, None).run()
}

/// Runs the scenario of a seed as [`run`] does, and tells each operation and fault as it happens; with `network` also what
/// the network does.
pub fn replay(seed: u64, network: bool, tell: &mut dyn FnMut(Time, &str)) -> Result<Report, Violation> {
    Scenario::new(seed, network, Some(tell)).run()
}

/// Takes the lines of a readable trace.
type Trace<'a> = &'a mut dyn FnMut(Time, &str);

/// Tells what happens, if somebody listens.
struct Teller<'a> {
    trace: Option<Trace<'a>>,
    /// What the network did and was not told yet.
    network: Arc<Mutex<Vec<(Time, String)>>>,
}

impl Teller<'_> {
    /// Tells what the network did since the last time.
    fn tell_network(&mut self) {
        let events = std::mem::take(&mut *self.network.lock().unwrap_or_else(PoisonError::into_inner));
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
struct Peer {
    node: NodeId,
    group: Group<Ledger>,
    log: Log,
    is_up: bool,
    is_paused: bool,
    /// It was asked to leave.
    leaves: bool,
}

struct Scenario<'a> {
    seed: u64,
    rng: Rng,
    cluster: Cluster,
    peers: Vec<Peer>,
    /// The logs of those lives of nodes that are over.
    past: Vec<(NodeId, Log)>,
    senders: Vec<NodeId>,
    /// In ordered mode; else each sender's messages have only their own order, there are no reads, and nobody joins.
    ordered: bool,
    /// By sender and client: the next number.
    numbers: BTreeMap<(NodeId, u32), u64>,
    waiting: Vec<Waiting>,
    /// Acknowledged: where each message is in the log.
    acknowledged: Vec<(u64, Applied)>,
    /// Not delivered, as their submitters were told; and those of which they were told nothing certain.
    refused: BTreeSet<Applied>,
    unknown: BTreeSet<Applied>,
    /// The longest log that any completed operation has shown.
    seen: u64,
    reads: usize,
    faults: Faults,
    /// Nothing is expected to break, so everything must come through.
    calm: bool,
    sizes: Sizes,
    teller: Teller<'a>,
    digest: squall_sst::Fingerprint,
}

/// The one group's shard.
const SHARD: ShardId = ShardId(0);

/// Whatever waits must have an answer, and whoever can serve must, within this time after the last fault.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often nodes are asked, in this time, whether they serve.
const ATTEMPTS: u32 = 50;

impl<'a> Scenario<'a> {
    fn new(seed: u64, network: bool, trace: Option<Trace<'a>>) -> Scenario<'a> {
        let mut rng = Rng::with_seed(seed);
        let members = rng.usize(2..=7);
        let ids: Vec<u32> = (1..=members as u32).collect();
        let ring_bytes = 1usize << rng.u32(10..=15);
        // None, one that is often full, and one that takes several of the largest messages of most runs.
        let reserve = [0, 4 << 10, 16 << 10, 64 << 10][rng.usize(0..4)];
        let threshold = [0, 300, 1000, 10 << 10][rng.usize(0..4)];
        let sizes = Sizes::random(ring_bytes, threshold, reserve, &mut rng);
        let mut senders: Vec<u32> = ids.iter().copied().filter(|_| rng.u8(0..4) > 0).collect();
        if senders.is_empty() {
            senders.push(ids[rng.usize(0..members)]);
        }
        // With a list, who joins may not send.
        let all_send = rng.bool();
        if all_send {
            senders = (1..=faults::LAST_JOINER).collect();
        }
        let ordered = rng.u8(0..6) > 0;
        let net = if rng.u8(0..5) == 0 { SimConfig::nasty() } else { SimConfig::fast() };
        let calm = rng.u8(0..4) == 0;
        // None, one that is often renewed, and one that outlasts most of the run.
        let lease = [0, 200, 15_000][rng.usize(0..3)];
        let options = Options { net, ..Options::default() };
        let config = Config::builder("scenario", 1)
            .members(ids.iter().copied())
            .failure_timeout(Duration::from_millis(20))
            .read_lease(Duration::from_micros(lease))
            .group("ledger", |group| {
                let mode = if ordered { Mode::Ordered } else { Mode::Unordered };
                group.mode(mode).ring_bytes(ring_bytes).bulk_threshold(threshold).bulk_reserve(reserve);
                group.max_waiting(64);
                if !all_send {
                    group.senders(senders.iter().copied());
                }
            })
            .build()
            .expect("the scenario's configuration is valid");
        let nodes: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let logs: Vec<Log> = nodes.iter().map(|_| Log::default()).collect();
        let mut replicas = logs.iter();
        let groups = cluster.group("ledger", |_| Ledger(replicas.next().expect("a log for each node").clone()));
        let events = Arc::new(Mutex::new(Vec::new()));
        if network {
            let events = Arc::clone(&events);
            cluster.net().set_trace(Some(Box::new(move |at, event| {
                events.lock().unwrap_or_else(PoisonError::into_inner).push((at, event.to_string()));
            })));
        }
        let peer = |((node, group), log)| Peer { node, group, log, is_up: true, is_paused: false, leaves: false };
        Scenario {
            seed,
            rng,
            cluster,
            peers: nodes.into_iter().zip(groups).zip(logs).map(peer).collect(),
            past: Vec::new(),
            senders: senders.into_iter().map(NodeId).collect(),
            ordered,
            numbers: BTreeMap::new(),
            waiting: Vec::new(),
            acknowledged: Vec::new(),
            refused: BTreeSet::new(),
            unknown: BTreeSet::new(),
            seen: 0,
            reads: 0,
            faults: Faults::default(),
            calm,
            sizes,
            teller: Teller { trace, network: events },
            digest: squall_sst::Fingerprint::default(),
        }
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.teller.tell(self.cluster.now(), line);
    }

    fn run(mut self) -> Result<Report, Violation> {
        let result = self.play();
        self.teller.tell_network();
        result.map_err(|what| Violation { seed: self.seed, at: self.cluster.now(), what })
    }

    fn play(&mut self) -> Result<Report, String> {
        self.cluster.start().map_err(|error| format!("the cluster did not start: {error}"))?;
        let (members, senders) = (self.peers.len(), self.senders.len());
        self.tell(|| format!("{members} members have formed a view; {senders} nodes may send"));
        let rounds = self.rng.usize(100..=400);
        // From members that are mostly idle to members that are always busy.
        let (slice, burst) = (self.rng.u64(1_000..=20_000), self.rng.usize(1..=members));
        self.plan_faults(Duration::from_nanos(slice / 2 * rounds as u64));
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
        Ok(Report {
            seed: self.seed,
            members,
            messages: self.acknowledged.len(),
            reads: self.reads,
            views: self.cluster.history().len() - 1,
            faults: self.faults.injected(),
            virtual_time: self.cluster.now().since(Time::ZERO),
            steps: self.cluster.steps(),
            digest: self.digest.value(),
        })
    }

    fn peer(&mut self, node: NodeId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.node == node)
    }

    /// Waits until the faults are over, everything has an answer, and all that can serve have come to the same.
    fn settle(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        while waited < PATIENCE {
            self.inject()?;
            self.answer()?;
            let over = self.faults.are_over();
            if !over {
                // Clients go on while somebody is cut off: he must not answer from what is over elsewhere.
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
            Some(w) => Err(format!("{}: {:?} has no answer after {PATIENCE:?}", w.node, w.what)),
            None => Err(format!("the members have not come to the same after {PATIENCE:?}: {}", self.standings())),
        }
    }

    /// How far each node is.
    fn standings(&self) -> String {
        let one = |peer: &Peer| {
            let view = self.cluster.view(peer.node).map(|view| view.epoch.0);
            let end = self.cluster.end_reason(peer.node).map(ToString::to_string);
            let len = peer.log.book().entries.len();
            format!("{} (up: {}, view: {view:?}, end: {end:?}, entries: {len})", peer.node, peer.is_up)
        };
        let last = self.cluster.history().last().map(|last| Arc::clone(&last.view));
        format!("{}; the last view: {last:?}", self.peers.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    /// Whether nobody can serve: too few of those who decide are left, nobody has the state, or all members have left.
    fn is_lost(&self) -> bool {
        let suspended = |state: &ShardState| matches!(state, ShardState::Suspended { .. });
        let takes_part = |node: &NodeId| self.cluster.is_up(*node) && self.cluster.end_reason(*node).is_none();
        let last = self.cluster.history().last().map(|last| Arc::clone(&last.view));
        !self.cluster.has_quorum()
            || last.is_some_and(|view| {
                !view.nodes().iter().any(takes_part) || view.shard(SHARD).is_none_or(|shard| suspended(&shard.state))
            })
    }

    /// The nodes that run and did not leave.
    fn living(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().filter(|peer| peer.is_up && !peer.leaves)
    }

    fn is_settled(&self) -> bool {
        if self.is_lost() {
            return true;
        }
        let Some(last) = self.cluster.history().last().map(|last| Arc::clone(&last.view)) else { return false };
        let shard = last.shard(SHARD).expect("the group has a shard");
        let lens: BTreeSet<usize> = self.living().map(|peer| peer.log.book().entries.len()).collect();
        let is_in = |peer: &Peer| self.cluster.view(peer.node) == Some(&last) && shard.is_complete(peer.node);
        let left = self.peers.iter().filter(|peer| peer.is_up && peer.leaves);
        left.into_iter().all(|peer| self.cluster.end_reason(peer.node).is_some())
            && last.members.len() == self.living().count()
            && self.living().all(is_in)
            && (lens.len() <= 1 || !self.ordered)
    }

    /// Asks every node for one thing more, until each has served.
    fn serve_again(&mut self) -> Result<(), String> {
        let (mut asked, mut answered) = (0, 0);
        for _ in 0..ATTEMPTS {
            if self.is_lost() {
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
            // Somebody may just have come back to a group that did not notice that he was away.
            self.cluster.run_for(PATIENCE / ATTEMPTS);
        }
        Err(format!("after the faults, {answered} of {asked} operations were served: {}", self.standings()))
    }

    fn verify(&mut self) -> Result<(), String> {
        for peer in &self.peers {
            match self.cluster.end_reason(peer.node) {
                Some(reason) if !peer.leaves || *reason != EndReason::Left => {
                    return Err(format!("{} has ended: {reason}", peer.node));
                }
                _ => {}
            }
        }
        let history = self.cluster.history();
        let installed = self.cluster.installed();
        check::one_view_per_epoch(history.iter().map(|next| &next.view), installed.iter().map(|(n, v)| (*n, v)))?;
        let present = self.peers.iter().map(|peer| (peer.node, peer.log.clone()));
        let logs: Vec<(NodeId, Log)> = self.past.iter().cloned().chain(present).collect();
        let books: Vec<_> = logs.iter().map(|(node, log)| (*node, log.book().clone())).collect();
        for (node, book) in &books {
            check::order_of_clients(*node, &book.entries, |entry| {
                self.refused.contains(entry) || self.unknown.contains(entry)
            })?;
            self.digest.number(book.entries.len() as u64);
        }
        if self.calm {
            let submitted: u64 = self.numbers.values().sum();
            if let Some((node, book)) = books.iter().find(|(_, book)| book.entries.len() as u64 != submitted) {
                let applied = book.entries.len();
                return Err(format!("{submitted} messages were submitted, and {applied} applied at {node}"));
            }
        }
        if !self.ordered {
            return self.verify_arrival();
        }
        check::same_order(books.iter().map(|(node, book)| (*node, book)))?;
        let reference = books.iter().map(|(_, book)| &book.entries).max_by_key(|log| log.len()).expect("some");
        for (len, entry) in &self.acknowledged {
            if reference.get(*len as usize - 1) != Some(entry) {
                return Err(format!("{entry:?} was acknowledged as entry {len}, and is not there"));
            }
        }
        match reference.iter().find(|entry| self.refused.contains(entry)) {
            Some(entry) => Err(format!("{entry:?} was said not to be delivered, and is applied")),
            None => Ok(()),
        }
    }

    /// In unordered mode: what was acknowledged has reached every other member.
    fn verify_arrival(&self) -> Result<(), String> {
        for (_, entry) in &self.acknowledged {
            let lacks = |peer: &&Peer| !peer.log.book().entries.contains(entry);
            if let Some(peer) = self.living().find(lacks) {
                return Err(format!("{entry:?} was acknowledged, and {} lacks it", peer.node));
            }
        }
        Ok(())
    }
}
