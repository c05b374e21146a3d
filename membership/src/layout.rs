//! The layout of the groups' shards.

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::view::{MAX_MEMBERS, ShardId};

/// The most shards that a cluster can have: each costs every member a table, rings and a place in the rows.
pub const MAX_SHARDS: u32 = 1024;

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
}

/// The layout of all groups' shards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The groups, in the order of their names.
    pub groups: Vec<GroupLayout>,
}

impl Layout {
    /// A layout in which each of some groups has one shard, of all members, which all may send.
    pub fn of_all(names: impl IntoIterator<Item = String>) -> Layout {
        Layout { groups: names.into_iter().map(GroupLayout::of_all).collect() }
    }

    /// The shards of all groups, each with its group.
    pub fn shards(&self) -> impl Iterator<Item = (ShardId, &GroupLayout)> {
        let groups = self.groups.iter().flat_map(|group| (0..group.shards).map(move |_| group));
        groups.enumerate().map(|(index, group)| (ShardId(index as u32), group))
    }

    /// The meaning of a shard's final counts.
    pub(crate) fn counts(&self, shard: ShardId) -> Counts {
        self.shards().find(|(id, _)| *id == shard).map_or(Counts::default(), |(_, group)| group.counts)
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
        Ok(())
    }
}

impl GroupLayout {
    /// A group of one shard, of all members, which all may send.
    pub fn of_all(name: String) -> GroupLayout {
        let counts = Counts::default();
        GroupLayout { name, shards: 1, min_replicas: 1, max_replicas: None, senders: None, counts }
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
        Ok(())
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
    /// A shard in which no member may send.
    #[error("the group {name:?} lists no senders: list some, or leave the list out for all")]
    NoSenders {
        /// The group.
        name: String,
    },
}
