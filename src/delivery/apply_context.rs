//! The state besides the replica that the application of messages needs, and the answers to submitters and readers.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use rkyv::util::AlignedVec;
use squall_fabric::NodeId;
use squall_membership::{EndReason, ShardId};
use squall_ordered::{
    Message, Mode, Payload,
    log::{End, Hlc, Position},
};

use crate::{
    calls::{
        error::{Outcome, ReadError, SubmitError, Unavailable},
        read::{Job, Reads, ReplicaRead},
        submit::{GroupShared, Unapplied},
    },
    capture::exchange::StateExchange,
    delivery::{GroupHandles, follow_ups::FollowUps, pending_durable::PendingDurable, ticks::Ticks, wakers::Wakers},
    replica::{
        poison::{Given, OnPanic},
        replicated::Stamp,
        service::{Invalid, Service},
        view_change::NewView,
    },
};

/// Counts, for other threads to read. Written by the delivering thread alone, except `overruns`.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) applied: AtomicU64,
    pub(crate) applied_bytes: AtomicU64,
    pub(crate) own: AtomicU64,
    pub(crate) own_bytes: AtomicU64,
    pub(crate) skipped: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) overruns: AtomicU64,
}

/// The delivering thread's counts, until it publishes them.
#[derive(Debug, Default)]
pub(super) struct Unpublished {
    applied: u64,
    applied_bytes: u64,
    /// The messages of this node among those.
    own: u64,
    own_bytes: u64,
    skipped: u64,
    pub(super) answered: u64,
}

impl Unpublished {
    #[inline]
    fn apply(&mut self, bytes: u64, is_own: bool) {
        self.applied += 1;
        self.applied_bytes += bytes;
        self.own += u64::from(is_own);
        self.own_bytes += if is_own { bytes } else { 0 };
    }
}

/// The part of a group's delivery besides the replica that the application of messages needs.
pub(super) struct ApplyContext<S: Service> {
    pub(super) me: NodeId,
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
    pub(super) ticks: Ticks<S::Reply>,
    pub(super) follow_ups: FollowUps,
    pub(super) jobs: Vec<Job<S>>,
    pub(super) wakers: Wakers,
    pub(super) counts: Unpublished,
    /// The message with which the application panicked.
    pub(super) poison: Option<Given>,
}

impl<S: Service> ApplyContext<S> {
    pub(super) fn new(me: NodeId, mode: Mode, group: GroupHandles<S>) -> ApplyContext<S> {
        let GroupHandles { shared, reads, exchange, tally, log_writer } = group;
        ApplyContext {
            me,
            shared,
            reads,
            exchange,
            tally,
            durable: log_writer.map(PendingDurable::new),
            incoming: AlignedVec::new(),
            scratch: AlignedVec::new(),
            in_order: mode.is_ordered(),
            time: Hlc(0),
            ticks: Ticks::default(),
            follow_ups: FollowUps::default(),
            jobs: Vec::new(),
            wakers: Wakers::new(),
            counts: Unpublished::default(),
            poison: None,
        }
    }

    /// Notes that the replica is to be asked soon when it is to be woken.
    pub(super) fn look_at_clock_soon(&mut self) {
        if self.in_order {
            self.ticks.ask_again();
        }
    }

    /// Asks the replica when it is to be woken. Members of an unordered group have no common time.
    pub(super) fn look_at_clock(&mut self, service: &S) {
        if self.in_order {
            self.ticks.set(service.wake_at());
        }
    }

    /// Makes the messages of the follow-ups that are due, on the node that `leads`. Members of an unordered group have
    /// no common place for them.
    pub(super) fn make_follow_ups(&mut self, service: &S, leads: bool) {
        let ApplyContext { follow_ups, durable, in_order, .. } = self;
        if leads && *in_order {
            follow_ups.make(service, durable.as_ref().map(|durable| &*durable.log_writer));
        } else {
            follow_ups.stop();
        }
    }

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
        let ApplyContext { jobs, wakers, counts, .. } = self;
        for mut job in jobs.drain(..) {
            counts.answered += 1;
            job.look(Ok(service));
            job.answer().into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    /// Answers linearizable reads; in a durable group, once the state that they saw can't be undone.
    pub(super) fn answer_reads(&mut self, service: &S) {
        let ApplyContext { jobs, wakers, counts, durable, .. } = self;
        for mut job in jobs.drain(..) {
            counts.answered += 1;
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
    pub(super) fn time_of(&mut self, sent: Hlc) -> Hlc {
        if !self.in_order {
            return sent;
        }
        self.time = self.time.next(sent);
        self.time
    }

    /// Gives a message to the replica.
    #[inline]
    pub(super) fn apply(
        &mut self,
        service: &mut S,
        message: &Message<'_>,
        stamp: Stamp,
    ) -> Result<S::Reply, Unapplied> {
        let given = OnPanic::note(message, stamp, &mut self.poison);
        let taken = service.take(message, stamp, &mut self.scratch);
        given.over();
        match taken {
            Ok(reply) => {
                self.counts.apply(message.payload.len() as u64, message.sender == self.me);
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
    pub(super) fn panicked(&self, shard: Option<ShardId>) -> EndReason {
        let Some(given) = self.poison else { return EndReason::Panicked };
        if let Some(durable) = &self.durable {
            let help = given.help(&durable.log_writer.directory);
            tracing::error!(group = %self.shared.admission.name, "{help}");
            return EndReason::Poison(help);
        }
        let Given { position, sender, .. } = given;
        let (group, shard) = (&self.shared.admission.name, shard.map_or(0, |shard| shard.0));
        tracing::error!(group, shard, %position, %sender, "the application panicked when it applied this command");
        EndReason::Panicked
    }

    /// Appends a message to the log of a durable group. None if the log does not take it, in which case the log has
    /// failed.
    pub(super) fn append(&mut self, message: &Message<'_>, sent: Hlc, kept: &[u8]) -> Option<End> {
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
        self.counts.skipped += 1;
        // Logged ever more rarely, since a faulty node may send any number.
        if self.counts.skipped.is_power_of_two() {
            tracing::warn!(
                group = %self.shared.admission.name,
                sender = %message.sender,
                epoch = message.epoch.0,
                seq = message.seq.0,
                bytes = message.payload.len(),
                error = %invalid,
                skipped = self.counts.skipped,
                "a message is no command, so no member applies it: its sender is faulty, or has another version"
            );
        }
    }

    pub(super) fn publish(&self) {
        let Unpublished { applied, applied_bytes, own, own_bytes, skipped, answered } = self.counts;
        let tally = &*self.tally;
        tally.applied.store(applied, Ordering::Relaxed);
        tally.applied_bytes.store(applied_bytes, Ordering::Relaxed);
        tally.own.store(own, Ordering::Relaxed);
        tally.own_bytes.store(own_bytes, Ordering::Relaxed);
        tally.skipped.store(skipped, Ordering::Relaxed);
        tally.reads.store(answered, Ordering::Relaxed);
    }

    /// Releases the answers that wait for this version: all members have the messages up to it on disk.
    pub(super) fn release(&mut self, version: u64) {
        let ApplyContext { durable, shared, wakers, .. } = self;
        let Some(durable) = durable else { return };
        durable.log_writer.set_globally_persisted(version);
        let globally_persisted = durable.log_writer.globally_persisted();
        while durable.replies.front().is_some_and(|(at, ..)| *at <= globally_persisted) {
            let Some((_, ticket, reply)) = durable.replies.pop_front() else { break };
            shared.complete(ticket, reply, |waker| wakers.push(waker));
        }
        while durable.reads.front().is_some_and(|(at, _)| *at <= globally_persisted) {
            let Some((_, job)) = durable.reads.pop_front() else { break };
            job.answer().into_iter().for_each(|waker| wakers.push(waker));
        }
    }

    /// Fails the pending replies: this node will not learn whether a crash of all members undoes their messages.
    pub(super) fn fail_pending_replies(&mut self, why: &Unavailable) {
        let ApplyContext { durable: Some(durable), shared, wakers, .. } = self else { return };
        for (_, ticket, _) in durable.replies.drain(..) {
            let outcome = Outcome::Unknown { held_by: Vec::new() };
            fail(shared, wakers, ticket, SubmitError::Unavailable { why: why.clone(), outcome });
        }
    }

    pub(super) fn fail_pending_reads(&mut self, error: &ReadError) {
        let ApplyContext { durable: Some(durable), wakers, .. } = self else { return };
        durable.reads.drain(..).for_each(|(_, job)| fail_read(job, error, wakers));
    }
}

/// Tells the submitter of a message that it was not delivered here.
pub(super) fn fail<T>(shared: &GroupShared<T>, wakers: &mut Wakers, ticket: u32, error: SubmitError) {
    if ticket != 0 {
        shared.complete(ticket, Err(Unapplied::Failed(Box::new(error))), |waker| wakers.push(waker));
    }
}

/// Fails a read with `error`, for the caller that waits for it.
pub(super) fn fail_read<S>(mut job: Job<S>, error: &ReadError, wakers: &mut Wakers) {
    job.look(Err(error.clone()));
    job.answer().into_iter().for_each(|waker| wakers.push(waker));
}
