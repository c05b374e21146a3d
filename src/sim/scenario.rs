//! Random clusters, loads and faults, and what must hold after each.
//!
//! One seed makes one scenario: how many members, who sends, how large the rings and the messages are, how bad the network is,
//! what clients do, who is paused, cut off or killed, and when. After it, and during it:
//!
//! - all replicas applied the same messages in the same order, as far as each came: no gap, no repetition;
//! - each client's messages are applied in its order, byte for byte;
//! - no linearizable read is older than what was complete, anywhere, before it began;
//! - what was acknowledged is in the log of every member that stays, and without faults everything submitted is;
//! - those that stay after a failure applied exactly the same;
//! - whatever waits gets an answer.

mod faults;
mod ledger;

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time};
use squall_membership::EndReason;
use squall_ordered::Mode;

use self::{
    faults::Faults,
    ledger::{Append, Ledger, Log, Sizes, padding},
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
    /// Nodes paused, links cut and nodes killed.
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

type Answer = Pin<Box<dyn Future<Output = Result<u64, String>>>>;

/// An operation that a client waits for.
struct Waiting {
    node: usize,
    what: What,
    /// The longest log that anybody had seen when it began.
    floor: u64,
    answer: Answer,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Append { client: u32, number: u64 },
    Read,
}

struct Scenario<'a> {
    seed: u64,
    rng: Rng,
    cluster: Cluster,
    nodes: Vec<NodeId>,
    groups: Vec<Group<Ledger>>,
    logs: Vec<Log>,
    senders: Vec<usize>,
    /// In ordered mode; else each sender's messages have only their own order, and there are no reads.
    ordered: bool,
    /// By sender and client: the next number.
    numbers: BTreeMap<(usize, u32), u64>,
    waiting: Vec<Waiting>,
    /// Acknowledged: where each message is in the log.
    acknowledged: Vec<(u64, Applied)>,
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

/// How many clients submit at each sender, each one message at a time.
const CLIENTS: u32 = 10;

/// Whatever waits must have an answer within this time after the last fault.
const PATIENCE: Duration = Duration::from_secs(5);

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
        let mut senders: Vec<usize> = (0..members).filter(|_| rng.u8(0..4) > 0).collect();
        if senders.is_empty() {
            senders.push(rng.usize(0..members));
        }
        let ordered = rng.u8(0..6) > 0;
        let net = if rng.u8(0..5) == 0 { SimConfig::nasty() } else { SimConfig::fast() };
        let calm = rng.u8(0..3) == 0;
        // None, one that is often renewed, and one that outlasts most of the run.
        let lease = [0, 200, 15_000][rng.usize(0..3)];
        let options = Options { net, view_log: !calm && rng.u8(0..4) > 0, ..Options::default() };
        let config = Config::builder("scenario", 1)
            .members(ids.iter().copied())
            .failure_timeout(Duration::from_millis(20))
            .read_lease(Duration::from_micros(lease))
            .group("ledger", |group| {
                let mode = if ordered { Mode::Ordered } else { Mode::Unordered };
                group.mode(mode).ring_bytes(ring_bytes).bulk_threshold(threshold).bulk_reserve(reserve);
                group.senders(senders.iter().map(|&s| ids[s])).max_waiting(64);
            })
            .build()
            .expect("the scenario's configuration is valid");
        let nodes: Vec<NodeId> = ids.iter().copied().map(NodeId).collect();
        let mut cluster = Cluster::new(config, options, rng.u64(..));
        let logs: Vec<Log> = nodes.iter().map(|_| Log::default()).collect();
        let mut replicas = logs.iter();
        let groups = cluster.group("ledger", |_| {
            let log = Arc::clone(replicas.next().expect("a log for each node"));
            Ledger { log, len: 0 }
        });
        let events = Arc::new(Mutex::new(Vec::new()));
        if network {
            let events = Arc::clone(&events);
            cluster.net().set_trace(Some(Box::new(move |at, event| {
                events.lock().unwrap_or_else(PoisonError::into_inner).push((at, event.to_string()));
            })));
        }
        Scenario {
            seed,
            rng,
            cluster,
            groups,
            logs,
            senders,
            ordered,
            numbers: BTreeMap::new(),
            waiting: Vec::new(),
            acknowledged: Vec::new(),
            seen: 0,
            reads: 0,
            faults: Faults::none(&nodes),
            calm,
            sizes,
            nodes,
            teller: Teller { trace, network: events },
            digest: squall_sst::Fingerprint::default(),
        }
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        self.teller.tell(self.cluster.now(), line);
    }

    /// Carries out the faults that are due.
    fn inject(&mut self) {
        self.faults.inject(&mut self.cluster, &mut self.teller);
    }

    fn run(mut self) -> Result<Report, Violation> {
        let result = self.play();
        self.teller.tell_network();
        result.map_err(|what| Violation { seed: self.seed, at: self.cluster.now(), what })
    }

    fn play(&mut self) -> Result<Report, String> {
        self.cluster.start().map_err(|error| format!("the cluster did not start: {error}"))?;
        let (members, senders) = (self.nodes.len(), self.senders.len());
        self.tell(|| format!("{members} members, {senders} of them senders, have formed a view"));
        let rounds = self.rng.usize(100..=500);
        // From members that are mostly idle to members that are always busy.
        let (slice, burst) = (self.rng.u64(1_000..=20_000), self.rng.usize(1..=self.nodes.len()));
        let within = Duration::from_nanos(slice / 2 * rounds as u64);
        self.faults.plan(self.cluster.now(), within, self.calm, &mut self.rng);
        for _ in 0..rounds {
            let slice = Duration::from_nanos(self.rng.u64(100..=slice));
            self.cluster.run_for(slice);
            self.inject();
            for _ in 0..burst {
                self.begin();
            }
            self.answer()?;
        }
        self.settle()?;
        self.verify()?;
        Ok(Report {
            seed: self.seed,
            members: self.nodes.len(),
            messages: self.acknowledged.len(),
            reads: self.reads,
            faults: self.faults.injected(),
            virtual_time: self.cluster.now().since(Time::ZERO),
            steps: self.cluster.steps(),
            digest: self.digest.value(),
        })
    }

    fn index(&self, node: NodeId) -> usize {
        self.nodes.iter().position(|&n| n == node).expect("it is a member")
    }

    /// Lets some client begin an operation.
    fn begin(&mut self) {
        let node = self.rng.usize(0..self.nodes.len());
        let over = self.cluster.end_reason(self.nodes[node]).is_some();
        if self.faults.is_paused(node) || self.faults.is_crashed(node) || over || self.waiting.len() > 100 {
            return;
        }
        let floor = self.seen;
        let group = self.groups[node].clone();
        if self.ordered && (!self.senders.contains(&node) || self.rng.u8(0..3) == 0) {
            let answer = Box::pin(async move { group.read(|ledger| ledger.len).await.map_err(|e| e.to_string()) });
            self.waiting.push(Waiting { node, what: What::Read, floor, answer });
            return;
        }
        if !self.senders.contains(&node) {
            return;
        }
        for _ in 0..self.rng.usize(1..=8) {
            let client = self.rng.u32(0..CLIENTS);
            // A client that waits for room must not submit the next: that one could be accepted first.
            let waits = |w: &Waiting| w.node == node && matches!(w.what, What::Append { client: c, .. } if c == client);
            if self.waiting.iter().any(waits) {
                continue;
            }
            let number = self.numbers.entry((node, client)).or_default();
            let len = self.sizes.length(&mut self.rng);
            let append = Append { client, number: *number, padding: padding(self.nodes[node], client, *number, len) };
            let what = What::Append { client, number: *number };
            *number += 1;
            let submit = group.submit(&append);
            let answer = Box::pin(async move { submit.await.map_err(|e| e.to_string()) });
            self.waiting.push(Waiting { node, what, floor, answer });
        }
    }

    /// Looks for answers.
    fn answer(&mut self) -> Result<(), String> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        for mut waiting in std::mem::take(&mut self.waiting) {
            // A paused process sees no answers.
            if self.faults.is_paused(waiting.node) {
                self.waiting.push(waiting);
                continue;
            }
            match waiting.answer.as_mut().poll(&mut context) {
                Poll::Pending => self.waiting.push(waiting),
                Poll::Ready(answer) => self.on_answer(&waiting, answer)?,
            }
        }
        Ok(())
    }

    fn on_answer(&mut self, waiting: &Waiting, answer: Result<u64, String>) -> Result<(), String> {
        let node = self.nodes[waiting.node];
        let what = waiting.what;
        self.tell(|| format!("{node}: {what:?} -> {answer:?}"));
        let len = match answer {
            Ok(len) => len,
            Err(error) if self.calm => return Err(format!("{node}: {what:?} failed without a fault: {error}")),
            Err(_) => return Ok(()),
        };
        match what {
            What::Append { client, number } => {
                self.acknowledged.push((len, Applied { sender: node, client, number, intact: true }));
            }
            What::Read => {
                if len < waiting.floor {
                    let floor = waiting.floor;
                    return Err(format!("{node} read a log of {len} entries, after {floor} had been seen"));
                }
                self.reads += 1;
            }
        }
        self.digest.number(u64::from(node.0)).number(len);
        // Places of different replicas mean the same only where there is one order.
        self.seen = self.seen.max(if self.ordered { len } else { 0 });
        Ok(())
    }

    /// Waits until everything has an answer, and all that stay have applied all that there is.
    fn settle(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        let slice = Duration::from_micros(100);
        while waited < PATIENCE {
            self.inject();
            self.answer()?;
            if self.faults.will_heal() {
                // Clients go on while somebody is cut off: he must not answer from what is over elsewhere.
                (0..self.nodes.len()).for_each(|_| self.begin());
            }
            let quiet = self.faults.are_over() && self.waiting.is_empty();
            if quiet && self.is_settled() {
                return Ok(());
            }
            let slice = if waited < Duration::from_millis(5) { slice } else { 20 * slice };
            self.cluster.run_for(slice);
            waited += slice;
        }
        match self.waiting.first() {
            Some(w) => Err(format!("{}: {:?} has no answer after {PATIENCE:?}", self.nodes[w.node], w.what)),
            None => Err(format!("the members have not come to the same after {PATIENCE:?}: {:?}", self.lengths())),
        }
    }

    fn lengths(&self) -> Vec<usize> {
        self.logs.iter().map(|log| log.lock().unwrap_or_else(PoisonError::into_inner).len()).collect()
    }

    fn is_settled(&self) -> bool {
        let living = || (0..self.nodes.len()).filter(|&node| !self.faults.is_crashed(node));
        let over = living().filter(|&node| self.cluster.end_reason(self.nodes[node]).is_some()).count();
        if over > 0 || living().count() < self.nodes.len() {
            return over == living().count();
        }
        let lengths = self.lengths();
        lengths.iter().all(|len| *len == lengths[0])
    }

    fn verify(&mut self) -> Result<(), String> {
        let logs: BTreeMap<NodeId, Vec<Applied>> = (self.nodes.iter().copied())
            .zip(self.logs.iter().map(|log| log.lock().unwrap_or_else(PoisonError::into_inner).clone()))
            .collect();
        for (&node, log) in &logs {
            check::order_of_clients(node, log)?;
            self.digest.number(log.len() as u64);
        }
        if self.calm {
            let submitted: u64 = self.numbers.values().sum();
            let applied = self.lengths();
            if applied.iter().any(|&len| len as u64 != submitted) {
                return Err(format!("{submitted} messages were submitted, and applied at the members: {applied:?}"));
            }
        }
        if self.ordered { self.verify_order(&logs) } else { self.verify_arrival(&logs) }
    }

    /// In unordered mode: what was acknowledged has reached every other member.
    fn verify_arrival(&self, logs: &BTreeMap<NodeId, Vec<Applied>>) -> Result<(), String> {
        for (_, entry) in &self.acknowledged {
            let lacks = |(node, log): &(&NodeId, &Vec<Applied>)| {
                !self.faults.is_crashed(self.index(**node)) && !log.contains(entry)
            };
            if let Some((node, _)) = logs.iter().find(lacks) {
                return Err(format!("{entry:?} was acknowledged, and {node} lacks it"));
            }
        }
        Ok(())
    }

    fn verify_order(&self, logs: &BTreeMap<NodeId, Vec<Applied>>) -> Result<(), String> {
        check::same_order(logs)?;
        let stay: Vec<NodeId> = match self.cluster.successor() {
            Some(next) => next.view.nodes(),
            None if self.cluster.end_reason(self.nodes[0]).is_none() && !self.faults.is_crashed(0) => {
                self.nodes.clone()
            }
            None => Vec::new(),
        };
        let longest = logs.values().map(Vec::len).max().unwrap_or(0);
        // A member that was to stay, and died before it had cleaned up, may lack the end.
        for node in stay {
            let index = self.index(node);
            let cleaned = matches!(self.cluster.end_reason(node), None | Some(EndReason::CleanedUp { .. }));
            if !self.faults.is_crashed(index) && cleaned && logs[&node].len() != longest {
                let len = logs[&node].len();
                return Err(format!("{node} stays with {len} entries, another member applied {longest}"));
            }
        }
        let reference = logs.values().max_by_key(|log| log.len()).expect("there are members");
        for (len, entry) in &self.acknowledged {
            if reference.get(*len as usize - 1) != Some(entry) {
                return Err(format!("{entry:?} was acknowledged as entry {len}, and is not there"));
            }
        }
        Ok(())
    }
}
