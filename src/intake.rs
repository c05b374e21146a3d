//! Where a group's messages come in: the same for every kind of group.

use std::{
    pin::Pin,
    sync::OnceLock,
    task::{Context, Poll},
    time::Instant,
};

use event_listener::{Event, EventListener, IntoNotification, Listener, listener};
use squall_fabric::Waker;
use squall_membership::EndReason;
use squall_ordered::Submitter;

use crate::{
    alarm::Alarms,
    blocking::Patience,
    clock::Now,
    encode::Encoded,
    error::{Outcome, SubmitError},
};

/// What all handles of a group share with the thread that delivers.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) name: String,
    pub(crate) patience: Patience,
    pub(crate) alarms: Alarms,
    started: OnceLock<Started>,
    ended: OnceLock<EndReason>,
    /// Rings when there is room again for messages that are no bulk messages.
    room: Event,
    /// As `room`, for bulk messages: they need far more of another kind of room, and would use up the notifications of others.
    bulk_room: Event,
}

#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) submitter: Submitter,
    /// Wakes the node's engine.
    pub(crate) waker: Waker,
    pub(crate) clock: Now,
}

/// So many of those who wait for room are woken at first, and each who finds some wakes another: those who wait may be very
/// many, and room for few. Notifications are additional ones, so that one who was woken and never looks (a future that its
/// owner neither polls nor drops) does not stand for those who would.
const WOKEN: usize = 8;

impl Intake {
    pub(crate) fn new(name: String, patience: Patience) -> Intake {
        Intake {
            name,
            patience,
            alarms: Alarms::default(),
            started: OnceLock::new(),
            ended: OnceLock::new(),
            room: Event::new(),
            bulk_room: Event::new(),
        }
    }

    pub(crate) fn start(&self, submitter: Submitter, waker: Waker, clock: Now) {
        assert!(self.started.set(Started { submitter, waker, clock }).is_ok(), "a group starts once");
    }

    /// None before the node has started.
    pub(crate) fn started(&self) -> Option<&Started> {
        self.started.get()
    }

    /// Wakes the node's engine.
    pub(crate) fn wake(&self) {
        if let Some(started) = self.started() {
            started.waker.wake();
        }
    }

    /// Why the group has ended, if it has.
    pub(crate) fn end_reason(&self) -> Option<&EndReason> {
        self.ended.get()
    }

    /// The error of a message of which this is known.
    ///
    /// # Panics
    ///
    /// If the group has not ended.
    pub(crate) fn ended(&self, outcome: Outcome) -> SubmitError {
        let reason = self.end_reason().expect("who calls this knows of the end").clone();
        SubmitError::Ended { reason, outcome }
    }

    /// Accepts a message, if there is room, and wakes the engine.
    pub(crate) fn accept(&self, message: &Encoded, ticket: u32) -> Result<(), SubmitError> {
        if self.end_reason().is_some() {
            return Err(self.ended(Outcome::NotAccepted));
        }
        let started = self.started().ok_or(SubmitError::NotStarted)?;
        match started.submitter.submit(message.as_slice(), ticket) {
            Ok(()) => {
                started.waker.wake();
                Ok(())
            }
            Err(refused) => Err(SubmitError::refused(refused).unwrap_or_else(|| match self.end_reason() {
                Some(_) => self.ended(Outcome::NotAccepted),
                // It is closed and about to end. Who waits for room learns the reason in a moment.
                None => SubmitError::Full,
            })),
        }
    }

    /// The ring has more room. Wakes nobody for small change: below a quarter of the ring, which takes the largest message,
    /// a producer would fill it at once and sleep again.
    pub(crate) fn on_freed(&self) {
        if self.started().is_some_and(|started| started.submitter.is_roomy()) {
            self.room.notify(WOKEN.additional());
        }
    }

    /// There is more room for bulk messages, or for small ones behind them.
    pub(crate) fn on_freed_bulk(&self) {
        self.bulk_room.notify(WOKEN.additional());
        self.room.notify(WOKEN.additional());
    }

    /// A reply's slot became free where there had been none.
    pub(crate) fn on_slot(&self) {
        self.bulk_room.notify(1.additional());
        self.room.notify(1.additional());
    }

    /// What rings when there may be room for a message.
    fn room_for(&self, message: &Encoded) -> &Event {
        let bulk = self.started().is_some_and(|started| started.submitter.is_bulk(message.as_slice().len()));
        if bulk { &self.bulk_room } else { &self.room }
    }

    /// Accepts nothing more, and lets those who wait for room learn it.
    pub(crate) fn end(&self, reason: &EndReason) {
        // The first reason counts.
        let _ = self.ended.set(reason.clone());
        if let Some(started) = self.started() {
            started.submitter.close();
        }
        // Who listens from now on tries once more before it sleeps, and finds `ended`.
        self.room.notify(usize::MAX);
        self.bulk_room.notify(usize::MAX);
    }
}

/// A message that has found no room yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    message: Encoded,
    listener: Option<EventListener>,
}

impl Waiting {
    pub(crate) fn new(message: Encoded) -> Waiting {
        Waiting { message, listener: None }
    }

    /// Ready once `accept` gives something else than [`SubmitError::Full`].
    pub(crate) fn poll<A>(
        &mut self,
        intake: &Intake,
        context: &mut Context<'_>,
        mut accept: impl FnMut(&Encoded) -> Result<A, SubmitError>,
    ) -> Poll<Result<A, SubmitError>> {
        loop {
            if let Some(listener) = &mut self.listener {
                std::task::ready!(Pin::new(listener).poll(context));
            }
            // Listen first, then try: room that comes in between is not missed.
            let room = intake.room_for(&self.message);
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

    /// Blocks until `accept` gives something else than [`SubmitError::Full`], or until the deadline.
    pub(crate) fn wait<A>(
        self,
        intake: &Intake,
        until: Option<Instant>,
        mut accept: impl FnMut(&Encoded) -> Result<A, SubmitError>,
    ) -> Result<A, SubmitError> {
        let Waiting { message, listener } = self;
        // If it was notified, another waiter is notified in its place.
        drop(listener);
        let room = intake.room_for(&message);
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
