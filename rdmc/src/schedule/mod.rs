//! Schedules: the sender, the receiver and the step of each block. Pure functions.
//!
//! A message of k blocks goes from rank 0, the root, to all other ranks of a group of n. Time is counted in *steps*, in
//! each of which a node sends at most one block and receives at most one. A [`Schedule`] is one node's part. Its sends
//! and receives in a given step follow from the [`Algorithm`], n, its rank, k and the step alone, so that no node
//! computes or tells anything else. Steps order the transfers; they are no clock, since the engine is asynchronous.
//!
//! | | steps for k blocks | a node sends |
//! |---|---|---|
//! | [`Sequential`](Algorithm::Sequential) | (n − 1)·k | the root everything |
//! | [`Interleaved`](Algorithm::Interleaved) | (n − 1)·k | the root everything |
//! | [`Chain`](Algorithm::Chain) | n + k − 2 | each block once |
//! | [`BinomialTree`](Algorithm::BinomialTree) | ⌈log₂ n⌉·k | each block up to ⌈log₂ n⌉ times |
//! | [`BinomialPipeline`](Algorithm::BinomialPipeline) | ⌈log₂ n⌉ + k − 1 | about as much as it receives |
//! | [`Hybrid`](Algorithm::Hybrid) | a pipeline in each rack, behind one among the racks | |

mod binomial_pipeline;
mod binomial_tree;
mod chain;
mod hybrid;
mod part;
mod sequential;

use std::sync::Arc;

pub use hybrid::{Outer, Racks, RacksError};
pub use part::SubSchedule;

/// A member's place in a group; the root's is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("rank {_0}")]
pub struct Rank(pub u32);

impl Rank {
    /// The only rank that sends messages of its own.
    pub const ROOT: Rank = Rank(0);

    /// The rank as an index into lists with an element for each rank.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The way of a message from the root to all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// A sequence, in which the root sends the whole message to each receiver in turn.
    Sequential,
    /// A sequence of blocks, in which the root sends each block to all receivers, then the next. This order suits
    /// shared memory, where a block that was just copied is still in the cache.
    Interleaved,
    /// A chain, in which each node hands every block on to the next rank.
    Chain,
    /// A tree, in which each node that has the whole message sends it on to one that has not.
    BinomialTree,
    /// All nodes exchange blocks along the dimensions of a hypercube (RDMC, DSN 2018, §4.3).
    #[default]
    BinomialPipeline,
    /// One schedule among the leaders of racks, and a binomial pipeline in each rack (§4.3).
    Hybrid(Racks),
}

impl Algorithm {
    /// The algorithms that need no other information.
    pub const FLAT: [Algorithm; 5] = [
        Algorithm::Sequential,
        Algorithm::Interleaved,
        Algorithm::Chain,
        Algorithm::BinomialTree,
        Algorithm::BinomialPipeline,
    ];

    /// The algorithm's name, as the command line spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Algorithm::Sequential => "sequential",
            Algorithm::Interleaved => "interleaved",
            Algorithm::Chain => "chain",
            Algorithm::BinomialTree => "tree",
            Algorithm::BinomialPipeline => "pipeline",
            Algorithm::Hybrid(_) => "hybrid",
        }
    }
}

/// One block, to or from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other side.
    pub peer: Rank,
    /// The block's index in the message, from 0.
    pub block: u32,
}

/// A node's send and receive in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// The block that it sends.
    pub send: Option<Transfer>,
    /// The block that it receives.
    pub receive: Option<Transfer>,
}

/// The block that a receiver gets first. It depends on the number of blocks by a clamp only, so it can be waited for
/// before that number is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstBlock {
    /// The rank that sends it.
    pub from: Rank,
    /// The block's index, if the message has that many blocks; else the last block comes first.
    pub block: u32,
}

impl FirstBlock {
    /// The block's index in a message of `blocks` blocks.
    pub fn of(self, blocks: u32) -> u32 {
        self.block.min(blocks - 1)
    }
}

/// The reason why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A group has at least its root, and at most 2³¹ members.
    #[error("a group of {0} members is not possible: give 1 to 2^31 members, the root first")]
    Members(usize),
    /// The rank is not one of the group's ranks.
    #[error("{rank} is none of a group of {members} members")]
    Rank {
        /// The rank.
        rank: Rank,
        /// The number of members.
        members: usize,
    },
    /// The racks are not those of this group.
    #[error("racks are given for {racks} members, but the group has {members}")]
    Racks {
        /// The number of members for which the racks are given.
        racks: usize,
        /// The number of members.
        members: usize,
    },
}

/// One node's part of a group's schedule.
///
/// It has one [`SubSchedule`], or two at the leader of a rack. Each node receives in one of them only; within each, the
/// rule of one send in each step holds.
#[derive(Clone, Debug)]
pub struct Schedule {
    rank: Rank,
    parts: Vec<SubSchedule>,
}

impl Schedule {
    /// The part of `rank` in a group of `members`. Fails if a group can't have so many members, if `rank` is none of
    /// them, or if the algorithm's racks are for another number of members.
    pub fn new(algorithm: &Algorithm, members: usize, rank: Rank) -> Result<Schedule, ScheduleError> {
        let n = u32::try_from(members).ok().filter(|n| (1..=1 << 31).contains(n));
        let n = n.ok_or(ScheduleError::Members(members))?;
        if rank.0 >= n {
            return Err(ScheduleError::Rank { rank, members });
        }
        let parts = match algorithm {
            Algorithm::Hybrid(racks) if racks.members() != members => {
                return Err(ScheduleError::Racks { racks: racks.members(), members });
            }
            Algorithm::Hybrid(racks) => racks.parts(rank),
            flat => vec![SubSchedule::whole(part::Flat::of(flat).expect("all others are flat"), n, rank)],
        };
        Ok(Schedule { rank, parts })
    }

    /// The rank of the node.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The node's parts, which go on side by side.
    pub fn parts(&self) -> &[SubSchedule] {
        &self.parts
    }

    /// The part in which this node receives; none at the root.
    pub fn receiving(&self) -> Option<&SubSchedule> {
        self.parts.iter().find(|part| part.first_block().is_some())
    }

    /// The block that this node gets first; none at the root.
    pub fn first_block(&self) -> Option<FirstBlock> {
        self.receiving().and_then(SubSchedule::first_block)
    }

    /// The number of steps after which this node's last part is over, for a message of `blocks` blocks.
    pub fn steps(&self, blocks: u32) -> u64 {
        self.parts.iter().map(|part| part.steps(blocks)).max().unwrap_or(0)
    }

    /// The ranks that this node ever sends to or receives from, in order.
    pub fn peers(&self) -> Vec<Rank> {
        let mut peers: Vec<Rank> = self.parts.iter().flat_map(SubSchedule::peers).collect();
        peers.sort_unstable();
        peers.dedup();
        peers
    }
}

/// The ranks of a group that take part in a [`SubSchedule`].
#[derive(Clone, Debug)]
enum Members {
    All(u32),
    Some(Arc<[Rank]>),
}

impl Members {
    fn len(&self) -> u32 {
        match self {
            Members::All(n) => *n,
            Members::Some(ranks) => ranks.len() as u32,
        }
    }

    fn rank(&self, local: u32) -> Rank {
        match self {
            Members::All(_) => Rank(local),
            Members::Some(ranks) => ranks[local as usize],
        }
    }
}
