//! The messages and receipts that a member owes the others, as far as this member knows.

use squall_membership::Rank;
use squall_sst::Counter;

use super::{Shard, columns::OrderColumns};
use crate::order;

/// The things that a member owes the others. A member that keeps the rules owes nothing for long: its engine receives
/// and gives up turns, whatever its application or its disk does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owed {
    /// If its row does not say that it has received all that this node has: the part of that which it has.
    pub receipts: Option<u64>,
    /// If it keeps back a turn for which others wait: the number of its turns that have arrived here.
    pub turns: Option<u64>,
}

impl Shard {
    /// Returns what a member owes the others.
    pub fn owed(&self, member: Rank) -> Owed {
        Owed { receipts: self.owed_receipts(member.index()), turns: self.owed_turns(member.index()) }
    }

    fn owed_receipts(&self, member: usize) -> Option<u64> {
        let (received, all) = match self.columns.order {
            OrderColumns::Ordered { received, .. } => self.received(member, received),
            OrderColumns::Unordered { held, .. } => (0..held.len())
                .map(|sender| self.received(member, held.nth(sender)))
                .fold((0, 0), |sum, (received, all)| (sum.0 + received, sum.1 + all)),
        };
        (received < all).then_some(received)
    }

    /// Returns how much of what this node has received a member says to have, and all of that. What else the member
    /// claims to have is not progress.
    fn received(&self, member: usize, column: Counter) -> (u64, u64) {
        let own = self.table.get(self.table.me(), column);
        (self.table.get(member, column).min(own), own)
    }

    fn owed_turns(&self, member: usize) -> Option<u64> {
        let sender = self.senders.iter().position(|&sender| sender == member && sender != self.table.me())?;
        let is_owed = match self.columns.order {
            OrderColumns::Ordered { received, delivered, .. } => {
                let place = self.table.get(self.table.me(), received);
                let is_next = place % self.senders.len() as u64 == sender as u64;
                let is_due = order::turns_due(self.senders.len(), sender, |s| self.turns(s)) > self.turns(sender);
                // A ring that is full of messages that some member has not delivered takes no nulls.
                let has_room = self.table.min(delivered) >= place;
                is_next && (is_due && has_room || self.is_elsewhere(member, received))
            }
            OrderColumns::Unordered { held, .. } => self.is_elsewhere(member, held.nth(sender)),
        };
        is_owed.then(|| self.turns(sender))
    }

    /// Returns whether at least half of the others, but for this sender, say that they have received more than this
    /// node: then the sender has sent them what this node lacks. Fewer are not believed.
    fn is_elsewhere(&self, sender: usize, column: Counter) -> bool {
        let me = self.table.me();
        let own = self.table.get(me, column);
        let others = (0..self.table.rows()).filter(|&member| member != me && member != sender);
        let (more, rest): (Vec<_>, Vec<_>) = others.partition(|&member| self.table.get(member, column) > own);
        !more.is_empty() && more.len() >= rest.len()
    }
}
