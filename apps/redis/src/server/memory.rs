//! The memory that all connections may take together.
//!
//! Each connection is bounded by itself, but there may be many. Once they take too much together, a connection that
//! takes more than an even share, and grows, is closed. So a few large requests do not shut out the many small ones.

use std::sync::atomic::{AtomicUsize, Ordering};

/// The limit by default, in bytes.
const DEFAULT_MAX_BYTES: usize = 1 << 30;

/// The memory of all connections.
#[derive(Debug)]
pub(super) struct Budget {
    used: AtomicUsize,
    sharers: AtomicUsize,
    /// The limit; 0 for none.
    max: AtomicUsize,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { used: AtomicUsize::new(0), sharers: AtomicUsize::new(0), max: AtomicUsize::new(DEFAULT_MAX_BYTES) }
    }
}

impl Budget {
    /// The number of bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit, in bytes; 0 for none.
    pub(super) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    pub(super) fn set_max(&self, bytes: usize) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    /// The share of one more connection.
    pub(super) fn share(&self) -> Share<'_> {
        self.sharers.fetch_add(1, Ordering::Relaxed);
        Share { budget: self, bytes: 0 }
    }
}

/// One connection's part of the memory. It is given back on drop.
#[derive(Debug)]
pub(super) struct Share<'a> {
    budget: &'a Budget,
    bytes: usize,
}

/// A connection takes more than is left.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Exhausted;

impl Share<'_> {
    /// Notes the bytes that the connection takes now.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Exhausted> {
        if bytes <= self.bytes {
            if bytes < self.bytes {
                self.budget.used.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
                self.bytes = bytes;
            }
            return Ok(());
        }
        let more = bytes - self.bytes;
        let used = self.budget.used.fetch_add(more, Ordering::Relaxed) + more;
        self.bytes = bytes;
        let max = self.budget.max();
        let even = max / self.budget.sharers.load(Ordering::Relaxed).max(1);
        if max > 0 && used > max && bytes > even { Err(Exhausted) } else { Ok(()) }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.sharers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_grows_beyond_an_even_share_of_what_is_exhausted_must_go() {
        let budget = Budget::default();
        budget.set_max(100);
        let (mut large, mut small) = (budget.share(), budget.share());
        assert_eq!(large.set(90), Ok(()), "there is enough");
        assert_eq!(small.set(50), Ok(()), "it has no more than its share");
        assert_eq!(large.set(80), Ok(()), "it shrinks");
        assert_eq!(large.set(81), Err(Exhausted));
        drop(large);
        assert_eq!(budget.used(), 50);
        assert_eq!(small.set(90), Ok(()));
        assert_eq!(small.set(101), Err(Exhausted));
        budget.set_max(0);
        assert_eq!(small.set(1000), Ok(()), "there is no limit");
    }
}
