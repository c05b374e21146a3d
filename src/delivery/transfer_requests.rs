//! Requests to the replica, served between two messages.

use std::panic::{AssertUnwindSafe, catch_unwind};

use squall_ordered::log::Hlc;

use super::view_part::{ReplicaPhase, ViewPart};
use crate::{
    capture::{
        exchange::{CaptureReply, StateExchange, Wanted},
        state::{CaptureError, Captured, LogPlace, Reached},
    },
    replica::service::Service,
};

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

/// Captures the replica's state, or only its place. `time` is the group's time. `logged` is the place of the log, in a
/// durable group.
pub(super) fn capture<S: Service>(
    part: Option<&ViewPart>,
    service: &S,
    wanted: Wanted,
    time: Hlc,
    logged: Option<LogPlace>,
) -> Result<Captured, CaptureError> {
    let Some((part, ahead)) = part.and_then(|part| match &part.phase {
        ReplicaPhase::Complete { ahead, .. } => Some((part, ahead)),
        ReplicaPhase::Incomplete { .. } => None,
    }) else {
        return Err(CaptureError::NotComplete);
    };
    let reached = Reached { frontier: ahead.clone().unwrap_or_else(|| part.delivered()), time };
    if wanted == Wanted::Place {
        return Ok(Captured::place(reached, logged));
    }
    // A snapshot changes nothing, so whatever happens in it, the replica and the thread go on.
    let snapshot = catch_unwind(AssertUnwindSafe(|| service.snapshot())).map_err(|_| CaptureError::Panicked)?;
    Captured::new(reached, snapshot, logged)
}
