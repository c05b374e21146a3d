//! Transfers that the fabric carries out by itself.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{
    BreakReason, Completion, Fabric, GraphError, NodeId, Time, Token, Wait,
    shm::{ShmConfig, ShmFabric},
    sim::{SimConfig, SimFabric, SimNet},
};
use squall_rdmc::{
    Buffer, CreateError, GroupConfig, GroupId,
    graph::{GraphTransfer, TransferError, TransferEvent, TransferFailure},
    schedule::{Algorithm, Outer, Racks},
};

const TOKEN: Token = Token(1);

fn content(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::with_seed(seed);
    std::iter::repeat_with(|| rng.u8(..)).take(len).collect()
}

fn config(n: usize, algorithm: Algorithm, block_bytes: usize) -> GroupConfig {
    let id = GroupId { group: 3, instance: 1 };
    let members = (0..n as u32).map(NodeId).collect();
    GroupConfig { algorithm, block_bytes, ..GroupConfig::new(id, members) }
}

/// One algorithm of each kind, for a group of `n`.
fn algorithms(n: usize) -> Vec<Algorithm> {
    let racks = |outer| {
        let rack_of: Vec<usize> = (0..n).map(|rank| rank % 3).collect();
        Algorithm::Hybrid(Racks::new(&rack_of, outer).expect("there is a root"))
    };
    vec![
        Algorithm::Sequential,
        Algorithm::Interleaved,
        Algorithm::Chain,
        Algorithm::BinomialTree,
        Algorithm::BinomialPipeline,
        racks(Outer::BinomialPipeline),
        racks(Outer::Chain),
    ]
}

struct Member<F> {
    fabric: F,
    transfer: GraphTransfer,
    connected: usize,
    done: Option<Buffer>,
    failures: Vec<TransferFailure>,
}

impl<F: Fabric> Member<F> {
    /// A member with memory for the message; the root has the message in it.
    fn new(mut fabric: F, config: &GroupConfig, message: &[u8]) -> Member<F> {
        let mut buffer = Buffer::register(&mut fabric, message.len()).expect("memory");
        let root = fabric.node() == config.members[0];
        if root {
            buffer[..message.len()].copy_from_slice(message);
        }
        let mut transfer = GraphTransfer::connect(&mut fabric, config.clone(), buffer, message.len(), TOKEN).unwrap();
        if root {
            transfer.send(&mut fabric).unwrap();
        }
        Member { fabric, transfer, connected: 0, done: None, failures: Vec::new() }
    }

    fn step(&mut self, now: Time) {
        let mut completions: Vec<Completion> = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            match self.transfer.on_completion(&mut self.fabric, completion) {
                Some(TransferEvent::Connected) => self.connected += 1,
                Some(TransferEvent::Done(buffer)) => assert!(self.done.replace(buffer).is_none(), "done twice"),
                Some(TransferEvent::Failed(failure)) => self.failures.push(failure),
                None => {}
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.done.is_some() || !self.failures.is_empty()
    }
}

struct World {
    net: SimNet,
    members: Vec<Member<SimFabric>>,
}

impl World {
    fn new(sim: SimConfig, seed: u64, config: &GroupConfig, message: &[u8]) -> World {
        let net = SimNet::new(sim, seed);
        let members = config.members.iter().map(|node| Member::new(net.fabric(*node), config, message));
        World { members: members.collect(), net }
    }

    /// Lets the next event happen; false if there is none.
    fn step(&mut self) -> bool {
        let mut ready = Vec::new();
        let now = self.net.advance(Time::MAX, &mut ready);
        ready.iter().for_each(|node| self.members[node.0 as usize].step(now));
        !ready.is_empty()
    }

    fn connect(&mut self) {
        while self.members.iter().any(|member| member.connected == 0) {
            assert!(self.step(), "not connected");
        }
    }

    fn run(&mut self) {
        while !self.members.iter().all(Member::has_ended) && self.step() {}
    }
}

/// A transfer with everything that may differ drawn from one seed.
fn transfer(seed: u64, sim: SimConfig) {
    let mut rng = Rng::with_seed(seed);
    let n = rng.usize(1..=12);
    let algorithms = algorithms(n);
    let algorithm = algorithms[rng.usize(..algorithms.len())].clone();
    let block_bytes = rng.usize(1..=3000);
    let most = block_bytes * rng.usize(1..=40);
    let len = rng.usize(0..=most);
    let mut config = config(n, algorithm, block_bytes);
    config.sends_in_flight = rng.usize(1..=6);
    config.receives_ahead = rng.usize(1..=6);
    config.steps_ahead = [1, 2, 5, u64::MAX][rng.usize(..4)];
    let message = content(seed, len);
    let mut world = World::new(sim, seed, &config, &message);
    world.run();
    for (rank, member) in world.members.iter().enumerate() {
        let what = format!("seed {seed}, rank {rank} of {n}, {}, {len} bytes", config.algorithm.name());
        assert!(member.failures.is_empty(), "{what}: {:?}", member.failures);
        let buffer = member.done.as_ref().unwrap_or_else(|| panic!("{what}: never done"));
        assert!(buffer[..len] == message, "{what}: other bytes than the root's");
    }
}

#[test]
fn every_member_gets_the_roots_bytes() {
    (0..400).for_each(|seed| transfer(seed, SimConfig::fast()));
}

#[test]
fn every_member_gets_the_roots_bytes_on_the_worst_network() {
    (0..200).for_each(|seed| transfer(seed, SimConfig::nasty()));
}

/// The seconds until the last of `n` members has a phantom message of `k` blocks. The node `pause` does not run while
/// it is under way.
fn seconds(n: usize, k: usize, algorithm: Algorithm, pause: Option<u32>) -> f64 {
    let net = SimNet::new(SimConfig::ideal(RATE, Duration::from_micros(1)), 1);
    let config = config(n, algorithm, BLOCK);
    let members = config.members.iter().map(|&node| {
        let mut fabric = net.fabric(node);
        let buffer = Buffer::phantom(&mut fabric, k * BLOCK).expect("a size");
        let transfer = GraphTransfer::connect(&mut fabric, config.clone(), buffer, k * BLOCK, TOKEN).unwrap();
        Member { fabric, transfer, connected: 0, done: None, failures: Vec::new() }
    });
    let mut world = World { members: members.collect(), net };
    world.connect();
    let began = world.net.now();
    let Member { fabric, transfer, .. } = &mut world.members[0];
    transfer.send(fabric).unwrap();
    pause.iter().for_each(|node| world.net.pause(NodeId(*node)));
    while !world.members.iter().all(|member| member.has_ended() || Some(member.fabric.node().0) == pause) {
        assert!(world.step(), "all get it");
    }
    world.net.now().since(began).as_secs_f64()
}

const RATE: u64 = 12_500_000_000;
const BLOCK: usize = 1 << 20;

/// The bound is that of the engine's transfers: `tests/timing.rs`.
#[test]
fn a_graph_takes_little_more_than_its_steps() {
    let block_time = BLOCK as f64 / RATE as f64;
    for (algorithm, n, k, steps) in [
        (Algorithm::Chain, 10, 100, 108),
        (Algorithm::BinomialTree, 16, 50, 200),
        (Algorithm::BinomialPipeline, 2, 100, 100),
        (Algorithm::BinomialPipeline, 8, 100, 102),
        (Algorithm::BinomialPipeline, 13, 100, 103),
        (Algorithm::BinomialPipeline, 16, 100, 103),
        (Algorithm::BinomialPipeline, 64, 100, 105),
    ] {
        let ratio = seconds(n, k, algorithm.clone(), None) / (f64::from(steps) * block_time);
        assert!((1.0..1.06).contains(&ratio), "{}, {n} nodes, {k} blocks: {ratio} of {steps}", algorithm.name());
    }
}

/// RDMC, DSN 2018, Figure 5: a relay that is not scheduled delays no member.
#[test]
fn a_relay_that_does_not_run_costs_nothing() {
    for algorithm in [Algorithm::Chain, Algorithm::BinomialPipeline] {
        let without = seconds(8, 50, algorithm.clone(), None);
        for node in 1..7 {
            let with = seconds(8, 50, algorithm.clone(), Some(node));
            assert!(with <= without, "{}, without node {node}: {with} s instead of {without}", algorithm.name());
        }
    }
}

/// The purpose of graphs: from the connection on, no process has to run but the one that wants the message.
#[test]
fn a_transfer_needs_no_process_on_its_way() {
    for (seed, algorithm) in (0..).zip(algorithms(9)) {
        let message = content(seed, 40_000);
        let mut world = World::new(SimConfig::fast(), seed, &config(9, algorithm.clone(), 1000), &message);
        world.connect();
        let last = 8;
        (0..last).for_each(|node| world.net.pause(NodeId(node)));
        while world.members[last as usize].done.is_none() {
            assert!(world.step(), "{}: the last member waits for ever", algorithm.name());
        }
        (0..last).for_each(|node| world.net.resume(NodeId(node)));
        world.run();
        for member in &world.members {
            assert!(member.done.as_ref().is_some_and(|buffer| buffer[..] == message), "{}", algorithm.name());
        }
    }
}

/// A member's death ends the transfer once at every member that is not done, and none takes half a message for a whole
/// one.
#[test]
fn a_lost_member_ends_the_transfer() {
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let algorithms = algorithms(7);
        let algorithm = algorithms[rng.usize(..algorithms.len())].clone();
        let message = content(seed, 20_000);
        let mut world = World::new(SimConfig::fast(), seed, &config(7, algorithm, 500), &message);
        // A member that is lost before the connection would be waited for.
        world.connect();
        for _ in 0..rng.usize(..200) {
            world.step();
        }
        let lost = rng.usize(..7);
        world.net.crash(NodeId(lost as u32));
        while world.step() {}
        for (rank, member) in world.members.iter().enumerate().filter(|(rank, _)| *rank != lost) {
            match &member.done {
                Some(buffer) => assert!(buffer[..] == message, "seed {seed}, rank {rank}: a message with other bytes"),
                None => assert_eq!(member.failures.len(), 1, "seed {seed}, rank {rank}: {:?}", member.failures),
            }
        }
    }
}

#[test]
fn members_that_expect_different_messages_are_told_so() {
    let net = SimNet::new(SimConfig::fast(), 1);
    let config = config(2, Algorithm::Chain, 100);
    let members =
        [(0, 1000), (1, 900)].map(|(node, len)| Member::new(net.fabric(NodeId(node)), &config, &vec![1; len]));
    let mut world = World { net, members: members.into() };
    world.run();
    let told = |member: &Member<SimFabric>| match &member.failures[..] {
        [TransferFailure::Differs(_)] => true,
        // A member that hears of it later finds the other gone, or a block of another length.
        [TransferFailure::Peer(_, BreakReason::PeerClosed) | TransferFailure::Graph(_)] => false,
        others => panic!("{others:?}"),
    };
    assert!(world.members.iter().filter(|member| told(member)).count() >= 1);
    assert!(world.members.iter().all(|member| member.done.is_none() || member.fabric.node() == NodeId(0)));
}

#[test]
fn what_can_not_be_transferred_is_refused_with_a_reason() {
    let net = SimNet::new(SimConfig { recv_depth: 16, ..SimConfig::fast() }, 1);
    let mut fabric = net.fabric(NodeId(1));
    let mut refused = |config: GroupConfig, len| {
        let buffer = Buffer::register(&mut fabric, 1000).unwrap();
        GraphTransfer::connect(&mut fabric, config, buffer, len, TOKEN).unwrap_err()
    };
    let chain = config(3, Algorithm::Chain, 50);
    assert_eq!(refused(chain.clone(), 1001), TransferError::Message { len: 1001, capacity: 1000, block_bytes: 50 });
    let many = GraphError::Receives { receives: 20, room: 16 };
    assert_eq!(refused(chain.clone(), 1000), TransferError::Graph(many));
    let elsewhere = GroupConfig { members: vec![NodeId(0), NodeId(2)], ..chain };
    assert_eq!(refused(elsewhere, 10), TransferError::Create(CreateError::NotAMember(NodeId(1))));
}

/// A name that no other test's cluster has, in this process or another.
fn cluster() -> String {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    format!("graphs-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed))
}

#[test]
fn every_member_gets_the_roots_bytes_over_shared_memory() {
    for (seed, algorithm) in (0..).zip(algorithms(5)) {
        let cluster = cluster();
        let message = content(seed, 3 << 20 | 77);
        let config = config(5, algorithm.clone(), 64 << 10);
        let open = |node: &NodeId| ShmFabric::open(ShmConfig::new(&cluster, *node)).expect("a fabric");
        let mut members: Vec<_> =
            config.members.iter().map(|node| Member::new(open(node), &config, &message)).collect();
        let limit = Time::boot_clock() + Duration::from_secs(20);
        while !members.iter().all(Member::has_ended) {
            let now = Time::boot_clock();
            assert!(now < limit, "{}: not done", algorithm.name());
            members.iter_mut().for_each(|member| member.step(now));
        }
        for member in &members {
            assert!(member.done.as_ref().is_some_and(|buffer| buffer[..] == message), "{}", algorithm.name());
        }
    }
}

/// The work that a poll carries out by itself leaves no member asleep that has something to do.
#[test]
fn members_that_sleep_are_woken_when_there_is_something_to_carry_out() {
    let cluster = cluster();
    let message = content(1, 2 << 20);
    let config = config(4, Algorithm::BinomialPipeline, 32 << 10);
    let all_done = Barrier::new(config.members.len());
    std::thread::scope(|scope| {
        for &node in &config.members {
            let (cluster, config, message, all_done) = (&cluster, &config, &message, &all_done);
            scope.spawn(move || {
                let fabric = ShmFabric::open(ShmConfig::new(cluster, node)).expect("a fabric");
                let mut member = Member::new(fabric, config, message);
                let limit = Time::boot_clock() + Duration::from_secs(20);
                while !member.has_ended() {
                    assert!(Time::boot_clock() < limit, "{node} slept for ever");
                    member.fabric.arm();
                    member.step(Time::boot_clock());
                    if !member.has_ended() {
                        member.fabric.wait(limit);
                    }
                }
                member.fabric.disarm();
                // A member that has gone is lost to the members that are not done.
                all_done.wait();
                assert!(member.done.is_some_and(|buffer| buffer[..] == *message), "{node}: {:?}", member.failures);
            });
        }
    });
}
