//! A node's limit of the bytes that it holds for its clients, over all connections.
//!
//! Half is for requests. A request counts from the moment when it is announced until the group has taken it, or its
//! query is answered. A request that does not fit is not read yet, so its client's stream fills. Its writer waits, or
//! goes to another member. Requests are admitted in the order in which they came, so that large ones are admitted too.
//! A client that announces a request and does not send it keeps others out only until its connection ends for its
//! silence.
//!
//! Half is for bytes that clients have not read. A reply can't wait, since the delivery thread brings it. When there is
//! too much, the node hangs up on the client that leaves most unread. The client may come again, and then gets its
//! replies, which its session keeps.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering},
};

use squall_fabric::sync::{Condition, Lock};

use super::outbox::Outbox;

/// The count of the bytes that a node holds for clients.
#[derive(derive_more::Debug)]
#[debug("Budget {{ half: {half}, requests: {requests:?}, unread: {unread:?} }}")]
pub(crate) struct Budget {
    /// The size of each half, in bytes.
    half: usize,
    requests: Lock<Requests>,
    /// Signals that bytes became free, or that a waiting thread need not wait any more.
    freed: Condition,
    /// Held by the one waiting thread whose turn it is to look.
    first: Lock<()>,
    /// The number of bytes that clients have not read.
    unread: AtomicUsize,
    /// The outboxes of all connections.
    boxes: Lock<Vec<Weak<Outbox>>>,
}

#[derive(Debug, Default)]
struct Requests {
    bytes: usize,
    waiting: usize,
}

/// A permit for a request's bytes. The budget gets them back when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Budget {
    pub(crate) fn new(max_bytes: usize) -> Arc<Budget> {
        Arc::new(Budget {
            half: max_bytes / 2,
            requests: Lock::default(),
            freed: Condition::new(),
            first: Lock::default(),
            unread: AtomicUsize::new(0),
            boxes: Lock::default(),
        })
    }

    /// Waits until there is room for a request of `bytes` bytes. Returns None once its client's connection is closed.
    pub(super) fn reserve(self: &Arc<Self>, bytes: usize, of: &Outbox) -> Option<Permit> {
        // A single request always fits.
        let fits = |requests: &Requests| requests.bytes == 0 || requests.bytes.saturating_add(bytes) <= self.half;
        let mut requests = self.requests.lock();
        if requests.waiting > 0 || !fits(&requests) {
            requests.waiting += 1;
            drop(requests);
            let first = self.first.lock();
            requests = self.requests.lock();
            while !fits(&requests) && !of.is_closed() {
                requests = self.freed.wait(requests);
            }
            requests.waiting -= 1;
            drop(first);
            if of.is_closed() {
                return None;
            }
        }
        requests.bytes += bytes;
        Some(Permit { budget: Arc::clone(self), bytes })
    }

    /// Wakes the threads that wait, after a connection was closed, so that they look again.
    pub(super) fn nudge(&self) {
        // The lock is taken so that a thread that is about to wait notices.
        let _requests = self.requests.lock();
        self.freed.notify_all();
    }

    /// Adds bytes that a client is to read. Returns whether there are too many, so that some must be
    /// [shed](Budget::shed).
    pub(super) fn add_unread(&self, bytes: usize) -> bool {
        self.unread.fetch_add(bytes, Ordering::Relaxed) + bytes > self.half
    }

    /// Subtracts bytes that a client has read, or never will.
    pub(super) fn sub_unread(&self, bytes: usize) {
        self.unread.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Hangs up on the clients that leave most unread, until the rest is not too much.
    #[cold]
    pub(super) fn shed(&self) {
        let boxes = self.boxes.lock();
        let open = boxes.iter().filter_map(Weak::upgrade).filter(|outbox| !outbox.is_closed());
        let mut open: Vec<(usize, Arc<Outbox>)> = open.map(|outbox| (outbox.unread(), outbox)).collect();
        drop(boxes);
        open.sort_unstable_by_key(|(bytes, _)| *bytes);
        // Closed outboxes are about to be freed, so they do not count.
        let mut held: usize = open.iter().map(|(bytes, _)| bytes).sum();
        while held > self.half
            && let Some((bytes, outbox)) = open.pop()
        {
            tracing::warn!(
                bytes,
                limit = self.half,
                "clients leave more unread than this node may hold for them (half of `client_bytes`): the one that leaves most \
                 is hung up on"
            );
            outbox.hang_up();
            held -= bytes;
        }
    }

    /// Adds the outbox of a new client.
    pub(super) fn enter(&self, outbox: &Arc<Outbox>) {
        let mut boxes = self.boxes.lock();
        boxes.retain(|other| other.strong_count() > 0);
        boxes.push(Arc::downgrade(outbox));
    }

    /// Returns the outboxes of the clients that are connected.
    pub(super) fn connected(&self) -> Vec<Arc<Outbox>> {
        self.boxes.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut requests = self.budget.requests.lock();
        requests.bytes -= self.bytes;
        if requests.waiting > 0 {
            self.budget.freed.notify_all();
        }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::{sync::mpsc, thread};

    use squall_fabric::Time;

    use super::*;

    impl Budget {
        /// Returns the bytes of requests, the number of requests that wait, and the unread bytes.
        pub(crate) fn held(&self) -> (usize, usize, usize) {
            let requests = self.requests.lock();
            (requests.bytes, requests.waiting, self.unread.load(Ordering::Relaxed))
        }
    }

    fn outbox(budget: &Arc<Budget>) -> Arc<Outbox> {
        Arc::new(Outbox::new(usize::MAX, Time::ZERO, Arc::clone(budget)))
    }

    #[test]
    fn a_request_waits_for_room_and_later_ones_wait_behind_it() {
        let budget = Budget::new(200);
        let outbox = outbox(&budget);
        let [first, second] = [60, 40].map(|bytes| budget.reserve(bytes, &outbox).expect("it fits"));
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            for bytes in [90, 1] {
                let (tell, budget, outbox) = (tell.clone(), &budget, &outbox);
                scope.spawn(move || {
                    let permit = budget.reserve(bytes, outbox).expect("it is not hung up on");
                    tell.send((bytes, permit)).expect("the test waits");
                });
                while budget.held().1 == 0 {
                    thread::yield_now();
                }
            }
            while budget.held().1 < 2 {
                thread::yield_now();
            }
            drop(second);
            // There is room for the small one. Whether it has come or not, the limit holds.
            assert!(budget.held().0 <= 100);
            drop(first);
            let shares: Vec<_> = told.iter().take(2).collect();
            assert_eq!(shares.iter().map(|(bytes, _)| bytes).sum::<usize>(), 91);
        });
        assert_eq!(budget.held(), (0, 0, 0));
    }

    #[test]
    fn one_that_is_larger_than_all_there_is_comes_in_alone() {
        let budget = Budget::new(200);
        let outbox = outbox(&budget);
        assert!(budget.reserve(1000, &outbox).is_some());
    }

    #[test]
    fn who_is_hung_up_on_waits_no_longer() {
        let budget = Budget::new(200);
        let (here, gone) = (outbox(&budget), outbox(&budget));
        let _all = budget.reserve(100, &here).expect("it fits");
        thread::scope(|scope| {
            let waits = scope.spawn(|| budget.reserve(1, &gone).is_none());
            while budget.held().1 == 0 {
                thread::yield_now();
            }
            gone.close();
            assert!(waits.join().expect("it does not panic"));
        });
        assert_eq!(budget.held().1, 0);
    }
}
