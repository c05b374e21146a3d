//! The changes of a watch, on their way to the application.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use squall_fabric::sync::Lock;
use squall_runtime::blocking;

use super::{effect::WatchEvent, error::ClientError};
use crate::clients::{changes::ChangePlace, wire::ToldChange};

/// The application's side of a watch, without its client.
pub(crate) struct WatchReader {
    slot: Arc<Lock<WatchSlot>>,
    place: ChangePlace,
    window: u64,
    /// The cost of the changes that were taken, and not returned as credit yet.
    taken: u64,
}

/// The place behind which a watch begins, and the answer to its query.
type WatchBegun = (ChangePlace, Option<Vec<u8>>);

/// The client's side of a watch.
pub(crate) struct WatchFeed(Arc<Lock<WatchSlot>>);

#[derive(Default)]
struct WatchSlot {
    begun: Option<WatchBegun>,
    /// Changes, and behind them the place up to which there are no others.
    changes: VecDeque<ToldChange>,
    upto: ChangePlace,
    ended: Option<ClientError>,
    waker: Option<Waker>,
}

impl WatchFeed {
    /// Hands an event on.
    pub(crate) fn feed(&self, event: WatchEvent) {
        let mut slot = self.0.lock();
        match event {
            WatchEvent::Began(place, answer) => {
                slot.begun = Some((place, answer));
                slot.upto = place;
            }
            WatchEvent::Changes(upto, changes) => {
                slot.upto = upto;
                slot.changes.extend(changes);
                if slot.changes.is_empty() {
                    return;
                }
            }
            WatchEvent::Ended(error) => _ = slot.ended.get_or_insert(error),
        }
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for WatchFeed {
    fn drop(&mut self) {
        self.feed(WatchEvent::Ended(ClientError::Closed { sent: false }));
    }
}

impl WatchReader {
    pub(crate) fn new(window: u64) -> (WatchReader, WatchFeed) {
        let slot = Arc::new(Lock::default());
        (WatchReader { slot: Arc::clone(&slot), place: ChangePlace::default(), window, taken: 0 }, WatchFeed(slot))
    }

    /// Returns the place behind which the watch has begun, and the answer to its query, once it has.
    pub(crate) fn poll_begun(&mut self, context: &Context<'_>) -> Poll<Result<WatchBegun, ClientError>> {
        let mut slot = self.slot.lock();
        if let Some(begun) = slot.begun.take() {
            self.place = begun.0;
            return Poll::Ready(Ok(begun));
        }
        wait(&mut slot, context).map(Err)
    }

    /// Returns the next change.
    pub(crate) fn poll_next(&mut self, context: &Context<'_>) -> Poll<Result<ToldChange, ClientError>> {
        let mut slot = self.slot.lock();
        if let Some(told) = slot.changes.pop_front() {
            self.place = told.at;
            self.taken += told.cost();
            return Poll::Ready(Ok(told));
        }
        wait(&mut slot, context).map(Err)
    }

    /// The place up to which all changes were taken.
    pub(crate) fn place(&mut self) -> ChangePlace {
        let slot = self.slot.lock();
        if slot.changes.is_empty() {
            self.place = self.place.max(slot.upto);
        }
        self.place
    }

    /// The place up to which changes have come.
    #[cfg(feature = "sim")]
    pub(crate) fn told(&self) -> ChangePlace {
        self.slot.lock().upto
    }

    /// Returns the cost of what was taken, as credit, once it is much.
    pub(crate) fn take_due(&mut self) -> Option<u64> {
        (self.taken >= self.window / 2).then(|| std::mem::take(&mut self.taken)).filter(|taken| *taken > 0)
    }
}

/// Waits for the next event of a watch that goes on.
fn wait(slot: &mut WatchSlot, context: &Context<'_>) -> Poll<ClientError> {
    if let Some(error) = &slot.ended {
        return Poll::Ready(error.clone());
    }
    if blocking::is_applying() {
        return Poll::Ready(ClientError::InsideApply);
    }
    slot.waker = Some(context.waker().clone());
    Poll::Pending
}
