//! What a deliverer calls: the replica's side of a delivery, and who is told of it.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use rkyv::util::AlignedVec;
use squall_ordered::{Deliver, Message};

use super::Tally;
use crate::{
    backlog::Backlog,
    error::{ReadError, Unavailable},
    read::{Job, Reads},
    replies::After,
    service::{Invalid, Service},
    state::Mark,
    submit::{Shared, Unapplied},
    transfer::Transfer,
};

/// What a [`Deliverer`] calls.
pub(super) struct AtDesk<'a, S: Service> {
    pub(super) service: &'a mut S,
    pub(super) desk: &'a mut Desk<S>,
}

/// What a [`Deliverer`] calls as long as the replica is ahead of it.
pub(super) struct Skipping<'a, S: Service> {
    pub(super) ahead: &'a Mark,
    pub(super) at_desk: AtDesk<'a, S>,
}

/// What a [`Deliverer`] calls as long as the replica has not got its state.
pub(super) struct Keeping<'a> {
    pub(super) backlog: &'a mut Backlog,
    pub(super) overflowed: bool,
}

/// The part of a [`Delivery`] besides the replica that a [`Deliverer`] calls.
pub(super) struct Desk<S: Service> {
    pub(super) shared: Arc<Shared<S::Reply>>,
    pub(super) reads: Arc<Reads<S>>,
    pub(super) transfer: Arc<Transfer>,
    pub(super) tally: Arc<Tally>,
    pub(super) scratch: AlignedVec,
    pub(super) jobs: Vec<Job<S>>,
    pub(super) wakers: Wakers,
    pub(super) applied: u64,
    pub(super) skipped: u64,
    pub(super) answered: u64,
}

/// Those to be woken at the end of a batch.
///
/// A thread that waits for the oldest of many submits then sleeps through the whole batch, instead of being woken for each;
/// and who is woken finds this thread done. The limit keeps the first of a long batch from waiting for its end.
#[derive(Debug)]
pub(super) struct Wakers(Vec<Waker>);

/// See [`Wakers`].
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
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl<S: Service> Deliver for AtDesk<'_, S> {
    // Into the loop of the deliverer, where all but few messages come by; `Skipping` is seldom, and short-lived.
    #[inline(always)]
    fn deliver(&mut self, message: Message<'_>) {
        let AtDesk { service, desk } = self;
        let result = match service.take(&message, &mut desk.scratch) {
            Ok(reply) => {
                desk.applied += 1;
                // Of what has no reply, nobody waits for one.
                reply.ok_or(Unapplied::Invalid)
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

impl<S: Service> Deliver for Skipping<'_, S> {
    fn deliver(&mut self, message: Message<'_>) {
        if !self.ahead.includes(message.epoch, message.seq) {
            self.at_desk.deliver(message);
        }
    }

    fn answer(&mut self, count: u64) {
        self.at_desk.answer(count);
    }
}

impl Deliver for Keeping<'_> {
    fn deliver(&mut self, message: Message<'_>) {
        let mut payload = Vec::with_capacity(message.payload.len());
        message.payload.copy_to(&mut payload);
        let fits = self.backlog.push(message.epoch, message.seq, message.sender, payload.into_boxed_slice());
        self.overflowed |= !fits;
    }

    fn answer(&mut self, _count: u64) {
        unreachable!("no reads are counted before the replica has its state");
    }
}

impl<S: Service> Desk<S> {
    /// Fails the linearizable reads that wait, and those to come.
    pub(super) fn refuse_reads(&mut self, why: Unavailable) {
        let error = ReadError::Unavailable { why };
        let Desk { reads, jobs, wakers, .. } = self;
        reads.refuse(error.clone(), jobs);
        for job in jobs.drain(..) {
            job(Err(error.clone())).into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    pub(super) fn answer_jobs(&mut self, service: &S) {
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

    pub(super) fn publish(&self) {
        self.tally.applied.store(self.applied, Ordering::Relaxed);
        self.tally.skipped.store(self.skipped, Ordering::Relaxed);
        self.tally.reads.store(self.answered, Ordering::Relaxed);
    }
}
