//! The slots under loom: every interleaving (up to a bound of preemptions) of a submitter and the delivering side.
//!
//! `RUSTFLAGS="--cfg squall_loom" cargo test --release -p squall --lib reply_slots`
//!
//! Replies lie in cells that loom watches. A reply that is read while, or before, or without knowing that it is written
//! is reported as a race. A submitter that sleeps and is never woken is reported as a deadlock.

use std::{
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use loom::{
    sync::{
        Notify,
        atomic::{AtomicU32, Ordering},
    },
    thread,
};

use super::{Lost, ReplySlots, Ticket, Wakeups};

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(check);
}

/// A waker for a thread that waits for it.
struct Notifier(Notify);

impl Wake for Notifier {
    fn wake(self: Arc<Self>) {
        self.0.notify();
    }
}

/// Blocks until the reply has come or is lost.
fn wait(replies: &ReplySlots<u32>, ticket: Ticket) -> Result<u32, Lost> {
    let notifier = Arc::new(Notifier(Notify::new()));
    let waker = Waker::from(Arc::clone(&notifier));
    loop {
        match replies.poll(ticket, &Context::from_waker(&waker)) {
            Poll::Ready((reply, _)) => return reply,
            Poll::Pending => notifier.0.wait(),
        }
    }
}

fn wake(wakeups: Wakeups) {
    wakeups.wake.into_iter().for_each(Waker::wake);
}

#[test]
fn a_reply_wakes_its_submitter() {
    model(|| {
        let replies = Arc::new(ReplySlots::new(1));
        let ticket = replies.claim().unwrap();
        let delivering = {
            let replies = Arc::clone(&replies);
            thread::spawn(move || wake(replies.complete(ticket.get(), 7)))
        };
        assert_eq!(wait(&replies, ticket), Ok(7));
        assert!(replies.claim().is_some(), "the slot is free again");
        delivering.join().unwrap();
    });
}

/// The delivering side may take the next occupant's waker for that of the first.
#[test]
fn a_slot_s_next_occupant_is_not_forgotten() {
    model(|| {
        let replies = Arc::new(ReplySlots::new(1));
        let ticket = replies.claim().unwrap();
        let submitted = Arc::new(AtomicU32::new(1));
        let delivering = {
            let (replies, submitted) = (Arc::clone(&replies), Arc::clone(&submitted));
            thread::spawn(move || {
                wake(replies.complete(ticket.get(), 1));
                while submitted.load(Ordering::Acquire) < 2 {
                    thread::yield_now();
                }
                wake(replies.complete(ticket.get(), 2));
            })
        };
        assert_eq!(wait(&replies, ticket), Ok(1));
        let again = replies.claim().unwrap();
        assert_eq!(again, ticket);
        submitted.store(2, Ordering::Release);
        assert_eq!(wait(&replies, again), Ok(2));
        delivering.join().unwrap();
    });
}

#[test]
fn who_gives_up_frees_the_slot_once() {
    model(|| {
        let replies = Arc::new(ReplySlots::new(2));
        let ticket = replies.claim().unwrap();
        let delivering = {
            let replies = Arc::clone(&replies);
            thread::spawn(move || wake(replies.complete(ticket.get(), 7)))
        };
        wake(replies.abandon(ticket));
        delivering.join().unwrap();
        let (first, second) = (replies.claim().unwrap(), replies.claim().unwrap());
        assert_ne!(first, second);
        assert_eq!(replies.claim(), None);
    });
}

#[test]
fn nobody_waits_beyond_the_end() {
    model(|| {
        let replies = Arc::new(ReplySlots::<u32>::new(1));
        let delivering = {
            let replies = Arc::clone(&replies);
            thread::spawn(move || replies.close(Waker::wake))
        };
        let ticket = replies.claim().unwrap();
        assert_eq!(wait(&replies, ticket), Err(Lost::Closed));
        delivering.join().unwrap();
    });
}

#[test]
fn nobody_waits_through_a_stall_and_the_ticket_still_comes_back() {
    model(|| {
        let replies = Arc::new(ReplySlots::<u32>::new(1));
        let ticket = replies.claim().unwrap();
        let delivering = {
            let replies = Arc::clone(&replies);
            thread::spawn(move || {
                replies.stall(Waker::wake);
                wake(replies.complete(ticket.get(), 7));
            })
        };
        assert!(matches!(wait(&replies, ticket), Ok(7) | Err(Lost::Stalled)));
        delivering.join().unwrap();
        assert_eq!(replies.claim(), Some(ticket), "the slot is free again");
    });
}

#[test]
fn who_is_woken_by_a_stall_that_is_over_still_gets_the_reply() {
    model(|| {
        let replies = Arc::new(ReplySlots::<u32>::new(1));
        let ticket = replies.claim().unwrap();
        let delivering = {
            let replies = Arc::clone(&replies);
            thread::spawn(move || {
                replies.stall(Waker::wake);
                replies.go_on();
                wake(replies.complete(ticket.get(), 7));
            })
        };
        assert!(matches!(wait(&replies, ticket), Ok(7) | Err(Lost::Stalled)));
        delivering.join().unwrap();
        assert_eq!(replies.claim(), Some(ticket), "the slot is free again");
    });
}

#[test]
fn a_reply_before_the_end_counts() {
    model(|| {
        let replies = Arc::new(ReplySlots::new(1));
        let ticket = replies.claim().unwrap();
        let delivering = {
            let replies = Arc::clone(&replies);
            thread::spawn(move || {
                wake(replies.complete(ticket.get(), 7));
                replies.close(Waker::wake);
            })
        };
        assert_eq!(wait(&replies, ticket), Ok(7));
        delivering.join().unwrap();
    });
}

#[test]
fn a_slot_has_one_occupant() {
    model(|| {
        let replies = Arc::new(ReplySlots::<u32>::new(2));
        let occupants = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let occupy = |replies: &ReplySlots<u32>, occupants: &[AtomicU32; 2]| {
            for _ in 0..2 {
                let ticket = replies.claim().expect("two slots, and two threads");
                let here = &occupants[ticket.get() as usize - 1];
                assert_eq!(here.fetch_add(1, Ordering::Relaxed), 0, "another thread has it");
                here.fetch_sub(1, Ordering::Relaxed);
                wake(replies.put_back(ticket));
            }
        };
        let other = {
            let (replies, occupants) = (Arc::clone(&replies), Arc::clone(&occupants));
            thread::spawn(move || occupy(&replies, &occupants))
        };
        occupy(&replies, &occupants);
        other.join().unwrap();
    });
}
