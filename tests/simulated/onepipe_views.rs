//! 1Pipe groups whose failures are settled by the views of simulated nodes: crashes, pauses and links that break, from
//! seeds.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fastrand::Rng;
use squall::{
    Config, NodeId, Time,
    onepipe::{
        Controller, HostClock, Message, Mode, OnePipe, OnePipeConfig, OnePipeHandle, PipeEvent, ScatterError,
        ScatteringId, ViewController,
    },
    sim::{Cluster, Options, SimConfig, SimNet},
};
use squall_fabric::{Fabric, Waker, sim::SimFabric};

use crate::seeds;

/// The number of seeds that run.
const SEEDS: u64 = 60;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// The time after which the group's network and the nodes' stand at the same time again, by default.
const SLICE: Duration = Duration::from_micros(20);

/// A scattering: its sender's rank and number.
type Name = (usize, u64);

/// One rank of the group, in its node's process.
struct Rank {
    node: NodeId,
    fabric: SimFabric,
    pipe: OnePipe<HostClock>,
    controller: ViewController,
    /// The scatterings that it has sent, with the ranks that each is for.
    sent: BTreeMap<u64, BTreeSet<usize>>,
    ids: BTreeMap<ScatteringId, u64>,
    back: BTreeSet<u64>,
    /// The scatterings that were delivered, in that order.
    log: Vec<Name>,
    removed: BTreeSet<usize>,
    ended: bool,
    /// The number of scatterings that it had delivered when it learned that.
    at_end: usize,
}

impl Rank {
    fn new(handle: &OnePipeHandle, net: &SimNet, node: NodeId) -> Rank {
        let mut fabric = net.fabric(node);
        // No waker is needed, since the rank is stepped all the time.
        let (config, controller) = handle.take(Waker::new(|| ()), Duration::ZERO).expect("the node is in a view");
        let config = OnePipeConfig { ring_bytes: 4096, ..config };
        let gate = controller.gate().cloned().expect("the node closes it");
        let pipe = OnePipe::with_gate(&mut fabric, config, HostClock::default(), gate).expect("a sound group");
        Rank {
            node,
            fabric,
            pipe,
            controller,
            sent: BTreeMap::new(),
            ids: BTreeMap::new(),
            back: BTreeSet::new(),
            log: Vec::new(),
            removed: BTreeSet::new(),
            ended: false,
            at_end: 0,
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
        self.pipe.attend(&mut self.fabric, now, &mut self.controller);
        while let Some(event) = self.pipe.next_event() {
            match event {
                PipeEvent::Undeliverable { id, .. } => _ = self.back.insert(self.ids[&id]),
                PipeEvent::Removed { rank, .. } => _ = self.removed.insert(rank),
                PipeEvent::Ended => (self.ended, self.at_end) = (true, log.len()),
                PipeEvent::Broken { .. } => {}
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
    /// Ranks whose threads do something else, in nodes that run.
    busy: BTreeSet<usize>,
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
        let handles: Vec<OnePipeHandle> = nodes.iter().map(|&node| cluster.onepipe(node, "orders")).collect();
        cluster.start().expect("the cluster starts");
        net.advance(cluster.now(), &mut Vec::new());
        let ranks = handles.iter().zip(&nodes).map(|(handle, &node)| Rank::new(handle, &net, node)).collect();
        let mut world =
            World { cluster, net, ranks, down: BTreeSet::new(), paused: BTreeSet::new(), busy: BTreeSet::new(), rng };
        world.until("all are connected", |world| world.ranks.iter().all(|rank| rank.pipe.is_connected()));
        world
    }

    /// Lets both networks advance by the same time.
    fn slice(&mut self, lasts: Duration) {
        self.cluster.run_for(lasts);
        let until = self.cluster.now();
        while self.net.now() < until {
            self.net.advance(until, &mut Vec::new());
            let now = self.net.now();
            for index in 0..self.ranks.len() {
                if self.runs(index) {
                    self.ranks[index].step(now);
                }
            }
        }
    }

    /// The view that a node has installed.
    fn epoch(&self, index: usize) -> Option<u64> {
        self.cluster.view(self.ranks[index].node).map(|view| view.epoch.0)
    }

    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let limit = self.cluster.now() + Duration::from_secs(2);
        while !done(self) {
            assert!(self.cluster.now() < limit, "{what}: not within two seconds; {}", self.describe());
            self.slice(SLICE);
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

    fn runs(&self, index: usize) -> bool {
        ![&self.down, &self.paused, &self.busy].into_iter().any(|still| still.contains(&index))
    }

    /// The ranks that run and were not removed.
    fn survivors(&self) -> BTreeSet<usize> {
        (0..self.ranks.len()).filter(|&index| self.runs(index) && !self.ranks[index].ended).collect()
    }

    fn traffic(&mut self, slices: u32) {
        for _ in 0..slices {
            for index in self.survivors() {
                let removed = &self.ranks[index].removed;
                let to = (0..self.ranks.len()).filter(|to| !removed.contains(to) && self.rng.bool()).collect();
                self.ranks[index].scatter(self.net.now(), to);
            }
            self.slice(SLICE);
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

    /// Waits until the survivors agree that these are gone.
    fn agree(&mut self, gone: &BTreeSet<usize>) {
        self.until("the survivors settle", |world| {
            world.survivors().iter().all(|&index| gone.is_subset(&world.ranks[index].removed))
        });
    }

    /// Waits until the survivors agree that these are gone, and all scatterings of the survivors are settled.
    fn settle(&mut self, gone: &BTreeSet<usize>) {
        self.agree(gone);
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

    /// Checks that each scattering was delivered by all survivors that it is for, or by none; by none if it came back;
    /// and in one order.
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

/// Runs a test on each seed, and names the seed that fails.
fn on_seeds(test: impl Fn(&mut World)) {
    for seed in seeds::seeds(SEEDS) {
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
        // Few enough that the remaining nodes can decide on the next view.
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
        let view = world.epoch(index);
        world.pause(index);
        world.traffic(100);
        world.settle(&BTreeSet::from([index]));
        world.check();
        world.resume(index);
        world.until("it learns that it is out", |world| world.ranks[index].ended);
        assert_ne!(world.epoch(index), view, "its node says so, too");
        world.traffic(30);
        world.settle(&BTreeSet::from([index]));
        world.check();
        assert_eq!(world.ranks[index].log.len(), world.ranks[index].at_end);
    });
}

#[test]
fn one_whose_thread_does_something_else_holds_up_no_view_and_settles_later() {
    on_seeds(|world| {
        world.traffic(30);
        let busy = world.rng.usize(..world.ranks.len());
        world.busy.insert(busy);
        let slices = world.rng.u32(0..30);
        world.traffic(slices);
        let goes = (busy + world.rng.usize(1..world.ranks.len())) % world.ranks.len();
        let gone = BTreeSet::from([goes]);
        world.crash(goes);
        world.traffic(30);
        world.agree(&gone);
        // Long enough to lose a member that does not answer.
        (0..100).for_each(|_| world.slice(FAILURE_TIMEOUT / 20));
        let node = world.ranks[busy].node;
        for index in world.survivors() {
            let view = world.cluster.view(world.ranks[index].node).expect("it is a member");
            assert!(view.nodes().contains(&node), "the view keeps it");
            assert_eq!(world.ranks[index].removed, gone);
        }
        world.busy.clear();
        world.settle(&gone);
        assert!(world.survivors().contains(&busy));
        world.check();
        world.traffic(30);
        world.settle(&gone);
        world.check();
    });
}

#[test]
fn a_link_of_the_group_that_breaks_costs_one_of_its_ends() {
    on_seeds(|world| {
        world.traffic(30);
        let a = world.rng.usize(..world.ranks.len());
        let b = (a + world.rng.usize(1..world.ranks.len())) % world.ranks.len();
        world.net.cut(world.ranks[a].node, world.ranks[b].node);
        world.until("one of them goes", |world| world.ranks[a].ended || world.ranks[b].ended);
        let gone = if world.ranks[a].ended { a } else { b };
        world.traffic(30);
        world.settle(&BTreeSet::from([gone]));
        world.check();
        assert_eq!(world.survivors().len(), world.ranks.len() - 1, "{}", world.describe());
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
