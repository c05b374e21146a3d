//! What upper layers know of membership.

use std::fmt;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

/// The number of a view. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub u64);

impl Epoch {
    /// The first view's epoch.
    pub const FIRST: Epoch = Epoch(1);
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}", self.0)
    }
}

/// A place in a view, or in a shard's list of members: 0 is the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// As an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Names a shard (a subgroup with its own order of messages) within a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// A place in a shard's order within one epoch, or a count of such places: "up to `Seq(n)`" means the first n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// Tells one life of a node from the next: a process that comes back has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// A node's place in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// Which of its lives.
    pub incarnation: Incarnation,
}

/// A shard in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardView {
    /// The shard.
    pub shard: ShardId,
    /// Its members, in the view's order: the index is the rank in the shard.
    pub members: Vec<NodeId>,
    /// Those of its members that may send, in the same order: the index is the rank among senders.
    pub senders: Vec<NodeId>,
}

impl ShardView {
    /// A node's rank among the shard's members.
    pub fn rank_of(&self, node: NodeId) -> Option<Rank> {
        self.members.iter().position(|&member| member == node).map(|i| Rank(i as u32))
    }

    /// A node's rank among the shard's senders.
    pub fn sender_rank_of(&self, node: NodeId) -> Option<Rank> {
        self.senders.iter().position(|&sender| sender == node).map(|i| Rank(i as u32))
    }
}

/// Who is a member, and of which shards, in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The view's number.
    pub epoch: Epoch,
    /// The members by rank.
    pub members: Vec<Member>,
    /// The shards.
    pub shards: Vec<ShardView>,
    /// Who is new in this view.
    pub joined: Vec<NodeId>,
    /// Who was a member of the view before and is not of this one.
    pub left: Vec<NodeId>,
}

impl View {
    /// A node's rank.
    pub fn rank_of(&self, node: NodeId) -> Option<Rank> {
        self.members.iter().position(|member| member.node == node).map(|i| Rank(i as u32))
    }

    /// The members' nodes, by rank.
    pub fn nodes(&self) -> Vec<NodeId> {
        self.members.iter().map(|member| member.node).collect()
    }

    /// A shard of the view.
    pub fn shard(&self, shard: ShardId) -> Option<&ShardView> {
        self.shards.iter().find(|s| s.shard == shard)
    }
}
