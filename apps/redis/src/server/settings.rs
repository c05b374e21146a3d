//! The settings of a server that can be changed while it runs.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The settings that can be changed.
#[derive(Debug)]
pub(super) struct Settings {
    max_clients: AtomicUsize,
    timeout_seconds: AtomicU64,
}

impl Settings {
    pub(super) fn new(max_clients: usize, timeout_seconds: u64) -> Settings {
        Settings { max_clients: max_clients.into(), timeout_seconds: timeout_seconds.into() }
    }

    pub(super) fn set_max_clients(&self, max: usize) {
        self.max_clients.store(max, Ordering::Relaxed);
    }

    pub(super) fn set_timeout_seconds(&self, seconds: u64) {
        self.timeout_seconds.store(seconds, Ordering::Relaxed);
    }

    pub(super) fn max_clients(&self) -> usize {
        self.max_clients.load(Ordering::Relaxed)
    }

    /// The seconds without traffic after which a client is disconnected; `None` for never.
    pub(super) fn timeout_seconds(&self) -> Option<u64> {
        Some(self.timeout_seconds.load(Ordering::Relaxed)).filter(|&seconds| seconds > 0)
    }
}
