//! The thread that delivers, as far as one group is concerned: applies messages, completes submits, answers reads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use rkyv::util::AlignedVec;
use squall_fabric::Time;
use squall_membership::EndReason;
use squall_ordered::{Deliver, DeliverError, Deliverer, Message, Ran, Undelivered};

use crate::{
    alarm::Clock,
    blocking::Applying,
    custody::Custody,
    error::{Outcome, ReadError},
    read::{Job, Reads},
    replies::After,
    service::{Invalid, Service},
    submit::{Shared, Unapplied},
};

/// What the thread that delivers does for one group. On the engine's thread, on one of its own, or in the simulator.
pub(crate) trait Task: Send {
    /// Whether a step would do anything, deadlines aside.
    fn is_due(&self) -> bool;

    /// Applies about `max` turns at most, and answers what can be answered. What it counts as reads includes peeks.
    ///
    /// After an error there must be no further step, only the [end](Task::end).
    fn step(&mut self, now: Time, max: usize) -> Result<Ran, DeliverError>;

    /// When a step is due even if nothing happens.
    fn deadline(&self) -> Option<Time>;

    /// Fails whatever waits. There must be no further step. Called again, does nothing.
    fn end(&mut self, undelivered: &[Undelivered], reason: &EndReason);

    /// The group's name.
    fn name(&self) -> &str;
}

/// What was counted, for other threads to read. Written by the delivering thread alone, but for `overruns`.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) applied: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) overruns: AtomicU64,
}

/// A group's replica, and all that goes with it to the thread that delivers.
pub(crate) struct Delivery<S: Service> {
    replica: Arc<Custody<S>>,
    deliverer: Deliverer,
    clock: Clock,
    desk: Desk<S>,
    ended: bool,
}

/// What a [`Deliverer`] calls.
struct AtDesk<'a, S: Service> {
    service: &'a mut S,
    desk: &'a mut Desk<S>,
}

/// The part of a [`Delivery`] besides the replica that a [`Deliverer`] calls.
struct Desk<S: Service> {
    shared: Arc<Shared<S::Reply>>,
    reads: Arc<Reads<S>>,
    tally: Arc<Tally>,
    scratch: AlignedVec,
    jobs: Vec<Job<S>>,
    wakers: Wakers,
    applied: u64,
    skipped: u64,
    answered: u64,
}

/// Those to be woken at the end of a batch.
///
/// A thread that waits for the oldest of many submits then sleeps through the whole batch, instead of being woken for each;
/// and who is woken finds this thread done. The limit keeps the first of a long batch from waiting for its end.
#[derive(Debug, Default)]
struct Wakers(Vec<Waker>);

/// See [`Wakers`].
const WAKE_AT_ONCE: usize = 64;

impl Wakers {
    fn push(&mut self, waker: Waker) {
        // Submits of one task or thread mostly come in a row.
        if self.0.last().is_some_and(|last| last.will_wake(&waker)) {
            return;
        }
        self.0.push(waker);
        if self.0.len() >= WAKE_AT_ONCE {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl<S: Service> Delivery<S> {
    pub(crate) fn new(
        replica: Arc<Custody<S>>,
        deliverer: Deliverer,
        shared: Arc<Shared<S::Reply>>,
        reads: Arc<Reads<S>>,
        tally: Arc<Tally>,
    ) -> Delivery<S> {
        let desk = Desk {
            shared,
            reads,
            tally,
            scratch: AlignedVec::new(),
            jobs: Vec::new(),
            wakers: Wakers(Vec::with_capacity(WAKE_AT_ONCE)),
            applied: 0,
            skipped: 0,
            answered: 0,
        };
        Delivery { replica, deliverer, clock: Clock::default(), desk, ended: false }
    }
}

impl<S: Service> Task for Delivery<S> {
    fn is_due(&self) -> bool {
        let due = self.deliverer.is_due() || self.desk.reads.any_peeks();
        // Who reads now will wake this thread. Alarms need no replica.
        self.desk.shared.intake.alarms.any() || due && self.replica.is_takeable()
    }

    fn step(&mut self, now: Time, max: usize) -> Result<Ran, DeliverError> {
        let Delivery { replica, deliverer, clock, desk, .. } = self;
        let Some(mut service) = replica.take() else {
            // Time goes on while somebody looks; and a deadline that stayed due would keep this thread busy for nothing.
            clock.step(now, &desk.shared.intake.alarms, |waker| desk.wakers.push(waker));
            desk.wakers.flush();
            return Ok(Ran::default());
        };
        let answered = desk.answered;
        let applying = Applying::enter();
        let ran = deliverer.run(max, &mut AtDesk { service: &mut *service, desk });
        if desk.reads.any_peeks() {
            desk.reads.take_peeks(&mut desk.jobs);
            desk.answer_jobs(&service);
        }
        drop(applying);
        drop(service);
        // After the replies, so that one that came in time counts.
        clock.step(now, &desk.shared.intake.alarms, |waker| desk.wakers.push(waker));
        desk.publish();
        desk.wakers.flush();
        ran.map(|ran| Ran { reads: desk.answered - answered, ..ran })
    }

    fn deadline(&self) -> Option<Time> {
        self.clock.next()
    }

    fn end(&mut self, undelivered: &[Undelivered], reason: &EndReason) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // Nobody will take it for changing any more.
        self.replica.leave();
        let Desk { shared, reads, jobs, wakers, .. } = &mut self.desk;
        // First the reason, and the ring is closed: whoever submits from now on is refused, with the reason. Who waits for
        // room is woken, and refused.
        shared.intake.end(reason);
        // Then those of whom something is known.
        for message in undelivered.iter().filter(|message| message.ticket != 0) {
            let outcome = match reason {
                // All members delivered up to the same place, and this lies beyond.
                EndReason::CleanedUp { .. } if message.held_by.is_empty() => Outcome::NotDelivered,
                _ => Outcome::Unknown { held_by: message.held_by.clone() },
            };
            let After { wake, room } = shared.replies.complete(message.ticket, Err(Unapplied::Ended(outcome)));
            wake.into_iter().for_each(|waker| wakers.push(waker));
            if room {
                shared.intake.on_slot();
            }
        }
        // Then all that still waits. A thread that passed the check of the reason before, and whose message is accepted only
        // now, is not forgotten: `close` and `Replies::poll` see to it that one of the two notices the other.
        shared.replies.close(|waker| wakers.push(waker));
        // Reads are queued and ended under one lock.
        reads.end(reason, jobs);
        for job in jobs.drain(..) {
            job(Err(ReadError::Ended { reason: reason.clone() })).into_iter().for_each(|waker| wakers.push(waker));
        }
        wakers.flush();
    }

    fn name(&self) -> &str {
        &self.desk.shared.intake.name
    }
}

impl<S: Service> Drop for Delivery<S> {
    fn drop(&mut self) {
        // In order, or because its thread panicked: nobody shall wait for what is gone.
        self.end(&[], &EndReason::ShutDown);
    }
}

impl<S: Service> Deliver for AtDesk<'_, S> {
    #[inline]
    fn deliver(&mut self, message: Message<'_>) {
        let AtDesk { service, desk } = self;
        let result = match service.take(&message, &mut desk.scratch) {
            Ok(reply) => {
                desk.applied += 1;
                Ok(reply)
            }
            Err(invalid) => {
                desk.skip(&message, &invalid);
                Err(Unapplied::Invalid)
            }
        };
        if message.ticket != 0 {
            let After { wake, room } = desk.shared.replies.complete(message.ticket, result);
            if let Some(waker) = wake {
                desk.wakers.push(waker);
            }
            if room {
                desk.shared.intake.on_slot();
            }
        }
    }

    fn answer(&mut self, count: u64) {
        let AtDesk { service, desk } = self;
        desk.reads.take(count, &mut desk.jobs);
        desk.answer_jobs(service);
    }
}

impl<S: Service> Desk<S> {
    fn answer_jobs(&mut self, service: &S) {
        let Desk { jobs, wakers, answered, .. } = self;
        for job in jobs.drain(..) {
            *answered += 1;
            job(Ok(service)).into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    /// All members have the same bytes, so all skip them.
    #[cold]
    fn skip(&mut self, message: &Message<'_>, invalid: &Invalid) {
        self.skipped += 1;
        // Ever more rarely, since a faulty node may send any number.
        if self.skipped.is_power_of_two() {
            tracing::warn!(
                group = %self.shared.intake.name,
                sender = %message.sender,
                epoch = message.epoch.0,
                seq = message.seq.0,
                bytes = message.payload.len(),
                error = %invalid,
                skipped = self.skipped,
                "a message is no command, so no member applies it: its sender is faulty, or has another version"
            );
        }
    }

    fn publish(&self) {
        self.tally.applied.store(self.applied, Ordering::Relaxed);
        self.tally.skipped.store(self.skipped, Ordering::Relaxed);
        self.tally.reads.store(self.answered, Ordering::Relaxed);
    }
}
