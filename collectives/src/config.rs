//! What all ranks of a communicator agree on.

use std::time::Duration;

use squall_fabric::{GroupTag, NodeId};

use crate::{CreateError, layout::Layout};

/// How a communicator is made. All ranks give the same.
#[derive(Clone, Debug)]
pub struct CommunicatorConfig {
    /// The nodes, in rank order.
    pub ranks: Vec<NodeId>,
    /// The name under which the ranks meet, used by no other communicator of theirs.
    pub tag: GroupTag,
    /// How many operations may be under way at a time: a power of two.
    pub lanes: usize,
    /// How many messages may be on the way from one rank to another in a lane: a power of two.
    pub slots: usize,
    /// The longest message, in bytes: a multiple of 8. Longer vectors go in several.
    pub slot_bytes: usize,
    /// Whether all reductions of a vector combine by one tree, so that floats give the same bits whatever the
    /// algorithm.
    pub reproducible: bool,
    /// A rank that has closed its connection without [closing](crate::Communicator::close) its communicator counts as
    /// failed after this time: within it another may name the rank whose failure made it leave.
    pub grace: Duration,
    /// The number of messages that counters begin with, for tests of how they wrap.
    #[doc(hidden)]
    pub first_message: u64,
}

impl CommunicatorConfig {
    /// Four operations at a time, eight slots of 8 KiB for each pair of ranks and operation: registered memory of
    /// 512 KiB for each other rank.
    pub fn new(ranks: Vec<NodeId>, tag: GroupTag) -> CommunicatorConfig {
        CommunicatorConfig {
            ranks,
            tag,
            lanes: 4,
            slots: 8,
            slot_bytes: 8 << 10,
            reproducible: false,
            grace: Duration::from_millis(100),
            first_message: 0,
        }
    }

    pub(crate) fn layout(&self) -> Result<Layout, CreateError> {
        let &CommunicatorConfig { lanes, slots, slot_bytes, .. } = self;
        let counts = [lanes, slots].iter().all(|count| count.is_power_of_two() && *count <= 1024);
        if !counts || slot_bytes == 0 || !slot_bytes.is_multiple_of(8) || slot_bytes > 16 << 20 {
            return Err(CreateError::Sizes { lanes, slots, slot_bytes });
        }
        Ok(Layout { ranks: self.ranks.len(), lanes, slots, slot_bytes })
    }
}
