//! The application of messages to a replica, and the answers to their submitters and readers.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use rkyv::util::AlignedVec;
use squall_membership::EndReason;
use squall_ordered::{
    Deliver, Message, Payload,
    log::{End, Hlc, Position},
};

use super::{
    Tally,
    pending_durable::{PendingDurable, fail_read},
    view_part::ViewPart,
};
use crate::{
    calls::{
        error::{ReadError, Unavailable},
        read::{Job, Reads, ReplicaRead},
        submit::{GroupShared, Unapplied},
    },
    capture::{exchange::StateExchange, state::Frontier},
    delivery::backlog::Backlog,
    replica::{
        poison::{Given, OnPanic},
        replicated::Stamp,
        service::{Invalid, Service, settled},
        view_change::NewView,
    },
};

/// The latest time that a message may have, in the year 2262. A later time of a faulty sender's clock is cut to it,
/// since there must be room for the times of the messages behind.
const LATEST: Hlc = Hlc(u64::MAX / 2);

/// Applies messages to a complete replica.
pub(super) struct Apply<'a, S: Service> {
    pub(super) service: &'a mut S,
    pub(super) context: &'a mut ApplyContext<S>,
}

/// Applies messages that the replica does not include yet, as long as it is ahead of the [`Deliverer`].
pub(super) struct SkipApplied<'a, S: Service> {
    pub(super) ahead: &'a Frontier,
    pub(super) apply: Apply<'a, S>,
}

/// Puts messages into the backlog, as long as the replica lacks its state.
pub(super) struct FillBacklog<'a> {
    pub(super) backlog: &'a mut Backlog,
    pub(super) overflowed: bool,
}

/// The part of a [`Delivery`] besides the replica that the application of messages needs.
pub(super) struct ApplyContext<S: Service> {
    pub(super) shared: Arc<GroupShared<S::Reply>>,
    pub(super) reads: Arc<Reads<S>>,
    pub(super) exchange: Arc<StateExchange>,
    pub(super) tally: Arc<Tally>,
    /// The log's side of a durable group.
    pub(super) durable: Option<PendingDurable<S>>,
    /// A durable group's message, copied out.
    pub(super) incoming: AlignedVec,
    pub(super) scratch: AlignedVec,
    /// Whether the group's members take its messages in one order.
    pub(super) in_order: bool,
    /// The group's time at the last message, if they do.
    pub(super) time: Hlc,
    pub(super) jobs: Vec<Job<S>>,
    pub(super) wakers: Wakers,
    pub(super) applied: u64,
    pub(super) skipped: u64,
    pub(super) answered: u64,
    /// The message with which the application panicked.
    pub(super) poison: Option<Given>,
}

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
        self.0.drain(..).for_each(Waker::wake);
    }
}

impl<S: Service> Deliver for Apply<'_, S> {
    // Inlined into the deliverer's loop, which nearly all messages pass; `SkipApplied` is rare, and short-lived.
    #[inline(always)]
    fn deliver(&mut self, message: Message<'_>) {
        let Apply { service, context } = self;
        let sent = message.time.min(LATEST);
        if context.durable.is_some() {
            return self.deliver_logged(message, sent);
        }
        let time = context.time_of(sent);
        let result = context.apply(*service, &message, Stamp { time, version: None });
        if message.ticket != 0 {
            context.shared.complete(message.ticket, result, |waker| context.wakers.push(waker));
        }
    }

    fn answer(&mut self, count: u64) {
        let Apply { service, context } = self;
        context.reads.take(count, &mut context.jobs);
        context.answer_reads(service);
    }

    fn has_room(&mut self) -> bool {
        self.context.durable.as_ref().is_none_or(|durable| durable.log_writer.append().has_room())
    }

    fn globally_persisted(&mut self, version: u64) {
        self.context.release(version);
        self.service.globally_persisted(version);
    }
}

impl<S: Service> Apply<'_, S> {
    /// Appends a durable group's message to the log, applies it, and holds the reply.
    #[inline(never)]
    fn deliver_logged(&mut self, message: Message<'_>, sent: Hlc) {
        let Apply { service, context } = self;
        let mut incoming = std::mem::take(&mut context.incoming);
        // Read once, so that the log and the replica get the same bytes, whatever a faulty sender does meanwhile.
        let kept = settled(&message.payload, &mut incoming);
        let instead = service.logged_as(kept);
        if let Some(end) = context.append(&message, sent, instead.as_deref().unwrap_or(kept)) {
            context.time = end.time;
            let kept = Message { payload: Payload::settled(kept), ..message };
            let result = context.apply(*service, &kept, Stamp::logged(end));
            if let Some(durable) = context.durable.as_mut().filter(|_| message.ticket != 0) {
                durable.replies.push_back((end.version, message.ticket, result));
            }
        }
        context.incoming = incoming;
    }
}

impl<S: Service> Deliver for SkipApplied<'_, S> {
    fn deliver(&mut self, message: Message<'_>) {
        if !self.ahead.includes(message.epoch, message.seq) {
            self.apply.deliver(message);
        }
    }

    fn answer(&mut self, count: u64) {
        self.apply.answer(count);
    }

    fn has_room(&mut self) -> bool {
        self.apply.has_room()
    }

    fn globally_persisted(&mut self, version: u64) {
        self.apply.globally_persisted(version);
    }
}

impl Deliver for FillBacklog<'_> {
    fn deliver(&mut self, message: Message<'_>) {
        self.overflowed |= !self.backlog.push(&message);
    }

    fn answer(&mut self, _count: u64) {
        unreachable!("no reads are counted before the replica has its state");
    }
}

impl<S: Service> ApplyContext<S> {
    /// Fails the linearizable reads that wait, and later ones.
    pub(super) fn refuse_reads(&mut self, why: Unavailable) {
        let error = ReadError::Unavailable { why };
        self.fail_pending_reads(&error);
        let ApplyContext { reads, jobs, wakers, .. } = self;
        reads.refuse(error.clone(), jobs);
        jobs.drain(..).for_each(|job| fail_read(job, &error, wakers));
    }

    pub(super) fn tell_view(&self, service: &mut S, view: &NewView) {
        if let Some(PendingDurable { log_writer, .. }) = &self.durable
            && let Err(error) = log_writer.append().view(view.change.epoch, &view.record())
        {
            log_writer.fail(error.to_string());
        }
        service.view_changed(&view.change);
    }

    /// Answers peeks, which show the replica as it is.
    pub(super) fn answer_peeks(&mut self, service: &S) {
        self.reads.take_peeks(&mut self.jobs);
        let ApplyContext { jobs, wakers, answered, .. } = self;
        for mut job in jobs.drain(..) {
            *answered += 1;
            job.look(Ok(service));
            job.answer().into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    /// Answers linearizable reads; in a durable group, once the state that they saw can't be undone.
    fn answer_reads(&mut self, service: &S) {
        let ApplyContext { jobs, wakers, answered, durable, .. } = self;
        for mut job in jobs.drain(..) {
            *answered += 1;
            job.look(Ok(service));
            let job = match durable {
                Some(durable) => durable.hold_read(job),
                None => Some(job),
            };
            job.and_then(ReplicaRead::answer).into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    /// The group's time at a message whose sender gave it the time `sent`.
    #[inline]
    fn time_of(&mut self, sent: Hlc) -> Hlc {
        if !self.in_order {
            return sent;
        }
        self.time = self.time.next(sent);
        self.time
    }

    /// Gives a message to the replica.
    #[inline]
    fn apply(&mut self, service: &mut S, message: &Message<'_>, stamp: Stamp) -> Result<S::Reply, Unapplied> {
        let given = OnPanic::note(message, stamp, &mut self.poison);
        let taken = service.take(message, stamp, &mut self.scratch);
        given.over();
        match taken {
            Ok(reply) => {
                self.applied += 1;
                // A message without a reply has no waiting submitter.
                reply.ok_or(Unapplied::Invalid)
            }
            Err(invalid) => {
                self.skip(message, &invalid);
                Err(Unapplied::Invalid)
            }
        }
    }

    /// The reason for which this node's part ends after a panic of the application.
    #[cold]
    pub(super) fn panicked(&self, part: Option<&ViewPart>) -> EndReason {
        let Some(given) = self.poison else { return EndReason::Panicked };
        if let Some(durable) = &self.durable {
            let help = given.help(&durable.log_writer.directory);
            tracing::error!(group = %self.shared.admission.name, "{help}");
            return EndReason::Poison(help);
        }
        let Given { position, sender, .. } = given;
        let (group, shard) = (&self.shared.admission.name, part.map_or(0, |part| part.members.shard.0));
        tracing::error!(group, shard, %position, %sender, "the application panicked when it applied this command");
        EndReason::Panicked
    }

    /// Appends a message to the log of a durable group. None if the log does not take it, in which case the log has
    /// failed.
    fn append(&mut self, message: &Message<'_>, sent: Hlc, kept: &[u8]) -> Option<End> {
        let durable = self.durable.as_ref()?;
        let at = Position::new(message.epoch, message.seq);
        match durable.log_writer.append().message(at, sent, message.sender, Payload::kept(kept)) {
            Ok(end) => Some(end),
            Err(error) => {
                durable.log_writer.fail(error.to_string());
                None
            }
        }
    }

    /// Counts and logs a message that is no command. All members have the same bytes, so all skip them.
    #[cold]
    fn skip(&mut self, message: &Message<'_>, invalid: &Invalid) {
        self.skipped += 1;
        // Logged ever more rarely, since a faulty node may send any number.
        if self.skipped.is_power_of_two() {
            tracing::warn!(
                group = %self.shared.admission.name,
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
