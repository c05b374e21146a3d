//! Requests to the replica, served between two messages.

use crate::capture::exchange::{CaptureReply, StateExchange, Wanted};

/// Requests of state transfers that wait for the replica.
#[derive(Default)]
pub(super) struct TransferRequests {
    pub(super) captures: Vec<(Wanted, CaptureReply)>,
    /// Whether a state may have been restored.
    pub(super) restored: bool,
    /// The number of the state that is to be fetched, if any is.
    pub(super) fetch: u32,
}

impl TransferRequests {
    pub(super) fn take(&mut self, exchange: &StateExchange) {
        self.captures.extend(exchange.take());
        self.restored = true;
    }

    pub(super) fn any(&self) -> bool {
        self.restored || !self.captures.is_empty()
    }
}
