//! What a replica is told of a new view.

use squall_fabric::NodeId;
use squall_membership::{Epoch, ShardId, ShardView, View};

/// A new view of a group, as its replicas see it: all of them that go on see the same one, at the same place of the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ViewChange {
    /// The view's number. Places of the order count from 0 again.
    pub epoch: Epoch,
    /// The members of the group's shard, by rank. Some may still have to get its state.
    pub members: Vec<NodeId>,
    /// Those of them that may submit, by rank.
    pub senders: Vec<NodeId>,
    /// Those of the members that were none in the view before, or were in an earlier life.
    pub joined: Vec<NodeId>,
    /// Those that were members in the view before, and are no more, or were in an earlier life.
    pub left: Vec<NodeId>,
}

impl ViewChange {
    /// What a shard's new view changes; `before` is the shard in the view before, for who was in it.
    ///
    /// # Panics
    ///
    /// If the view has no such shard.
    pub(crate) fn new(before: Option<&ShardView>, view: &View, shard: ShardId) -> ViewChange {
        let now = view.shard(shard).expect("a view that is installed has the shard");
        let before = before.map(|before| before.members.as_slice()).unwrap_or_default();
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
}
