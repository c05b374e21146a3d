//! Shards of two replicas in memory, on four to six simulated nodes and on some that join, whose processes are stopped,
//! cut off and killed. A shard that was suspended goes on as long as the process of one of its last holders lives. It
//! goes on with all that was acknowledged, and without the messages that were reported as delivered by no member.
//!
//! Reasons for which a replica in the memory of a dropped process could be wrong, and why it is not:
//!
//! - The process was cut off before it received the messages that its sibling delivered. This can't be: delivery takes
//!   the receipt of all members of the view, as their own rows say it. So the copy ends at the final count of the
//!   process, and not at the place that it has delivered: the messages that the sibling reported to its clients lie
//!   between the two.
//! - It was not a member of the shard's last view, or not complete in it, or has begun another life. The view log knows
//!   the last holders with their parts in it. A process only speaks of the state that it has kept itself, also if its
//!   storage directory is the same.
//! - It was in the last view and never installed it, since it was stopped in between. No member has delivered anything
//!   there, and it goes on where that view began, though it may have received more in the view before.
//! - Another last holder still reads under a lease that this process has vouched for. The process reports its copy when
//!   that lease is over.
//! - The shard went on elsewhere, or an operator let it begin anew. Then the current view does not have it suspended
//!   since that view.
//! - Its clients were told that no member delivers a message, and it is among those that go on. Where no trim is
//!   decided, they are told so only of messages without a place in the order.
//! - Several last holders come back. The shard goes on where the longest copy ends, and a holder that has less gets the
//!   state. A holder that reopens the shard alone and is killed takes it along: as the only member, it has acknowledged
//!   more than its sibling knows.
//!   reopens it alone and is killed takes it along: as the only member it has acknowledged more than its sibling knows.

use std::collections::BTreeMap;

use squall::{Member, Mode, NodeId, ShardState, ShardView};

use crate::{seeds, shards::World};

/// The number of seeds that run here.
const SEEDS: u64 = 40;

/// A process or a link that works again later.
enum Trouble {
    Stopped(NodeId),
    Cut(NodeId, NodeId),
}

struct Run {
    world: World,
    /// By node, the last epoch that was decided when its process was last killed.
    killed: BTreeMap<NodeId, u64>,
    /// The troubles under way, each with the number of rounds that it still lasts.
    troubles: Vec<(usize, Trouble)>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::new(seed, "memory-shards", Mode::Ordered);
        Run { world, killed: BTreeMap::new(), troubles: Vec::new() }
    }

    /// Kills a process, if more than half of the last view's members live without it: without disks, no other nodes can
    /// decide on the next view.
    fn kill(&mut self, node: NodeId) {
        if self.world.cluster.is_up(node) && self.goes_on_without(Some(node)) {
            let epoch = self.world.cluster.decided().map_or(0, |view| view.epoch.0);
            self.killed.insert(node, epoch);
            self.world.end(node);
        }
    }

    /// Whether more than half of the members of the last view live, without this one.
    fn goes_on_without(&self, node: Option<NodeId>) -> bool {
        let Some(view) = self.world.cluster.decided() else { return false };
        let lives = |member: &&Member| Some(member.node) != node && self.world.cluster.lives(member);
        2 * view.members.iter().filter(lives).count() > view.members.len()
    }

    fn stop(&mut self, node: NodeId) {
        let rounds = self.world.rng.usize(2..=6);
        self.world.cluster.pause(node);
        self.troubles.push((rounds, Trouble::Stopped(node)));
    }

    /// Cuts a node off from all others, or from some.
    fn cut(&mut self, node: NodeId) {
        let (rounds, all) = (self.world.rng.usize(2..=6), self.world.rng.bool());
        for other in self.world.nodes() {
            if other != node && (all || self.world.rng.bool()) {
                match self.world.rng.u8(0..4) {
                    0 => self.world.cluster.net().cut_one_way(node, other),
                    1 => self.world.cluster.net().cut_one_way(other, node),
                    _ => self.world.cluster.net().cut(node, other),
                }
                self.troubles.push((rounds, Trouble::Cut(node, other)));
            }
        }
    }

    fn mend(&mut self, trouble: &Trouble) {
        match *trouble {
            Trouble::Stopped(node) => self.world.cluster.resume(node),
            Trouble::Cut(a, b) => self.world.cluster.net().heal(a, b),
        }
    }

    /// Ends a round of the troubles, and mends those that are over.
    fn pass(&mut self, all: bool) {
        for (mut rounds, trouble) in std::mem::take(&mut self.troubles) {
            rounds -= 1;
            match all || rounds == 0 {
                true => self.mend(&trouble),
                false => self.troubles.push((rounds, trouble)),
            }
        }
    }

    /// Strikes both replicas of a shard, at almost the same time.
    fn strike(&mut self) {
        let replicas = self.world.any_replicas();
        let kinds = [self.world.rng.u8(0..5), self.world.rng.u8(0..5)];
        for (node, kind) in replicas.into_iter().zip(kinds) {
            match kind {
                0 | 1 => self.stop(node),
                2 | 3 => self.cut(node),
                _ => self.kill(node),
            }
            self.world.pause(3);
        }
    }

    /// Makes something go wrong, or well again.
    fn inject(&mut self) -> Result<(), String> {
        let node = self.world.any_node();
        match self.world.rng.u8(0..14) {
            0 => self.kill(node),
            1 => self.stop(node),
            2 => self.cut(node),
            3..=6 => self.strike(),
            7..=9 => self.world.launch(node)?,
            _ => {}
        }
        self.pass(false);
        Ok(())
    }

    fn play(&mut self) -> Result<(), String> {
        self.world.cluster.start().map_err(|error| error.to_string())?;
        for _ in 0..self.world.rng.usize(20..=80) {
            let most = [5, 20, 60][self.world.rng.usize(0..3)];
            self.world.pause(most);
            self.inject()?;
            self.world.ask_something();
            self.world.answer()?;
        }
        self.pass(true);
        // Some members were killed while a view was on its way in which they were half.
        if !self.goes_on_without(None) {
            return Ok(());
        }
        let killed = &self.killed;
        self.world.settle(|shard: &ShardView| {
            let ShardState::Suspended { after, last_holders, .. } = &shard.state else { return false };
            // Views may have been on their way that were decided after it was killed.
            last_holders.iter().all(|holder| killed.get(&holder.node).is_some_and(|&epoch| epoch + 3 >= after.0))
        })
    }
}

#[test]
fn a_shard_goes_on_from_the_memory_of_a_last_holder_and_nothing_acknowledged_is_lost() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| Run::new(seed).play());
}
