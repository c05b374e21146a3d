//! How far a durable shard is on disk, as its threads tell each other.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crossbeam::utils::CachePadded;

use squall_membership::Epoch;

use crate::progress::Progress;

/// Through which the thread that writes a durable shard's log says how far it is, in one view.
#[derive(Clone, Debug)]
pub struct Persisted {
    epoch: Epoch,
    progress: Arc<Progress>,
}

impl Persisted {
    pub(crate) fn new(epoch: Epoch, progress: Arc<Progress>) -> Persisted {
        Persisted { epoch, progress }
    }

    /// The view's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Says that the messages up to this version are on disk, and would be after a crash of the machine. A version that is not
    /// higher than the last changes nothing. The node's thread must be woken afterwards.
    ///
    /// Called first for what is on disk when the view begins; and then after the log has given back the room that
    /// [`Deliver::has_room`](crate::Deliver::has_room) asks for. After a write or a sync that failed there must be no further
    /// call.
    pub fn set(&self, version: u64) {
        self.progress.versions.set_persisted(version);
    }
}

/// The words about versions in a shard's [`Progress`]: each is written by one thread, and but for `full_at` only grows.
#[derive(Debug)]
pub(crate) struct Versions {
    /// By the delivering thread: the version of what it delivered last.
    applied: CachePadded<AtomicU64>,
    /// By the delivering thread: where versions were counted from; [`NONE`] until they are.
    began_at: AtomicU64,
    /// By the delivering thread: what was persisted when the log had no room; [`NONE`] if it has.
    full_at: AtomicU64,
    /// By the thread that writes the log: one more than what it has said; 0 until it has said anything.
    persisted: CachePadded<AtomicU64>,
    /// By the node's thread: what all members that count have persisted.
    safe: CachePadded<AtomicU64>,
}

const NONE: u64 = u64::MAX;

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            applied: CachePadded::default(),
            began_at: AtomicU64::new(NONE),
            full_at: AtomicU64::new(NONE),
            persisted: CachePadded::default(),
            safe: CachePadded::default(),
        }
    }
}

impl Versions {
    /// Called before the delivering thread publishes how far it delivered.
    pub(crate) fn set_applied(&self, version: u64) {
        self.applied.store(version, Ordering::Release);
    }

    pub(crate) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    pub(crate) fn begin(&self, version: u64) {
        self.set_applied(version);
        // Release: who sees that versions are counted sees the first.
        self.began_at.store(version, Ordering::Release);
    }

    fn set_persisted(&self, version: u64) {
        if version >= self.persisted.load(Ordering::Relaxed) {
            // Release: who sees it sees the room that it made.
            self.persisted.store(version.saturating_add(1), Ordering::Release);
        }
    }

    pub(crate) fn persisted(&self) -> u64 {
        self.persisted.load(Ordering::Acquire).saturating_sub(1)
    }

    /// What this member may tell the others: nothing before all that it was given is on disk, from when on it counts.
    pub(crate) fn to_publish(&self) -> Option<u64> {
        let (began_at, said) = (self.began_at.load(Ordering::Acquire), self.persisted.load(Ordering::Acquire));
        // Also in an empty log nothing counts before the disk was heard of.
        (said > began_at).then(|| said - 1)
    }

    /// Takes note that the log has no room, though so much was persisted; or that it has.
    pub(crate) fn set_full(&self, at: Option<u64>) {
        let at = at.unwrap_or(NONE);
        if self.full_at.load(Ordering::Relaxed) != at {
            self.full_at.store(at, Ordering::Release);
        }
    }

    /// Whether the log has no room, and none has come since.
    pub(crate) fn is_full(&self) -> bool {
        let full_at = self.full_at.load(Ordering::Acquire);
        full_at != NONE && self.persisted() <= full_at
    }

    /// Whether the delivering thread waits for room that has come.
    pub(crate) fn has_room_again(&self) -> bool {
        self.full_at.load(Ordering::Acquire) != NONE && !self.is_full()
    }

    pub(crate) fn set_safe(&self, version: u64) {
        self.safe.store(version, Ordering::Release);
    }

    pub(crate) fn safe(&self) -> u64 {
        self.safe.load(Ordering::Acquire)
    }
}
