//! The members of a view whose storage is short of room.

use squall_fabric::NodeId;

use crate::membership_table::MembershipTable;

/// The members whose storage is short of room, as far as is known.
#[derive(Debug)]
pub(super) struct RoomTable {
    /// Those of the view before that are members of this one. They count until their rows say something else: until
    /// then, most members may be short although few rows say so.
    before: Vec<NodeId>,
    /// The members that were taken last; None before the first look.
    taken: Option<Vec<NodeId>>,
    /// Whether rows may say something else since.
    pub(super) is_due: bool,
}

impl RoomTable {
    /// Begins a view with what was known in the one before.
    pub(super) fn new(table: &MembershipTable, mut before: Vec<NodeId>) -> RoomTable {
        let view = table.view();
        before.retain(|&node| view.rank_of(node).is_some() && !view.joined.contains(&node));
        RoomTable { before, taken: None, is_due: true }
    }

    pub(super) fn is_short(&self, table: &MembershipTable, member: usize) -> bool {
        table.is_short_of_room(member).unwrap_or_else(|| self.before.contains(&table.node(member)))
    }

    /// All members that are short.
    pub(super) fn short(&self, table: &MembershipTable) -> Vec<NodeId> {
        let short = (0..table.len()).filter(|&member| self.is_short(table, member));
        short.map(|member| table.node(member)).collect()
    }

    /// Takes the members that are short, if these are others than at the last time.
    pub(super) fn take(&mut self, table: &MembershipTable) -> Option<&[NodeId]> {
        if !std::mem::take(&mut self.is_due) {
            return None;
        }
        let short = self.short(table);
        if self.taken.as_ref() == Some(&short) {
            return None;
        }
        Some(self.taken.insert(short))
    }
}
