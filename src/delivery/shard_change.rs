//! The events of a shard at a node: those that a change of the view brings about.

use std::sync::Arc;

use squall_membership::{EndReason, Seq, ShardId, View};
use squall_ordered::{Deliverer, Submitter, Undelivered};

use crate::calls::error::Unavailable;

/// An event of one of a node's shards. The node's core makes it, and the shard's task gets it, in the order in which
/// events happen.
#[derive(Debug)]
pub(crate) enum ShardChange {
    /// The shard goes on in a view. The task must have delivered all that the view before delivers.
    Install(Box<Installed>),
    /// The node was dropped, and the shard is suspended: it may go on with what this node has received. The next event
    /// is [outside](ShardChange::Outside).
    Keep {
        /// The place in the view's order up to which this node has received everything.
        received: Seq,
    },
    /// The node is no member of the shard. Callers get the reason until the next [install](ShardChange::Install). After
    /// that the replica needs a state anew, unless the shard goes on with what was [kept](ShardChange::Keep).
    Outside {
        /// The messages that this node had not delivered, if it was a member before.
        undelivered: Vec<(Undelivered, Fate)>,
        /// The reason.
        why: Unavailable,
    },
    /// A stall: no member can decide what follows the view. Callers get errors until something is decided.
    Stalled,
    /// The shard delivers nothing more: all waiting calls fail.
    End {
        /// The messages that this node had not delivered.
        undelivered: Vec<(Undelivered, Fate)>,
        /// The reason.
        reason: EndReason,
    },
}

/// A shard's parts in a view that this node installs.
#[derive(Debug)]
pub(crate) struct Installed {
    pub(crate) view: Arc<View>,
    pub(crate) shard: ShardId,
    pub(crate) submitter: Submitter,
    pub(crate) deliverer: Deliverer,
    /// This node's messages that the view before did not deliver, in order. They are sent first.
    pub(crate) resubmit: Vec<Undelivered>,
    /// Whether this node received less than the shard's trim in the view before, so that there is a gap.
    pub(crate) fell_short: bool,
}

/// The outcome of a message that its sender, which goes, has not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// A message within the trim: the members that stayed deliver it, and no node that lacks it can read any more.
    Delivered,
    /// A message beyond the trim.
    NotDelivered,
    /// The trim is not known, or some node may still read a state without the message.
    Unknown,
}
