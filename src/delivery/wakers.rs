//! Wakers of callers, kept for the end of a batch.

use std::task::Waker;

use squall_runtime::blocking::outside_apply;

/// Wakers of callers that are to be woken at the end of a batch.
///
/// A thread that waits for the oldest of many submits then sleeps through the whole batch, instead of being woken for
/// each. A thread that is woken finds the delivering thread done. The limit keeps the first of a long batch from
/// waiting for its end.
#[derive(Debug)]
pub(super) struct Wakers(Vec<Waker>);

/// The number of wakers at which they are woken before the batch ends. See [`Wakers`].
const WAKE_AT_ONCE: usize = 64;

impl Wakers {
    pub(super) fn new() -> Wakers {
        Wakers(Vec::with_capacity(WAKE_AT_ONCE))
    }

    pub(super) fn push(&mut self, waker: Waker) {
        // Submits of one task or thread mostly come in a row.
        if self.0.last().is_some_and(|last| last.will_wake(&waker)) {
            return;
        }
        self.0.push(waker);
        if self.0.len() >= WAKE_AT_ONCE {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        // A waker may poll the woken task on this thread, which is no part of the application here.
        outside_apply(|| self.0.drain(..).for_each(Waker::wake));
    }
}
