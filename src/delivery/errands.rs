//! What others want of the replica, between two messages.

use std::panic::{AssertUnwindSafe, catch_unwind};

use squall_ordered::log::Hlc;

use super::part::{Part, Stage};
use crate::{
    service::Service,
    state::{CaptureError, Captured, LogPlace, Reached},
    transfer::{CaptureReply, Transfer, Wanted},
};

/// What waits for the replica.
#[derive(Default)]
pub(super) struct Errands {
    pub(super) captures: Vec<(Wanted, CaptureReply)>,
    /// A state may have been restored.
    pub(super) restored: bool,
    /// Which state is to be fetched, if any is.
    pub(super) fetch: u32,
}

impl Errands {
    pub(super) fn take(&mut self, transfer: &Transfer) {
        self.captures.extend(transfer.take());
        self.restored = true;
    }

    pub(super) fn any(&self) -> bool {
        self.restored || !self.captures.is_empty()
    }
}

/// Captures the replica's state, or where it is. `time` is the group's, and `logged` where the log is, in a durable group.
pub(super) fn capture<S: Service>(
    part: Option<&Part>,
    service: &S,
    wanted: Wanted,
    time: Hlc,
    logged: Option<LogPlace>,
) -> Result<Captured, CaptureError> {
    let Some((part, ahead)) = part.and_then(|part| match &part.stage {
        Stage::Complete { ahead, .. } => Some((part, ahead)),
        Stage::Incomplete { .. } => None,
    }) else {
        return Err(CaptureError::NotComplete);
    };
    let reached = Reached { mark: ahead.clone().unwrap_or_else(|| part.delivered()), time };
    if wanted == Wanted::Place {
        return Ok(Captured::place(reached, logged));
    }
    // It changes nothing, so whatever happens in it, the replica and the thread go on.
    let snapshot = catch_unwind(AssertUnwindSafe(|| service.snapshot())).map_err(|_| CaptureError::Panicked)?;
    Captured::new(reached, snapshot, logged)
}
