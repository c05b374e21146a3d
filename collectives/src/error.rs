//! The errors of operations and communicators.

use squall_fabric::{GroupTag, RegisterError};

use crate::{Algorithm, Builtin, Collective};

/// The reason why an operation was not started, or ended without a result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// A rank is lost. All operations of the communicator end with this, and so do those that are started later.
    #[error("rank {rank} has failed: make a communicator of the ranks that are left")]
    Failed {
        /// The rank; if another rank has seen two fail, the one that it named first.
        rank: usize,
    },
    /// The communicator was [disconnected](crate::Communicator::disconnect).
    #[error("the communicator was disconnected: start operations before that")]
    Disconnected,
    /// A refusal, since as many operations are under way as can be.
    #[error("the operation that was started {lanes} before this one is still under way: step until it is over")]
    Busy {
        /// The number of operations that can be under way.
        lanes: usize,
    },
    /// The result of an operation was asked for before it was over.
    #[error("the operation is still under way: step the communicator until its test is true")]
    NotOver,
    /// The result was not taken before another operation took its place.
    #[error(
        "the result was dropped when a later operation took its place: finish an operation before {lanes} \
         others are started"
    )]
    Dropped {
        /// The number of operations that can be under way.
        lanes: usize,
    },
    /// A root that is none of the ranks.
    #[error("rank {rank} can't be the root of a communicator of {ranks} ranks")]
    Root {
        /// The requested root.
        rank: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A vector can't be cut into one block for each rank.
    #[error(
        "a vector of {len} elements has no {ranks} blocks of equal length for {collective}: pad it to a multiple \
         of {ranks}"
    )]
    Blocks {
        /// The operation.
        collective: Collective,
        /// The number of the vector's elements.
        len: usize,
        /// The number of blocks, one for each rank.
        ranks: usize,
    },
    /// The algorithm does not carry out this operation.
    #[error(
        "{collective} can't be carried out by {algorithm}: choose another algorithm, or leave the choice \
         to the cost model"
    )]
    Algorithm {
        /// The operation.
        collective: Collective,
        /// The chosen algorithm.
        algorithm: Algorithm,
    },
    /// The algorithm combines in another order than this operation permits.
    #[error(
        "the ring combines out of rank order, which a reproducible communicator and operations that are not \
         commutative do not permit: choose another algorithm"
    )]
    Order,
    /// Memory for a long vector could not be registered.
    #[error("memory for a long vector could not be registered; broadcast it in pieces, or set another algorithm")]
    Memory(#[from] RegisterError),
    /// The group of a root, by which its long vectors go, could not be made.
    #[error("the RDMC group for long broadcasts could not be made; set another algorithm, or another configuration")]
    Group(#[from] squall_rdmc::CreateError),
    /// The operation is not defined on these elements.
    #[error("{builtin:?} is not defined on elements of type {element}: take integers")]
    Undefined {
        /// The operation.
        builtin: Builtin,
        /// The elements' type.
        element: &'static str,
    },
}

/// The reason why a communicator could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateCommunicatorError {
    /// The ranks are no list of different nodes with this one among them.
    #[error("the ranks must be different nodes, with {node} among them; {ranks} were given")]
    Ranks {
        /// This node.
        node: squall_fabric::NodeId,
        /// The number of given ranks.
        ranks: usize,
    },
    /// Names of RDMC groups can't be derived from the tag.
    #[error(
        "no names for groups follow from the {tag:?} and {ranks} ranks: the layer must be less than 256, the group \
         less than 2^24, the epoch less than 2^48, and ranks at most 2^15"
    )]
    Tag {
        /// The communicator's tag.
        tag: GroupTag,
        /// The number of its ranks.
        ranks: usize,
    },
    /// A size that the configuration can't have.
    #[error(
        "{lanes} lanes with {slots} slots of {slot_bytes} bytes can't be laid out: lanes and slots must be powers of \
         two, at most 1024, and slots hold a multiple of 8 bytes, at most 16 MiB"
    )]
    Sizes {
        /// The number of operations that may be under way.
        lanes: usize,
        /// The number of slots of each channel.
        slots: usize,
        /// The bytes of each slot.
        slot_bytes: usize,
    },
    /// The memory could not be registered.
    #[error("the memory of a communicator could not be registered; take fewer lanes or slots, or smaller slots")]
    Memory(#[from] RegisterError),
}
