//! The reasons for which a shard is not created, or does not accept a message.

use squall_fabric::{NodeId, RegisterError};
use squall_membership::ShardId;
use squall_sst::ring::{self, PushError};

/// The reasons for which a shard could not be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// The view has no such shard.
    #[error("the view has no {0}")]
    NoSuchShard(ShardId),
    /// A node that is not one of the shard's members.
    #[error("{node} is no member of {shard}")]
    NotAMember {
        /// This node.
        node: NodeId,
        /// The shard.
        shard: ShardId,
    },
    /// The ring's size is not a power of two from [`ring::MIN_BYTES`] to [`ring::MAX_BYTES`].
    #[error(
        "a ring of {0} bytes is not possible: give a power of two from {min} to {max}",
        min = ring::MIN_BYTES,
        max = ring::MAX_BYTES
    )]
    RingBytes(usize),
    /// The reserve is smaller than a block, or the block's size is not a positive multiple of 64.
    #[error(
        "bulk messages can't have a reserve of {reserve} bytes in blocks of {block}: give blocks of a multiple of 64 bytes, and \
         a reserve of one block at least (0 for no bulk messages)"
    )]
    Reserve {
        /// The reserve, in bytes.
        reserve: usize,
        /// The block's size, in bytes.
        block: usize,
    },
    /// The memory could not be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A group for bulk messages could not be created.
    #[error(transparent)]
    Bulk(#[from] squall_rdmc::CreateError),
}

/// The reasons for which a message was not accepted. Nothing of it will be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitRefused {
    /// A lack of room, until older messages are delivered everywhere.
    #[error(
        "the sender's ring, or its reserve for bulk messages, is full until older messages are delivered everywhere"
    )]
    Full,
    /// The message would never fit.
    #[error(
        "a message of {bytes} bytes is larger than {max} bytes, all that is reserved for a sender's bulk messages: configure a \
         larger bulk_reserve"
    )]
    TooLarge {
        /// The message's length, in bytes.
        bytes: usize,
        /// The largest that fits, in bytes.
        max: usize,
    },
    /// The shard takes no more messages.
    #[error("the shard takes no more messages")]
    Closed,
    /// A node that may not send in this shard.
    #[error("this node is not configured as a sender of this shard")]
    NotASender,
}

impl From<PushError> for SubmitRefused {
    fn from(error: PushError) -> SubmitRefused {
        match error {
            PushError::Full => SubmitRefused::Full,
            PushError::TooLarge { bytes, max } => SubmitRefused::TooLarge { bytes, max },
            PushError::Closed => SubmitRefused::Closed,
        }
    }
}
