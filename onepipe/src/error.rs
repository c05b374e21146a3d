//! The errors of groups and scatterings.

use squall_fabric::{NodeId, RegisterError};

/// The reason why a group could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The nodes are no list of different nodes with this one among them.
    #[error("the ranks must be different nodes, with {node} among them; {nodes} were given")]
    Nodes {
        /// This node.
        node: NodeId,
        /// The number of given nodes.
        nodes: usize,
    },
    /// Positions can't be counted in a ring of this size.
    #[error("a ring of {ring_bytes} bytes can't be made: take a power of two, 1 KiB to 1 GiB")]
    Ring {
        /// The requested size, in bytes.
        ring_bytes: usize,
    },
    /// The racks are not a partition of the ranks, or the degree is 0.
    #[error(
        "a hierarchy needs each of the ranks below {ranks} in exactly one rack, and a degree of at least 1 (it is {degree})"
    )]
    Racks {
        /// The number of ranks.
        ranks: usize,
        /// The requested degree.
        degree: usize,
    },
    /// The memory could not be registered.
    #[error("the memory of a 1Pipe group could not be registered; take smaller rings")]
    Memory(#[from] RegisterError),
}

/// The reason why a scattering was not taken. Nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScatterError {
    /// A scattering without messages.
    #[error("a scattering has at least one message")]
    Empty,
    /// A message for a rank that there is not.
    #[error("a message is for rank {rank}, but there are only {ranks}")]
    Rank {
        /// The rank that the message is for.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A rank would receive two messages at the same time, in no order.
    #[error("two messages are for rank {rank}: put what it is to receive into one")]
    Twice {
        /// The rank.
        rank: usize,
    },
    /// The message is longer than a ring takes.
    #[error("a message of {bytes} bytes is too long: at most {limit} fit; take larger rings, or send it in parts")]
    TooLong {
        /// The message's length, in bytes.
        bytes: usize,
        /// The greatest length, in bytes.
        limit: usize,
    },
    /// The rank has failed, and was removed.
    #[error("a message is for rank {rank}, which has failed and was removed: leave it out")]
    Removed {
        /// The rank.
        rank: usize,
    },
    /// A refusal, since as many bytes wait for room at receivers as may.
    #[error("{waiting_bytes} bytes of messages wait for room at their receivers: step, and try again")]
    Full {
        /// The number of waiting bytes.
        waiting_bytes: usize,
    },
    /// A call at a rank that was removed from its group, or has left it.
    #[error("this rank is no longer in its group: form another")]
    Ended,
}

/// A peer has written what no correct one writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Misbehaved;
