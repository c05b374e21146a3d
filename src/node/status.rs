//! The state of a node and its groups, for operators.

use std::sync::Arc;

use squall_fabric::{NodeId, Time};
use squall_membership::{EndReason, View};

use crate::{durable::status::LogStatus, group::control::GroupCounts, state_transfer::fetcher::Fetching};

/// The state of a node, as the node reports it.
#[derive(Clone, Debug)]
pub struct Status {
    /// The view that the node has installed, or installs. None while it is a member of no view.
    pub view: Option<Arc<View>>,
    /// The reason for which the node's part in its groups is over, if it is.
    pub ended: Option<EndReason>,
    /// The groups, in the order of their names. A group of several shards is listed once for each, in their order.
    pub groups: Vec<GroupStatus>,
}

/// The steps by which a node came to its view, with their times on its own clock
/// ([`Time::boot_clock`](squall_fabric::Time)). Zero is never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewChangeTimes {
    /// The view's epoch; 0 before the first.
    pub epoch: u64,
    /// The time at which the node learned that the view before had to end, and wedged. A member was suspected, or a
    /// node asked to join or to leave.
    pub suspected: Time,
    /// The time at which the node saw that all members that it would keep had wedged, or heard a decision that was made
    /// without its seeing that.
    pub wedged: Time,
    /// The time at which the node heard the decision.
    pub decided: Time,
    /// The time at which the view was installed. The dropped members could read no more, all messages that the view
    /// before delivers were delivered, and all members of the next were connected.
    pub installed: Time,
}

/// The state of a group at a node.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// Its name.
    pub name: String,
    /// Its members, by rank. This node knows their progress only if it is one of them.
    pub members: Vec<MemberStatus>,
    /// Whether its application overran the limit for short calls so often that it runs on a thread of its own.
    pub own_thread: bool,
    /// This node's bulk messages that are under way.
    pub bulk: BulkStatus,
    /// The progress of the state that this node's replica lacks, while it is being fetched.
    pub fetching: Option<Fetching>,
    /// The counts at this node.
    pub counts: GroupCounts,
    /// This node's log of the group, if the group is durable.
    pub log: Option<LogStatus>,
}

/// Bulk messages that a node has sent, and that some member has not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkStatus {
    /// The number of messages.
    pub messages: usize,
    /// The part of the reserve that they take, in bytes: a message takes whole blocks.
    pub bytes: usize,
}

/// The progress of a member, as its row in the shared state table says.
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
    /// The last version that it has on disk, in a durable group; 0 as long as it does not count.
    pub persisted: u64,
}
