//! A fixed number of reply slots, claimed and completed without a lock.
//!
//! The life of a slot. Each step has the side that may make it below it:
//!
//! ```text
//!           claim              complete              take
//!   Free ──────────▶ Waiting ───────────▶ Done ────────────▶ Free
//!         submitter     │ │    delivery           submitter
//!                       │ │    close                take
//!                       │ └─────────────▶ Lost ────────────▶ Free
//!                       │      delivery           submitter
//!                       │     abandon              complete
//!                       └───────────────▶ Abandoned ───────▶ Free
//!                             submitter            delivery
//! ```
//!
//! In a stall, submitters abandon their slots instead of waiting.
//!
//! The ticket of a slot goes with the message. A slot is free again only when its message has been delivered or will
//! never be. So a ticket that comes back always finds its own submit.

#[cfg(all(test, squall_loom))]
mod loom_tests;

use std::{
    num::NonZeroU32,
    task::{Context, Poll, Waker},
};

#[cfg(not(squall_loom))]
use atomic_waker::AtomicWaker;

use crate::replica::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, UnsafeCell, fence};

/// The name of a slot, from its claim until it is free again. Never 0, which says that no submit waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(NonZeroU32);

impl Ticket {
    fn of(index: usize) -> Ticket {
        Ticket(NonZeroU32::MIN.saturating_add(index as u32))
    }

    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }
}

/// The reason for which no submit waits for the reply any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// The end of waiting: there will be no reply.
    Closed,
    /// A wait of unknown length: the reply comes at an unknown time, or never.
    Stalled,
}

/// The wake-ups that follow from a change of a slot, which the caller must carry out.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Wakeups {
    /// The waker of the submit that waits for the reply.
    pub(crate) wake: Option<Waker>,
    /// Whether a slot became free where there had been none.
    pub(crate) room: bool,
}

/// The slots of one group.
pub(crate) struct ReplySlots<T> {
    slots: Box<[Slot<T>]>,
    /// The free slots, as a stack, so that few outstanding submits use few slots, which stay in the cache. The low half
    /// names the top as a ticket does. The high half counts changes, so that an exchange fails if the top was taken and
    /// came back.
    free: AtomicU64,
    /// Whether a submit found no free slot since one was last put back.
    missed: AtomicBool,
    /// Whether nothing is completed any more.
    closed: AtomicBool,
    /// Whether nothing is completed for now, so that no submit shall wait.
    stalled: AtomicBool,
}

struct Slot<T> {
    state: AtomicU32,
    /// The next free slot below this one, as a ticket names it.
    below: AtomicU32,
    waker: AtomicWaker,
    /// Belongs to the delivering side while the state is Waiting or Abandoned, and to the submitter once it is Done.
    reply: UnsafeCell<Option<T>>,
}

const FREE: u32 = 0;
const WAITING: u32 = 1;
const ABANDONED: u32 = 2;
const DONE: u32 = 3;
const LOST: u32 = 4;

// SAFETY: replies move between threads, each in the hands of one at a time, as `Slot::reply` says; hence `T: Send`. All
// else is atomics.
unsafe impl<T: Send> Send for ReplySlots<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for ReplySlots<T> {}

impl<T> ReplySlots<T> {
    /// Makes `capacity` slots, at least 1 and so few that their number fits into 31 bits.
    pub(crate) fn new(capacity: usize) -> ReplySlots<T> {
        assert!((1..=i32::MAX as usize).contains(&capacity), "{capacity} slots");
        let slot = |index: usize| Slot {
            state: AtomicU32::new(FREE),
            below: AtomicU32::new(if index + 1 < capacity { index as u32 + 2 } else { 0 }),
            waker: AtomicWaker::new(),
            reply: UnsafeCell::new(None),
        };
        let no = || AtomicBool::new(false);
        ReplySlots {
            slots: (0..capacity).map(slot).collect(),
            free: AtomicU64::new(1),
            missed: no(),
            closed: no(),
            stalled: no(),
        }
    }

    fn slot(&self, ticket: u32) -> &Slot<T> {
        &self.slots[ticket as usize - 1]
    }

    /// Claims a slot for a submit, unless all are in use. It must be [put back](ReplySlots::put_back) if the message is
    /// not accepted.
    pub(crate) fn claim(&self) -> Option<Ticket> {
        self.claim_free().or_else(|| {
            self.missed.store(true, Ordering::Relaxed);
            // Pairs with the fence in `put_back`: either this finds the slot, or `put_back` sees that it was missed.
            fence(Ordering::SeqCst);
            self.claim_free()
        })
    }

    #[inline]
    fn claim_free(&self) -> Option<Ticket> {
        // Acquire: all accesses of the last occupant to the slot are over.
        let mut top = self.free.load(Ordering::Acquire);
        loop {
            let index = (top as u32).checked_sub(1)? as usize;
            let below = self.slots[index].below.load(Ordering::Relaxed);
            match self.free.compare_exchange_weak(top, retop(top, below), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    self.slots[index].state.store(WAITING, Ordering::Release);
                    return Some(Ticket::of(index));
                }
                Err(now) => top = now,
            }
        }
    }

    /// Frees a slot to which nothing refers any more. Returns whether there had been no free one.
    fn release(&self, ticket: u32) -> bool {
        let slot = self.slot(ticket);
        slot.state.store(FREE, Ordering::Relaxed);
        let mut top = self.free.load(Ordering::Relaxed);
        loop {
            slot.below.store(top as u32, Ordering::Relaxed);
            // Release: all accesses to the slot are over for the thread that claims it.
            match self.free.compare_exchange_weak(top, retop(top, ticket), Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return top as u32 == 0,
                Err(now) => top = now,
            }
        }
    }

    /// Frees the slot of a message that was not accepted. It counts as room only if a submit missed it: else a submit
    /// that waits for other room would be woken by its own attempt, again and again.
    pub(crate) fn put_back(&self, ticket: Ticket) -> Wakeups {
        let was_last = self.release(ticket.get());
        // Pairs with the fence in `claim`.
        fence(Ordering::SeqCst);
        Wakeups { wake: None, room: was_last && self.missed.swap(false, Ordering::Relaxed) }
    }

    /// Brings the reply. Each ticket is completed at most once, by the one thread that delivers.
    ///
    /// The waker in the result must be woken, whichever submit it belongs to. Between the reply and this thread's look
    /// at the slot's waker, the submitter may have taken the reply, and the slot's next occupant may wait there
    /// already. That one then looks once in vain, and waits again.
    pub(crate) fn complete(&self, ticket: u32, reply: T) -> Wakeups {
        let slot = self.slot(ticket);
        let mut state = slot.state.load(Ordering::Acquire);
        if state == WAITING {
            // SAFETY: the slot belongs to the delivering side while it is Waiting.
            slot.reply.with_mut(|place| unsafe { *place = Some(reply) });
            match slot.state.compare_exchange(WAITING, DONE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Wakeups { wake: slot.waker.take(), room: false },
                Err(now) => state = now,
            }
        }
        assert_eq!(state, ABANDONED, "a ticket comes back once, before the group ends");
        // SAFETY: the slot belongs to the delivering side while it is Abandoned.
        slot.reply.with_mut(|place| unsafe { *place = None });
        Wakeups { wake: None, room: self.release(ticket) }
    }

    /// Ends all waiting: nothing is completed after this. Hands each waker to `wake`.
    pub(crate) fn close(&self, mut wake: impl FnMut(Waker)) {
        self.closed.store(true, Ordering::Relaxed);
        // Pairs with the fence in `poll`: either this sees that a slot waits, or the slot's submitter sees `closed`.
        fence(Ordering::SeqCst);
        for slot in &self.slots {
            if slot.state.compare_exchange(WAITING, LOST, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                slot.waker.take().into_iter().for_each(&mut wake);
            }
        }
    }

    /// Lets no submit wait until it [goes on](ReplySlots::go_on). A submit that waits gets [`Lost::Stalled`], and its
    /// slot is free once its ticket has come back all the same. Hands each waker to `wake`.
    pub(crate) fn stall(&self, mut wake: impl FnMut(Waker)) {
        self.stalled.store(true, Ordering::Relaxed);
        // As in `close`.
        fence(Ordering::SeqCst);
        for slot in self.slots.iter().filter(|slot| slot.state.load(Ordering::Relaxed) == WAITING) {
            slot.waker.take().into_iter().for_each(&mut wake);
        }
    }

    /// Ends a stall. A submit that has not looked meanwhile goes on waiting.
    pub(crate) fn go_on(&self) {
        self.stalled.store(false, Ordering::Relaxed);
    }

    /// Whether [`poll`](ReplySlots::poll) would give a reply, as far as relaxed loads tell.
    pub(crate) fn is_ready(&self, ticket: Ticket) -> bool {
        let off = self.closed.load(Ordering::Relaxed) || self.stalled.load(Ordering::Relaxed);
        off || self.slot(ticket.get()).state.load(Ordering::Relaxed) != WAITING
    }

    /// Takes the reply, which frees the slot.
    fn take(&self, ticket: Ticket) -> Option<(Result<T, Lost>, Wakeups)> {
        let slot = self.slot(ticket.get());
        let reply = match slot.state.load(Ordering::Acquire) {
            WAITING => return None,
            LOST => Err(Lost::Closed),
            state => {
                assert_eq!(state, DONE, "a ticket belongs to its submit until its reply is taken");
                // SAFETY: the slot belongs to the submitter once it is Done.
                let reply = slot.reply.with_mut(|place| unsafe { (*place).take() });
                Ok(reply.expect("a slot that is Done has a reply"))
            }
        };
        Some((reply, Wakeups { wake: None, room: self.release(ticket.get()) }))
    }

    /// Takes the reply, which frees the slot, or arranges for the task to be woken when the reply has come. Called by
    /// the submitter.
    pub(crate) fn poll(&self, ticket: Ticket, context: &Context<'_>) -> Poll<(Result<T, Lost>, Wakeups)> {
        if let Some(taken) = self.take(ticket) {
            return Poll::Ready(taken);
        }
        let slot = self.slot(ticket.get());
        slot.waker.register(context.waker());
        // Pairs with the fences in `close` and `stall`, which may have passed this slot before it was claimed.
        fence(Ordering::SeqCst);
        if self.closed.load(Ordering::Relaxed) {
            // Acquire: if the reply came before the end, it is taken below.
            let _ = slot.state.compare_exchange(WAITING, LOST, Ordering::AcqRel, Ordering::Acquire);
        } else if self.stalled.load(Ordering::Relaxed)
            && slot.state.compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            drop(slot.waker.take());
            return Poll::Ready((Err(Lost::Stalled), Wakeups::default()));
        }
        match self.take(ticket) {
            Some(taken) => Poll::Ready(taken),
            None => Poll::Pending,
        }
    }

    /// Stops waiting for the reply. The slot is free once the message is delivered. Called by the submitter.
    pub(crate) fn abandon(&self, ticket: Ticket) -> Wakeups {
        let slot = self.slot(ticket.get());
        // A waker kept here would keep its task alive until the delivery.
        drop(slot.waker.take());
        match slot.state.compare_exchange(WAITING, ABANDONED, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Wakeups::default(),
            Err(_) => self.take(ticket).expect("what does not wait has an end").1,
        }
    }
}

/// The next word of the free list, with another top.
fn retop(word: u64, top: u32) -> u64 {
    ((word >> 32).wrapping_add(1) << 32) | u64::from(top)
}

/// The guarantees of an `AtomicWaker`, by a lock that loom watches.
#[cfg(squall_loom)]
struct AtomicWaker(loom::sync::Mutex<Option<Waker>>);

#[cfg(squall_loom)]
impl AtomicWaker {
    fn new() -> AtomicWaker {
        AtomicWaker(loom::sync::Mutex::new(None))
    }

    fn register(&self, waker: &Waker) {
        *self.0.lock().expect("nothing panics while holding it") = Some(waker.clone());
    }

    fn take(&self) -> Option<Waker> {
        self.0.lock().expect("nothing panics while holding it").take()
    }
}
