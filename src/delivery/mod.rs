//! The delivering thread's work for one group: it applies messages, completes submits and answers reads, from view to
//! view.

mod apply;
mod apply_context;
pub(crate) mod backlog;
pub(crate) mod delivery_thread;
mod follow_ups;
mod pending_durable;
pub(crate) mod shard_change;
mod task;
mod ticks;
mod transfer_requests;
mod view_part;
mod wakers;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use squall_fabric::{NodeId, Time};
use squall_membership::{EndReason, Epoch, Seq, ShardId, View};
use squall_ordered::{DeliverError, Mode, Ran, Tag, Undelivered, log::Position};
use squall_runtime::blocking::Applying;

use self::{
    apply::{Apply, FillBacklog, SkipApplied},
    apply_context::{ApplyContext, fail, fail_read},
    shard_change::{Fate, Installed, ShardChange},
    transfer_requests::TransferRequests,
    view_part::{ReplicaPhase, SuspendedCopy, ViewPart, is_within, needs_replica, outcomes},
};
use crate::{
    calls::{
        admission::AdmissionState,
        error::{Outcome, ReadError, SubmitError, Unavailable},
        read::Reads,
        resubmit::Resubmission,
        submit::GroupShared,
    },
    capture::{
        exchange::{ReplicaStatus, StateExchange},
        state::{CaptureError, Frontier},
    },
    delivery::backlog::Backlog,
    durable::log_writer::LogWriter,
    replica::{
        replica_cell::ReplicaCell,
        service::Service,
        view_change::{NewView, ViewChange},
    },
};

pub(crate) use self::{
    apply_context::Tally,
    task::{Halt, Task},
};

/// A group's replica, and all else that the delivering thread needs for the group.
pub(crate) struct Delivery<S: Service> {
    me: NodeId,
    mode: Mode,
    replica: Arc<ReplicaCell<S>>,
    /// The part of the current view; None outside any view.
    part: Option<ViewPart>,
    /// The place in the view's order up to which `part` is to be kept.
    keeps: Option<Seq>,
    /// A part of an earlier view that is kept in place of `part`.
    kept: Option<SuspendedCopy>,
    requests: TransferRequests,
    resubmission: Resubmission,
    max_backlog_bytes: usize,
    context: ApplyContext<S>,
    ended: bool,
}

/// The handles that a group's delivering thread shares with other threads.
pub(crate) struct GroupHandles<S: Service> {
    pub(crate) shared: Arc<GroupShared<S::Reply>>,
    pub(crate) reads: Arc<Reads<S>>,
    pub(crate) exchange: Arc<StateExchange>,
    pub(crate) tally: Arc<Tally>,
    /// The log of a durable group.
    pub(crate) log_writer: Option<Arc<LogWriter>>,
}

impl<S: Service> Delivery<S> {
    pub(crate) fn new(me: NodeId, mode: Mode, replica: Arc<ReplicaCell<S>>, group: GroupHandles<S>) -> Delivery<S> {
        Delivery {
            me,
            mode,
            replica,
            part: None,
            keeps: None,
            kept: None,
            requests: TransferRequests::default(),
            resubmission: Resubmission::default(),
            max_backlog_bytes: backlog::MAX_BYTES,
            context: ApplyContext::new(me, mode, group),
            ended: false,
        }
    }

    /// Keeps what is delivered, as long as the replica lacks its state.
    fn keep(&mut self, max: usize) -> Result<Ran, DeliverError> {
        let Some(ViewPart { deliverer, phase: ReplicaPhase::Incomplete { backlog, state }, .. }) = &mut self.part
        else {
            return Ok(Ran::default());
        };
        let mut filling = FillBacklog { backlog, overflowed: false };
        let ran = deliverer.run(max, &mut filling);
        if filling.overflowed && state.take().is_some() {
            self.requests.fetch += 1;
            self.context.exchange.set_replica_status(ReplicaStatus::Incomplete { fetch: self.requests.fetch });
        }
        ran
    }

    /// Does all work that needs the replica. Returns what ran, and whether the replica's status changed.
    fn serve(
        part: &mut Option<ViewPart>,
        requests: &mut TransferRequests,
        context: &mut ApplyContext<S>,
        service: &mut S,
        (max, leads): (usize, bool),
    ) -> (Result<Ran, DeliverError>, bool) {
        let (mut ran, mut changed) = (Ok(Ran::default()), false);
        // Only the holder of the replica knows that it still holds that state.
        let restored =
            std::mem::take(&mut requests.restored).then(|| context.exchange.take_restored(requests.fetch)).flatten();
        if let Some(part) = part {
            changed |= part.catch_up(restored, requests, context, service, max);
            let settled = part.settle(context, service);
            changed |= matches!(settled, Ok(true));
            if let Err(error) = settled {
                ran = Err(error);
            } else if let ReplicaPhase::Complete { ahead, .. } = &mut part.phase {
                let apply = Apply { service, context };
                ran = match ahead {
                    None => part.deliverer.run(max, &mut { apply }),
                    Some(frontier) => {
                        let ran = part.deliverer.run(max, &mut SkipApplied { ahead: frontier, apply });
                        if (Frontier { epoch: part.epoch, turns: part.deliverer.turns() }).covers(frontier) {
                            *ahead = None;
                        }
                        ran
                    }
                };
            }
        }
        for (wanted, reply) in requests.captures.drain(..) {
            let logged = context.durable.as_ref().map(|durable| durable.log_writer.place());
            let captured = part.as_ref().ok_or(CaptureError::NotComplete);
            reply(captured.and_then(|part| part.capture(service, wanted, context.time, logged)));
        }
        if context.reads.any_peeks() {
            context.answer_peeks(service);
        }
        context.look_at_clock(service);
        context.make_follow_ups(service, leads);
        (ran, changed)
    }

    fn tick_rank(&self) -> Option<u32> {
        self.part.as_ref()?.tick_rank(self.me)
    }

    /// Sends messages of earlier views, as far as there is room. Once all are sent, callers may send theirs.
    fn resubmit(&mut self) {
        let Some(part) = self.part.as_ref().filter(|_| !self.resubmission.is_empty()) else { return };
        let ApplyContext { shared, wakers, .. } = &mut self.context;
        let epoch = Epoch(part.epoch.0 - 1);
        self.resubmission.send(&shared.admission, &part.submitter, |message| {
            fail(shared, wakers, message.tag.ticket, SubmitError::ViewEnded { epoch, outcome: Outcome::NotDelivered });
        });
        if self.resubmission.is_empty() {
            self.open();
        }
    }

    /// Takes the messages that the view before did not deliver, to send them again. In an unordered group they fail
    /// instead, since some members may have delivered them.
    fn take_back(&mut self, before: Option<&ViewPart>, mut undelivered: Vec<Undelivered>) {
        let Some(before) = before else { return };
        let delivered = Some(before.delivered());
        undelivered.retain(|message| !is_within(&delivered, message));
        if self.mode.is_ordered() {
            return self.resubmission.prepend(undelivered.into());
        }
        let ApplyContext { shared, wakers, .. } = &mut self.context;
        for Undelivered { tag: Tag { ticket, .. }, held_by, .. } in undelivered {
            let error = SubmitError::ViewEnded { epoch: before.epoch, outcome: Outcome::of_holders(held_by) };
            fail(shared, wakers, ticket, error);
        }
    }

    /// Tells the replica of new views, if no reader has it; else the next step does.
    fn announce(&mut self) {
        let Some(ViewPart { phase: ReplicaPhase::Complete { owes: None, changes, .. }, .. }) = &mut self.part else {
            return;
        };
        if let Some(mut service) = self.replica.take() {
            let _applying = Applying::enter();
            changes.drain(..).for_each(|view| self.context.tell_view(&mut service, &view));
            // A panic here would break more than the replica: the next step asks it.
            self.context.look_at_clock_soon();
        }
    }

    /// Lets callers in, as far as they may come in.
    fn open(&mut self) {
        let Some(part) = &self.part else { return };
        let admission = &self.context.shared.admission;
        if let Some(why) = part.unavailable() {
            return admission.set(AdmissionState::Unavailable(why));
        }
        if matches!(&part.phase, ReplicaPhase::Complete { changes, .. } if !changes.is_empty()) {
            // A reader must see the effect of the views of which other replicas have been told.
            return;
        }
        let refuses = if !part.members.is_complete(self.me) {
            Some(SubmitError::Unavailable { why: Unavailable::Joining, outcome: Outcome::NotAccepted })
        } else {
            (!self.resubmission.is_empty()).then_some(SubmitError::Full)
        };
        admission.set(AdmissionState::Open { submitter: part.submitter.clone(), refuses });
    }

    /// Counts reads in the current view, or refuses them.
    fn open_reads(&mut self) {
        let Some(part) = &self.part else { return };
        match part.unavailable() {
            None => {
                self.context.reads.count_in(part.submitter.clone());
                self.context.shared.admission.wake();
            }
            Some(why) => self.context.refuse_reads(why),
        }
    }

    /// A view, in the form in which the replica learns of it.
    fn new_view(&self, before: Option<&ViewPart>, view: &View, shard: ShardId) -> NewView {
        let durable = self.context.durable.as_ref();
        let restarted = || durable.and_then(|durable| durable.log_writer.view()).map(|(_, view)| view.members);
        let members = before.map(|part| part.members.members.clone()).or_else(restarted).unwrap_or_default();
        let ended = match before {
            Some(part) => Position::new(part.epoch, part.delivered().seq()),
            // Its log reaches as far as the order did.
            None => durable.map_or(Position::START, |durable| durable.log_writer.end().position),
        };
        let complete = view.shard(shard).map(|shard| shard.complete.clone()).unwrap_or_default();
        NewView { change: ViewChange::new(&members, view, shard), life: view.life, ended, complete }
    }

    /// Publishes the replica's status after it was served.
    fn on_change(&mut self) {
        let Some(part) = &self.part else { return };
        let status = part.replica_status(&self.requests);
        if status != self.context.exchange.replica_status() {
            self.context.exchange.set_replica_status(status);
            if status == ReplicaStatus::Complete {
                self.open_reads();
            }
            // The engine looks at the status.
            self.context.shared.admission.wake();
        }
        self.open();
    }

    fn install(&mut self, installed: Installed) {
        if self.ended {
            return;
        }
        let Installed { view, shard, submitter, deliverer, resubmit, fell_short } = installed;
        let members = view.shard(shard).expect("a view that is installed has the shard").clone();
        let (before, mut kept) = (self.part.take(), self.kept.take());
        let last = kept.as_ref().map(SuspendedCopy::part).or(before.as_ref());
        let change = Arc::new(self.new_view(last, &view, shard));
        self.take_back(before.as_ref(), resubmit);
        let is_listed = members.is_complete(self.me);
        // The log was cut for this view, so a state that was restored before is void.
        let is_stale = self.context.durable.as_ref().is_some_and(|durable| durable.log_writer.is_stale());
        let phase = match before.map(|part| part.phase) {
            Some(ReplicaPhase::Complete { owes, mut changes, .. }) if is_listed || !fell_short => {
                changes.push(change);
                ReplicaPhase::Complete { owes, ahead: None, changes }
            }
            // It began with the group, or goes on with a state that it has: from its log, its memory, or by an
            // operator's word.
            _ if is_listed => {
                self.context.durable.iter().for_each(|durable| durable.log_writer.forget_globally_persisted());
                let owes = kept.take().and_then(|kept| kept.up_to(members.began)).map(Box::new);
                ReplicaPhase::Complete { owes, ahead: None, changes: vec![change] }
            }
            Some(ReplicaPhase::Incomplete { mut backlog, state }) if !(fell_short || is_stale && state.is_some()) => {
                backlog.push_view(change);
                ReplicaPhase::Incomplete { backlog, state }
            }
            _ => {
                self.requests.fetch += 1;
                let backlog = Backlog::new(view.epoch, members.senders.len(), self.max_backlog_bytes);
                ReplicaPhase::Incomplete { backlog, state: None }
            }
        };
        self.kept = kept.filter(|_| members.is_suspended());
        let (epoch, all_back) = (view.epoch, members.are_all_back(&view.members));
        let mut part = ViewPart { epoch, members, all_back, submitter, deliverer, phase, stalled: false };
        match &part.phase {
            ReplicaPhase::Complete { .. } => part.begin(&self.context, is_listed),
            ReplicaPhase::Incomplete { .. } => {
                self.context.durable.iter().for_each(|durable| durable.log_writer.stop_publishing());
            }
        }
        self.context.exchange.set_replica_status(part.replica_status(&self.requests));
        self.part = Some(part);
        self.context.shared.replies.go_on();
        self.open_reads();
        self.resubmit();
        self.announce();
        self.open();
        self.context.wakers.flush();
    }

    fn outside(&mut self, undelivered: Vec<(Undelivered, Fate)>, why: Unavailable) {
        if self.ended {
            return;
        }
        let before = self.part.take();
        self.context.shared.admission.set(AdmissionState::Unavailable(why.clone()));
        let error = |outcome| SubmitError::Unavailable { why: why.clone(), outcome };
        self.fail_undelivered(before.as_ref(), undelivered, error);
        let ApplyContext { shared, exchange, .. } = &self.context;
        shared.replies.go_on();
        exchange.forget();
        exchange.set_replica_status(ReplicaStatus::Outside);
        self.context.durable.iter().for_each(|durable| durable.log_writer.stop_publishing());
        self.context.fail_pending_replies(&why);
        if matches!(why, Unavailable::Elsewhere { .. }) {
            self.kept = None;
        }
        if let Some(received) = self.keeps.take() {
            self.kept = before.and_then(|part| SuspendedCopy::new(part, received));
        }
        self.context.refuse_reads(why);
        self.context.wakers.flush();
    }

    /// Closes the ring of a part that is over, and fails the messages that were not delivered here.
    fn fail_undelivered(
        &mut self,
        part: Option<&ViewPart>,
        undelivered: Vec<(Undelivered, Fate)>,
        error: impl Fn(Outcome) -> SubmitError,
    ) {
        let ApplyContext { shared, wakers, .. } = &mut self.context;
        part.into_iter().for_each(|part| part.submitter.close());
        for (ticket, outcome) in outcomes(self.mode, part, undelivered) {
            fail(shared, wakers, ticket, error(outcome));
        }
        // These lie beyond the end of an earlier view's delivery.
        for message in self.resubmission.drain(&shared.admission) {
            fail(shared, wakers, message.tag.ticket, error(Outcome::NotDelivered));
        }
    }

    fn stalled(&mut self) {
        let Some(part) = self.part.as_mut().filter(|_| !self.ended) else { return };
        part.stalled = true;
        let ApplyContext { shared, wakers, .. } = &mut self.context;
        // The reason is set first, for callers that the closed ring refuses.
        shared.admission.set(AdmissionState::Unavailable(Unavailable::NoQuorum));
        part.submitter.close();
        shared.replies.stall(|waker| wakers.push(waker));
        self.context.refuse_reads(Unavailable::NoQuorum);
        self.context.wakers.flush();
    }

    fn end(&mut self, undelivered: Vec<(Undelivered, Fate)>, reason: &EndReason) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        // The delivering thread will not take it for changing any more.
        self.replica.leave();
        let part = self.part.take();
        self.kept = None;
        // The reason is set first, and the ring closed: callers that submit from now on are refused, with the reason.
        // Callers that wait for room are woken, and refused. Then come messages of which the outcome is known.
        self.context.shared.admission.set(AdmissionState::Ended(reason.clone()));
        let error = |outcome| SubmitError::Ended { reason: reason.clone(), outcome };
        self.fail_undelivered(part.as_ref(), undelivered, error);
        let ApplyContext { shared, reads, exchange, jobs, wakers, .. } = &mut self.context;
        // Then all others that still wait. A thread may have passed the check of the reason before, and its message be
        // accepted only now. It is not forgotten: `close` and `ReplySlots::poll` make sure that one of the two notices
        // the other.
        shared.replies.close(|waker| wakers.push(waker));
        let captures = std::mem::take(&mut self.requests.captures);
        for (_, reply) in exchange.end(reason).into_iter().chain(captures) {
            reply(Err(CaptureError::Ended(reason.clone())));
        }
        // Reads are queued and ended under one lock.
        let error = ReadError::Ended { reason: reason.clone() };
        reads.end(error.clone(), jobs);
        jobs.drain(..).for_each(|job| fail_read(job, &error, wakers));
        self.context.fail_pending_reads(&error);
        self.context.wakers.flush();
    }
}

impl<S: Service> Task for Delivery<S> {
    fn is_due(&self) -> bool {
        let Delivery { part, requests, context, replica, .. } = self;
        let keeps = matches!(part, Some(ViewPart { phase: ReplicaPhase::Incomplete { .. }, deliverer, .. }) if deliverer.is_due());
        // A thread that reads now will wake this one. The rest needs no replica.
        keeps
            || context.shared.admission.deadlines.any()
            || context.shared.admission.may_resubmit()
            || context.exchange.any()
            || needs_replica(part.as_ref(), requests, context) && replica.is_takeable()
    }

    fn step(&mut self, now: Time, max: usize) -> Result<Ran, Halt> {
        if self.context.exchange.any() {
            self.requests.take(&self.context.exchange);
        }
        if self.context.shared.admission.may_resubmit() {
            self.resubmit();
        }
        let kept = self.keep(max);
        let answered = self.context.counts.answered;
        let rank = self.tick_rank();
        let Delivery { replica, part, requests, context, .. } = self;
        // As long as no work here needs it, another thread may be restoring it.
        let is_complete = matches!(part, Some(ViewPart { phase: ReplicaPhase::Complete { .. }, .. }));
        let needed = is_complete || needs_replica(part.as_ref(), requests, context);
        // A panic breaks the replica, because its holder is dropped. Other state that it leaves half changed is not
        // used any more.
        let served = catch_unwind(AssertUnwindSafe(|| {
            needed.then(|| replica.take()).flatten().map(|mut service| {
                let _applying = Applying::enter();
                Self::serve(part, requests, context, &mut service, (max, rank == Some(0)))
            })
        }));
        let Ok(served) = served else {
            return Err(Halt::Panicked(context.panicked(part.as_ref().map(|part| part.members.shard))));
        };
        let (ran, changed) = served.unwrap_or((Ok(Ran::default()), false));
        if changed {
            self.on_change();
        }
        // After the replies, so that one that came in time counts. Time goes on also while a reader holds the replica;
        // and a deadline that stayed due would keep this thread busy for nothing.
        let rank = self.tick_rank();
        let Delivery { context, .. } = self;
        if let Some(rank) = rank {
            context.ticks.step(now, context.time, rank, &context.shared, S::tick());
        }
        if rank == Some(0) {
            context.follow_ups.send(now, &context.shared.admission);
        }
        context.shared.admission.deadlines.expire(now, |waker| context.wakers.push(waker));
        context.publish();
        context.wakers.flush();
        let (ran, kept) = (ran?, kept?);
        let reads = context.counts.answered - answered;
        Ok(Ran { messages: ran.messages + kept.messages, reads, more: ran.more || kept.more })
    }

    fn deadline(&self) -> Option<Time> {
        let rank = self.tick_rank();
        let ticks = self.context.ticks.deadline().filter(|_| rank.is_some());
        let follow_ups = self.context.follow_ups.look_at.filter(|_| rank == Some(0));
        self.context.shared.admission.deadlines.next().into_iter().chain(ticks).chain(follow_ups).min()
    }

    fn change(&mut self, change: ShardChange) {
        match change {
            ShardChange::Install(installed) => self.install(*installed),
            ShardChange::Keep { received } => self.keeps = Some(received),
            ShardChange::Outside { undelivered, why } => self.outside(undelivered, why),
            ShardChange::Stalled => self.stalled(),
            ShardChange::End { undelivered, reason } => self.end(undelivered, &reason),
        }
    }

    fn name(&self) -> &str {
        &self.context.shared.admission.name
    }
}

impl<S: Service> Drop for Delivery<S> {
    fn drop(&mut self) {
        // Called in order, or because the thread panicked: no caller shall wait for a task that is gone.
        self.end(Vec::new(), &EndReason::ShutDown);
    }
}
