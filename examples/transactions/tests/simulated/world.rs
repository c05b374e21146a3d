//! A simulated cluster whose members are the clients too, and whose views settle which members have failed.

use std::{
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use squall::{
    Config, NodeId, Time,
    onepipe::{Controller, Mode, OnePipe, OnePipeConfig, OnePipeHandle, Topology, ViewController},
    sim::{Cluster, Options},
};
use squall_fabric::{
    Completion, Fabric, Waker,
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_onepipe::SkewedClock;
use squall_transactions::{
    Completed, Placement, Store, StoreConfig, SubmitError, Transaction, TransactionError, TransactionId,
    history::{History, KnownOutcome, Record},
};

/// The limit of a run, in virtual time: many times as long as any run takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The silence after which a node is taken for failed.
pub(crate) const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The most messages of one mode that are delivered before the other mode has its turn.
const DELIVERIES: usize = 256;

/// The period at which the clocks of the pipes' network and of the nodes' network are brought to the same time.
const SLICE: Duration = Duration::from_micros(20);

pub(crate) struct Node {
    fabric: SimFabric,
    pipe: OnePipe<SkewedClock>,
    pub(crate) store: Store,
    controller: ViewController,
    /// Set when its node has news for it.
    woken: Arc<AtomicBool>,
    /// By [`TransactionId`].
    pub(crate) records: Vec<Record>,
    pub(crate) ended: bool,
    /// Whether it has something to do that the network does not know of.
    is_eager: bool,
}

impl Node {
    fn new(
        handle: &OnePipeHandle,
        mut fabric: SimFabric,
        options: impl Fn(OnePipeConfig) -> OnePipeConfig,
        clock: SkewedClock,
        store: StoreConfig,
    ) -> Node {
        let woken = Arc::new(AtomicBool::new(false));
        let wakes = Arc::clone(&woken);
        let waker = Waker::new(move || wakes.store(true, Ordering::Relaxed));
        let (config, controller) = handle.take(waker, Duration::ZERO).expect("it is in a view");
        let gate = controller.gate().cloned().unwrap_or_default();
        let pipe = OnePipe::with_gate(&mut fabric, options(config), clock, gate).expect("a sound configuration");
        let store = Store::of_pipe(store, &pipe).expect("they go together");
        Node { fabric, pipe, store, controller, woken, records: Vec::new(), ended: false, is_eager: false }
    }

    fn step(&mut self, now: Time) {
        self.is_eager = false;
        self.woken.store(false, Ordering::Relaxed);
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            assert!(self.pipe.on_completion(&mut self.fabric, now, completion), "only it has endpoints");
        }
        let (pipe, store) = (&mut self.pipe, &mut self.store);
        pipe.step(&mut self.fabric, now);
        pipe.attend(&mut self.fabric, now, &mut self.controller);
        store.on_events(iter::from_fn(|| pipe.next_event()));
        for mode in [Mode::Reliable, Mode::BestEffort] {
            pipe.deliver(mode, DELIVERIES, &mut |delivery| store.on_delivery(&delivery));
        }
        if store.scatter(|mode, messages| pipe.scatter(now, mode, messages)) {
            pipe.step(&mut self.fabric, now);
        }
    }
}

pub(crate) struct World {
    /// The nodes, on a network of their own, whose time is never behind that of the pipes.
    cluster: Cluster,
    pub(crate) net: SimNet,
    pub(crate) random: fastrand::Rng,
    placement: Placement,
    nodes: Vec<Node>,
    /// By rank.
    crashed: Vec<bool>,
    /// The number of events at clients so far. It is finer than virtual time, in which much happens at once.
    clock: u64,
    limit: Time,
}

impl World {
    /// A cluster in which all sizes follow from the seed. In a short run no more than some 8 transactions are under way
    /// at a time.
    pub(crate) fn new(seed: u64, is_short: bool) -> World {
        let mut random = fastrand::Rng::with_seed(seed);
        let sim = if random.bool() { SimConfig::fast() } else { SimConfig::nasty() };
        let net = SimNet::new(sim, seed);
        let members = random.usize(3..=6);
        let replicas = random.usize(2..=3);
        let placement = Placement::new(members, random.u32(1..=2 * members as u32), replicas).expect("it is sound");
        let ids: Vec<NodeId> = (1..=members as u32).map(NodeId).collect();
        let config =
            Config::builder("store", 1).members(ids.iter().map(|node| node.0)).failure_timeout(FAILURE_TIMEOUT);
        let config = config.build().expect("the configuration is valid");
        let mut cluster = Cluster::new(config, Options::default(), random.u64(..));
        let handles: Vec<OnePipeHandle> = ids.iter().map(|&node| cluster.onepipe(node, "store")).collect();
        cluster.start().expect("it starts");
        let now = net.advance(cluster.now(), &mut Vec::new());
        let (ring_bytes, topology) = (4096 << random.usize(0..3), topology(members, &mut random));
        let options = |config: OnePipeConfig| {
            let topology = topology.clone();
            OnePipeConfig { ring_bytes, waiting_bytes: 4096, topology, ..config }
        };
        let store = StoreConfig {
            message_bytes: 1000,
            value_bytes: 16,
            window: random.usize(1..=if is_short { 8 / members } else { 8 }),
            record: true,
            ..StoreConfig::new(placement.clone())
        };
        // Timestamps of 48 bits wrap around during some of the runs.
        let origin = [1 << 40, (1 << 48) - 200_000 - now.as_nanos()][random.usize(0..2)];
        let rank = |(handle, node): (&OnePipeHandle, NodeId)| {
            let offset = random.i64(-100_000..100_000);
            let clock = SkewedClock { origin, offset, drift_ppm: random.i32(-500..500) };
            Node::new(handle, net.fabric(node), options, clock, store.clone())
        };
        let nodes = handles.iter().zip(ids).map(rank).collect();
        let (crashed, limit) = (vec![false; members], now + PATIENCE);
        World { cluster, net, random, placement, nodes, crashed, clock: 0, limit }
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub(crate) fn is_alive(&self, rank: usize) -> bool {
        !self.crashed[rank] && !self.nodes[rank].ended
    }

    /// The ranks that have not failed, and were not taken for failed.
    pub(crate) fn alive(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&rank| self.is_alive(rank)).collect()
    }

    /// The number of members that have crashed.
    pub(crate) fn crashed(&self) -> usize {
        self.crashed.iter().filter(|&&crashed| crashed).count()
    }

    pub(crate) fn node(&mut self, rank: usize) -> &mut Node {
        &mut self.nodes[rank]
    }

    /// Whether all members that live have removed the same others.
    pub(crate) fn is_agreed(&mut self) -> bool {
        let alive = self.alive();
        let ranks = 0..self.nodes.len();
        alive.iter().all(|&rank| {
            let store = &self.nodes[rank].store;
            ranks.clone().all(|other| store.is_alive(other) == alive.contains(&other))
        })
    }

    /// Submits a transaction. Returns false if the member has enough of them under way.
    pub(crate) fn submit(&mut self, rank: usize, transaction: Transaction) -> bool {
        let node = &mut self.nodes[rank];
        match node.store.submit(&transaction) {
            Ok(TransactionId(number)) => {
                assert_eq!(number, node.records.len() as u64, "they are numbered in order");
                node.is_eager = true;
                self.clock += 1;
                let (submitted, ended, seen) = (self.clock, u64::MAX, KnownOutcome::Unknown);
                node.records.push(Record { client: rank, number, submitted, ended, transaction, seen });
                true
            }
            Err(SubmitError::Busy { .. }) => false,
            Err(error) => panic!("rank {rank}: {error}"),
        }
    }

    /// Waits until all members have reached each other.
    pub(crate) fn connect(&mut self) {
        while !self.nodes.iter().all(|node| node.pipe.is_connected()) {
            self.advance();
        }
    }

    /// Carries out the next event, or lets a little time pass, and notes the transactions that are over.
    pub(crate) fn advance(&mut self) {
        assert!(self.net.now() < self.limit, "not over within {PATIENCE:?}: ranks {:?} live", self.alive());
        if self.net.now() >= self.cluster.now() {
            self.cluster.run_for(SLICE);
        }
        let due = (0..self.nodes.len()).map(|rank| self.due(rank)).fold(self.cluster.now(), Time::min);
        let mut ready = Vec::new();
        let now = self.net.advance(due, &mut ready);
        for rank in 0..self.nodes.len() {
            let (is_due, id) = (self.due(rank) <= now, self.nodes[rank].fabric.node());
            if self.net.runs(id) && (is_due || ready.contains(&id)) {
                self.nodes[rank].step(now);
                self.note(rank);
            }
        }
    }

    /// The time at which a rank has something to do that the network does not know of.
    fn due(&self, rank: usize) -> Time {
        let node = &self.nodes[rank];
        match self.net.runs(node.fabric.node()) {
            true if node.is_eager || node.woken.load(Ordering::Relaxed) => self.net.now(),
            true => node.pipe.deadline(),
            false => Time::MAX,
        }
    }

    fn note(&mut self, rank: usize) {
        let node = &mut self.nodes[rank];
        while let Some(Completed { id: TransactionId(number), result }) = node.store.completed() {
            self.clock += 1;
            let record = &mut node.records[number as usize];
            let seen = match result {
                Ok(outcome) => KnownOutcome::Committed(outcome),
                Err(TransactionError::Aborted) => KnownOutcome::Aborted,
                Err(TransactionError::Ended) => {
                    node.ended = true;
                    continue;
                }
                Err(error @ TransactionError::Lost(_)) => panic!("rank {rank}: {error}"),
            };
            (record.ended, record.seen) = (self.clock, seen);
        }
        node.ended |= node.store.has_ended();
    }

    /// Ends a process, or its host.
    pub(crate) fn crash(&mut self, rank: usize) {
        let id = self.nodes[rank].fabric.node();
        if self.random.bool() {
            self.net.crash(id);
        } else {
            self.net.power_off(id);
            self.cluster.net().power_off(id);
        }
        self.cluster.kill(id);
        self.crashed[rank] = true;
    }

    /// Cuts two ranks off from each other for good, but not their nodes: one of them is taken for failed.
    pub(crate) fn cut(&mut self, a: usize, b: usize) {
        self.net.cut(self.nodes[a].fabric.node(), self.nodes[b].fabric.node());
    }

    /// Stops a process from running.
    pub(crate) fn pause(&mut self, rank: usize) {
        let id = self.nodes[rank].fabric.node();
        self.net.pause(id);
        self.cluster.pause(id);
    }

    /// Lets it run again.
    pub(crate) fn resume(&mut self, rank: usize) {
        let id = self.nodes[rank].fabric.node();
        self.net.resume(id);
        self.cluster.resume(id);
        self.nodes[rank].is_eager = true;
    }

    /// The history: the records of clients, and the executions of the members that live.
    pub(crate) fn history(&mut self) -> History {
        let mut history = History::new(self.placement.clone());
        for rank in 0..self.nodes.len() {
            let alive = self.is_alive(rank);
            let node = &mut self.nodes[rank];
            if alive {
                let learnt = history.learn(rank, node.store.take_executions());
                learnt.unwrap_or_else(|violation| panic!("rank {rank}: {violation}"));
            }
            for record in node.records.drain(..) {
                history.record(record);
            }
        }
        history
    }
}

fn topology(members: usize, random: &mut fastrand::Rng) -> Topology {
    if random.bool() {
        return Topology::Flat;
    }
    let mut ranks: Vec<usize> = (0..members).collect();
    random.shuffle(&mut ranks);
    let racks = ranks.chunks(random.usize(1..=3)).map(<[usize]>::to_vec).collect();
    Topology::Hierarchy { racks, degree: random.usize(1..=3) }
}
