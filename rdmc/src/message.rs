//! One message on its way through a member.

use std::sync::Arc;

use crate::{block_set::BlockSet, buffer::Buffer, events::Interrupted};

/// A message of which this member knows.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) blocks: u32,
    /// The message's length in bytes, once the last block is here.
    pub(crate) len: Option<usize>,
    pub(crate) held: BlockSet,
    /// The message's memory; none until the application gives it.
    pub(crate) buffer: Option<Arc<Buffer>>,
    /// The first block, until there is memory for the message.
    pub(crate) parked: Option<Parked>,
    /// The number of lanes that have not found all their sends of it.
    pub(crate) lanes: usize,
    /// The number of sends that were found and not posted.
    pub(crate) queued: usize,
    /// The number of sends that were posted and are not complete.
    pub(crate) in_flight: usize,
    /// A step before which this member has received everything, in the part in which it receives.
    pub(crate) arrived: u64,
}

/// A first block in the memory where it came in.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) holder: Arc<Buffer>,
    pub(crate) offset: usize,
    pub(crate) block: u32,
    pub(crate) len: usize,
}

impl InFlight {
    pub(crate) fn new(blocks: u32, lanes: usize) -> InFlight {
        let held = BlockSet::new(blocks);
        InFlight { blocks, len: None, held, buffer: None, parked: None, lanes, queued: 0, in_flight: 0, arrived: 0 }
    }

    /// The length of a receive for one of the message's blocks.
    pub(crate) fn room_for(&self, block: u32, block_bytes: usize, capacity: usize) -> usize {
        (capacity - block as usize * block_bytes).min(block_bytes)
    }

    /// The length of a block that is held.
    pub(crate) fn len_of(&self, block: u32, block_bytes: usize) -> usize {
        match self.len {
            Some(len) if block + 1 == self.blocks => len - block as usize * block_bytes,
            _ => block_bytes,
        }
    }

    /// Takes note of a block that came. Its length was checked.
    pub(crate) fn hold(&mut self, block: u32, len: usize, block_bytes: usize) {
        let new = self.held.insert(block);
        debug_assert!(new, "block {block} came twice");
        if block + 1 == self.blocks {
            self.len = Some(block as usize * block_bytes + len);
        }
    }

    /// Whether this member is done with the message.
    pub(crate) fn is_done(&self) -> bool {
        self.held.is_full() && self.lanes == 0 && self.queued == 0 && self.in_flight == 0
    }

    pub(crate) fn interrupted(&mut self, message: u64) -> Interrupted {
        Interrupted { message, blocks: self.blocks, len: self.len, held: self.held.clone(), buffer: self.buffer.take() }
    }
}

/// Whether a block of a message may have this length.
pub(crate) fn is_block_len(block: u32, blocks: u32, len: usize, block_bytes: usize) -> bool {
    if block + 1 < blocks {
        len == block_bytes
    } else {
        // Only an empty message has an empty block.
        len <= block_bytes && (len > 0 || blocks == 1)
    }
}
