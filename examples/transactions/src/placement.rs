//! The placement of keys in shards, and of shards on members.

use std::fmt;

use serde::{Deserialize, Serialize};
use squall_fabric::Fingerprint;

use crate::Key;

/// A part of the keys, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(pub u32);

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {}", self.0)
    }
}

/// The assignment of keys to shards, and of shards to members. The same at all members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    members: usize,
    shards: u32,
    replicas: usize,
}

/// The reason why a placement is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// A placement without shards, and so without one for any key.
    #[error("a store has at least one shard: ask for one or more")]
    NoShards,
    /// A number of replicas above that of members. A second replica on one member would add nothing.
    #[error(
        "{replicas} replicas need as many members, and there are {members}: give each shard between 1 and {members}"
    )]
    Replicas {
        /// The number of replicas that was asked for.
        replicas: usize,
        /// The number of members.
        members: usize,
    },
}

impl Placement {
    /// A placement of `shards` shards, each on `replicas` of the members with ranks below `members`.
    pub fn new(members: usize, shards: u32, replicas: usize) -> Result<Placement, PlacementError> {
        if shards == 0 {
            return Err(PlacementError::NoShards);
        }
        if !(1..=members).contains(&replicas) {
            return Err(PlacementError::Replicas { replicas, members });
        }
        Ok(Placement { members, shards, replicas })
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.members
    }

    /// The shard that a key is in. If a part of its name is in braces, that part alone decides: `{bob}/debts` is in the
    /// shard of `{bob}/name`.
    pub fn shard_of(&self, key: &Key) -> ShardId {
        let name = key.as_str();
        let braced = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(braced, _)| braced);
        let deciding = braced.filter(|braced| !braced.is_empty()).unwrap_or(name);
        let hash = Fingerprint::default().text(deciding).value();
        // The upper half of this hash depends on more of the name than the lower one.
        ShardId(((hash >> 32) % u64::from(self.shards)) as u32)
    }

    /// The ranks that have a copy of a shard.
    pub fn replicas_of(&self, shard: ShardId) -> impl Iterator<Item = usize> + use<> {
        let (first, members) = (shard.0 as usize, self.members);
        (0..self.replicas).map(move |next| (first + next) % members)
    }

    /// The shards of which a rank has a copy.
    pub fn shards_on(&self, rank: usize) -> impl Iterator<Item = ShardId> + use<'_> {
        let shards = (0..self.shards).map(ShardId);
        shards.filter(move |&shard| self.replicas_of(shard).any(|replica| replica == rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_its_replicas_on_different_members() {
        for (members, shards, replicas) in [(1, 1, 1), (3, 3, 2), (4, 9, 4), (6, 2, 3)] {
            let placement = Placement::new(members, shards, replicas).expect("it is sound");
            for shard in (0..shards).map(ShardId) {
                let mut ranks: Vec<_> = placement.replicas_of(shard).collect();
                assert!(ranks.iter().all(|&rank| placement.shards_on(rank).any(|on| on == shard)), "{placement:?}");
                ranks.sort_unstable();
                ranks.dedup();
                assert_eq!(ranks.len(), replicas, "{placement:?}, {shard}");
            }
        }
    }

    #[test]
    fn what_cannot_be_placed_is_refused() {
        assert_eq!(Placement::new(3, 0, 1), Err(PlacementError::NoShards));
        for replicas in [0, 4] {
            assert_eq!(Placement::new(3, 1, replicas), Err(PlacementError::Replicas { replicas, members: 3 }));
        }
    }

    #[test]
    fn keys_are_spread_evenly_and_braces_bring_them_together() {
        let placement = Placement::new(4, 8, 2).expect("it is sound");
        let mut counts = [0; 8];
        for number in 0..8000 {
            counts[placement.shard_of(&format!("account {number}").into()).0 as usize] += 1;
            let of = |key: String| placement.shard_of(&key.into());
            assert_eq!(of(format!("{{{number}}}/name")), of(format!("debts of {{{number}}}")));
        }
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_ne!(placement.shard_of(&"{}1".into()), placement.shard_of(&"{}2".into()), "empty braces decide nothing");
    }
}
