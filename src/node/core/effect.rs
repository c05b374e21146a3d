//! Effects of a node's core on threads and applications.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_membership::{EndReason, OrderEnd, ShardId, View};

use crate::{calls::error::Unavailable, delivery::shard_change::ShardChange};

/// An effect that a node's surroundings must carry out.
#[derive(Debug)]
pub(crate) enum CoreEffect {
    /// An event of a shard, for its task.
    Shard(ShardId, ShardChange),
    /// A view whose members are all connected.
    Installed(Arc<View>),
    /// The shard's deliverer may have more to do.
    Deliver(ShardId),
    /// The shard's ring has more room.
    Freed(ShardId),
    /// The shard's reserve for bulk messages has more room.
    FreedBulk(ShardId),
    /// The other members' clocks are known, so the shard's messages may be stamped.
    Stamps(ShardId),
    /// The members whose storage is short of room, and for whose sake a durable shard takes no messages; none if it
    /// does.
    ShortOfRoom(ShardId, Vec<NodeId>),
    /// The removal of all that a durable shard has beyond `end`, in its log and its replica. The surroundings carry it
    /// out, and say so ([`NodeCore::cut_done`](super::NodeCore::cut_done)).
    ///
    /// The next view waits for that. `complete` says whether this node is complete in the shard there.
    CutTo { shard: ShardId, end: OrderEnd, complete: bool },
    /// The end of this node's membership. Comes before the fates of its shards.
    Dropped,
    /// The node was dropped, and the shard's application, or another thread, still does not let go of the shard: no
    /// caller shall wait for that. The shard's fate follows all the same.
    Halt { shard: ShardId, why: Unavailable },
    /// The node is to join again. Its surroundings must say what its disks [hold](squall_membership::Input::Held), once
    /// nothing is on its way there.
    Returns,
    /// The group is in pieces, and these of the last view's members are not back yet. All are back if there are none.
    WaitsFor(Vec<NodeId>),
    /// A stall: nothing can be decided, for this reason.
    Stalled(String),
    /// The node has nothing more to do: all waiting calls of any group must fail.
    Ended(EndReason),
}
