//! The description of a new view, as a replica gets it.

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Epoch, ShardId, View};
use squall_ordered::log::{Position, ViewRecord};

/// A new view of a group, as its replicas see it: all replicas that go on see the same one, at the same place of the
/// order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewChange {
    /// The view's number. Places of the order count from 0 again.
    pub epoch: Epoch,
    /// The members of the group's shard, by rank. Some may still have to get its state.
    pub members: Vec<NodeId>,
    /// The members that may submit, by rank.
    pub senders: Vec<NodeId>,
    /// The members that were none in the view before, or were in an earlier life.
    pub joined: Vec<NodeId>,
    /// The nodes that were members in the view before, and are no more, or were in an earlier life.
    pub left: Vec<NodeId>,
}

impl ViewChange {
    /// Finds the changes of a shard's new view; `before` are the shard's members in the view before.
    ///
    /// # Panics
    ///
    /// If the view has no such shard.
    pub(crate) fn new(before: &[NodeId], view: &View, shard: ShardId) -> ViewChange {
        let now = view.shard(shard).expect("a view that is installed has the shard");
        let goes_on =
            |node: &NodeId| before.contains(node) && now.members.contains(node) && !view.joined.contains(node);
        let without = |nodes: &[NodeId]| nodes.iter().copied().filter(|node| !goes_on(node)).collect();
        ViewChange {
            epoch: view.epoch,
            members: now.members.clone(),
            senders: now.senders.clone(),
            joined: without(&now.members),
            left: without(before),
        }
    }

    /// Makes the change from a log's record of a view.
    pub(crate) fn of_record(epoch: Epoch, record: &ViewRecord) -> ViewChange {
        let ViewRecord { members, senders, joined, left, .. } = record.clone();
        ViewChange { epoch, members, senders, joined, left }
    }
}

/// A new view, as a replica and its log get it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NewView {
    pub(crate) change: ViewChange,
    /// The life of the group to which it belongs.
    pub(crate) life: ClusterId,
    /// The position at which the order ended before it.
    pub(crate) ended: Position,
    /// The members that hold the state from its beginning on.
    pub(crate) complete: Vec<NodeId>,
}

impl NewView {
    /// The log's record of it.
    pub(crate) fn record(&self) -> ViewRecord {
        let ViewChange { members, senders, joined, left, .. } = self.change.clone();
        let (life, ended, complete) = (self.life, self.ended, self.complete.clone());
        ViewRecord { life, ended, complete, members, senders, joined, left }
    }
}
