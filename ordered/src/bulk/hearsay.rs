//! Patience with failures that this member has only heard of.

use std::{collections::BTreeMap, time::Duration};

use squall_fabric::Time;

/// The lanes that failed by hearsay. For a time, a member that has failed may still turn out to be the cause.
///
/// Time in which this member did not look does not count: the news that ends the view may lie there unread.
#[derive(Debug, Default)]
pub(super) struct HearsayWatch {
    /// The time for which each member waits before it is the next one's turn to blame.
    patience: Duration,
    looked: Time,
    /// The time since which each lane is dead, by rank among senders; None once someone was blamed.
    lanes: BTreeMap<usize, Option<Time>>,
}

impl HearsayWatch {
    pub(super) fn new(patience: Duration) -> HearsayWatch {
        HearsayWatch { patience, ..HearsayWatch::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    /// Notes that this member looks at its lanes.
    pub(super) fn look(&mut self, now: Time) {
        if now.since(self.looked) > self.patience / 2 {
            self.lanes.values_mut().flatten().for_each(|since| *since = now);
        }
        self.looked = now;
    }

    /// Returns whether the teller is to be blamed now for a lane, in the turn of this number. That is so once.
    pub(super) fn is_due(&mut self, lane: usize, turn: u32, now: Time) -> bool {
        let since = self.lanes.entry(lane).or_insert(Some(now));
        since.take_if(|since| now.since(*since) >= self.patience * turn).is_some()
    }
}
