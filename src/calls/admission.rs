//! The admission of a group's messages: the same for every kind of group.

use std::{
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering, fence},
    },
    task::{Context, Poll},
    time::Instant,
};

use event_listener::{Event, EventListener, IntoNotification, Listener, listener};
use squall_fabric::{NodeId, Waker, sync::Lock};
use squall_membership::EndReason;
use squall_ordered::{
    Submitter, Tag,
    log::{Hlc, MAX_PAYLOAD_BYTES},
};
use squall_runtime::BackoffProfile;

use crate::calls::{
    clock::Now,
    clock_bound::ClockBound,
    deadline::Deadlines,
    envelope::Envelope,
    error::{Outcome, SubmitError, Unavailable},
    hazard_cell::{HazardCell, HazardGuard},
};

/// The state that all handles of a group share with the thread that delivers.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) name: String,
    pub(crate) backoff: BackoffProfile,
    pub(crate) deadlines: Deadlines,
    pub(crate) durable: bool,
    /// Whether it takes no messages, since members are short of room; and these members. Set by the engine.
    is_short_of_room: AtomicBool,
    short_of_room: Lock<Vec<NodeId>>,
    engine: OnceLock<EngineHandle>,
    /// Replaced by the delivering thread alone.
    state: HazardCell<AdmissionState>,
    /// The reason for which callers must not wait for the delivering thread, which hangs in a view that is over.
    halted: Lock<Option<Unavailable>>,
    /// Notified when there is room again for messages that are no bulk messages.
    room: Event,
    /// The counterpart of `room` for bulk messages. They need far more of another kind of room, and would use up the
    /// notifications of others.
    bulk_room: Event,
    /// Whether the delivering thread has messages of an earlier view to send before any new ones.
    resubmitting: AtomicBool,
    /// Whether there is more room for these messages.
    resubmit: AtomicBool,
}

/// A group's access to the engine of its node, given to the group when the node starts.
#[derive(Debug)]
pub(crate) struct EngineHandle {
    /// Wakes the node's engine.
    pub(crate) waker: Waker,
    pub(crate) clock: Now,
    /// The times of the group's messages.
    pub(crate) bound: Arc<ClockBound>,
}

/// The state of a group as regards new messages: whether it takes them, and through which submitter.
#[derive(Debug)]
pub(crate) enum AdmissionState {
    /// The time before any view.
    NotStarted,
    /// The time in a view. Once the view is over, the submitter refuses, and callers wait for the next.
    Open {
        submitter: Submitter,
        /// The reason for which it takes reads and no messages; [`SubmitError::Full`] if that will change by itself.
        refuses: Option<SubmitError>,
    },
    /// Callers get an error, for now.
    Unavailable(Unavailable),
    Ended(EndReason),
}

/// The number of waiting callers that are woken at first; each that finds room wakes another. Very many may wait, and
/// there may be room for few.
///
/// Notifications are additional ones. So a caller that was woken and never looks (a future that its owner neither polls
/// nor drops) does not take the place of one that would.
const WOKEN: usize = 8;

impl Admission {
    pub(crate) fn new(name: String, backoff: BackoffProfile, durable: bool) -> Admission {
        Admission {
            name,
            backoff,
            deadlines: Deadlines::default(),
            durable,
            is_short_of_room: AtomicBool::new(false),
            short_of_room: Lock::default(),
            engine: OnceLock::new(),
            state: HazardCell::new(AdmissionState::NotStarted),
            halted: Lock::new(None),
            room: Event::new(),
            bulk_room: Event::new(),
            resubmitting: AtomicBool::new(false),
            resubmit: AtomicBool::new(false),
        }
    }

    pub(crate) fn start(&self, waker: Waker, clock: Now, bound: Arc<ClockBound>) {
        assert!(self.engine.set(EngineHandle { waker, clock, bound }).is_ok(), "a group starts once");
    }

    /// Returns the engine's handle; None before the node has started.
    pub(crate) fn engine(&self) -> Option<&EngineHandle> {
        self.engine.get()
    }

    /// Wakes the node's engine.
    pub(crate) fn wake(&self) {
        if let Some(engine) = self.engine() {
            engine.waker.wake();
        }
    }

    #[inline]
    pub(crate) fn state(&self) -> HazardGuard<'_, AdmissionState> {
        self.state.get()
    }

    /// Sets the state, and lets waiting callers find it. Called by the delivering thread.
    pub(crate) fn set(&self, state: AdmissionState) {
        self.state.set(state);
        *self.halted.lock() = None;
        // A caller that listens from now on tries once more before it sleeps, and finds the new state.
        self.wake_all();
    }

    /// Tells callers why they must not wait for the delivering thread, until that thread sets another state. Called by
    /// the engine, once the view's ring is closed.
    pub(crate) fn halt(&self, why: Unavailable) {
        *self.halted.lock() = Some(why);
        // Callers that listen from now on find `halted`, as in `set`.
        self.wake_all();
    }

    /// Refuses messages for the sake of these members, whose storage is short of room; takes them again if there are
    /// none. Called by the engine.
    pub(crate) fn refuse_for(&self, nodes: Vec<NodeId>) {
        let mut short = self.short_of_room.lock();
        if *short == nodes {
            return;
        }
        match nodes.as_slice() {
            [] => tracing::info!(group = self.name, "its members have room again: it takes messages"),
            nodes => tracing::error!(group = self.name, "{}", Unavailable::ShortOfRoom { nodes: nodes.to_vec() }),
        }
        self.is_short_of_room.store(!nodes.is_empty(), Ordering::Release);
        *short = nodes;
        drop(short);
        // Callers that wait find the refusal.
        self.wake_all();
    }

    #[cold]
    fn short_of_room(&self) -> SubmitError {
        let why = Unavailable::ShortOfRoom { nodes: self.short_of_room.lock().clone() };
        SubmitError::Unavailable { why, outcome: Outcome::NotAccepted }
    }

    fn wake_all(&self) {
        self.room.notify(usize::MAX);
        self.bulk_room.notify(usize::MAX);
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(*self.state(), AdmissionState::Ended(_))
    }

    /// The error of a message whose outcome is `outcome`, if no more is known than that the group has ended or stalled.
    pub(crate) fn failed(&self, outcome: Outcome) -> SubmitError {
        match &*self.state() {
            AdmissionState::Ended(reason) => SubmitError::Ended { reason: reason.clone(), outcome },
            AdmissionState::Unavailable(why) => SubmitError::Unavailable { why: why.clone(), outcome },
            // The group goes on by now.
            AdmissionState::NotStarted | AdmissionState::Open { .. } => {
                let why = self.halted.lock().clone().unwrap_or(Unavailable::NoQuorum);
                SubmitError::Unavailable { why, outcome }
            }
        }
    }

    /// The error of a message for which there is no room.
    #[cold]
    pub(crate) fn full(&self) -> SubmitError {
        let halted = self.halted.lock().clone();
        halted.map_or(SubmitError::Full, |why| SubmitError::Unavailable { why, outcome: Outcome::NotAccepted })
    }

    /// Accepts a message, if there is room, and wakes the engine.
    pub(crate) fn accept(&self, message: &Envelope, ticket: u32) -> Result<(), SubmitError> {
        match self.try_accept(message, ticket) {
            Err(SubmitError::Full) => Err(self.full()),
            accepted => accepted,
        }
    }

    fn try_accept(&self, message: &Envelope, ticket: u32) -> Result<(), SubmitError> {
        let bytes = message.as_slice().len();
        if self.durable && bytes > MAX_PAYLOAD_BYTES {
            return Err(SubmitError::TooLarge { bytes, max: MAX_PAYLOAD_BYTES });
        }
        let state = self.state();
        let AdmissionState::Open { submitter, refuses: None } = &*state else { return Err(refusal(&state)) };
        if self.is_short_of_room.load(Ordering::Relaxed) {
            return Err(self.short_of_room());
        }
        let time = self.engine().map_or(Ok(Hlc(0)), |engine| engine.bound.time(&engine.clock))?;
        match submitter.submit(message.as_slice(), Tag { ticket, time: time.0 }) {
            Ok(()) => {
                self.wake();
                Ok(())
            }
            // The submitter's view is over. A caller that waits for room is woken in the next view, or learns why there
            // is none.
            Err(refused) => Err(SubmitError::refused(refused).unwrap_or(SubmitError::Full)),
        }
    }

    /// Accepts a message whose reply no caller waits for, as [`accept`](Admission::accept) does.
    pub(crate) fn try_send(&self, message: Envelope) -> Result<(), SubmitError> {
        self.accept(&message, 0)
    }

    /// Notes that the ring has more room. Wakes no caller while less than a quarter of the ring is free, which takes
    /// the largest message. A producer would fill a smaller space at once and sleep again.
    pub(crate) fn on_freed(&self) {
        self.let_resubmit();
        if matches!(&*self.state(), AdmissionState::Open { submitter, refuses: None } if submitter.is_roomy()) {
            self.room.notify(WOKEN.additional());
        }
    }

    /// Notes that the other members' clocks are known, so messages that waited for that are taken.
    pub(crate) fn on_stamps(&self) {
        self.let_resubmit();
        // All are woken: only the clocks were in the way, so no message will leave room behind it that would wake the
        // next.
        self.wake_all();
    }

    /// Notes that there is more room for bulk messages, or for small ones behind them.
    pub(crate) fn on_freed_bulk(&self) {
        self.let_resubmit();
        self.bulk_room.notify(WOKEN.additional());
        self.room.notify(WOKEN.additional());
    }

    /// Notes that a reply's slot became free where there had been none.
    pub(crate) fn on_reply_slot(&self) {
        self.bulk_room.notify(1.additional());
        self.room.notify(1.additional());
    }

    fn let_resubmit(&self) {
        // Pairs with the fence in `set_resubmitting`: either this sees that the delivering thread wants the room, or
        // that thread finds it.
        fence(Ordering::SeqCst);
        if self.resubmitting.load(Ordering::Relaxed) {
            self.resubmit.store(true, Ordering::Release);
        }
    }

    /// Whether there is more room for messages of an earlier view.
    pub(crate) fn may_resubmit(&self) -> bool {
        self.resubmit.load(Ordering::Acquire)
    }

    /// Sets whether the delivering thread looks for room for messages of an earlier view, and wants to hear of more.
    pub(crate) fn set_resubmitting(&self, resubmitting: bool) {
        self.resubmitting.store(resubmitting, Ordering::Relaxed);
        self.resubmit.store(false, Ordering::Relaxed);
        // Pairs with the fence in `let_resubmit`.
        fence(Ordering::SeqCst);
    }

    /// The event that is notified when there may be room for a message.
    fn room_for(&self, message: &Envelope) -> &Event {
        let bytes = message.as_slice().len();
        let bulk = matches!(&*self.state(), AdmissionState::Open { submitter, .. } if submitter.is_bulk(bytes));
        if bulk { &self.bulk_room } else { &self.room }
    }
}

/// The reason for which a state takes no messages.
#[cold]
fn refusal(state: &AdmissionState) -> SubmitError {
    let outcome = Outcome::NotAccepted;
    match state {
        AdmissionState::NotStarted => SubmitError::NotStarted,
        AdmissionState::Open { refuses, .. } => refuses.clone().unwrap_or(SubmitError::Full),
        AdmissionState::Unavailable(why) => SubmitError::Unavailable { why: why.clone(), outcome },
        AdmissionState::Ended(reason) => SubmitError::Ended { reason: reason.clone(), outcome },
    }
}

/// A message that has found no room yet.
#[derive(Debug)]
pub(crate) struct WaitingMessage {
    message: Envelope,
    listener: Option<EventListener>,
}

impl WaitingMessage {
    pub(crate) fn new(message: Envelope) -> WaitingMessage {
        WaitingMessage { message, listener: None }
    }

    /// Ready once `accept` returns anything else than [`SubmitError::Full`].
    pub(crate) fn poll<A>(
        &mut self,
        admission: &Admission,
        context: &mut Context<'_>,
        mut accept: impl FnMut(&Envelope) -> Result<A, SubmitError>,
    ) -> Poll<Result<A, SubmitError>> {
        loop {
            if let Some(listener) = &mut self.listener {
                std::task::ready!(Pin::new(listener).poll(context));
            }
            // It listens first and tries then, so that room that appears in between is not missed.
            let room = admission.room_for(&self.message);
            self.listener = Some(room.listen());
            match accept(&self.message) {
                Err(SubmitError::Full) => {}
                accepted => {
                    self.listener = None;
                    room.notify(1.additional());
                    return Poll::Ready(accepted);
                }
            }
        }
    }

    /// Blocks until `accept` returns anything else than [`SubmitError::Full`], or until the deadline.
    pub(crate) fn wait<A>(
        self,
        admission: &Admission,
        until: Option<Instant>,
        mut accept: impl FnMut(&Envelope) -> Result<A, SubmitError>,
    ) -> Result<A, SubmitError> {
        let WaitingMessage { message, listener } = self;
        // If the listener was notified, another waiter is notified in its place.
        drop(listener);
        let room = admission.room_for(&message);
        loop {
            // On the stack, so that a thread that often waits does not allocate.
            listener!(room => rings);
            match accept(&message) {
                Err(SubmitError::Full) => match until {
                    None => rings.wait(),
                    Some(until) => rings.wait_deadline(until).ok_or(SubmitError::Full)?,
                },
                accepted => {
                    room.notify(1.additional());
                    return accepted;
                }
            }
        }
    }
}
