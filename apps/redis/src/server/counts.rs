//! The counters of a server.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counts since the server started, or since `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub(super) struct Counts {
    last_id: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Connections that were refused, since there were too many.
    pub(super) rejected: AtomicU64,
    pub(super) commands: AtomicU64,
    /// Passwords that were wrong.
    pub(super) denied: AtomicU64,
}

impl Counts {
    /// Counts a connection. Returns its id, which no other has.
    pub(super) fn next_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(super) fn reset(&self) {
        for count in [&self.connections, &self.rejected, &self.commands, &self.denied] {
            count.store(0, Ordering::Relaxed);
        }
    }
}
