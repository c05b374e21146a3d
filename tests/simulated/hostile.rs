//! A member that does harm. The others go on, and once it is gone they are one group again.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use squall::{
    Config, EndReason, Epoch, Group, Mode, NodeId,
    sim::{Cluster, Hostility, Options, SimConfig, ViewLogKind},
};

use crate::{seeds, sum::Sum};

/// The number of seeds that run of each kind.
const SEEDS: u64 = 40;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

const APPLY_TIMEOUT: Duration = Duration::from_millis(60);

/// The thresholds of bulk messages: with the second, all messages go by RDMC.
const BULK_THRESHOLDS: [usize; 2] = [256 << 10, 0];

/// The layer of a shard's rows and rings.
const SHARDS: u32 = 2;

/// The layer of the connections that carry the blocks of RDMC.
const BLOCKS: u32 = 3;

struct World {
    cluster: Cluster,
    groups: BTreeMap<NodeId, Group<Sum>>,
    hostile: NodeId,
    /// Whether the group was ended for all.
    is_over: bool,
    /// The ends of nodes' parts.
    ends: Vec<(NodeId, EndReason)>,
    rng: Rng,
}

impl World {
    fn new(seed: u64, bulk_threshold: usize) -> World {
        let mode = [Mode::Ordered, Mode::Durable][seed as usize % 2];
        let mut rng = Rng::with_seed(seed);
        let nodes: Vec<NodeId> = (1..=rng.u32(4..=6)).map(NodeId).collect();
        let config = Config::builder("hostile", 1)
            .members(nodes.iter().map(|node| node.0))
            .storage("simulated")
            .failure_timeout(FAILURE_TIMEOUT)
            .apply_timeout(APPLY_TIMEOUT)
            .group("sum", |group| _ = group.mode(mode).bulk_threshold(bulk_threshold).bulk_reserve(64 << 10))
            .build()
            .expect("the configuration is valid");
        let view_log = if mode == Mode::Durable { ViewLogKind::RaftOnDisks } else { ViewLogKind::Scripted };
        let net = SimConfig { failure_timeout: Duration::from_millis(1), ..SimConfig::fast() };
        let mut cluster = Cluster::new(config, Options { net, view_log, ..Options::default() }, rng.u64(..));
        let groups = nodes.iter().copied().zip(cluster.group("sum", |_| Sum::default())).collect();
        cluster.start().expect("the cluster starts");
        let hostile = nodes[rng.usize(..nodes.len())];
        World { cluster, groups, hostile, is_over: false, ends: Vec::new(), rng }
    }

    /// Lets time pass with calls at all members. Members that were dropped for good are started again.
    fn load(&mut self, steps: usize) {
        for _ in 0..steps {
            for (node, group) in &self.groups {
                if self.rng.u8(..4) == 0 && self.cluster.is_up(*node) {
                    drop(group.submit(&1));
                }
            }
            self.cluster.run_for(Duration::from_micros(500));
            self.is_over |= self.groups.keys().any(|&node| self.cluster.end_reason(node) == Some(&EndReason::Left));
            self.start_again();
        }
    }

    fn start_again(&mut self) {
        let end = |&node: &NodeId| Some((node, self.cluster.end_reason(node)?.clone()));
        let ended: Vec<(NodeId, EndReason)> = self.groups.keys().filter_map(end).collect();
        self.ends.extend(ended.iter().cloned());
        for (node, _) in ended {
            self.cluster.crash(node);
            self.groups.insert(node, self.cluster.declare(node, "sum", Sum::default()));
            self.cluster.launch(node).expect("it starts again");
        }
    }

    /// Has the member do harm until a view follows, takes it away, and lets it come back as one that keeps the rules; a
    /// few times. Each time the members are one group again.
    fn run(&mut self, hostility: Hostility) {
        for _ in 0..3 {
            let pause = Duration::from_micros(self.rng.u64(10..10_000));
            let epoch = self.epoch();
            self.cluster.turn_hostile(self.hostile, hostility, pause);
            for _ in 0..100 {
                self.load(1);
                if self.epoch() > epoch {
                    break;
                }
            }
            assert!(hostility != Hostility::Garbles || self.epoch() > epoch, "nobody has noticed it");
            self.cluster.crash(self.hostile);
            assert!(!self.is_over, "the group ended");
            let away = self.groups.remove(&self.hostile);
            self.until_whole();
            drop(away);
            self.groups.insert(self.hostile, self.cluster.declare(self.hostile, "sum", Sum::default()));
            self.cluster.launch(self.hostile).expect("it starts again");
            self.until_whole();
        }
    }

    /// The newest view's number.
    fn epoch(&self) -> Epoch {
        self.groups.keys().filter_map(|&node| Some(self.cluster.view(node)?.epoch)).max().unwrap_or(Epoch(0))
    }

    /// Waits until all members that there are to be are in one view, and get their messages through.
    fn until_whole(&mut self) {
        let members: Vec<NodeId> = self.groups.keys().copied().collect();
        let mut rounds = 0;
        while !self.is_whole(&members) {
            self.load(20);
            rounds += 1;
            let views: Vec<_> = members.iter().map(|&node| (node, self.cluster.view(node))).collect();
            assert!(rounds < 500, "{members:?} are not one group: {views:#?}");
        }
        for (node, group) in &self.groups {
            // A view may just be about to change.
            let mut refused = 0;
            loop {
                match self.cluster.wait(Duration::from_secs(5), group.submit(&1)) {
                    Some(Ok(_)) => break,
                    Some(Err(_)) if refused < 100 => refused += 1,
                    answer => panic!("{node} does not get its message through: {answer:?}"),
                }
                self.cluster.run_for(Duration::from_millis(10));
            }
        }
    }

    /// Whether all of these are in one view, with the group's state.
    fn is_whole(&self, members: &[NodeId]) -> bool {
        let view = |&node| self.cluster.view(node);
        let Some(first) = view(&members[0]) else { return false };
        let has = |node: &NodeId| first.shards.iter().all(|shard| shard.is_complete(*node));
        members.iter().all(|node| has(node) && view(node).is_some_and(|view| view.epoch == first.epoch))
    }

    /// Checks that the members' replicas agree.
    fn agree(&mut self) {
        self.cluster.run_for(Duration::from_secs(1));
        let sums: Vec<(NodeId, u64)> = self
            .groups
            .iter()
            .map(|(&node, group)| {
                let read = group.read(|sum| sum.0);
                (node, self.cluster.wait(Duration::from_secs(5), read).expect("it is answered").expect("it is read"))
            })
            .collect();
        assert!(sums.windows(2).all(|pair| pair[0].1 == pair[1].1), "replicas differ: {sums:?}");
    }
}

#[test]
fn a_member_that_reaches_for_what_it_was_not_given_costs_no_more_than_a_failure() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut world = World::new(seed, BULK_THRESHOLDS[seed as usize / 2 % 2]);
        world.run(Hostility::Intrudes);
        world.agree();
        Ok(())
    });
}

#[test]
fn the_others_outlive_a_member_that_lies() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut world = World::new(seed, BULK_THRESHOLDS[seed as usize / 2 % 2]);
        world.run(Hostility::Lies);
        let ends: Vec<_> = world.ends.iter().filter(|(node, _)| *node != world.hostile).collect();
        assert!(ends.is_empty(), "{ends:?}");
        Ok(())
    });
}

#[test]
fn bulk_messages_go_on_once_a_member_that_broke_their_transfer_off_is_found_out() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut world = World::new(seed, 0);
        world.until_whole();
        let epoch = world.epoch();
        // It does so once: it would take an hour until the next time.
        world.cluster.turn_hostile(world.hostile, Hostility::Closes(BLOCKS), Duration::from_secs(3600));
        let mut steps = 0;
        while world.epoch() == epoch {
            world.load(1);
            steps += 1;
            assert!(steps < 1000, "nobody is blamed in half a second");
        }
        world.until_whole();
        world.agree();
        Ok(())
    });
}

/// Records that make no sense are not counted. A member that meets one after it was counted comes back, and gets what
/// the others have delivered.
#[test]
fn a_member_that_garbles_its_messages_ends_nobody() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut world = World::new(seed, BULK_THRESHOLDS[seed as usize / 2 % 2]);
        world.run(Hostility::Garbles);
        world.agree();
        assert!(world.ends.is_empty(), "{:?}", world.ends);
        Ok(())
    });
}

#[test]
fn a_member_that_keeps_back_its_receipts_and_turns_is_given_up() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| {
        let mut world = World::new(seed, BULK_THRESHOLDS[0]);
        world.until_whole();
        let epoch = world.epoch();
        let others: Vec<NodeId> = world.groups.keys().copied().filter(|&node| node != world.hostile).collect();
        // If it is one member alone from which it keeps them, the others can't tell which of the two is at fault.
        let from = world.rng.bool().then(|| others[world.rng.usize(..others.len())]);
        let hostility = Hostility::Withholds { layer: SHARDS, from };
        world.cluster.turn_hostile(world.hostile, hostility, Duration::ZERO);
        let mut steps = 0;
        while world.epoch() == epoch {
            world.load(1);
            steps += 1;
            assert!(steps < 400, "nobody is given up in 0.2 s");
        }
        let views: Vec<_> = others.iter().filter_map(|&node| world.cluster.view(node)).collect();
        let newest = views.into_iter().max_by_key(|view| view.epoch).expect("a view");
        // One that was given up may be back already.
        let has_stayed =
            |node: &NodeId| newest.members.iter().any(|m| m.node == *node) && !newest.joined.contains(node);
        let at_fault = [world.hostile].into_iter().chain(from);
        assert!(at_fault.filter(has_stayed).count() < 1 + from.iter().count(), "{from:?}: {newest:?}");
        assert!(others.iter().filter(|&&node| Some(node) != from).all(has_stayed), "{from:?}: {newest:?}");
        world.cluster.crash(world.hostile);
        drop(world.groups.remove(&world.hostile));
        world.until_whole();
        world.agree();
        Ok(())
    });
}
