//! `maxmemory`: the memory beyond which a server takes no more writes that need some.
//!
//! The server that is asked refuses the write, before the group orders it. So all replicas apply the same commands,
//! whatever their limits are: a refusal by the replicated state would need one limit and one measure at all of them,
//! and what a process takes besides its values would not count. A server's limit is for its own clients. Other replicas
//! with larger limits go on with theirs, and what they write takes memory here too: give all the same limit. A front
//! end asks its replica now and then, and refuses what that one would refuse.
//!
//! Writes that are under way, and what is needed to carry them out, come on top of the limit.

use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use super::Process;
use crate::allocator;

/// The age beyond which the memory in use is measured again.
const MEASURED: Duration = Duration::from_millis(1);

/// The limit, and the memory in use, in bytes.
#[derive(Debug)]
pub(in crate::server) struct MemoryLimit {
    /// The limit; 0 for none.
    max: AtomicUsize,
    at_start: usize,
    peak: AtomicUsize,
    /// The memory in use when it was measured last, and the server's time then, in milliseconds.
    measured: AtomicUsize,
    measured_ms: AtomicU64,
}

impl MemoryLimit {
    /// A limit of `max` bytes; 0 for none.
    pub(in crate::server) fn new(max: usize) -> MemoryLimit {
        let used = measure();
        let (measured, peak) = (used.into(), used.into());
        MemoryLimit { max: max.into(), at_start: used, peak, measured, measured_ms: 0.into() }
    }

    /// The limit, in bytes; 0 for none.
    pub(in crate::server) fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }

    pub(in crate::server) fn set_max(&self, bytes: usize) {
        self.max.store(bytes, Ordering::Relaxed);
        let used = self.used();
        self.measured.store(used, Ordering::Relaxed);
        if bytes > 0 && used > bytes {
            tracing::warn!(used, maxmemory = bytes, "more memory is in use than maxmemory: writes are refused");
        }
    }

    /// The memory in use.
    pub(in crate::server) fn used(&self) -> usize {
        let used = measure();
        self.peak.fetch_max(used, Ordering::Relaxed);
        used
    }

    /// The most memory that was in use whenever it was measured, which is at least once in a second.
    pub(in crate::server) fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The memory that was in use when the server started.
    pub(in crate::server) fn at_start(&self) -> usize {
        self.at_start
    }

    /// Whether more is in use than the limit. `now` is the server's time, on a clock that never goes back.
    pub(in crate::server) fn is_exceeded(&self, now: Duration) -> bool {
        let max = self.max();
        if max == 0 {
            return false;
        }
        let now_ms = now.as_millis() as u64;
        if now_ms.abs_diff(self.measured_ms.load(Ordering::Relaxed)) >= MEASURED.as_millis() as u64 {
            self.measured_ms.store(now_ms, Ordering::Relaxed);
            self.measured.store(self.used(), Ordering::Relaxed);
        }
        self.measured.load(Ordering::Relaxed) > max
    }
}

fn measure() -> usize {
    allocator::used_bytes().unwrap_or_else(|| Process::read().resident as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_exceeded_by_what_is_in_use_and_none_never_is() {
        let limit = MemoryLimit::new(0);
        assert!(!limit.is_exceeded(Duration::ZERO));
        limit.set_max(1);
        assert!(limit.is_exceeded(Duration::ZERO) && limit.is_exceeded(Duration::from_secs(1)));
        limit.set_max(usize::MAX);
        assert!(!limit.is_exceeded(Duration::from_secs(1)));
        assert!(limit.peak() >= limit.at_start() && limit.at_start() > 0);
    }
}
