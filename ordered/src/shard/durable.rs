//! The versions that all of a durable shard's members have on disk.

use squall_membership::ShardView;
use squall_sst::{Counter, Table};

use crate::persisted::Versions;

/// A member's part that publishes the version that it has on disk, and finds out the version that all have.
#[derive(Debug)]
pub(super) struct Durable {
    column: Counter,
    /// The version up to which a member has given the order to its log. With it, others can tell a disk that hangs from
    /// one that has nothing to do.
    logged: Counter,
    /// Whether a member counts whatever its row says, since it was complete when the view began, by member.
    counts: Vec<bool>,
}

impl Durable {
    pub(super) fn new((column, logged): (Counter, Counter), members: &ShardView) -> Durable {
        let counts = members.members.iter().map(|&node| members.is_complete(node)).collect();
        Durable { column, logged, counts }
    }

    /// Publishes the own versions, and computes the globally persisted one. Returns whether the deliverer has more to
    /// do.
    pub(super) fn step(&mut self, table: &mut Table, versions: &Versions) -> bool {
        if let Some(persisted) = versions.to_publish() {
            table.set(self.column, persisted);
        }
        if self.counts[table.me()] || versions.to_publish().is_some() {
            table.set(self.logged, versions.applied());
        }
        // A member that becomes complete counts from when its row says something.
        let told = |(row, &counts): (usize, &bool)| {
            let persisted = table.get(row, self.column);
            (counts || persisted > 0).then_some(persisted)
        };
        let globally_persisted = self.counts.iter().enumerate().filter_map(told).min().unwrap_or(0);
        // A member that begins to count may lag behind a version that was globally persisted without it.
        let is_news = globally_persisted > versions.globally_persisted();
        if is_news {
            versions.set_globally_persisted(globally_persisted);
        }
        // A deliverer that waits for room looks for it once more after it has said so, and then has this thread woken.
        is_news || versions.has_room_again()
    }
}
