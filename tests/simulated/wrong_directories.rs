//! Storage directories that are not those that their nodes take them for: those of other nodes, and old copies.
//! Simulated members say which it is, and no acknowledged number is given up that a disk still has.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::time::Duration;

use squall::{
    Config, Group, Mode, NodeId,
    sim::{Cluster, DiskCopy, NotStarted, Options, ViewLogKind},
};

use crate::{numbers::Sequence, seeds};

/// The number of seeds that run here.
const SEEDS: u64 = 10;

/// The time within which a group serves, or says why not.
const PATIENCE: Duration = Duration::from_secs(3);

struct World {
    seed: u64,
    cluster: Cluster,
    groups: Vec<Group<Sequence>>,
    acknowledged: Vec<u64>,
}

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];

impl World {
    fn new(seed: u64) -> World {
        let config = Config::builder("wrong-directories", 1)
            .members(1..=3)
            .failure_timeout(Duration::from_millis(20))
            .restart_wait(Duration::from_millis(50))
            .storage("simulated")
            .group("numbers", |group| {
                group.mode(Mode::Durable);
            })
            .build()
            .expect("the configuration is valid");
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, seed);
        let groups = cluster.group("numbers", |_| Sequence::default());
        cluster.start().expect("the group forms");
        World { seed, cluster, groups, acknowledged: Vec::new() }
    }

    fn launch(&mut self, node: NodeId) -> Result<(), String> {
        self.groups[node.0 as usize - 1] = self.cluster.declare(node, "numbers", Sequence::default());
        match self.cluster.launch(node) {
            Ok(()) => Ok(()),
            Err(NotStarted::Disk { why, .. }) => Err(why),
            Err(error) => panic!("{error}"),
        }
    }

    /// Has a member acknowledge `count` numbers.
    fn work(&mut self, at: NodeId, count: u64) {
        for _ in 0..count {
            let number = self.acknowledged.len() as u64 + 1;
            let answer = self.groups[at.0 as usize - 1].submit(&number);
            let answer = self.cluster.wait(PATIENCE, answer);
            assert_eq!(answer, Some(Ok(number)), "seed {}: {number} at {at}", self.seed);
            self.acknowledged.push(number);
        }
    }

    /// Kills a node, and starts it again.
    fn restart(&mut self, node: NodeId) {
        self.cluster.kill(node);
        self.cluster.run_for(Duration::from_millis(200));
        self.launch(node).expect("its own disk");
        self.until("the node serves", |world| world.holds(node));
    }

    fn holds(&self, node: NodeId) -> bool {
        self.cluster.view(node).is_some_and(|view| view.shards[0].is_complete(node))
    }

    fn kill_all(&mut self) {
        // The acknowledged marks come to rest.
        self.cluster.run_for(Duration::from_millis(200));
        NODES.into_iter().for_each(|node| self.cluster.kill(node));
    }

    #[track_caller]
    fn until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        for _ in 0..300 {
            if done(self) {
                return;
            }
            self.cluster.run_for(PATIENCE / 300);
        }
        let ends: Vec<_> = NODES.iter().map(|&node| (self.cluster.view(node), self.cluster.end_reason(node))).collect();
        panic!("seed {}: not within {PATIENCE:?}: {what}; {ends:#?}", self.seed);
    }

    /// The reason for a node's end; empty if it has not ended.
    fn says(&self, node: NodeId) -> String {
        self.cluster.end_reason(node).map(ToString::to_string).unwrap_or_default()
    }

    /// Checks that a member shows all that was acknowledged.
    fn is_whole_at(&mut self, node: NodeId) {
        let shown = self.groups[node.0 as usize - 1].read(|numbers| numbers.0.clone());
        let shown = self.cluster.wait(PATIENCE, shown).expect("an answer").expect("it serves");
        assert_eq!(shown, self.acknowledged, "seed {}", self.seed);
    }
}

#[test]
fn directories_that_were_exchanged_are_refused_and_serve_again_in_their_places() {
    for seed in seeds::seeds(SEEDS) {
        let mut world = World::new(seed);
        world.work(NodeId(1), 20);
        world.kill_all();
        let disks: Vec<DiskCopy> = NODES.iter().map(|&node| world.cluster.copy_disk(node)).collect();
        world.cluster.put_disk(NodeId(1), &disks[1]);
        world.cluster.put_disk(NodeId(2), &disks[0]);
        let why = world.launch(NodeId(1)).expect_err("it is node 2's");
        assert!(why.contains("is the directory of node 2, and this is node 1"), "{why}");
        let why = world.launch(NodeId(2)).expect_err("it is node 1's");
        assert!(why.contains("is the directory of node 1, and this is node 2"), "{why}");
        for (node, disk) in NODES.into_iter().zip(&disks) {
            world.cluster.put_disk(node, disk);
            world.launch(node).expect("its own");
        }
        world.until("all serve", |world| NODES.into_iter().all(|node| world.holds(node)));
        NODES.into_iter().for_each(|node| world.is_whole_at(node));
    }
}

#[test]
fn a_copy_of_another_node_s_directory_is_refused_while_the_others_go_on() {
    for seed in seeds::seeds(SEEDS) {
        let mut world = World::new(seed);
        world.work(NodeId(1), 20);
        world.cluster.kill(NodeId(3));
        let copy = world.cluster.copy_disk(NodeId(1));
        world.cluster.put_disk(NodeId(3), &copy);
        let why = world.launch(NodeId(3)).expect_err("it is node 1's");
        assert!(why.contains("is the directory of node 1, and this is node 3"), "{why}");
        world.until("the others serve", |world| {
            world.cluster.view(NodeId(1)).is_some_and(|view| view.members.len() == 2)
        });
        world.work(NodeId(1), 5);
        world.is_whole_at(NodeId(2));
    }
}

#[test]
fn an_old_copy_of_one_directory_ends_its_node_and_the_others_serve_all_that_was_acknowledged() {
    for seed in seeds::seeds(SEEDS) {
        let mut world = World::new(seed);
        let node = NODES[seed as usize % 3];
        let others: Vec<NodeId> = NODES.into_iter().filter(|other| *other != node).collect();
        world.work(others[0], 20);
        world.cluster.kill(node);
        let old = world.cluster.copy_disk(node);
        world.launch(node).expect("its own");
        world.until("the node serves", |world| world.holds(node));
        world.work(others[0], 20);
        // While the others run, or after all have stopped.
        match seed % 2 {
            0 => world.cluster.kill(node),
            _ => world.kill_all(),
        }
        world.cluster.put_disk(node, &old);
        for other in NODES {
            if !world.cluster.is_up(other) {
                world.launch(other).expect("it opens");
            }
        }
        world.until("the node ends", |world| world.says(node).contains("is an old copy"));
        world.until("the others serve", |world| {
            others.iter().all(|&other| {
                world.holds(other) && world.cluster.view(other).is_some_and(|view| view.members.len() == 2)
            })
        });
        others.iter().for_each(|&other| world.is_whole_at(other));
        // With an empty directory the node joins.
        world.cluster.kill(node);
        world.cluster.wipe(node);
        world.launch(node).expect("an empty one");
        world.until("the node serves", |world| world.holds(node));
        world.is_whole_at(node);
    }
}

/// Lets two of three go on from old copies, and the third come late. It has the numbers that they lack, keeps them, and
/// says so, as they do.
fn third_comes_late(world: &mut World, late: NodeId, old: &[(NodeId, DiskCopy)]) -> Vec<(NodeId, DiskCopy)> {
    let seed = world.seed;
    world.kill_all();
    let newest: Vec<(NodeId, DiskCopy)> = old.iter().map(|(node, _)| (*node, world.cluster.copy_disk(*node))).collect();
    for (node, copy) in old {
        world.cluster.put_disk(*node, copy);
        world.launch(*node).expect("it opens");
    }
    world.until("they go on", |world| old.iter().all(|(node, _)| world.holds(*node)));
    world.launch(late).expect("its own");
    world.until("it ends", |world| world.says(late).contains("the group has gone back"));
    world.until("they say so", |world| old.iter().any(|(node, _)| !world.cluster.went_back(*node).is_empty()));
    assert!(old.iter().all(|(node, _)| world.holds(*node)), "seed {seed}");
    assert_eq!(world.cluster.last_version(late, 0), Some(world.acknowledged.len() as u64), "it has what it had");
    newest
}

#[test]
fn old_copies_of_two_do_not_roll_back_the_third_that_comes_late() {
    for seed in seeds::seeds(SEEDS) {
        let mut world = World::new(seed);
        let late = NODES[seed as usize % 3];
        let others: Vec<NodeId> = NODES.into_iter().filter(|other| *other != late).collect();
        world.work(late, 20);
        let old: Vec<(NodeId, DiskCopy)> = others.iter().map(|&node| (node, world.cluster.copy_disk(node))).collect();
        others.iter().for_each(|&node| world.restart(node));
        world.work(late, 100);
        let newest = third_comes_late(&mut world, late, &old);
        // With the others' newer directories, all numbers are there.
        NODES.into_iter().for_each(|node| world.cluster.kill(node));
        newest.iter().for_each(|(node, copy)| world.cluster.put_disk(*node, copy));
        NODES.into_iter().for_each(|node| world.launch(node).expect("its own"));
        world.until("all serve", |world| NODES.into_iter().all(|node| world.holds(node)));
        NODES.into_iter().for_each(|node| world.is_whole_at(node));
    }
}

/// Nothing was started meanwhile, and no view changed: only the acknowledged numbers tell the copies apart.
#[test]
fn copies_of_two_running_nodes_do_not_roll_back_the_third_that_comes_late() {
    for seed in seeds::seeds(SEEDS) {
        let mut world = World::new(seed);
        let late = NODES[seed as usize % 3];
        let others: Vec<NodeId> = NODES.into_iter().filter(|other| *other != late).collect();
        world.work(late, 20);
        world.cluster.run_for(Duration::from_millis(500));
        let old: Vec<(NodeId, DiskCopy)> = others.iter().map(|&node| (node, world.cluster.copy_disk(node))).collect();
        world.work(late, 100);
        third_comes_late(&mut world, late, &old);
    }
}
