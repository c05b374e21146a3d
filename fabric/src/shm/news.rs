//! Counts that show which peers may have left descriptors in the rings, so that a poll does not look at every ring.
//!
//! Each node counts, in a word per peer, the times that it has handed that peer descriptors. The peer looks at the
//! rings that they share when it finds the count changed. The words lie in the node's page, which it alone writes and
//! its peers map read-only:
//!
//! ```text
//! byte    0          watch  u64  see the `doorbell` module
//!       128 (1 + k)  news   u64  for the peers whose id leaves k when divided by 63
//! ```
//!
//! Peers that share a word look in vain at times. Descriptors that were handed over before an endpoint was connected
//! are found without a count, since a new endpoint is looked at. So are those that a poll left behind: see `due`.
//!
//! # No descriptor is hidden
//!
//! The count is stored (release) after the ring's tail, and loaded before the look at the tail, with an acquire fence
//! between. (The page is mapped read-only, where Rust promises only relaxed loads.) So a look
//! finds all descriptors that are counted in the value that led to it, and a descriptor that it does not find changes
//! the count again. For a sleeper, the count is the work that the `doorbell` module speaks of: it is stored before the
//! ringer's fence, and loaded after the sleeper's. loom checks a model of both, in `loom_tests`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::doorbell::Word;
use crate::{NodeId, mapping::Mapping};

/// The number of words.
const WORDS: u64 = 63;

/// The distance between words, in bytes: a processor fetches lines of 64 by pairs.
const STRIDE: usize = 128;

/// The size of a node's page, in bytes.
pub(super) const PAGE_BYTES: usize = STRIDE * (1 + WORDS as usize);

/// Counts news. Only one thread calls this.
#[inline]
fn count_up(news: &impl Word) {
    news.store(news.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
}

/// Whether there is news since `seen`, which it brings up to date. The caller looks at the rings after this.
#[inline]
fn is_new<W: Word>(news: &W, seen: &mut u64) -> bool {
    let count = news.load(Ordering::Relaxed);
    let is_new = std::mem::replace(seen, count) != count;
    if is_new {
        W::fence(Ordering::Acquire);
    }
    is_new
}

/// The word for a peer in a node's page.
#[inline]
fn word_for(page: &Mapping, peer: NodeId) -> &AtomicU64 {
    let offset = STRIDE * (1 + (u64::from(peer.0) % WORDS) as usize);
    debug_assert!(offset < page.bytes());
    // SAFETY: the page was created, or mapped, with `PAGE_BYTES`, and lives as long as the reference. Only the node
    // that owns it stores to it, by atomics. In peers' mappings, which are read-only, all loads are relaxed.
    unsafe { AtomicU64::from_ptr(page.base().as_ptr().add(offset).cast()) }
}

/// Tells a peer that it was handed descriptors. Only the polling thread calls this.
#[inline]
pub(super) fn tell(page: &Mapping, peer: NodeId) {
    count_up(word_for(page, peer));
}

/// The last count that a node has seen of a peer's news for it.
#[derive(Debug)]
pub(super) struct Seen {
    node: NodeId,
    count: u64,
}

impl Seen {
    pub(super) fn nothing(node: NodeId) -> Seen {
        Seen { node, count: 0 }
    }

    /// Whether there is news in the peer's page since the last time. The caller looks at the rings after this.
    #[inline]
    pub(super) fn catch_up(&mut self, page: &Mapping) -> bool {
        is_new(word_for(page, self.node), &mut self.count)
    }
}

#[cfg(all(test, squall_loom))]
mod loom_tests {
    use std::sync::atomic::Ordering;

    use loom::{
        sync::{
            Arc, Condvar, Mutex,
            atomic::{AtomicU64, fence},
        },
        thread,
    };

    use super::{super::doorbell::watch, count_up, is_new};

    /// The memory that two nodes share, for one direction, with the tails of two rings.
    #[derive(Default)]
    struct SharedTails {
        tails: [AtomicU64; 2],
        news: AtomicU64,
        watch: AtomicU64,
        signals: Mutex<u64>,
        signaled: Condvar,
    }

    impl SharedTails {
        /// Hands over a descriptor in each ring, and tells of each on its own, or of both at once.
        fn hand_over(&self, each: bool) {
            let mut rung = 0;
            for (index, tail) in self.tails.iter().enumerate() {
                tail.store(1, Ordering::Release);
                if !each && index == 0 {
                    continue;
                }
                count_up(&self.news);
                fence(Ordering::SeqCst);
                if let Some(count) = watch::must_ring(&self.watch, rung) {
                    rung = count;
                    *self.signals.lock().unwrap() += 1;
                    self.signaled.notify_one();
                }
            }
        }

        /// Polls, and sleeps when it finds nothing, until it has found both descriptors.
        fn take_all(&self) {
            let (mut seen, mut found) = (0, [0; 2]);
            let mut poll = || {
                if is_new(&self.news, &mut seen) {
                    found = [0, 1].map(|ring| self.tails[ring].load(Ordering::Acquire));
                }
                found == [1; 2]
            };
            while !poll() {
                watch::arm(&self.watch);
                if poll() {
                    return;
                }
                let mut signals = self.signals.lock().unwrap();
                while *signals == 0 {
                    // A descriptor that stays hidden is a deadlock here, which loom reports.
                    signals = self.signaled.wait(signals).unwrap();
                }
                drop(signals);
                watch::disarm(&self.watch);
                *self.signals.lock().unwrap() = 0;
            }
        }
    }

    fn check(each: bool, preemptions: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let link = Arc::new(SharedTails::default());
            let poster = {
                let link = Arc::clone(&link);
                thread::spawn(move || link.hand_over(each))
            };
            link.take_all();
            poster.join().unwrap();
        });
    }

    #[test]
    fn loom_no_descriptor_that_was_told_of_is_missed() {
        check(true, 4);
    }

    #[test]
    fn loom_one_count_stands_for_all_descriptors_before_it() {
        check(false, 5);
    }
}
