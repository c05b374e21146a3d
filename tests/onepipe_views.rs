//! 1Pipe groups whose failures are settled by the views of simulated nodes: crashes, pauses and links that break, from seeds.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, NodeId, Time,
    onepipe::{Event, HostClock, Message, Mode, OnePipe, OnePipeConfig, ScatterError, ScatteringId, Seat, Settler},
    sim::{Cluster, Options, SimConfig, SimNet},
};
use squall_fabric::{Fabric, Waker, sim::SimFabric};

/// How many seeds run.
const SEEDS: u64 = 60;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The group's network and the nodes' stand at the same time again after so long.
const SLICE: Duration = Duration::from_micros(20);

/// A scattering: its sender's rank and number.
type Name = (usize, u64);

/// One rank of the group, in its node's process.
struct Rank {
    node: NodeId,
    fabric: SimFabric,
    pipe: OnePipe<HostClock>,
    settler: Settler,
    /// What it has sent, with the ranks that each is for.
    sent: BTreeMap<u64, BTreeSet<usize>>,
    ids: BTreeMap<ScatteringId, u64>,
    back: BTreeSet<u64>,
    /// In the order of delivery.
    log: Vec<Name>,
    removed: BTreeSet<usize>,
    ended: bool,
}

impl Rank {
    fn new(seat: &Seat, net: &SimNet, node: NodeId) -> Rank {
        let mut fabric = net.fabric(node);
        // It is stepped all the time.
        let (config, settler) = seat.take(Waker::new(|| ()), Duration::ZERO).expect("the node is in a view");
        let config = OnePipeConfig { ring_bytes: 4096, ..config };
        let pipe = OnePipe::create(&mut fabric, config, HostClock::default()).expect("a sound group");
        Rank {
            node,
            fabric,
            pipe,
            settler,
            sent: BTreeMap::new(),
            ids: BTreeMap::new(),
            back: BTreeSet::new(),
            log: Vec::new(),
            removed: BTreeSet::new(),
            ended: false,
        }
    }

    fn scatter(&mut self, now: Time, to: BTreeSet<usize>) {
        let number = self.sent.len() as u64;
        let bytes = number.to_le_bytes();
        let messages: Vec<_> = to.iter().map(|&to| Message { to, bytes: &bytes }).collect();
        match self.pipe.scatter(now, Mode::Reliable, &messages) {
            Ok(id) => {
                self.ids.insert(id, number);
                self.sent.insert(number, to);
            }
            Err(ScatterError::Empty | ScatterError::Full { .. } | ScatterError::Ended) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, now: Time) {
        let mut completions = Vec::new();
        self.fabric.poll(now, &mut completions);
        for completion in &completions {
            self.pipe.on_completion(&mut self.fabric, now, completion);
        }
        self.pipe.step(&mut self.fabric, now);
        let log = &mut self.log;
        self.pipe.deliver(Mode::Reliable, usize::MAX, &mut |delivery| {
            log.push((delivery.sender, u64::from_le_bytes(delivery.bytes.try_into().expect("8 bytes"))));
        });
        self.pipe.attend(&mut self.fabric, now, &mut self.settler);
        while let Some(event) = self.pipe.next_event() {
            match event {
                Event::Undeliverable { id, .. } => _ = self.back.insert(self.ids[&id]),
                Event::Removed { rank, .. } => _ = self.removed.insert(rank),
                Event::Ended => self.ended = true,
                Event::Broken { .. } => {}
            }
        }
    }
}

struct World {
    cluster: Cluster,
    net: SimNet,
    ranks: Vec<Rank>,
    down: BTreeSet<usize>,
    paused: BTreeSet<usize>,
    rng: Rng,
}

impl World {
    fn formed(seed: u64) -> World {
        let mut rng = Rng::with_seed(seed);
        let nodes: Vec<NodeId> = (1..=rng.u32(3..=6)).map(NodeId).collect();
        let config = Config::builder("onepipe", 1).members(nodes.iter().map(|node| node.0));
        let config = config.failure_timeout(FAILURE_TIMEOUT).build().expect("the configuration is valid");
        let net = SimNet::new(SimConfig { failure_timeout: FAILURE_TIMEOUT, ..SimConfig::fast() }, rng.u64(..));
        let mut cluster = Cluster::new(config, Options::default(), rng.u64(..));
        let seats: Vec<Seat> = nodes.iter().map(|&node| cluster.onepipe(node, "orders")).collect();
        cluster.start().expect("the cluster starts");
        net.advance(cluster.now(), &mut Vec::new());
        let ranks = seats.iter().zip(&nodes).map(|(seat, &node)| Rank::new(seat, &net, node)).collect();
        let mut world = World { cluster, net, ranks, down: BTreeSet::new(), paused: BTreeSet::new(), rng };
        world.until("all are connected", |world| world.ranks.iter().all(|rank| rank.pipe.is_connected()));
        world
    }

    /// Lets both networks come as far.
    fn slice(&mut self) {
        self.cluster.run_for(SLICE);
        let until = self.cluster.now();
        while self.net.now() < until {
            self.net.advance(until, &mut Vec::new());
            let now = self.net.now();
            for index in 0..self.ranks.len() {
                if !self.down.contains(&index) && !self.paused.contains(&index) {
                    self.ranks[index].step(now);
                }
            }
        }
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let limit = self.cluster.now() + Duration::from_secs(2);
        while !done(self) {
            assert!(self.cluster.now() < limit, "{what}: not within two seconds; {}", self.describe());
            self.slice();
        }
    }

    fn describe(&self) -> String {
        let (down, paused) = (&self.down, &self.paused);
        let mut text = format!("{} ranks, down {down:?}, paused {paused:?}", self.ranks.len());
        for (index, rank) in self.ranks.iter().enumerate() {
            let view = self.cluster.view(rank.node).map(|view| (view.epoch.0, view.nodes()));
            text += &format!(
                "\n{index}: {:?}, removed {:?}, ended {}, {view:?}",
                rank.pipe.epoch(),
                rank.removed,
                rank.ended
            );
        }
        text
    }

    /// Those whose processes run and that were not removed.
    fn survivors(&self) -> BTreeSet<usize> {
        let is_up = |index: &usize| !self.down.contains(index) && !self.paused.contains(index);
        (0..self.ranks.len()).filter(is_up).filter(|&index| !self.ranks[index].ended).collect()
    }

    fn traffic(&mut self, slices: u32) {
        for _ in 0..slices {
            for index in self.survivors() {
                let removed = &self.ranks[index].removed;
                let to = (0..self.ranks.len()).filter(|to| !removed.contains(to) && self.rng.bool()).collect();
                self.ranks[index].scatter(self.net.now(), to);
            }
            self.slice();
        }
    }

    fn crash(&mut self, index: usize) {
        let node = self.ranks[index].node;
        self.down.insert(index);
        self.net.crash(node);
        self.cluster.kill(node);
    }

    fn pause(&mut self, index: usize) {
        let node = self.ranks[index].node;
        self.paused.insert(index);
        self.net.pause(node);
        self.cluster.pause(node);
    }

    fn resume(&mut self, index: usize) {
        let node = self.ranks[index].node;
        self.paused.remove(&index);
        self.net.resume(node);
        self.cluster.resume(node);
    }

    /// Survivors agree on who is gone, and all that they have sent is settled.
    fn settle(&mut self, gone: &BTreeSet<usize>) {
        self.until("the survivors settle", |world| {
            world.survivors().iter().all(|&index| gone.is_subset(&world.ranks[index].removed))
        });
        self.until("all is delivered or given back", |world| {
            let survivors = world.survivors();
            let is_settled = |&index: &usize| {
                let rank = &world.ranks[index];
                rank.sent.iter().filter(|(number, _)| !rank.back.contains(number)).all(|(number, to)| {
                    to.intersection(&survivors).all(|&to| world.ranks[to].log.contains(&(index, *number)))
                })
            };
            survivors.iter().all(is_settled)
        });
    }

    /// Each scattering was delivered by all survivors that it is for, or by none; by none that came back; in one order.
    fn check(&self) {
        let survivors = self.survivors();
        for &index in &survivors {
            let log = &self.ranks[index].log;
            let distinct: BTreeSet<&Name> = log.iter().collect();
            assert_eq!(distinct.len(), log.len(), "rank {index} has one twice");
            for (sender, number) in log {
                let sender = &self.ranks[*sender];
                assert!(!sender.back.contains(number), "rank {index} has one that came back");
                for to in sender.sent[number].intersection(&survivors) {
                    let has = self.ranks[*to].log.contains(&(sender.pipe.rank(), *number));
                    assert!(has, "number {number} of {} is at {index}, not at {to}", sender.pipe.rank());
                }
            }
            for &other in &survivors {
                let place: BTreeMap<_, _> = self.ranks[other].log.iter().zip(0..).collect();
                let common: Vec<i32> = log.iter().filter_map(|name| place.get(name).copied()).collect();
                assert!(common.is_sorted(), "ranks {index} and {other} have different orders");
            }
        }
    }
}

fn seeds() -> Vec<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    match (std::env::var("SQUALL_SEED"), std::env::var("SQUALL_SEEDS")) {
        (Ok(seed), _) => vec![number(&seed)],
        (_, Ok(range)) => {
            let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
            (number(from)..number(to)).collect()
        }
        _ => (0..SEEDS).collect(),
    }
}

/// Runs a test on each seed, and says which fails.
fn on_seeds(test: impl Fn(&mut World)) {
    for seed in seeds() {
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(&mut World::formed(seed))));
        if let Err(payload) = run {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            panic!("seed {seed}: {}", text.or(payload.downcast_ref().copied()).unwrap_or("a panic"));
        }
    }
}

#[test]
fn survivors_of_crashes_settle_and_go_on() {
    on_seeds(|world| {
        world.traffic(30);
        // So that those who are left can decide what follows.
        let goes = world.rng.usize(1..=(world.ranks.len() - 1) / 2);
        let mut gone = BTreeSet::new();
        while gone.len() < goes {
            let index = world.rng.usize(..world.ranks.len());
            if gone.insert(index) {
                world.crash(index);
                let slices = world.rng.u32(0..60);
                world.traffic(slices);
            }
        }
        world.traffic(100);
        world.settle(&gone);
        world.check();
        let before: Vec<usize> = world.survivors().iter().map(|&index| world.ranks[index].log.len()).collect();
        world.traffic(30);
        world.settle(&gone);
        world.check();
        let after: Vec<usize> = world.survivors().iter().map(|&index| world.ranks[index].log.len()).collect();
        assert!(before.iter().zip(&after).all(|(before, after)| after > before), "{before:?} {after:?}");
    });
}

#[test]
fn one_that_was_paused_learns_that_it_is_out_and_delivers_no_more() {
    on_seeds(|world| {
        world.traffic(30);
        let index = world.rng.usize(..world.ranks.len());
        world.pause(index);
        world.traffic(100);
        world.settle(&BTreeSet::from([index]));
        world.check();
        world.resume(index);
        world.until("it learns that it is out", |world| world.ranks[index].ended);
        world.traffic(30);
        world.settle(&BTreeSet::from([index]));
        world.check();
    });
}

#[test]
fn a_view_in_which_nobody_failed_lets_the_group_go_on() {
    on_seeds(|world| {
        world.traffic(30);
        let all: BTreeSet<usize> = (0..world.ranks.len()).collect();
        let joins = NodeId(100);
        world.cluster.onepipe(joins, "orders");
        world.cluster.launch(joins).expect("it is declared");
        world.traffic(200);
        assert!(world.cluster.view(joins).is_some(), "it has joined");
        world.settle(&BTreeSet::new());
        world.check();
        assert_eq!(world.survivors(), all);
    });
}
