//! The turns of callers: a receiver takes one transfer at a time.

use std::time::{Duration, Instant};

use squall_fabric::sync::{Condition, Lock};

/// The time for which a caller waits for a transfer that continues. That transfer's source may have gone, which takes a
/// moment to be noticed.
const GRACE: Duration = Duration::from_secs(2);

/// The time for which it waits for a transfer that is about to end: less than the time for which it waits for an
/// answer.
const ENDING: Duration = Duration::from_secs(8);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TurnState {
    #[default]
    Free,
    Taken,
    /// The transfer is over, and its contents are being written.
    Ending,
}

/// A lock that lets one caller in at a time.
#[derive(Debug, Default)]
pub(super) struct TransferLock {
    state: Lock<TurnState>,
    changed: Condition,
}

impl TransferLock {
    /// Waits for the turn, if it may come soon. Returns whether it came.
    pub(super) fn take(&self) -> bool {
        let began = Instant::now();
        let mut state = self.state.lock();
        loop {
            let patience = match *state {
                TurnState::Free => break,
                TurnState::Taken => GRACE,
                TurnState::Ending => ENDING,
            };
            let left = patience.saturating_sub(began.elapsed());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).0;
        }
        *state = TurnState::Taken;
        true
    }

    /// Notes that the transfer whose turn it is will be over soon.
    pub(super) fn end_soon(&self) {
        self.set(TurnState::Ending);
    }

    /// Ends the turn, so that the next caller may come.
    pub(super) fn end(&self) {
        self.set(TurnState::Free);
    }

    fn set(&self, state: TurnState) {
        *self.state.lock() = state;
        self.changed.notify_all();
    }
}
