//! The gate of a rank: the barrier up to which it may deliver reliable messages, which a settlement must know of each
//! rank that stays.

#[cfg(all(test, squall_loom))]
mod loom_tests;

#[cfg(squall_loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(squall_loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// The bit of [`Gate::word`] that is set while nothing more is accepted.
const CLOSED: u64 = 1 << 63;

/// The barrier up to which one rank may deliver reliable messages.
///
/// Only the rank's thread raises it, and any thread closes it, at any time. So the barrier is known without asking a
/// thread that may be busy, or that may wait for what depends on the answer.
///
/// # Why it holds
///
/// A raise and a closing are atomic operations on one word, so one comes first. A raise that does is part of what the
/// closing returns; one that does not fails.
///
/// An epoch may be closed before its rank has begun it, in the midst of opening. If the closing's operation on the word
/// precedes that of the opening, the opening sees the epoch of the closing. It closes again before the rank can raise
/// anything, since the rank itself opens. If the closing's operation follows, it returns what was raised in between.
#[derive(Debug)]
pub struct Gate {
    /// The barrier, and [`CLOSED`].
    word: AtomicU64,
    /// One more than the last epoch that it was closed for; 0 if it never was.
    closed: AtomicU64,
}

impl Gate {
    /// The highest barrier.
    pub(crate) const HIGHEST: u64 = CLOSED - 1;

    /// Raises the barrier, by its rank, from the one that it has accepted before. Returns false if the gate is closed:
    /// then nothing is accepted.
    ///
    /// # Panics
    ///
    /// If another rank has raised it.
    #[inline]
    pub(crate) fn raise(&self, from: u64, to: u64) -> bool {
        debug_assert!(from < to && to <= Gate::HIGHEST);
        match self.word.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => true,
            Err(word) => {
                assert_eq!(word, from | CLOSED, "a gate belongs to one rank");
                false
            }
        }
    }

    /// Closes the gate for an epoch and those before; it may be called any number of times. Returns the barrier that
    /// the rank does not pass in `epoch`: only messages with lower wide timestamps are delivered.
    pub fn close(&self, epoch: u64) -> u64 {
        self.closed.fetch_max(epoch.saturating_add(1), Ordering::Relaxed);
        // A thread that sees the closed word also sees the epoch.
        self.word.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED
    }

    /// Opens the gate, by its rank, once it has carried out the settlement that begins an epoch.
    pub(crate) fn open(&self, epoch: u64) {
        self.word.fetch_and(!CLOSED, Ordering::AcqRel);
        if self.closed.load(Ordering::Relaxed) > epoch {
            self.word.fetch_or(CLOSED, Ordering::Relaxed);
        }
    }
}

impl Default for Gate {
    /// An open gate, whose rank has accepted nothing.
    fn default() -> Gate {
        Gate { word: AtomicU64::new(0), closed: AtomicU64::new(0) }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_closed_gate_stays_where_it_is_until_it_is_opened_for_a_later_epoch() {
        let gate = Gate::default();
        assert!(gate.raise(0, 5) && gate.raise(5, Gate::HIGHEST - 1));
        assert_eq!(gate.close(7), Gate::HIGHEST - 1);
        assert!(!gate.raise(Gate::HIGHEST - 1, Gate::HIGHEST));
        assert_eq!(gate.close(7), Gate::HIGHEST - 1, "it can be asked again");
        gate.open(7);
        assert!(!gate.raise(Gate::HIGHEST - 1, Gate::HIGHEST), "the epoch is over");
        gate.open(8);
        assert!(gate.raise(Gate::HIGHEST - 1, Gate::HIGHEST));
        assert_eq!(gate.close(u64::MAX), Gate::HIGHEST);
        gate.open(u64::MAX - 1);
        assert_eq!(gate.word.load(Ordering::Relaxed), CLOSED | Gate::HIGHEST, "it is closed for good");
    }

    #[test]
    fn an_epoch_that_ends_before_its_rank_has_begun_it_is_not_opened() {
        let gate = Gate::default();
        assert!(gate.raise(0, 5));
        assert_eq!([gate.close(7), gate.close(8)], [5, 5]);
        gate.open(8);
        assert!(!gate.raise(5, 6));
        gate.open(9);
        assert!(gate.raise(5, 6));
    }

    #[test]
    #[should_panic(expected = "a gate belongs to one rank")]
    fn two_ranks_cannot_share_one() {
        let gate = Gate::default();
        gate.raise(0, 5);
        gate.raise(0, 4);
    }
}
