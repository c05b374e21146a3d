//! The tables of a node's view and of the view before.

use crate::{membership_table::MembershipTable, stall::WatchedMembers, view::ShardView};

/// The table of a view, and that of the view before until this one is connected.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) table: &'a MembershipTable,
    pub(crate) previous: Option<&'a MembershipTable>,
}

impl<'a> Tables<'a> {
    /// The number of endpoints of tables that have come about here.
    pub(crate) fn reached(self) -> u64 {
        self.table.reached() + self.previous.map_or(0, MembershipTable::reached)
    }

    /// A member's rank in the view before, with that view's table.
    fn before(self, member: usize) -> Option<(&'a MembershipTable, usize)> {
        let previous = self.previous?;
        Some((previous, previous.rank_of(self.table.node(member))?))
    }

    fn was_reached_before(self, member: usize) -> bool {
        self.before(member).is_some_and(|(previous, rank)| previous.was_reached(rank))
    }

    /// A number that grows with each sign of a member's life: of one that is not here yet, its heartbeat in the view
    /// before counts.
    pub(crate) fn signs_of_life(self, member: usize) -> u64 {
        let earlier = self.before(member).map_or(0, |(previous, rank)| previous.heartbeat(rank));
        let reached = u64::from(self.table.was_reached(member)) + u64::from(self.was_reached_before(member));
        // A heartbeat is any number that the member likes to write.
        self.table.heartbeat(member).saturating_add(earlier).saturating_add(reached)
    }

    /// Whether a member was ever heard, in its present life.
    pub(crate) fn was_heard(self, member: usize) -> bool {
        self.table.was_reached(member) || self.was_reached_before(member) && !self.has_joined(member)
    }

    /// Whether a member that may not have come to this view said in the one before that it leaves.
    pub(crate) fn left_before(self, member: usize) -> bool {
        let before = self.before(member).filter(|_| !self.has_joined(member));
        before.is_some_and(|(previous, rank)| previous.is_leaving(rank))
    }

    fn has_joined(self, member: usize) -> bool {
        self.table.view().joined.contains(&self.table.node(member))
    }

    /// Whether a member is here, or on its way: it cleans up the view before, which takes as long as its application
    /// does.
    pub(crate) fn is_coming(self, member: usize) -> bool {
        self.table.was_reached(member) || self.before(member).is_some_and(|(previous, rank)| previous.has_decided(rank))
    }

    /// Members that have not come from the view before, and the work for which each says to wait there. None once this
    /// view is connected.
    pub(crate) fn lingers(self) -> Option<WatchedMembers> {
        let shards = &self.previous?.view().shards;
        let mut rows = Vec::new();
        for member in (0..self.table.len()).filter(|&m| !self.table.was_reached(m) && self.is_coming(m)) {
            let Some((previous, rank)) = self.before(member) else { continue };
            let waits = |(index, shard): (usize, &ShardView)| {
                (shard.shard, self.table.node(member), previous.waits(rank, index))
            };
            rows.extend(shards.iter().enumerate().map(waits));
        }
        Some(WatchedMembers { members: self.table.len(), rows })
    }
}
