//! The layout of the groups' shards.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::view::{MAX_MEMBERS, ShardId};

/// The most shards that a cluster can have: each costs every member a table, rings and a place in the rows.
pub const MAX_SHARDS: u32 = 1024;

/// The largest weight of a member.
pub const MAX_WEIGHT: u32 = 1000;

/// The number of shards that move to a member at a time, if nothing else is said.
pub const MOVES_AT_ONCE: u32 = 4;

/// The meaning of the final counts of a shard's members, which decides where the shard's part in a view ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Counts {
    /// The number of messages that each has received. The view ends at the smallest count, which all have, and hands on
    /// a state: a node that joins must get it before it is complete.
    #[default]
    Received,
    /// The place up to which each has gone, or may go, by itself. The view ends at the greatest count, beyond which no
    /// member has gone. There is no state: all members are complete, and a restart hands on nothing.
    Passed,
}

/// The layout of one group's shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupLayout {
    /// The group's name.
    pub name: String,
    /// The number of its shards. Shards are numbered through all groups, in their order.
    pub shards: u32,
    /// The number of complete members below which a shard refuses work. At least 1.
    pub min_replicas: u32,
    /// The number of members that a shard has, where there are as many; None for all. A replica that moves is added
    /// before the one that it replaces goes, so there is one more until it holds the state.
    pub max_replicas: Option<u32>,
    /// The members that may send; None for all members of a shard.
    pub senders: Option<Vec<NodeId>>,
    /// The meaning of its shards' final counts.
    pub counts: Counts,
    /// The members that hold none of its shards, but those that are pinned to them.
    pub reserved: Vec<NodeId>,
    /// The options of single shards, by their numbers within the group.
    pub options: BTreeMap<u32, ShardOptions>,
}

/// The options of one shard of a group, which go before the group's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardOptions {
    /// The number of complete members below which it refuses work; None for the group's.
    pub min_replicas: Option<u32>,
    /// The number of members that it has; None for the group's.
    pub max_replicas: Option<u32>,
    /// The members that hold it before any others.
    pub pinned: Vec<NodeId>,
    /// The racks whose members hold it before those of others; empty for all racks.
    pub racks: Vec<String>,
    /// Whether no other members hold it, though it then has fewer than it should have.
    pub only: bool,
}

/// The layout of all groups' shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The groups, in the order of their names.
    pub groups: Vec<GroupLayout>,
    /// The members' weights: their shares of the shards are in proportion. Others have 1. With 0, a member holds no
    /// shard that has a `max_replicas`, but those that are pinned to it.
    pub weights: BTreeMap<NodeId, u32>,
    /// The number of shards that move to a member at a time. At least 1.
    pub moves_at_once: u32,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout { groups: Vec::new(), weights: BTreeMap::new(), moves_at_once: MOVES_AT_ONCE }
    }
}

/// A shard of a layout: its group, and its own options.
#[derive(Clone, Copy, Debug)]
pub struct ShardLayout<'a> {
    /// The group.
    pub group: &'a GroupLayout,
    own: Option<&'a ShardOptions>,
}

impl<'a> ShardLayout<'a> {
    /// The number of complete members below which the shard refuses work.
    pub fn min_replicas(self) -> u32 {
        self.own.and_then(|own| own.min_replicas).unwrap_or(self.group.min_replicas)
    }

    /// The number of members that the shard has, where there are as many; None for all.
    pub fn max_replicas(self) -> Option<u32> {
        self.own.and_then(|own| own.max_replicas).or(self.group.max_replicas)
    }

    /// The shard's own options, if it has some.
    pub fn own(self) -> Option<&'a ShardOptions> {
        self.own
    }
}

impl Layout {
    /// A layout in which each of some groups has one shard, of all members, which all may send.
    pub fn of_all(names: impl IntoIterator<Item = String>) -> Layout {
        Layout { groups: names.into_iter().map(GroupLayout::of_all).collect(), ..Layout::default() }
    }

    /// The shards of all groups.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, ShardLayout<'_>)> {
        let shards = self.groups.iter().flat_map(|group| {
            (0..group.shards).map(move |number| ShardLayout { group, own: group.options.get(&number) })
        });
        shards.enumerate().map(|(index, shard)| (ShardId(index as u32), shard))
    }

    /// The weight of a member.
    pub(crate) fn weight(&self, node: NodeId) -> u32 {
        self.weights.get(&node).copied().unwrap_or(1)
    }

    /// The meaning of a shard's final counts.
    pub(crate) fn counts(&self, shard: ShardId) -> Counts {
        self.shards().find(|(id, _)| *id == shard).map_or(Counts::default(), |(_, shard)| shard.group.counts)
    }

    /// Checks that there can be such groups.
    pub fn check(&self) -> Result<(), LayoutError> {
        for pair in self.groups.windows(2) {
            if pair[0].name >= pair[1].name {
                let (name, other) = (pair[0].name.clone(), pair[1].name.clone());
                return Err(LayoutError::Order { name, other });
            }
        }
        self.groups.iter().try_for_each(GroupLayout::check)?;
        let shards = self.groups.iter().map(|group| u64::from(group.shards)).sum();
        if shards > u64::from(MAX_SHARDS) {
            return Err(LayoutError::TooManyShards { shards });
        }
        if let Some((&node, &weight)) = self.weights.iter().find(|(_, weight)| **weight > MAX_WEIGHT) {
            return Err(LayoutError::Weight { node, weight });
        }
        if self.moves_at_once == 0 {
            return Err(LayoutError::NoMoves);
        }
        Ok(())
    }
}

impl GroupLayout {
    /// A group of one shard, of all members, which all may send.
    pub fn of_all(name: String) -> GroupLayout {
        let (counts, reserved, options) = Default::default();
        GroupLayout { name, shards: 1, min_replicas: 1, max_replicas: None, senders: None, counts, reserved, options }
    }

    /// Returns the complete members of a shard that may send.
    pub(crate) fn senders_of(&self, complete: &[NodeId]) -> Vec<NodeId> {
        let may_send = |node: &&NodeId| self.senders.as_ref().is_none_or(|senders| senders.contains(node));
        complete.iter().filter(may_send).copied().collect()
    }

    fn check(&self) -> Result<(), LayoutError> {
        let (name, min) = (self.name.clone(), self.min_replicas);
        if name.is_empty() {
            return Err(LayoutError::NoName);
        }
        if self.shards == 0 {
            return Err(LayoutError::NoShards { name });
        }
        if min == 0 {
            return Err(LayoutError::NoReplicas { name });
        }
        if min as usize > MAX_MEMBERS {
            return Err(LayoutError::TooManyReplicas { name, min });
        }
        if let Some(max) = self.max_replicas.filter(|&max| max < min) {
            return Err(LayoutError::MinAboveMax { name, min, max });
        }
        if self.senders.as_ref().is_some_and(Vec::is_empty) {
            return Err(LayoutError::NoSenders { name });
        }
        let refused = |(&shard, own)| self.refuse(shard, own).map(|why| (shard, why));
        match self.options.iter().find_map(refused) {
            Some((shard, why)) => Err(LayoutError::Shard { name, shard, why }),
            None => Ok(()),
        }
    }

    /// The reason for which a shard can't have these options, with advice.
    fn refuse(&self, number: u32, own: &ShardOptions) -> Option<String> {
        let shard = ShardLayout { group: self, own: Some(own) };
        let (min, max) = (shard.min_replicas(), shard.max_replicas());
        let is_placed = !own.pinned.is_empty() || !own.racks.is_empty();
        if number >= self.shards {
            return Some(format!("the group has {} shards, numbered from 0", self.shards));
        }
        if min == 0 || min as usize > MAX_MEMBERS {
            return Some(format!("min_replicas is {min}: give 1 to {MAX_MEMBERS}"));
        }
        if let Some(max) = max.filter(|&max| max < min) {
            return Some(format!(
                "min_replicas is {min} and max_replicas is {max}: raise the second, or lower the first"
            ));
        }
        if own.only && !is_placed {
            return Some("`only` is set, and neither `pinned` nor `racks` names members: give one of them".into());
        }
        if is_placed && !own.only && max.is_none() {
            return Some("all members hold it, so none is chosen: give `max_replicas`, or `only = true`".into());
        }
        if let Some(node) = own.pinned.iter().find(|node| self.reserved.contains(node)) {
            return Some(format!("{node} is pinned, and the group lists it as reserved: remove one"));
        }
        let most = own.pinned.len();
        let is_unreachable = own.only && own.racks.is_empty() && most < min as usize;
        is_unreachable
            .then(|| format!("min_replicas is {min}, and only {most} members may hold it: pin more, or lower it"))
    }
}

/// The reason for which there can't be such groups.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A group has no name.
    #[error("a group has no name: give each one")]
    NoName,
    /// Two groups have the same name, or are not in order.
    #[error("the group {other:?} stands behind {name:?}: groups have different names, and stand in their order")]
    Order {
        /// The name that stands first.
        name: String,
        /// The name that stands behind it.
        other: String,
    },
    /// A group has no shards.
    #[error("the group {name:?} has 0 shards: it needs at least 1")]
    NoShards {
        /// The group.
        name: String,
    },
    /// A layout of too many shards.
    #[error("all groups together have {shards} shards: at most {MAX_SHARDS} are possible")]
    TooManyShards {
        /// The sum over all groups.
        shards: u64,
    },
    /// A shard would work without members.
    #[error("the group {name:?} has min_replicas = 0: a shard needs at least 1 to work")]
    NoReplicas {
        /// The group.
        name: String,
    },
    /// A number of replicas for which no view is large enough.
    #[error("the group {name:?} has min_replicas = {min}: a view has at most {MAX_MEMBERS} members")]
    TooManyReplicas {
        /// The group.
        name: String,
        /// The minimum.
        min: u32,
    },
    /// A minimum above the maximum, with which no shard could ever work.
    #[error(
        "the group {name:?} has min_replicas = {min} and max_replicas = {max}: raise the second, or lower the first"
    )]
    MinAboveMax {
        /// The group.
        name: String,
        /// The minimum.
        min: u32,
        /// The maximum.
        max: u32,
    },
    /// Options that a shard can't have.
    #[error("the group {name:?} can't have these options of its shard {shard}: {why}")]
    Shard {
        /// The group.
        name: String,
        /// The shard's number within the group.
        shard: u32,
        /// The reason, with advice.
        why: String,
    },
    /// A weight that is too large.
    #[error("the weight of {node} is {weight}: give 0 to {MAX_WEIGHT}")]
    Weight {
        /// The node.
        node: NodeId,
        /// Its weight.
        weight: u32,
    },
    /// A layout in which no shard could ever move.
    #[error("moves_at_once is 0: give at least 1")]
    NoMoves,
    /// A shard in which no member may send.
    #[error("the group {name:?} lists no senders: list some, or leave the list out for all")]
    NoSenders {
        /// The group.
        name: String,
    },
}
