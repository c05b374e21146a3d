//! A dropped node's copy, in memory, of a shard that is suspended: the shard may go on with it.

use squall_membership::{OrderEnd, Seq};
use squall_ordered::{Deliver, DeliverError, Message};

use super::{
    apply::{Apply, ApplyContext, SkipApplied},
    view_part::{ReplicaPhase, ViewPart},
};
use crate::replica::service::Service;

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
