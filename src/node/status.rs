//! The state of a node and its groups, for operators.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use squall_fabric::{NodeId, Time};
use squall_membership::{EndReason, View};

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

/// A durable group's log at a node. Times are nanoseconds since 1970 (UTC).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// The first version that can be read here.
    pub first: u64,
    /// A bound: no command before the first version is later than this.
    pub begins_at_ns: u64,
    /// The last version that is on this node's disk.
    pub last: u64,
    /// The time of the last version.
    pub ends_at_ns: u64,
    /// The last globally persisted version: all members have it on disk, as far as this node knows.
    pub safe: u64,
    /// The approximate size of its segments' contents, in bytes.
    pub bytes: u64,
    /// The version of the newest snapshot of the state.
    pub image: Option<u64>,
    /// The size of all snapshots, in bytes.
    pub image_bytes: u64,
    /// Whether a snapshot was due while the one before was still being taken. If taking it hangs, no log is trimmed
    /// until that goes on.
    #[serde(default)]
    pub image_late: bool,
    /// Records that were written since the node's start: messages, and few views.
    pub records: u64,
    /// Their size on disk, in bytes.
    pub written_bytes: u64,
    /// The number of times that the disk was asked to make records durable, each time for a batch of them.
    pub syncs: u64,
    /// The reason for which nothing more is written, if that is so.
    pub failure: Option<String>,
    /// The damage that was found on the disk while the node runs, and is not repaired yet, in words.
    pub damaged: Vec<String>,
    /// The number of damages that were repaired from other members' logs while the node runs.
    pub repaired: u64,
    /// Records, acknowledged or not, that a cut or a new beginning took away: they are kept beside the log.
    pub asides: Vec<AsideStatus>,
}

/// Records that are kept beside a log, which has them no more. They appear here within a second after they were taken
/// away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsideStatus {
    /// The name.
    pub name: String,
    /// The log's directory at its node.
    pub directory: String,
    /// The version of the first message. It may still be in the log, too.
    pub first: u64,
    /// The version of the last message.
    pub last: u64,
    /// The room that they take, in bytes.
    pub bytes: u64,
}

/// Bulk messages that a node has sent, and that some member has not delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkStatus {
    /// The number of messages.
    pub messages: usize,
    /// The part of the reserve that they take, in bytes: a message takes whole blocks.
    pub bytes: usize,
}

/// A replica's state on its way to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// The member that gives it.
    pub source: NodeId,
    /// Bytes that have arrived and were checked.
    pub received: u64,
    /// The approximate number of bytes of the whole, if the application said so: see
    /// [`Snapshot::of_about`](crate::Snapshot::of_about).
    pub bytes: Option<u64>,
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
    /// In a durable group: the last version that it has on disk; 0 as long as it does not count.
    pub persisted: u64,
}

/// A node's counts of a group, since the node started.
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
