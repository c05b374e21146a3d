//! A node's part of a group in one view.

use std::sync::Arc;

use squall_membership::{Epoch, Seq, ShardState, ShardView};
use squall_ordered::{Deliver, DeliverError, Deliverer, Message, Mode, Payload, Submitter, Undelivered, log::Position};

use super::{
    Fate,
    apply::{Apply, ApplyContext},
    suspended_copy::SuspendedCopy,
    transfer_requests::TransferRequests,
};
use crate::{
    calls::error::{Outcome, Unavailable},
    capture::{
        exchange::ReplicaStatus,
        state::{Frontier, Reached},
    },
    delivery::backlog::{Backlog, BacklogEntry},
    replica::{service::Service, view_change::NewView},
};

pub(super) struct ViewPart {
    pub(super) epoch: Epoch,
    pub(super) members: ShardView,
    /// Whether the shard is suspended, and all who may have its state are members.
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

impl ViewPart {
    pub(super) fn replica_status(&self, requests: &TransferRequests) -> ReplicaStatus {
        match self.phase {
            ReplicaPhase::Complete { .. } => ReplicaStatus::Complete,
            ReplicaPhase::Incomplete { .. } => ReplicaStatus::Incomplete { fetch: requests.fetch },
        }
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

    /// In a durable group, lets the log go on from here, once the replica is as far as the deliverer.
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
