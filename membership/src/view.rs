//! Views, and the parts of a view that upper layers know.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

/// The number of a view. The first is 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
#[display("epoch {_0}")]
pub struct Epoch(pub u64);

impl Epoch {
    /// The first view's epoch.
    pub const FIRST: Epoch = Epoch(1);
}

/// The most members that a view has.
pub const MAX_MEMBERS: usize = 64;

/// A place in a view, or in a shard's list of members: 0 is the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rank(pub u32);

impl Rank {
    /// The rank as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The number of a shard (a subgroup with its own order of messages) within a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[serde(transparent)]
#[display("shard {_0}")]
pub struct ShardId(pub u32);

/// A place in a shard's order within one epoch, or a count of such places: "up to `Seq(n)`" means the first n.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display,
)]
#[serde(transparent)]
#[display("#{_0}")]
pub struct Seq(pub u64);

/// The end of a copy of a shard's order: all of the epochs before this one, up to their trims, and so many places of
/// this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, derive_more::Display)]
#[display("{seq} of {epoch}")]
pub struct OrderEnd {
    /// The last epoch of which the copy has, or could have, anything.
    pub epoch: Epoch,
    /// The number of places of that epoch's order.
    pub seq: Seq,
}

impl OrderEnd {
    /// The place before the first epoch, where an empty log ends.
    pub const START: OrderEnd = OrderEnd { epoch: Epoch(0), seq: Seq(0) };
}

/// The number of one of a node's lives: a process that comes back has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

/// The name of a node's part in the view log: a storage directory, or one life of a process without one. It is never
/// used again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct VoterId(pub u64);

/// The number of a cluster's life, which tells it from any other, whatever their names. Drawn at random when the first
/// view is decided, and anew when an operator forces one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterId(pub u64);

/// A node's place in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The node.
    pub node: NodeId,
    /// The node's life.
    pub incarnation: Incarnation,
    /// Its part in the view log.
    pub voter: VoterId,
    /// The addresses at which it can be dialed, as `host:port`, in the order in which they are tried. Empty where nodes
    /// find each other without addresses (shared memory), or the node dials all others.
    pub addresses: Vec<String>,
    /// The rack in which it stands, for the placement of replicas: nodes of one rack may fail together. Empty if that
    /// is not said.
    pub rack: String,
    /// A number that differs where its [parameters](crate::Parameters) differ from others'.
    pub fingerprint: u64,
}

impl Member {
    /// A node of which nothing else is known.
    pub fn new(node: NodeId, incarnation: Incarnation) -> Member {
        let (voter, addresses, rack) = Default::default();
        Member { node, incarnation, voter, addresses, rack, fingerprint: 0 }
    }
}

/// A copy of a shard's state that was complete: a node, with the disk or the process that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The node.
    pub node: NodeId,
    /// Its storage directory, or its process if it has none.
    pub voter: VoterId,
    /// The place from which on everything that was acknowledged is on this disk, as in [`ShardView::since`].
    pub since: OrderEnd,
}

impl Holder {
    /// Whether a member has the disk, or the process.
    pub fn is(&self, member: &Member) -> bool {
        self.node == member.node && self.voter == member.voter
    }
}

/// The most former copies of a shard that a view names.
pub(crate) const MAX_FORMER: usize = MAX_MEMBERS;

/// A copy of a shard's state that was complete in an earlier view.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Former {
    /// The copy.
    pub holder: Holder,
    /// The last view in which it was complete.
    pub last: Epoch,
    /// The place where the shard's order ended before that view.
    pub began: OrderEnd,
    /// Whether the log of a later holder tells that nothing was acknowledged after that view. Only of a suspended
    /// shard.
    pub counts: bool,
}

/// The work that a shard can do in a view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShardState {
    /// A shard that does all its work.
    #[default]
    Active,
    /// A shard with fewer complete members than its minimum, which refuses work until others join.
    Inadequate,
    /// A shard whose state no member is known to hold. It goes on when a holder returns with the state.
    Suspended {
        /// The last view in which a member held it. Its order ends where the copy ends that the shard goes on with.
        after: Epoch,
        /// The copies that were complete in that view, also those that became so during it.
        last_holders: Vec<Holder>,
        /// The version up to which messages were acknowledged, as far as the logs say that came back since. A copy that
        /// lacks one of them is damaged, and the shard does not go on with it.
        acknowledged: u64,
    },
}

/// A shard in a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardView {
    /// The shard.
    pub shard: ShardId,
    /// Its members, in the view's order: the index is the rank in the shard.
    pub members: Vec<NodeId>,
    /// The members that may send, in the same order: the index is the rank among senders. All of them are complete.
    pub senders: Vec<NodeId>,
    /// The members that held the shard's whole state when the view began, in the same order. The others are to get it
    /// from them, and until then apply, answer and send nothing.
    pub complete: Vec<NodeId>,
    /// The place where the shard's order ended before this view. Of a suspended shard: before the last view in which it
    /// was held.
    pub began: OrderEnd,
    /// The place from which on each complete member has been complete without a break, with one disk: where the order
    /// ended before the first of these views. Members that are not listed have been so since the first view of all.
    ///
    /// Everything acknowledged behind that place is on the member's disk. So its log has all that was acknowledged if
    /// it reaches that place, and may lack something if it ends before.
    pub since: BTreeMap<NodeId, OrderEnd>,
    /// The copies that were complete before, in the order in which they ceased to be. They are named until the disk of
    /// a complete member is known to reach the place from which on that member is complete. Up to then, what was
    /// acknowledged may be on no other disk. Of more than [`MAX_MEMBERS`] the oldest are forgotten.
    pub former: Vec<Former>,
    /// The work that it can do.
    pub state: ShardState,
}

impl ShardView {
    /// A shard whose members all hold its state.
    pub fn whole(shard: ShardId, members: Vec<NodeId>, senders: Vec<NodeId>) -> ShardView {
        let (began, since) = (OrderEnd::START, BTreeMap::new());
        let (complete, former, state) = (members.clone(), Vec::new(), ShardState::Active);
        ShardView { shard, members, senders, complete, began, since, former, state }
    }

    /// The member as the holder of a copy, if it is complete, or was in the last view in which the shard was held.
    pub(crate) fn holder(&self, member: &Member) -> Option<Holder> {
        if self.is_suspended() {
            return self.last_holders().iter().find(|holder| holder.is(member)).copied();
        }
        let Member { node, voter, .. } = *member;
        let since = || self.since.get(&node).copied().unwrap_or(OrderEnd::START);
        self.is_complete(node).then(|| Holder { node, voter, since: since() })
    }

    /// The copies that were complete in the last view in which the shard was held, if it is suspended.
    pub(crate) fn last_holders(&self) -> &[Holder] {
        match &self.state {
            ShardState::Suspended { last_holders, .. } => last_holders,
            ShardState::Active | ShardState::Inadequate => &[],
        }
    }

    /// The last holders, if the shard is suspended, then the former ones.
    pub(crate) fn earlier_holders(&self) -> impl Iterator<Item = &Holder> {
        self.last_holders().iter().chain(self.former.iter().map(|one| &one.holder))
    }

    /// Whether the shard is suspended and may go on with a node's copy: one of the last, or a former one.
    pub(crate) fn may_reopen(&self, member: &Member) -> bool {
        self.is_suspended() && self.earlier_holders().any(|holder| holder.is(member))
    }

    /// The nodes with whose copies the shard may go on, if it is suspended: the last that were complete, then former
    /// ones.
    pub fn waits_for(&self) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = Vec::new();
        if !self.is_suspended() {
            return nodes;
        }
        for holder in self.earlier_holders() {
            if !nodes.contains(&holder.node) {
                nodes.push(holder.node);
            }
        }
        nodes
    }

    /// Whether the shard is suspended and all copies with which it may go on are at these members. If it does not go on
    /// soon, none of them has its state any more: that is lost.
    pub fn are_all_back(&self, members: &[Member]) -> bool {
        self.is_suspended() && self.earlier_holders().all(|holder| members.iter().any(|member| holder.is(member)))
    }

    /// The last epoch in which the shard was held, in a view of this one.
    pub(crate) fn held_until(&self, epoch: Epoch) -> Epoch {
        match self.state {
            ShardState::Suspended { after, .. } => after,
            ShardState::Active | ShardState::Inadequate => epoch,
        }
    }

    /// Whether a node held the shard's whole state when the view began.
    pub fn is_complete(&self, node: NodeId) -> bool {
        self.complete.contains(&node)
    }

    /// Whether the shard is suspended: no member is known to hold its state.
    pub fn is_suspended(&self) -> bool {
        matches!(self.state, ShardState::Suspended { .. })
    }

    /// A node's rank among the shard's members.
    pub fn rank_of(&self, node: NodeId) -> Option<Rank> {
        self.members.iter().position(|&member| member == node).map(|i| Rank(i as u32))
    }

    /// A node's rank among the shard's senders.
    pub fn sender_rank_of(&self, node: NodeId) -> Option<Rank> {
        self.senders.iter().position(|&sender| sender == node).map(|i| Rank(i as u32))
    }
}

/// The nodes that shards prefer, by shard, as a [policy](crate::LayoutPolicy) has them.
///
/// They hold the shard before others, as far as the layout lets them: behind those that are
/// [pinned](crate::ShardOptions::pinned), and before those of its racks. All other rules of
/// [`assign`](crate::Layout::assign) hold: the number of replicas, one move of a shard at a time, and no state is
/// dropped that others lack. The order of the nodes means nothing.
pub type Preferred = BTreeMap<ShardId, Vec<NodeId>>;

/// The members of a group, and of its shards, in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The life of the group that the view is of. Another one may have a view of the same epoch.
    pub life: ClusterId,
    /// The view's number.
    pub epoch: Epoch,
    /// The members by rank.
    pub members: Vec<Member>,
    /// The shards.
    pub shards: Vec<ShardView>,
    /// The members that are new in this view.
    pub joined: Vec<NodeId>,
    /// The members of the view before that are not in this one.
    pub left: Vec<NodeId>,
    /// The nodes that shards prefer, by the policy of the member that proposed the view.
    pub preferred: Preferred,
}

impl View {
    /// A node's rank.
    pub fn rank_of(&self, node: NodeId) -> Option<Rank> {
        self.members.iter().position(|member| member.node == node).map(|i| Rank(i as u32))
    }

    /// Whether a node's parameters are the members': a node with other parameters must not join them.
    pub fn has_fingerprint_of(&self, asks: &Member) -> bool {
        self.members.iter().all(|member| member.fingerprint == asks.fingerprint)
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
