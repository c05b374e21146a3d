//! The log of a shard on a node's disk: its end in each epoch.

use fastrand::Rng;
use squall_membership::{Epoch, HeldCopy, OrderEnd, Seq, Skipped};

/// A view record, and how much of that view's order follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    end: OrderEnd,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskLog {
    written: Vec<Segment>,
    /// The part that is durable.
    synced: Vec<Segment>,
}

impl DiskLog {
    /// The log of a joiner that has got the state: a shard's line.
    pub(crate) fn fetched(line: &[OrderEnd], epoch: Epoch) -> DiskLog {
        let written = line.iter().map(|&end| Segment { end }).collect();
        let mut log = DiskLog { written, synced: Vec::new() };
        log.begin(epoch);
        log
    }

    /// Writes a view record, and syncs it.
    pub(crate) fn begin(&mut self, epoch: Epoch) {
        if self.written.last().is_none_or(|last| last.end.epoch < epoch) {
            self.written.push(Segment { end: OrderEnd { epoch, seq: Seq(0) } });
        }
        self.sync();
    }

    /// Adds an epoch's deliveries, up to a place.
    pub(crate) fn append(&mut self, epoch: Epoch, up_to: Seq) {
        let last = self.written.last_mut().expect("a view record comes first");
        assert_eq!(last.end.epoch, epoch, "a view record precedes an epoch's records");
        last.end.seq = last.end.seq.max(up_to);
    }

    pub(crate) fn sync(&mut self) {
        self.synced.clone_from(&self.written);
    }

    /// The number of an epoch's places that are on the disk.
    pub(crate) fn persisted(&self, epoch: Epoch) -> Seq {
        self.synced.last().filter(|last| last.end.epoch == epoch).map_or(Seq(0), |last| last.end.seq)
    }

    /// Lets the node die. Some of the records that were not synced may be on the disk all the same.
    pub(crate) fn lose(&mut self, rng: &mut Rng) {
        if rng.bool() || self.written.is_empty() {
            self.written.clone_from(&self.synced);
            return;
        }
        self.written.truncate(rng.usize(self.synced.len().max(1)..=self.written.len()));
        let len = self.written.len();
        if let Some(last) = self.written.last_mut() {
            let least = self.synced.get(len - 1).map_or(0, |synced| synced.end.seq.0);
            last.end.seq = Seq(rng.u64(least..=last.end.seq.0));
        }
        self.sync();
    }

    /// Removes everything behind a place; returns whether there was anything.
    pub(crate) fn cut(&mut self, end: OrderEnd) -> bool {
        let before = self.written.clone();
        self.written.retain(|segment| segment.end.epoch <= end.epoch);
        if let Some(last) = self.written.last_mut() {
            last.end = last.end.min(end);
        }
        self.sync();
        self.written != before
    }

    pub(crate) fn held(&self) -> Option<HeldCopy> {
        self.written.last().map(|last| HeldCopy {
            end: last.end,
            complete: true,
            version: Some(0),
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default(),
        })
    }

    /// The earlier epochs of which there is a view record, with their ends.
    pub(crate) fn line(&self, before: Epoch) -> Vec<OrderEnd> {
        self.written.iter().map(|segment| segment.end).filter(|end| end.epoch < before).collect()
    }
}
