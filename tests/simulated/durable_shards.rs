//! Durable shards of two replicas on four to six simulated nodes and on some that join. Disks stand still, are
//! replaced, and lose power. Nothing acknowledged is lost while a disk has it, and a shard goes on when its last
//! holders are back.

use std::time::Duration;

use squall::{Mode, NodeId, ShardView, View};

use crate::{seeds, shards::World};

/// The number of seeds that run here.
const SEEDS: u64 = 40;

struct Run {
    world: World,
    /// The one node whose disk may be replaced; `wiped` is whether it was.
    victim: NodeId,
    wiped: bool,
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut world = World::new(seed, "durable-shards", Mode::Durable);
        Run { victim: world.any_node(), world, wiped: false }
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) -> Result<(), String> {
        let may_wipe = self.may_wipe();
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
            6 if may_wipe => self.wipe()?,
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

    /// Gives a node a shard, leaves it alone with it, and crashes it while its disk lags.
    fn strand(&mut self) -> Result<(), String> {
        let world = &mut self.world;
        let node = world.any_node();
        let held = |view: View| -> Vec<ShardView> {
            view.shards.into_iter().filter(|shard| shard.is_complete(node) && shard.complete.len() > 1).collect()
        };
        world.end(node);
        world.pause(100);
        world.launch(node)?;
        let pace = [5_000, 30_000, 100_000][world.rng.usize(0..3)];
        world.cluster.slow_disk(node, Duration::from_micros(pace));
        let before = world.view().map_or(0, |view| view.epoch.0);
        for _ in 0..400 {
            world.cluster.run_for(Duration::from_millis(1));
            world.ask_something();
            world.answer()?;
            let view = world.view().filter(|view| view.epoch.0 > before + 1);
            let Some(shard) = view.map(held).and_then(|shards| shards.into_iter().next()) else { continue };
            for other in shard.complete.into_iter().filter(|&other| other != node) {
                world.end(other);
            }
            world.pause(100);
            world.cluster.crash(node);
            break;
        }
        Ok(())
    }

    /// Whether the others go on without the victim, so that they need its disk for nothing but its shards.
    fn may_wipe(&self) -> bool {
        let goes_on = |view: View| view.members.len() >= 3 && view.rank_of(self.victim).is_none();
        !self.world.cluster.is_up(self.victim) && self.world.view().is_some_and(goes_on)
    }

    fn wipe(&mut self) -> Result<(), String> {
        let (world, victim) = (&mut self.world, self.victim);
        world.cluster.wipe(victim);
        self.wiped = true;
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
        for _ in 0..self.world.rng.usize(20..=120) {
            let most = [1, 10, 60][self.world.rng.usize(0..3)];
            self.world.pause(most);
            self.inject()?;
            self.world.ask_something();
            self.world.answer()?;
        }
        for node in self.world.nodes() {
            self.world.cluster.slow_disk(node, Duration::from_micros(50));
        }
        // A shard's only copy may have been on the disk that was replaced.
        let (wiped, victim) = (self.wiped, self.victim);
        self.world.settle(|shard: &ShardView| wiped && shard.waits_for().contains(&victim))
    }
}

#[test]
fn nothing_acknowledged_is_lost_and_every_shard_goes_on() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| Run::new(seed).play());
}
