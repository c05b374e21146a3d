//! The versions that a durable shard has on disk, as its threads tell each other.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

/// The words about versions in a shard's [`Progress`](crate::Progress). Each is written by one thread, and all but
/// `full_at` only grow.
#[derive(Debug)]
pub(crate) struct Versions {
    /// Written by the delivering thread: the version of the message that it delivered last.
    applied: CachePadded<AtomicU64>,
    /// Written by the delivering thread: the version from which versions are counted; [`NONE`] until they are.
    began_at: AtomicU64,
    /// Written by the delivering thread: the persisted version at which the log had no room; [`NONE`] if it has room.
    full_at: AtomicU64,
    /// Written by the thread that writes the log: one more than the version that it has published; 0 until it has
    /// published one.
    persisted: CachePadded<AtomicU64>,
    /// Written by the node's thread: the version that all members that count have persisted.
    globally_persisted: CachePadded<AtomicU64>,
}

const NONE: u64 = u64::MAX;

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            applied: CachePadded::default(),
            began_at: AtomicU64::new(NONE),
            full_at: AtomicU64::new(NONE),
            persisted: CachePadded::default(),
            globally_persisted: CachePadded::default(),
        }
    }
}

impl Versions {
    /// Sets the version that is applied, before the delivering thread publishes its place in the order.
    pub(crate) fn set_applied(&self, version: u64) {
        self.applied.store(version, Ordering::Release);
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    pub(crate) fn begin(&self, version: u64) {
        self.set_applied(version);
        // Release: a thread that sees that versions are counted sees the first.
        self.began_at.store(version, Ordering::Release);
    }

    pub(crate) fn set_persisted(&self, version: u64) {
        if version >= self.persisted.load(Ordering::Relaxed) {
            // Release: a thread that sees the version sees the room that the log gave back.
            self.persisted.store(version.saturating_add(1), Ordering::Release);
        }
    }

    pub(crate) fn persisted(&self) -> u64 {
        self.persisted.load(Ordering::Acquire).saturating_sub(1)
    }

    /// Returns the version that this member may tell the others. None until all messages up to `began_at` are on
    /// disk: from then on the member counts.
    pub(crate) fn to_publish(&self) -> Option<u64> {
        let (began_at, said) = (self.began_at.load(Ordering::Acquire), self.persisted.load(Ordering::Acquire));
        // Also in an empty log nothing counts before the disk was heard of.
        (said > began_at).then(|| said - 1)
    }

    /// Takes note that the log has no room, though the messages up to version `at` are persisted; or, with None, that
    /// it has room.
    pub(crate) fn set_full(&self, at: Option<u64>) {
        let at = at.unwrap_or(NONE);
        if self.full_at.load(Ordering::Relaxed) != at {
            self.full_at.store(at, Ordering::Release);
        }
    }

    /// Returns whether the log has no room, and none has come since.
    pub(crate) fn is_full(&self) -> bool {
        let full_at = self.full_at.load(Ordering::Acquire);
        full_at != NONE && self.persisted() <= full_at
    }

    /// Returns whether the delivering thread waits for room that has come.
    pub(crate) fn has_room_again(&self) -> bool {
        self.full_at.load(Ordering::Acquire) != NONE && !self.is_full()
    }

    pub(crate) fn set_globally_persisted(&self, version: u64) {
        self.globally_persisted.store(version, Ordering::Release);
    }

    pub(crate) fn globally_persisted(&self) -> u64 {
        self.globally_persisted.load(Ordering::Acquire)
    }
}
