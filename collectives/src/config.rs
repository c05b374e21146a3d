//! The configuration that all ranks of a communicator share.

use std::time::Duration;

use squall_fabric::{GroupTag, NodeId};
use squall_rdmc::block::{Medium, Network};

use crate::{CreateCommunicatorError, group_name::are_named, layout::MemoryLayout};

/// A communicator's configuration. All ranks give the same.
#[derive(Clone, Debug)]
pub struct CommunicatorConfig {
    /// The nodes, in rank order.
    pub ranks: Vec<NodeId>,
    /// The name under which the ranks meet, used by no other communicator of theirs: a layer below 256, a group below
    /// 2²⁴ and an epoch below 2⁴⁸. The names of the RDMC groups follow from it, one for each root, and collide with no
    /// other communicator's. Their instances are the numbers from 2⁶³ on, which the application's own groups must not
    /// have.
    pub tag: GroupTag,
    /// The number of operations that may be under way at a time: a power of two.
    pub lanes: usize,
    /// The number of messages that may be on the way from one rank to another in a lane: a power of two.
    pub slots: usize,
    /// The longest message, in bytes: a multiple of 8. Longer vectors go in several messages.
    pub slot_bytes: usize,
    /// Whether all reductions of a vector combine by one tree, so that floats give the same bits whatever the
    /// algorithm.
    pub reproducible: bool,
    /// The medium for the blocks of long broadcasts ([`Algorithm::Rdmc`](crate::Algorithm::Rdmc)), which decides their
    /// schedule. Racks, if they are given, are those of all ranks in their order.
    pub medium: Medium,
    /// The size of those blocks, in bytes; if none is given, the size that suits the first long vector of each root.
    pub block_bytes: Option<usize>,
    /// The time after which a rank that has closed its connection without [closing](crate::Communicator::close) its
    /// communicator counts as failed. Within it another rank may name the one whose failure made it leave.
    pub grace: Duration,
    /// The number of messages that counters begin with, for tests of their wrap-around.
    #[doc(hidden)]
    pub first_message: u64,
}

impl CommunicatorConfig {
    /// Four operations at a time, eight slots of 32 KiB for each pair of ranks and operation. This takes registered
    /// memory of 2 MiB for each other rank, and 2 MiB for lent blocks. Long broadcasts are made for RDMA cards with
    /// links of 100 Gb/s.
    pub fn new(ranks: Vec<NodeId>, tag: GroupTag) -> CommunicatorConfig {
        CommunicatorConfig {
            ranks,
            tag,
            lanes: 4,
            slots: 8,
            slot_bytes: 32 << 10,
            reproducible: false,
            medium: Medium::Network(Network::rdma(12_500_000_000)),
            block_bytes: None,
            grace: Duration::from_millis(100),
            first_message: 0,
        }
    }

    pub(crate) fn layout(&self) -> Result<MemoryLayout, CreateCommunicatorError> {
        let &CommunicatorConfig { lanes, slots, slot_bytes, .. } = self;
        let counts = [lanes, slots].iter().all(|count| count.is_power_of_two() && *count <= 1024);
        if !counts || slot_bytes == 0 || !slot_bytes.is_multiple_of(8) || slot_bytes > 16 << 20 {
            return Err(CreateCommunicatorError::Sizes { lanes, slots, slot_bytes });
        }
        if !are_named(self.tag, self.ranks.len()) {
            return Err(CreateCommunicatorError::Tag { tag: self.tag, ranks: self.ranks.len() });
        }
        Ok(MemoryLayout { ranks: self.ranks.len(), lanes, slots, slot_bytes })
    }
}
