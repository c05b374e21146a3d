//! The clients of this replica whose requests wait for an element.
//!
//! Each such request has a *ticket*, a number under which it stands in the group's order. The replica notes the end of
//! a wait at the ticket, on the engine's thread, and rings the client's bell.
//!
//! A wait is over once its end is noted here, or the group has answered that it was cancelled. Until then its ticket is
//! *open*. A client that goes leaves an open ticket behind, which is cancelled in the group's order: until that is
//! done, an element may still be given to it, as to any client whose connection breaks.

use std::{
    collections::HashMap,
    future::poll_fn,
    mem,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    task::Poll,
};

use atomic_waker::AtomicWaker;
use foldhash::fast::RandomState;

use super::{lock, wake::Bell};
use crate::keyspace::WaitEnd;

/// The most waits that one command cancels.
const CANCEL_AT_ONCE: usize = 1024;

/// The waits of a replica's clients.
#[derive(Debug)]
pub(super) struct Waits {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<OpenWait>, RandomState>>,
    /// Open tickets whose clients have gone. None once none is cancelled any more.
    left_behind: Mutex<Option<Vec<u64>>>,
    task: AtomicWaker,
}

#[derive(Debug)]
struct OpenWait {
    bell: Arc<Bell>,
    end: Mutex<Option<WaitEnd>>,
    /// Whether the replica was outside its group when that was last looked at.
    was_outside: AtomicBool,
}

impl OpenWait {
    fn end(&self, end: WaitEnd) {
        // A wait ends once; what is noted first may have been told already.
        lock(&self.end).get_or_insert(end);
        self.bell.ring();
    }
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            // A replica that takes up its log meets the tickets of its earlier lives, which must be others.
            next: AtomicU64::new(fastrand::u64(..)),
            open: Mutex::default(),
            left_behind: Mutex::new(Some(Vec::new())),
            task: AtomicWaker::new(),
        }
    }
}

impl Waits {
    /// Notes the end of a wait. The client may have gone.
    pub(super) fn end(&self, ticket: u64, end: WaitEnd) {
        if let Some(wait) = lock(&self.open).get(&ticket) {
            wait.end(end);
        }
    }

    /// Ends the present waits, whose own ends will not be learnt.
    pub(super) fn end_all(&self, end: &WaitEnd) {
        lock(&self.open).values().for_each(|wait| wait.end(end.clone()));
    }

    /// Ends the waits for which the replica was outside its group at the last look too. One that is soon back learns
    /// the ends in the order.
    pub(super) fn look_outside(&self, is_outside: bool) {
        for wait in lock(&self.open).values() {
            if wait.was_outside.swap(is_outside, Ordering::Relaxed) && is_outside {
                wait.end(WaitEnd::Outside);
            }
        }
    }

    /// Whether a client's request waits, or is about to.
    pub(super) fn are_any(&self) -> bool {
        !lock(&self.open).is_empty()
    }

    /// Forgets the tickets that were left behind, and those that will be: the replica's group has ended.
    pub(super) fn end_cancelling(&self) {
        *lock(&self.left_behind) = None;
    }

    /// Opens a ticket for a client whose bell this is.
    pub(super) fn open(self: &Arc<Waits>, bell: &Arc<Bell>) -> Ticket {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let wait =
            Arc::new(OpenWait { bell: Arc::clone(bell), end: Mutex::default(), was_outside: AtomicBool::default() });
        lock(&self.open).insert(number, Arc::clone(&wait));
        Ticket { waits: Arc::clone(self), number, wait, is_open: true }
    }

    /// Takes the tickets that were left behind, a few at once. Waits until there are any.
    pub(super) async fn next_left_behind(&self) -> Vec<u64> {
        poll_fn(|context| {
            self.task.register(context.waker());
            let mut left = lock(&self.left_behind);
            let Some(left) = left.as_mut().filter(|left| !left.is_empty()) else { return Poll::Pending };
            let rest = left.len().saturating_sub(CANCEL_AT_ONCE);
            Poll::Ready(left.split_off(rest))
        })
        .await
    }
}

/// The ticket of one wait. On drop it is left behind unless it was closed.
#[derive(Debug)]
pub(super) struct Ticket {
    waits: Arc<Waits>,
    number: u64,
    wait: Arc<OpenWait>,
    is_open: bool,
}

impl Ticket {
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The end of the wait, if it is known. It is taken out.
    pub(super) fn take_end(&self) -> Option<WaitEnd> {
        lock(&self.wait.end).take()
    }

    /// Notes that the wait is over.
    pub(super) fn close(&mut self) {
        self.is_open = false;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.waits.open).remove(&self.number);
        if mem::take(&mut self.is_open) {
            lock(&self.waits.left_behind).iter_mut().for_each(|left| left.push(self.number));
            self.waits.task.wake();
        }
    }
}

/// Whether a client's request waits, as other clients see it, who may end the wait.
#[derive(Debug, Default)]
pub(super) struct WaitFlag(AtomicU8);

/// The answer to a request whose wait another client ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unblocking {
    /// As if the time had passed.
    Timeout,
    /// An error.
    Error,
}

impl WaitFlag {
    const NONE: u8 = 0;
    const WAITS: u8 = 1;
    const TIMEOUT: u8 = 2;
    const ERROR: u8 = 3;

    pub(super) fn set(&self, waits: bool) {
        self.0.store(if waits { WaitFlag::WAITS } else { WaitFlag::NONE }, Ordering::Release);
    }

    /// Whether a request waits.
    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire) != WaitFlag::NONE
    }

    /// Asks for the end of the wait. Returns whether there is one that nobody has ended yet.
    pub(super) fn unblock(&self, how: Unblocking) -> bool {
        let how = match how {
            Unblocking::Timeout => WaitFlag::TIMEOUT,
            Unblocking::Error => WaitFlag::ERROR,
        };
        self.0.compare_exchange(WaitFlag::WAITS, how, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The way in which another client has ended the wait.
    pub(super) fn unblocked(&self) -> Option<Unblocking> {
        match self.0.load(Ordering::Acquire) {
            WaitFlag::TIMEOUT => Some(Unblocking::Timeout),
            WaitFlag::ERROR => Some(Unblocking::Error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::{Reply, server::wake::Bells};

    fn waits() -> (Arc<Waits>, Arc<Bell>) {
        (Arc::default(), Bell::new(&Arc::new(Bells::default())))
    }

    #[test]
    fn a_wait_ends_once_and_only_its_own_client_learns_it() {
        let (waits, bell) = waits();
        assert!(!waits.are_any());
        let (one, other) = (waits.open(&bell), waits.open(&bell));
        assert!(waits.are_any());
        waits.end(one.number(), WaitEnd::Served(Reply::OK));
        waits.end_all(&WaitEnd::Lost);
        assert_eq!(one.take_end(), Some(WaitEnd::Served(Reply::OK)));
        assert_eq!(other.take_end(), Some(WaitEnd::Lost));
        waits.end(one.number().wrapping_sub(1), WaitEnd::Dropped);
        assert_eq!(one.take_end(), None);
    }

    #[test]
    fn a_wait_ends_if_the_replica_was_outside_its_group_at_two_looks_on_end() {
        let (waits, bell) = waits();
        let (early, served) = (waits.open(&bell), waits.open(&bell));
        [true, false, true].into_iter().for_each(|is_outside| waits.look_outside(is_outside));
        assert_eq!(early.take_end(), None, "it was back meanwhile");
        let late = waits.open(&bell);
        waits.end(served.number(), WaitEnd::Served(Reply::OK));
        waits.look_outside(true);
        let ends = [&early, &served, &late].map(Ticket::take_end);
        assert_eq!(ends, [Some(WaitEnd::Outside), Some(WaitEnd::Served(Reply::OK)), None]);
        waits.look_outside(true);
        assert_eq!(late.take_end(), Some(WaitEnd::Outside));
    }

    #[test]
    fn an_open_ticket_is_left_behind_and_a_closed_one_is_not() {
        let (waits, bell) = waits();
        let mut closed = waits.open(&bell);
        closed.close();
        drop(closed);
        let mut context = Context::from_waker(Waker::noop());
        let mut next = || match std::pin::pin!(waits.next_left_behind()).poll(&mut context) {
            Poll::Ready(tickets) => tickets.len(),
            Poll::Pending => 0,
        };
        assert_eq!(next(), 0);
        (0..CANCEL_AT_ONCE + 7).for_each(|_| drop(waits.open(&bell)));
        assert_eq!([next(), next(), next()], [CANCEL_AT_ONCE, 7, 0]);
        assert!(lock(&waits.open).is_empty());
        waits.end_cancelling();
        drop(waits.open(&bell));
        assert!(lock(&waits.left_behind).is_none(), "nothing piles up");
    }

    #[test]
    fn a_wait_is_ended_by_one_client_only_and_only_while_it_lasts() {
        let flag = WaitFlag::default();
        assert!(!flag.unblock(Unblocking::Timeout));
        flag.set(true);
        assert!(flag.unblock(Unblocking::Error) && !flag.unblock(Unblocking::Timeout));
        assert_eq!(flag.unblocked(), Some(Unblocking::Error));
        flag.set(false);
        assert!(!flag.is_set() && flag.unblocked().is_none());
    }
}
