//! The store in simulated clusters whose members crash, come back, join, leave, stop and are cut off. All that clients
//! see, at any replica and in any view, must be linearizable.
//!
//! Reads are confirmed by the other replicas, or under leases of several lengths. A write of unknown outcome may take
//! effect at any time after its call, or never. A write that was said not to be applied must not show. A failure names
//! its seed: `SQUALL_SEED` runs that one alone, and `SQUALL_SEEDS=FROM..TO` runs others than usual.

mod all_commands;
mod faults;
mod model;
mod register;
#[path = "../../../../tests/support/seeds.rs"]
mod seeds;
mod waits;

use std::{
    collections::{BTreeMap, VecDeque},
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use porcupine_rs::{CheckResult, Operation};
use squall::{
    Config, Group, NodeId,
    sim::{Cluster, Options, SimConfig, ViewLogKind},
};
use squall_redis::{Store, words};

use self::{
    faults::{Fault, Stop},
    model::{Register, Step, number},
    register::{Answer, Failed, Wish, ask},
    waits::Ends,
};

/// The number of seeds that run.
const SEEDS: u64 = 400;

const KEYS: usize = 4;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The time within which faults begin. Clients go on for a while after it.
const FAULTS_BEGIN_WITHIN: Duration = Duration::from_millis(60);
const LOAD: Duration = Duration::from_millis(110);

/// The time after the faults within which every replica must serve that can.
const RECOVERY: Duration = Duration::from_secs(5);

/// The limit of the search for a linearization of one key's history.
const PATIENCE: Duration = Duration::from_secs(20);

struct Client {
    node: NodeId,
    /// Whether it only reads. A write at a node that is cut off has no answer, so its client is of no more use.
    reads: bool,
    next_at: Duration,
    pending: Option<Pending>,
}

struct Pending {
    key: usize,
    wish: Wish,
    call_time: i64,
    answer: Answer,
}

/// A node that takes part.
struct Replica {
    group: Group<Store>,
    /// The kind of stop: the engine stands still, and the clients too if it is the whole process.
    stopped: Option<Stop>,
    leaves: bool,
}

struct Simulation {
    rng: Rng,
    cluster: Cluster,
    begun: Duration,
    replicas: BTreeMap<NodeId, Replica>,
    clients: Vec<Client>,
    /// The faults to come, the next one first.
    faults: VecDeque<(Duration, Fault)>,
    /// The number of calls and returns so far, which orders them.
    events: i64,
    /// The last value that was set: values are never set twice.
    values: i64,
    histories: [Vec<Operation<Register>>; KEYS],
    seen: Seen,
    ends: Ends,
}

/// The counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    answered: u64,
    unknown: u64,
    /// The last view's epoch.
    epoch: u64,
    /// 1 if no replica could serve at the end, because too many were lost.
    lost: u64,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng::with_seed(seed);
        let ids: Vec<u32> = (1..=rng.u32(3..=5)).collect();
        let lease = [Duration::ZERO, Duration::from_micros(200), FAILURE_TIMEOUT][rng.usize(..3)];
        let (ring_bytes, threshold) = (1 << rng.u32(11..=15), [40, 10 << 10][rng.usize(..2)]);
        let config = Config::builder("histories", 1)
            .members(ids.iter().copied())
            .failure_timeout(FAILURE_TIMEOUT)
            .read_lease(lease)
            .group("kv", |group| {
                group.ring_bytes(ring_bytes).bulk_threshold(threshold).bulk_reserve(16 << 10).max_waiting(64);
            })
            .build()
            .expect("the configuration is valid");
        let net = if rng.u8(..5) == 0 { SimConfig::nasty() } else { SimConfig::fast() };
        // Endpoints that break soon lead to the removal of members that still hold leases.
        let failure_timeout = [FAILURE_TIMEOUT, Duration::from_millis(1)][rng.usize(..2)];
        let net = SimConfig { failure_timeout, ..net };
        let view_log =
            [ViewLogKind::Scripted, ViewLogKind::Raft, ViewLogKind::Raft, ViewLogKind::RaftOnDisks][rng.usize(..4)];
        let mut cluster = Cluster::new(config, Options { net, view_log, ..Options::default() }, rng.u64(..));
        let ends = Ends::default();
        let groups = cluster.group("kv", |node| ends.store(node));
        cluster.start().expect("the cluster starts");
        let replica = |(&id, group)| (NodeId(id), Replica { group, stopped: None, leaves: false });
        let mut simulation = Simulation {
            begun: Duration::from_nanos(cluster.now().as_nanos()),
            rng,
            cluster,
            replicas: ids.iter().zip(groups).map(replica).collect(),
            clients: Vec::new(),
            faults: VecDeque::new(),
            events: 0,
            values: 0,
            histories: Default::default(),
            seen: Seen::default(),
            ends,
        };
        ids.iter().for_each(|&id| simulation.add_clients(NodeId(id)));
        simulation.plan_faults();
        simulation
    }

    /// The virtual time since all nodes had begun.
    fn now(&self) -> Duration {
        Duration::from_nanos(self.cluster.now().as_nanos()) - self.begun
    }

    fn within(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(..most.as_nanos() as u64))
    }

    fn add_clients(&mut self, node: NodeId) {
        let client = |reads| Client { node, reads, next_at: Duration::ZERO, pending: None };
        self.clients.extend([true, false, false].map(client));
    }

    /// Removes the clients of a node whose process is gone. Their pending operations may have taken effect.
    fn lose_clients(&mut self, node: NodeId) {
        let lost: Vec<Client> = self.clients.extract_if(.., |client| client.node == node).collect();
        for Pending { key, wish, call_time, .. } in lost.into_iter().filter_map(|client| client.pending) {
            self.note_unknown(key, wish, call_time);
        }
    }

    fn event(&mut self) -> i64 {
        self.events += 1;
        self.events
    }

    fn note(&mut self, key: usize, call_time: i64, return_time: i64, op: Step) {
        self.histories[key].push(Operation { client_id: None, call_time, return_time, op, metadata: None });
    }

    fn note_unknown(&mut self, key: usize, wish: Wish, call_time: i64) {
        if let Some(step) = wish.unanswered() {
            self.seen.unknown += 1;
            self.note(key, call_time, i64::MAX, step);
        }
    }

    fn wish(&mut self, reads: bool) -> Wish {
        self.values += 1000;
        match self.rng.u8(..10) {
            _ if reads => Wish::Get,
            0..5 => Wish::Get,
            5 | 6 => Wish::Set(self.values),
            7 => Wish::Swap(self.values),
            _ => Wish::Incr,
        }
    }

    /// Lets a client look for its answer, or begin an operation.
    fn go_on(&mut self, place: usize) {
        let Client { node, reads, next_at, .. } = self.clients[place];
        let Some(replica) = self.replicas.get(&node).filter(|replica| replica.stopped != Some(Stop::Process)) else {
            return;
        };
        let Some(mut pending) = self.clients[place].pending.take() else {
            if next_at <= self.now() && self.now() < LOAD {
                let group = replica.group.clone();
                let (key, wish, call_time) = (self.rng.usize(..KEYS), self.wish(reads), self.event());
                let answer = ask(&group, key, wish);
                self.clients[place].pending = Some(Pending { key, wish, call_time, answer });
            }
            return;
        };
        let Poll::Ready(answer) = pending.answer.as_mut().poll(&mut Context::from_waker(Waker::noop())) else {
            self.clients[place].pending = Some(pending);
            return;
        };
        let Pending { key, wish, call_time, .. } = pending;
        let mut pause = Duration::from_micros([50, 2000][self.rng.usize(..2)]);
        match answer {
            Ok(reply) => {
                self.seen.answered += 1;
                let return_time = self.event();
                self.note(key, call_time, return_time, wish.answered(&reply));
            }
            Err(failed) => {
                pause = Duration::from_millis(4);
                if matches!(failed, Failed::Unknown) {
                    self.note_unknown(key, wish, call_time);
                }
            }
        }
        self.clients[place].next_at = self.now() + self.within(pause);
    }

    fn run(&mut self) {
        while self.now() < LOAD || !self.faults.is_empty() || self.clients.iter().any(|client| client.pending.is_some())
        {
            assert!(self.now() < LOAD + RECOVERY, "a client waits although the faults are over");
            let slice = self.within(Duration::from_micros(20));
            self.cluster.run_for(slice);
            self.inject();
            for place in 0..self.clients.len() {
                self.go_on(place);
            }
        }
    }

    /// Whether too many nodes were lost to go on.
    fn is_lost(&self) -> bool {
        let view = |node: &NodeId| self.cluster.view(*node);
        let newest = self.replicas.keys().filter_map(view).max_by_key(|view| view.epoch);
        !self.cluster.has_quorum() || newest.is_none_or(|view| view.shards[0].complete.is_empty())
    }

    /// Waits until all running replicas serve, and compares the content of each: every key, and all of the state.
    fn settle(&mut self) {
        let left = |cluster: &Cluster, node: NodeId| cluster.end_reason(node).is_some();
        let until = self.now() + RECOVERY;
        loop {
            for (&node, _) in self.replicas.iter().filter(|(_, replica)| !replica.leaves) {
                let why = self.cluster.end_reason(node);
                assert!(why.is_none(), "{node} has ended: {why:?}");
            }
            let nodes: Vec<NodeId> = self.replicas.keys().copied().filter(|&node| !left(&self.cluster, node)).collect();
            let mut states = Vec::new();
            for &node in &nodes {
                let read = self.replicas[&node].group.read(|store: &Store| {
                    let look = |key| number(&store.look(&words::join(["get", &format!("k{key}")]), 1));
                    (std::array::from_fn::<_, KEYS, _>(look), store.save())
                });
                let call_time = self.event();
                let answer = self.cluster.wait(Duration::from_millis(20), read);
                let Some(Ok((values, state))) = answer else { break };
                let return_time = self.event();
                for (key, value) in values.into_iter().enumerate() {
                    self.note(key, call_time, return_time, Step::Get(value));
                }
                states.push(state);
            }
            if states.len() == nodes.len() && !nodes.is_empty() {
                if let Some(place) = states.iter().position(|state| *state != states[0]) {
                    panic!("the replicas of {} and {} differ", nodes[0], nodes[place]);
                }
                return;
            }
            if self.is_lost() {
                self.seen.lost = 1;
                return;
            }
            let (all, serve) = (nodes.len(), states.len());
            assert!(self.now() < until, "{RECOVERY:?} after the faults {serve} of {all} replicas serve");
            self.cluster.run_for(Duration::from_millis(10));
        }
    }
}

/// Runs a seed, and checks it.
fn run(seed: u64) -> Seen {
    let mut simulation = Simulation::new(seed);
    simulation.run();
    simulation.settle();
    for (key, history) in simulation.histories.iter().enumerate() {
        let result = porcupine_rs::check_operations_timeout(history, PATIENCE);
        assert_ne!(result, CheckResult::Unknown, "no answer in {PATIENCE:?} for k{key}");
        assert_eq!(result, CheckResult::Ok, "the history of k{key} is not linearizable");
    }
    let newest = simulation.replicas.keys().filter_map(|&node| simulation.cluster.view(node)).map(|view| view.epoch.0);
    simulation.seen.epoch = newest.max().unwrap_or(0);
    simulation.seen
}

#[test]
fn what_clients_saw_through_many_views_is_linearizable() {
    let all = seeds::run_all(seeds::seeds(SEEDS), |seed| Ok(run(seed)));
    let sum = |of: fn(&Seen) -> u64| all.iter().map(of).sum::<u64>();
    let (runs, answered, unknown) = (all.len() as u64, sum(|seen| seen.answered), sum(|seen| seen.unknown));
    let (epochs, lost) = (sum(|seen| seen.epoch), sum(|seen| seen.lost));
    let shown = format!("{runs} runs: {answered} answers, {unknown} unknown, {epochs} views, {lost} lost for good");
    // Few seeds say little.
    if runs >= SEEDS {
        assert!(epochs > 2 * runs && unknown > runs / 4 && lost < runs / 10, "they are no test: {shown}");
    }
}

#[test]
fn a_seed_does_the_same_again() {
    for seed in 0..3 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}
