//! A node's part of a group in one view, and a part that is kept while its shard is suspended.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use squall_fabric::NodeId;
use squall_membership::{Epoch, OrderEnd, Seq, ShardState, ShardView};
use squall_ordered::{
    Deliver, DeliverError, Deliverer, Message, Mode, Payload, Submitter, Undelivered,
    log::{Hlc, Position},
};

use crate::{
    calls::error::{Outcome, Unavailable},
    capture::{
        exchange::{ReplicaStatus, Wanted},
        state::{CaptureError, Captured, Frontier, LogPlace, Reached},
    },
    delivery::{
        apply::{Apply, SkipApplied},
        apply_context::ApplyContext,
        backlog::{Backlog, BacklogEntry},
        shard_change::Fate,
        transfer_requests::TransferRequests,
    },
    replica::{service::Service, view_change::NewView},
};

pub(super) struct ViewPart {
    pub(super) epoch: Epoch,
    pub(super) members: ShardView,
    /// Whether the shard is suspended, and all nodes that may have its state are members.
    pub(super) all_back: bool,
    pub(super) submitter: Submitter,
    pub(super) deliverer: Deliverer,
    pub(super) phase: ReplicaPhase,
    /// Whether no member can decide what follows.
    pub(super) stalled: bool,
}

/// The phase of the replica: whether it takes part.
pub(super) enum ReplicaPhase {
    Complete {
        /// A part that the replica is to be given first, because the shard goes on with it from this node's memory.
        owes: Option<Box<SuspendedCopy>>,
        /// The state that was restored, as long as it is ahead of the delivered order.
        ahead: Option<Frontier>,
        /// The views of which the replica has not been told.
        changes: Vec<Arc<NewView>>,
    },
    Incomplete {
        backlog: Backlog,
        /// The state that was restored; the replica lacks no more than the backlog.
        state: Option<Frontier>,
    },
}

/// A part in a view that is over for this node, with all messages that it had received there.
///
/// Any member may have delivered them, since delivery takes the receipt of all. But they are not known to be delivered,
/// so the replica does not see them before the shard goes on with them. The submitters of this node's messages were
/// told that the outcome is unknown.
pub(super) struct SuspendedCopy {
    part: ViewPart,
    /// The end of the part of the view's order that is delivered, or may be.
    to: Seq,
}

impl ViewPart {
    pub(super) fn replica_status(&self, requests: &TransferRequests) -> ReplicaStatus {
        match self.phase {
            ReplicaPhase::Complete { .. } => ReplicaStatus::Complete,
            ReplicaPhase::Incomplete { .. } => ReplicaStatus::Incomplete { fetch: requests.fetch },
        }
    }

    /// The rank of node `me` among those that order ticks, if it is one of them.
    pub(super) fn tick_rank(&self, me: NodeId) -> Option<u32> {
        let is_complete = matches!(self.phase, ReplicaPhase::Complete { .. });
        let rank = self.members.senders.iter().position(|&sender| sender == me)?;
        (is_complete && self.unavailable().is_none()).then_some(rank as u32)
    }

    /// The reason for which callers can't be let in.
    pub(super) fn unavailable(&self) -> Option<Unavailable> {
        match (&self.members.state, &self.phase) {
            _ if self.stalled => Some(Unavailable::NoQuorum),
            (ShardState::Suspended { .. }, _) => {
                Some(Unavailable::Suspended { last_holders: self.members.waits_for(), all_back: self.all_back })
            }
            (ShardState::Inadequate, _) => Some(Unavailable::Inadequate),
            (ShardState::Active, ReplicaPhase::Incomplete { .. }) => Some(Unavailable::Joining),
            (ShardState::Active, ReplicaPhase::Complete { .. }) => None,
        }
    }

    /// Gives a complete replica what comes before the view's order. Returns whether it was told of any view.
    pub(super) fn settle<S: Service>(
        &mut self,
        context: &mut ApplyContext<S>,
        service: &mut S,
    ) -> Result<bool, DeliverError> {
        let ReplicaPhase::Complete { owes, changes, .. } = &mut self.phase else { return Ok(false) };
        if let Some(kept) = owes.take() {
            kept.deliver(context, service)?;
        }
        let any = !changes.is_empty();
        changes.drain(..).for_each(|view| context.tell_view(service, &view));
        Ok(any)
    }

    /// The end of this node's delivery.
    pub(super) fn delivered(&self) -> Frontier {
        Frontier { epoch: self.epoch, turns: self.deliverer.turns() }
    }

    /// Captures the replica's state, or only its place. `time` is the group's time. `logged` is the place of the log,
    /// in a durable group.
    pub(super) fn capture<S: Service>(
        &self,
        service: &S,
        wanted: Wanted,
        time: Hlc,
        logged: Option<LogPlace>,
    ) -> Result<Captured, CaptureError> {
        let ReplicaPhase::Complete { ahead, .. } = &self.phase else { return Err(CaptureError::NotComplete) };
        let reached = Reached { frontier: ahead.clone().unwrap_or_else(|| self.delivered()), time };
        if wanted == Wanted::Place {
            return Ok(Captured::place(reached, logged));
        }
        // A snapshot changes nothing, so whatever happens in it, the replica and the thread go on.
        let snapshot = catch_unwind(AssertUnwindSafe(|| service.snapshot())).map_err(|_| CaptureError::Panicked)?;
        Captured::new(reached, snapshot, logged)
    }

    /// Takes a state that was restored, and applies the kept entries beyond it, a few times `max` at once. Returns
    /// whether the replica's status changed.
    pub(super) fn catch_up<S: Service>(
        &mut self,
        restored: Option<Reached>,
        requests: &mut TransferRequests,
        context: &mut ApplyContext<S>,
        service: &mut S,
        max: usize,
    ) -> bool {
        let ReplicaPhase::Incomplete { backlog, state } = &mut self.phase else { return false };
        if let Some(Reached { frontier, time }) = restored {
            if !backlog.joins(&frontier) {
                requests.fetch += 1;
                return true;
            }
            *state = Some(frontier);
            context.time = time;
        }
        let Some(frontier) = state else { return false };
        // More than can come in meanwhile.
        for _ in 0..max.saturating_mul(4) {
            let mut apply = Apply { service, context };
            if !apply.has_room() {
                break;
            }
            match backlog.pop(frontier) {
                Some(BacklogEntry::Message { epoch, seq, sender, time, payload }) => {
                    let message = Message { epoch, seq, sender, time, payload: Payload::kept(&payload), ticket: 0 };
                    apply.deliver(message);
                }
                Some(BacklogEntry::View(view)) => apply.context.tell_view(apply.service, &view),
                None => break,
            }
        }
        // A state of a view that this node has not installed waits for that view.
        if !backlog.is_empty() || frontier.epoch > self.epoch {
            return false;
        }
        let mut ahead = Some(frontier.clone()).filter(|frontier| !backlog.to().covers(frontier));
        if context.durable.is_some() {
            let delivered = Frontier { epoch: self.epoch, turns: self.deliverer.turns() };
            if !delivered.covers(frontier) {
                // Versions are counted from the deliverer's place.
                return false;
            }
            ahead = None;
        }
        self.phase = ReplicaPhase::Complete { owes: None, ahead, changes: Vec::new() };
        self.begin(context, false);
        true
    }

    /// Lets the log of a durable group go on from here, once the replica is as far as the deliverer.
    ///
    /// If the view does not list it as complete, this member reports itself complete once its disk has the view's
    /// record, too. So its log reaches the place from which it is complete.
    pub(super) fn begin<S: Service>(&mut self, context: &ApplyContext<S>, is_listed: bool) {
        if let Some(durable) = &context.durable {
            self.deliverer.begin(durable.log_writer.end().version);
            let from = if is_listed { Position::START } else { Position { epoch: self.epoch, seq: Seq(0) } };
            durable.log_writer.publish(self.deliverer.persisted(), from);
        }
    }
}

/// A `Deliver` that delivers messages for which no submitter waits any more.
struct Untold<D>(D);

impl<D: Deliver> Deliver for Untold<D> {
    fn deliver(&mut self, message: Message<'_>) {
        self.0.deliver(Message { ticket: 0, ..message });
    }

    fn answer(&mut self, _count: u64) {
        unreachable!("the reads of the view were refused");
    }
}

impl SuspendedCopy {
    /// Keeps a complete replica's part, which has received the view's order up to `received`.
    pub(super) fn new(part: ViewPart, received: Seq) -> Option<SuspendedCopy> {
        matches!(part.phase, ReplicaPhase::Complete { .. }).then_some(SuspendedCopy { part, to: received })
    }

    pub(super) fn part(&self) -> &ViewPart {
        &self.part
    }

    /// The same up to the place from which the shard goes on; None if it lacks something of that.
    pub(super) fn up_to(self, began: OrderEnd) -> Option<SuspendedCopy> {
        let reaches = began.epoch == self.part.epoch && began.seq <= self.to;
        reaches.then_some(SuspendedCopy { to: began.seq, ..self })
    }

    /// Delivers the rest to the replica.
    pub(super) fn deliver<S: Service>(
        mut self,
        context: &mut ApplyContext<S>,
        service: &mut S,
    ) -> Result<(), DeliverError> {
        self.part.settle(context, service)?;
        let ViewPart { phase: ReplicaPhase::Complete { ahead, .. }, deliverer, .. } = &mut self.part else {
            return Ok(());
        };
        let apply = Apply { service, context };
        match ahead {
            None => deliverer.run_to(self.to, &mut Untold(apply)),
            Some(frontier) => deliverer.run_to(self.to, &mut Untold(SkipApplied { ahead: frontier, apply })),
        }
    }
}

/// Whether there is any work that needs the replica.
pub(super) fn needs_replica<S: Service>(
    part: Option<&ViewPart>,
    requests: &TransferRequests,
    context: &ApplyContext<S>,
) -> bool {
    let part_does = part.is_some_and(|part| match &part.phase {
        ReplicaPhase::Complete { changes, .. } => part.deliverer.is_due() || !changes.is_empty(),
        ReplicaPhase::Incomplete { backlog, state } => {
            let reached = |frontier| !backlog.is_empty() || part.delivered().covers(frontier);
            state.as_ref().is_some_and(reached)
        }
    });
    part_does || context.reads.any_peeks() || requests.any()
}

/// Whether a message of this node is part of what it has delivered.
pub(super) fn is_within(delivered: &Option<Frontier>, message: &Undelivered) -> bool {
    delivered.as_ref().zip(message.place).is_some_and(|(frontier, place)| frontier.includes(frontier.epoch, place))
}

/// The outcomes of messages, by their tickets. Messages that this node has delivered since they were listed are left
/// out.
///
/// In a durable group, the members that stay deliver all that lies within the trim, and all of them may lose power
/// before it is on any disk. This node, on whose disk it is not either, will not know.
pub(super) fn outcomes(
    mode: Mode,
    part: Option<&ViewPart>,
    undelivered: Vec<(Undelivered, Fate)>,
) -> impl Iterator<Item = (u32, Outcome)> {
    let delivered = part.map(ViewPart::delivered);
    undelivered.into_iter().filter(move |(message, _)| !is_within(&delivered, message)).map(move |(message, fate)| {
        let outcome = match (mode, fate) {
            // No other member knows of it.
            _ if message.place.is_none() => Outcome::NotDelivered,
            // Unordered groups have no trim.
            (Mode::Unordered, _) => Outcome::of_holders(message.held_by),
            (Mode::Ordered, Fate::Delivered) => Outcome::Delivered,
            (Mode::Ordered | Mode::Durable, Fate::NotDelivered) => Outcome::NotDelivered,
            (Mode::Durable, Fate::Delivered) | (_, Fate::Unknown) => Outcome::Unknown { held_by: Vec::new() },
        };
        (message.tag.ticket, outcome)
    })
}
