//! The words through which a shard's threads tell each other how far they are.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

/// How far a shard is: each word is written by one thread (`asked` by all who read), and only grows.
#[derive(Debug)]
pub struct Progress {
    /// By the node's thread: how far delivery may go. In ordered mode one word, a count of places of the order; in unordered
    /// mode one for each sender, a count of its turns.
    limits: Box<[CachePadded<AtomicU64>]>,
    /// By the delivering thread: how far it is, in the same units.
    delivered: Box<[CachePadded<AtomicU64>]>,
    /// By the node's thread: how many of the reads asked for may be answered from the state as it is.
    answerable: CachePadded<AtomicU64>,
    /// By whoever reads: how many reads were asked for.
    asked: CachePadded<AtomicU64>,
}

impl Progress {
    pub(crate) fn new(senders: usize) -> Progress {
        let words = || (0..senders.max(1)).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        let word = || CachePadded::new(AtomicU64::new(0));
        Progress { limits: words(), delivered: words(), answerable: word(), asked: word() }
    }

    /// Acquire: what lies below the limit can be read.
    pub(crate) fn limit(&self, index: usize) -> u64 {
        self.limits[index].load(Ordering::Acquire)
    }

    pub(crate) fn set_limit(&self, index: usize, to: u64) {
        self.limits[index].store(to, Ordering::Release);
    }

    /// Acquire: whatever the application did with what lies below has been done.
    pub(crate) fn delivered(&self, index: usize) -> u64 {
        self.delivered[index].load(Ordering::Acquire)
    }

    pub(crate) fn set_delivered(&self, index: usize, to: u64) {
        self.delivered[index].store(to, Ordering::Release);
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
}
