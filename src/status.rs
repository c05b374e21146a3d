//! How a node and its groups are, for operators.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_membership::{EndReason, View};

/// A node's answer to the question how it is.
#[derive(Clone, Debug)]
pub struct Status {
    /// The current view.
    pub view: Arc<View>,
    /// Why the node's part in its groups is over, if it is.
    pub ended: Option<EndReason>,
    /// The groups, in the order of their names.
    pub groups: Vec<GroupStatus>,
}

/// How a group is.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its members, by rank.
    pub members: Vec<MemberStatus>,
    /// Whether its application overran the limit for short calls so often that it runs on a thread of its own.
    pub own_thread: bool,
    /// This node's bulk messages that are under way.
    pub bulk: BulkStatus,
    /// What was counted at this node.
    pub counts: GroupCounts,
}

/// Bulk messages that a node has sent, and that some member has not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkStatus {
    /// How many.
    pub messages: usize,
    /// What they take of the reserve, in bytes: a message takes whole blocks.
    pub bytes: usize,
}

/// How far a member is, as its row in the shared state table says.
#[derive(Clone, Copy, Debug)]
pub struct MemberStatus {
    /// The member.
    pub node: NodeId,
    /// Turns that it has used as a sender, nulls included.
    pub sent: u64,
    /// Places of the order that it has received.
    pub received: u64,
    /// Places of the order that it has delivered.
    pub delivered: u64,
}

/// What a node counts of a group, since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Messages applied.
    pub applied: u64,
    /// Messages that no correct member sends, and that all members skip alike.
    pub skipped: u64,
    /// Reads answered, linearizable and stale.
    pub reads: u64,
    /// Batches of calls that were longer than the limit for short calls.
    pub overruns: u64,
}
