//! Durable shards of two replicas on four to six simulated nodes and on some that join. Disks stand still, are
//! replaced, and lose power. Nothing acknowledged is lost while a disk has it, and a shard goes on when its last
//! holders are back.

use std::time::Duration;

use squall::{Mode, NodeId, ShardView, sim::Cluster};

use crate::{
    seeds,
    shards::{PATIENCE, World},
};

/// The number of seeds that run here.
const SEEDS: u64 = 20;

struct Run {
    world: World,
    /// The one node whose disk was replaced.
    victim: Option<NodeId>,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run { world: World::new(seed, "durable-shards", Mode::Durable), victim: None }
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) -> Result<(), String> {
        let world = &mut self.world;
        let node = world.any_node();
        match world.rng.u8(0..16) {
            0 => world.end(node),
            1 | 2 => {
                for node in world.any_replicas() {
                    world.end(node);
                    world.pause(3);
                }
            }
            3 => world.nodes().into_iter().for_each(|node| world.cluster.crash(node)),
            4 | 5 => {
                let pace = [0, 50, 5_000, 100_000][world.rng.usize(0..4)];
                world.cluster.slow_disk(node, Duration::from_micros(pace));
            }
            6 if self.victim.is_none() => self.replace()?,
            7..=11 => world.launch(node)?,
            12 => {
                for node in world.nodes() {
                    world.launch(node)?;
                    world.pause(10);
                }
            }
            13 => return self.strand(),
            _ => {}
        }
        Ok(())
    }

    /// Starts all nodes, and gives them time and work.
    fn gather(&mut self) -> Result<(), String> {
        for node in self.world.nodes() {
            self.world.launch(node)?;
        }
        for _ in 0..20 {
            self.world.pause(20);
            self.world.ask_something();
            self.world.answer()?;
        }
        Ok(())
    }

    /// Gives a node a shard, leaves it alone with it, and crashes it before its disk has all that the others had.
    fn strand(&mut self) -> Result<(), String> {
        let world = &mut self.world;
        let node = world.any_node();
        world.end(node);
        world.pause(100);
        world.launch(node)?;
        let pace = [5_000, 20_000, 100_000][world.rng.usize(0..3)];
        world.cluster.slow_disk(node, Duration::from_micros(pace));
        let before = world.view().map_or(0, |view| view.epoch.0);
        let mut stranded = None;
        for _ in 0..1000 {
            // A message may be on its way at any moment, so also in the one in which the node has the state.
            let micros = world.rng.u64(0..=400);
            world.cluster.run_for(Duration::from_micros(micros));
            world.ask_something();
            world.answer()?;
            let Some(view) = world.view().filter(|view| view.epoch.0 > before + 1) else { continue };
            let is_held = |shard: &&ShardView| shard.is_complete(node) && shard.complete.len() > 1;
            match stranded {
                None => {
                    let Some(shard) = view.shards.iter().find(is_held) else { continue };
                    world.cluster.hang_disk(node, true);
                    shard.complete.iter().filter(|&&other| other != node).for_each(|&other| world.end(other));
                    stranded = Some(shard.shard);
                }
                Some(shard) if view.shard(shard).is_some_and(|shard| shard.complete == [node]) => break,
                Some(_) => {}
            }
        }
        if stranded.is_some() {
            world.cluster.crash(node);
        }
        world.cluster.hang_disk(node, false);
        Ok(())
    }

    /// Ends the replicas of a shard, or one, and replaces the disk of one of them, if the others go on without it.
    fn replace(&mut self) -> Result<(), String> {
        self.gather()?;
        let world = &mut self.world;
        let (replicas, only_one) = (world.any_replicas(), world.rng.u8(0..4) == 0);
        let Some(&victim) = replicas.get(world.rng.usize(0..2)) else { return Ok(()) };
        replicas.iter().filter(|&&node| node == victim || !only_one).for_each(|&node| world.end(node));
        // Of the victim's disk nothing is then needed but its shards.
        world.cluster.run_for(Duration::from_millis(100));
        if !world.view().is_some_and(|view| view.members.len() >= 3 && view.rank_of(victim).is_none()) {
            return Ok(());
        }
        world.cluster.wipe(victim);
        self.victim = Some(victim);
        // The victim's process is started up to twice with the new disk, before it stays.
        for _ in 0..world.rng.usize(0..3) {
            world.launch(victim)?;
            world.pause(100);
            world.end(victim);
        }
        Ok(())
    }

    fn play(&mut self) -> Result<(), String> {
        self.world.cluster.start().map_err(|error| error.to_string())?;
        // Later, few copies are left that were complete from the first view on, so that they count while empty.
        if self.world.rng.u8(0..4) == 0 {
            self.replace()?;
        }
        for _ in 0..self.world.rng.usize(20..=120) {
            let most = [1, 10, 60][self.world.rng.usize(0..3)];
            self.world.pause(most);
            self.inject()?;
            self.world.ask_something();
            self.world.answer()?;
        }
        if self.world.rng.bool() {
            self.gather()?;
            self.strand()?;
            // The others may go on without all that had the shard, and tell of no earlier life of theirs.
            self.world.pause(400);
        }
        for node in self.world.nodes() {
            self.world.cluster.slow_disk(node, Duration::from_micros(50));
        }
        // A shard's only copy may have been on the disk that was replaced.
        let victim = self.victim;
        self.world.settle(|shard: &ShardView| victim.is_some_and(|victim| shard.waits_for().contains(&victim)))
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_every_shard_goes_on() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| Run::new(seed).play());
}

/// Both replicas of a shard lose power, and one comes back with an empty disk, more than once. The shard waits for the
/// other one's disk.
#[test]
fn a_shard_waits_for_the_disk_that_is_left() {
    let mut tried = 0;
    seeds::seeds(SEEDS).for_each(|seed| {
        let mut world = World::new(seed, "replaced", Mode::Durable);
        world.cluster.start().unwrap();
        for _ in 0..5 {
            world.ask_something();
            world.pause(5);
            world.answer().unwrap();
        }
        let view = world.view().unwrap();
        if view.members.len() < 5 {
            return;
        }
        tried += 1;
        let index = world.rng.usize(0..view.shards.len());
        let replicas = view.shards[index].members.clone();
        replicas.iter().for_each(|&node| world.cluster.crash(node));
        let goes_on = |cluster: &Cluster| {
            let own = view.members.iter().filter_map(|member| cluster.view(member.node));
            own.max_by_key(|own| own.epoch).is_some_and(|own| own.shards[index].is_suspended())
        };
        assert!(world.cluster.run_until(PATIENCE, goes_on), "seed {seed}: the others go on");
        world.cluster.wipe(replicas[0]);
        for _ in 0..3 {
            world.launch(replicas[0]).unwrap();
            world.cluster.run_for(Duration::from_millis(200));
            let shard = world.view().unwrap().shards[index].clone();
            assert!(shard.is_suspended(), "seed {seed}: it was reopened empty: {shard:?}");
            world.end(replicas[0]);
        }
        world.settle(|_| false).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    });
    assert!(tried > 0 || seeds::seeds(SEEDS).count() < 10, "no group was large enough");
}
