//! The events of a group, for its driver.

use std::sync::Arc;

use squall_fabric::NodeId;

use crate::{block_set::BlockSet, buffer::Buffer};

/// Something that happened in a group, at this member.
#[derive(Debug)]
pub enum Event {
    /// The connection of all of this member's endpoints. (Messages may come before. A group may also be destroyed
    /// before, if it had no need of one of them.)
    Connected,
    /// A message that comes, for which memory is needed: answer with [`accept`](crate::Group::accept), at once or
    /// later. Until then its senders wait.
    Incoming {
        /// The message's number, from 0.
        message: u64,
        /// Its number of blocks.
        blocks: u32,
        /// The largest length that the message may have, in bytes; it is shorter by less than a block.
        max_bytes: usize,
    },
    /// A message that is whole here, in the order of messages. It may be read while the member goes on to relay it.
    /// (The root gets none for what it sends.)
    Received {
        /// The message's number.
        message: u64,
        /// The message's memory; it lies at the buffer's start.
        buffer: Arc<Buffer>,
        /// Its length in bytes.
        len: usize,
    },
    /// The release of a message's buffer, of which the group has dropped its handle: the member has sent on all that it
    /// has to, and the buffer may be used again. This does not say that others have the message.
    Released {
        /// The message's number.
        message: u64,
    },
    /// The failure of the group. The event comes once, as the last of all: nothing lands any more.
    Failed(Failure),
    /// The last of all events: every message has reached every member, and all members know it.
    Destroyed,
}

/// A group's failure, as this member knows it.
#[derive(Debug)]
pub struct Failure {
    /// The member that is thought to be the cause.
    pub suspect: Option<NodeId>,
    /// The reason, as part of a sentence.
    pub reason: String,
    /// The messages that this member has not released, in order. Other members may lack blocks even of messages that it
    /// has.
    pub interrupted: Vec<Interrupted>,
}

/// A failure that this member has heard of from another, and of which it saw nothing itself.
///
/// If no member turns out to have failed, one has lied. A member that relayed the lie knows nothing of that. So members
/// take turns to blame the one that told them: first the one to which the lie was told, then the root, then the others,
/// which heard of it from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hearsay {
    /// The member to blame.
    pub teller: NodeId,
    /// The place of this member's turn to do so, from 1.
    pub turn: u32,
}

/// A message of which some members may lack blocks.
#[derive(Clone, Debug)]
pub struct Interrupted {
    /// The message's number.
    pub message: u64,
    /// Its number of blocks.
    pub blocks: u32,
    /// Its length in bytes, if it is known here: the last block tells it.
    pub len: Option<usize>,
    /// The blocks that are here: these and no others.
    pub held: BlockSet,
    /// The memory of the blocks; none if no memory was given for the message yet (then nothing of it is held). Nothing
    /// lands there any more. A member that was being sent a block from there may still be taking it: leave the held
    /// blocks unchanged as long as any member may complete the message.
    pub buffer: Option<Arc<Buffer>>,
}

/// A member's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of the oldest message that is not whole here, or that will come next.
    pub message: u64,
    /// The number of its blocks that are here.
    pub held: u32,
    /// The message's number of blocks; 0 if nothing of it has come.
    pub blocks: u32,
}
