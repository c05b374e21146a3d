//! The wake-up of the thread that goes through the watches of a node.

use squall_fabric::sync::{Condition, Lock};

/// The wake-up of the thread that goes through the watches.
#[derive(Debug, Default)]
pub(super) struct WatchSignal {
    state: Lock<SignalState>,
    rung: Condition,
}

#[derive(Debug, Default)]
struct SignalState {
    rung: bool,
    over: bool,
}

impl WatchSignal {
    pub(super) fn ring(&self) {
        let before = std::mem::replace(&mut self.state.lock().rung, true);
        if !before {
            self.rung.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.state.lock().over = true;
        self.rung.notify_one();
    }

    /// Waits for the next ring. Returns whether the thread goes on.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while !state.rung && !state.over {
            state = self.rung.wait(state);
        }
        state.rung = false;
        !state.over
    }
}
