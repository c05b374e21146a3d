//! What a group tells who drives it.

use std::sync::Arc;

use squall_fabric::NodeId;

use crate::{block_set::BlockSet, buffer::Buffer};

/// Something that happened in a group, at this member.
#[derive(Debug)]
pub enum Event {
    /// All of this member's endpoints are connected. (Messages may come before; a group may be destroyed before, if it had no
    /// need of one of them.)
    Connected,
    /// A message comes, for which memory is needed: answer with [`accept`](crate::Group::accept), at once or later. Until
    /// then its senders wait.
    Incoming {
        /// The message's number, from 0.
        message: u64,
        /// Its number of blocks.
        blocks: u32,
        /// It is longer than one block less than this, and at most as long as this, in bytes.
        max_bytes: usize,
    },
    /// A message is whole here. It may be read, while the member goes on to relay it. In the order of messages. (The root
    /// gets none for what it sends.)
    Received {
        /// The message's number.
        message: u64,
        /// Where it lies, from the buffer's start.
        buffer: Arc<Buffer>,
        /// Its length in bytes.
        len: usize,
    },
    /// The member has sent on all that it has to of this message, and the group has dropped its handle of the buffer: it may
    /// be used again. It does not say that others have the message.
    Released {
        /// The message's number.
        message: u64,
    },
    /// The group has failed. Once, and the last of all events: nothing lands any more.
    Failed(Failure),
    /// Every message has reached every member, and all know it. The last of all events.
    Destroyed,
}

/// How a group failed, as this member has it.
#[derive(Debug)]
pub struct Failure {
    /// Who is thought to be the cause.
    pub suspect: Option<NodeId>,
    /// What happened, in a sentence's part.
    pub reason: String,
    /// The messages that this member has not released, in order. Others may lack blocks also of messages that it has.
    pub interrupted: Vec<Interrupted>,
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
    /// Where they lie; none if no memory was given for the message yet (then nothing of it is held). Nothing lands there any
    /// more, but who was being sent a block from there may still be taking it: change nothing of what is held as long as
    /// somebody may complete the message.
    pub buffer: Option<Arc<Buffer>>,
}

/// How far a member is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The number of the oldest message that is not whole here, or that will come next.
    pub message: u64,
    /// How many of its blocks are here.
    pub held: u32,
    /// How many blocks it has; 0 if nothing of it has come.
    pub blocks: u32,
}
