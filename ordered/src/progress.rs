//! The words through which a shard's threads tell each other their progress.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crossbeam::utils::CachePadded;
use squall_fabric::Time;
use squall_membership::Epoch;

use crate::persisted::Versions;

/// The progress of a shard. Each word is written by one thread, and the counts only grow. Exceptions are `asked`,
/// written by all threads that read, and `renew`, which they set and the node's thread clears.
#[derive(Debug)]
pub struct Progress {
    /// Written by the node's thread: the limit of delivery. In ordered mode one word, a count of places of the order;
    /// in unordered mode one for each sender, a count of its turns.
    limits: Box<[CachePadded<AtomicU64>]>,
    /// Written by the delivering thread: the count that it has delivered, in the units of `limits`.
    delivered: Box<[CachePadded<AtomicU64>]>,
    /// Written by the delivering thread: the position up to which it has read each sender's ring.
    read: Box<[CachePadded<AtomicU64>]>,
    /// Written by the node's thread: the number of the reads asked for that may be answered from the state as it is.
    answerable: CachePadded<AtomicU64>,
    /// Written by the threads that read: the number of reads that were asked for.
    asked: CachePadded<AtomicU64>,
    lease: CachePadded<Lease>,
    /// Written by the threads that read under the lease: whether the lease should be renewed.
    renew: CachePadded<AtomicBool>,
    pub(crate) versions: Versions,
}

/// The words with which a reader answers by itself. Written by the node's thread.
#[derive(Debug, Default)]
struct Lease {
    /// The time until which reads need no round, in nanoseconds of the own clock.
    until: AtomicU64,
    /// The time at which to renew the lease.
    renew_at: AtomicU64,
    /// The member's own `received`, as others see it.
    received: AtomicU64,
}

impl Progress {
    pub(crate) fn new(senders: usize) -> Progress {
        let words = || (0..senders.max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        let word = || CachePadded::new(AtomicU64::new(0));
        let (lease, renew, versions) = (CachePadded::default(), CachePadded::default(), Versions::default());
        let (limits, delivered, read) = (words(), words(), words());
        Progress { limits, delivered, read, answerable: word(), asked: word(), lease, renew, versions }
    }

    /// Acquire: messages below the limit can be read.
    pub(crate) fn limit(&self, index: usize) -> u64 {
        self.limits[index].load(Ordering::Acquire)
    }

    pub(crate) fn set_limit(&self, index: usize, to: u64) {
        self.limits[index].store(to, Ordering::Release);
    }

    /// Acquire: the application has done its work for the messages below.
    pub(crate) fn delivered(&self, index: usize) -> u64 {
        self.delivered[index].load(Ordering::Acquire)
    }

    pub(crate) fn set_delivered(&self, index: usize, to: u64) {
        self.delivered[index].store(to, Ordering::Release);
    }

    pub(crate) fn read(&self, sender: usize) -> u64 {
        self.read[sender].load(Ordering::Acquire)
    }

    /// Sets how far a ring was read, before the turns there count as delivered: its sender may write there then.
    pub(crate) fn set_read(&self, sender: usize, position: u64) {
        self.read[sender].store(position, Ordering::Release);
    }

    pub(crate) fn answerable(&self) -> u64 {
        self.answerable.load(Ordering::Acquire)
    }

    pub(crate) fn set_answerable(&self, to: u64) {
        self.answerable.store(to, Ordering::Release);
    }

    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn ask(&self) {
        // Release: a read that is counted has been put where the deliverer will find it.
        self.asked.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the time until which reads need no round.
    ///
    /// Acquire: a thread that sees a lease that was [set](Progress::set_lease) sees all that was received before.
    pub(crate) fn lease_until(&self) -> Time {
        Time::from_nanos(self.lease.until.load(Ordering::Acquire))
    }

    /// Sets the lease, before peers are told of anything that the change must precede: that this member is wedged.
    pub(crate) fn set_lease(&self, until: Time, renew_at: Time) {
        // Mostly nothing changes, and a store would take the cache line from the threads that read.
        if self.lease.renew_at.load(Ordering::Relaxed) != renew_at.as_nanos() {
            self.lease.renew_at.store(renew_at.as_nanos(), Ordering::Relaxed);
        }
        if self.lease.until.load(Ordering::Relaxed) != until.as_nanos() {
            self.lease.until.store(until.as_nanos(), Ordering::Release);
        }
    }

    /// Returns the member's own `received`: at least the count that any peer can have seen of it.
    pub(crate) fn received(&self) -> u64 {
        self.lease.received.load(Ordering::Acquire)
    }

    /// Sets the place up to which messages were received, before the peers are told.
    pub(crate) fn set_received(&self, to: u64) {
        if self.lease.received.load(Ordering::Relaxed) != to {
            self.lease.received.store(to, Ordering::Release);
        }
    }

    /// Asks for a renewal of the lease if it is time. Returns whether this call is the first to ask.
    pub(crate) fn ask_renewal(&self, now: Time) -> bool {
        now.as_nanos() >= self.lease.renew_at.load(Ordering::Relaxed)
            && !self.renew.load(Ordering::Relaxed)
            && !self.renew.swap(true, Ordering::Relaxed)
    }

    /// Returns whether a renewal was asked for since the last call.
    pub(crate) fn take_renewal(&self) -> bool {
        self.renew.load(Ordering::Relaxed) && self.renew.swap(false, Ordering::Relaxed)
    }
}

/// The handle through which the thread that writes a durable shard's log publishes the version on disk, in one view.
#[derive(Clone, Debug)]
pub struct Persisted {
    epoch: Epoch,
    progress: Arc<Progress>,
}

impl Persisted {
    pub(crate) fn new(epoch: Epoch, progress: Arc<Progress>) -> Persisted {
        Persisted { epoch, progress }
    }

    /// Returns the view's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Says that the messages up to this version are on disk, and would be after a crash of the machine. A version that
    /// is not higher than the last changes nothing. The node's thread must be woken afterwards.
    ///
    /// Called first for the version that is on disk when the view begins. Later calls follow after the log has given
    /// back the room that [`Deliver::has_room`](crate::Deliver::has_room) asks for. After a write or a sync that failed
    /// there must be no further call.
    pub fn set(&self, version: u64) {
        self.progress.versions.set_persisted(version);
    }
}
