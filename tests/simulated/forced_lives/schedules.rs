//! Schedules in which a life that an operator ended has more than the one that goes on: more versions, later epochs,
//! other messages at the same places, or a vote that is enough. Chance alone seldom produces them.

use std::time::Duration;

use squall::NodeId;

use super::world::{PATIENCE, World};

const MS: Duration = Duration::from_millis(1);

/// The time after a view within which its members become those that decide on the next one.
const VOTERS_FOLLOW: Duration = Duration::from_millis(100);

/// The time after which a node that was dropped is no part of the log any more.
const FORGOTTEN: Duration = Duration::from_secs(8);

/// The only node that votes, where there is only one.
pub(crate) const VOTER: NodeId = NodeId(1);

/// A group's fate before its nodes are let alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Schedule {
    /// Faults as they come.
    Chance,
    /// A member that goes over to the forced life knows of more globally persisted versions of a shard than that life
    /// has. It acknowledges messages of that life, and all lose power before any disk has them.
    MoreVersions,
    /// Both lives have an epoch of the same number, with other messages at the same places, of the same versions and
    /// times: a clock was ahead. A node whose log ends there gets the messages behind.
    SamePlaces,
    /// A node that was dropped from an ended life of many views goes over. The members around it lose power, and too
    /// few come back without it.
    LaterEpochs,
    /// The only node that votes comes back from its disk, and leads the ended life alone. The forced node was dropped
    /// from that life before, so it is no part of its log.
    LoneVoter,
}

impl Schedule {
    /// The schedule of a seed.
    pub(crate) fn of(seed: u64) -> Schedule {
        use Schedule::{Chance, LaterEpochs, LoneVoter, MoreVersions, SamePlaces};
        [Chance, Chance, MoreVersions, Chance, Chance, SamePlaces, LaterEpochs, LoneVoter][seed as usize % 8]
    }
}

impl World {
    pub(crate) fn play(&mut self, schedule: Schedule) -> Result<(), String> {
        match schedule {
            Schedule::Chance => self.chance(),
            Schedule::MoreVersions => self.more_versions(),
            Schedule::SamePlaces => self.same_places(),
            Schedule::LaterEpochs => self.later_epochs(),
            Schedule::LoneVoter => self.lone_voter(),
        }
    }

    fn more_versions(&mut self) -> Result<(), String> {
        self.work(10..=20, 5 * MS)?;
        self.pass(20 * MS)?;
        let view = self.view().ok_or("there is no view")?;
        let (shard, goes_over) = (0, view.shards[0].complete[0]);
        let others: Vec<NodeId> =
            view.nodes().into_iter().filter(|node| !view.shards[0].members.contains(node)).collect();
        let forced = others[self.rng.usize(0..others.len())];
        self.cut_off(forced, true);
        for node in self.nodes().into_iter().filter(|&node| node != forced && node != goes_over) {
            self.end(node);
        }
        self.force_alone(forced)?;
        for _ in 0..self.rng.usize(0..=3) {
            self.submit_at(forced, shard);
        }
        self.pass(5 * MS)?;
        self.cut_off(forced, false);
        self.wait("a survivor goes over", |world| world.hold(&[forced, goes_over], shard))?;
        for node in [forced, goes_over] {
            self.cluster.slow_disk(node, 40 * MS);
        }
        for _ in 0..self.rng.usize(1..=6) {
            self.submit_at(goes_over, shard);
            self.pause(2 * MS)?;
            self.read_at(goes_over, shard);
        }
        self.pause(4 * MS)?;
        self.lose_power();
        Ok(())
    }

    fn same_places(&mut self) -> Result<(), String> {
        let ahead = self.any();
        self.cluster.set_wall_clock(ahead, 4_000_000_000);
        self.pass(MS)?;
        for _ in 0..self.rng.usize(1..=4) {
            self.submit_at(ahead, 0);
        }
        self.pass(30 * MS)?;
        self.cluster.set_wall_clock(ahead, 0);
        let forced = self.any();
        let others: Vec<NodeId> = self.nodes().into_iter().filter(|&node| node != forced).collect();
        self.cut_off(forced, true);
        self.wait("the others go on", |world| world.share_view(&others))?;
        let messages = self.rng.usize(1..=2);
        for _ in 0..messages {
            self.submit_at(others[0], 0);
        }
        self.pass(20 * MS)?;
        others.iter().for_each(|&node| self.end(node));
        self.force_alone(forced)?;
        for _ in 0..messages {
            self.submit_at(forced, 0);
        }
        self.pass(20 * MS)
    }

    fn later_epochs(&mut self) -> Result<(), String> {
        self.work(2..=10, 5 * MS)?;
        let [forced, goes_over, third, last] = self.in_some_order()[..] else { unreachable!("there are four") };
        self.cut_off(forced, true);
        self.wait("the others go on", |world| world.share_view(&[goes_over, third, last]))?;
        self.pass(VOTERS_FOLLOW)?;
        for turn in 0..5 {
            let (node, other) = if turn % 2 == 0 { (third, last) } else { (last, third) };
            self.end(node);
            self.wait("two go on", |world| world.share_view(&[goes_over, other]))?;
            self.launch(node)?;
            self.wait("a node is back", |world| world.hold(&[goes_over, other, node], 0))?;
            self.pass(VOTERS_FOLLOW)?;
        }
        self.cluster.pause(goes_over);
        self.wait("a node is dropped", |world| world.share_view(&[third, last]))?;
        self.cluster.resume(goes_over);
        self.wait("it hears of that", |world| world.cluster.view(goes_over).is_none())?;
        [third, last].into_iter().for_each(|node| self.end(node));
        self.force_alone(forced)?;
        self.cut_off(forced, false);
        self.wait("a node goes over", |world| world.hold(&[forced, goes_over], 0))?;
        for node in [third, last] {
            self.launch(node)?;
        }
        self.wait("all are members", |world| world.is_whole())?;
        self.work(2..=10, 5 * MS)?;
        for node in [forced, third, last] {
            self.end(node);
        }
        self.pause(60 * MS)?;
        for node in [forced, third] {
            self.launch(node)?;
        }
        self.wait("three of four go on", |world| world.share_view(&[forced, goes_over, third]))
    }

    fn lone_voter(&mut self) -> Result<(), String> {
        self.work(2..=10, 5 * MS)?;
        let (voter, forced) = (VOTER, NodeId(self.rng.u32(2..=3)));
        let third = NodeId(5 - forced.0);
        self.cut_off(forced, true);
        self.wait("the others go on", |world| world.share_view(&[voter, third]))?;
        self.work(1..=5, 5 * MS)?;
        self.pass(FORGOTTEN)?;
        [third, voter].into_iter().for_each(|node| self.end(node));
        self.force_alone(forced)?;
        self.work(1..=5, 5 * MS)?;
        self.launch(voter)?;
        self.pause(300 * MS)?;
        self.cut_off(forced, false);
        self.wait("the node that votes goes over", |world| world.share_view(&[forced, voter]))
    }

    /// Forces a node that no other node can reach.
    fn force_alone(&mut self, node: NodeId) -> Result<(), String> {
        self.force(node)?;
        self.wait("a node is forced", |world| world.cluster.recovered(node).is_some())?;
        match self.cluster.recovered(node) {
            Some(Err(why)) => Err(format!("{node} can't be forced: {why}")),
            _ => self.wait("a forced node goes on", |world| world.share_view(&[node])),
        }
    }

    /// Waits until `is_so` holds.
    fn wait(&mut self, what: &str, is_so: impl Fn(&World) -> bool) -> Result<(), String> {
        let began = self.cluster.now();
        while !is_so(self) {
            if self.cluster.now().since(began) > PATIENCE {
                return Err(format!("not in time: {what}; {}", self.standings()));
            }
            self.pass(MS)?;
        }
        Ok(())
    }

    /// Whether these nodes have a view of which they are all members, and no others.
    fn share_view(&self, nodes: &[NodeId]) -> bool {
        let views = nodes.iter().map(|&node| self.cluster.view(node).map(|view| (view.life, view.epoch, view.nodes())));
        let all: Option<Vec<_>> = views.collect();
        all.is_some_and(|all| {
            all.iter().all(|view| {
                *view == all[0] && view.2.len() == nodes.len() && nodes.iter().all(|node| view.2.contains(node))
            })
        })
    }

    /// Whether these nodes have a view in which they, and no others, hold a shard.
    fn hold(&self, nodes: &[NodeId], shard: usize) -> bool {
        let holds = |node: &NodeId| {
            let complete = |view: &std::sync::Arc<squall::View>| view.shards[shard].complete.len() == nodes.len();
            self.cluster.view(*node).is_some_and(complete)
        };
        nodes.iter().all(holds) && self.share_view(nodes)
    }
}
