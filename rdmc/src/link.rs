//! A member's records of each peer that it exchanges blocks with.

use std::collections::VecDeque;

use squall_fabric::{EndpointId, RegionKey};

use crate::schedule::Rank;

/// The connection to one peer that carries blocks.
#[derive(Debug)]
pub(crate) struct BlockLink {
    pub(crate) rank: Rank,
    /// The endpoint that carries blocks.
    pub(crate) blocks: EndpointId,
    /// The endpoint that carries `ready_for_block`, which must not wait behind a block (G1).
    pub(crate) ready: EndpointId,
    /// Whether blocks can be sent.
    pub(crate) blocks_are_up: bool,
    /// The peer's control memory, once it can be told of receives.
    pub(crate) control: Option<RegionKey>,
    /// Sends posted since the group began.
    pub(crate) sent: u64,
    /// The number of receives posted since the group began, and of those that the peer was told of.
    pub(crate) posted: u64,
    pub(crate) published: u64,
    /// The purposes of posted receives, oldest first.
    pub(crate) awaiting: VecDeque<Awaited>,
    /// The message and lane of each send that is outstanding, oldest first.
    pub(crate) sending: VecDeque<(u64, usize)>,
    /// The last search in which nothing more could be sent to this peer.
    pub(crate) passed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Awaited {
    /// The first block of the next message.
    First,
    Block {
        message: u64,
        block: u32,
    },
}

impl BlockLink {
    pub(crate) fn new(rank: Rank, blocks: EndpointId, ready: EndpointId) -> BlockLink {
        BlockLink {
            rank,
            blocks,
            ready,
            blocks_are_up: false,
            control: None,
            sent: 0,
            posted: 0,
            published: 0,
            awaiting: VecDeque::new(),
            sending: VecDeque::new(),
            passed: 0,
        }
    }

    pub(crate) fn endpoints(&self) -> [EndpointId; 2] {
        [self.blocks, self.ready]
    }

    pub(crate) fn is_up(&self) -> bool {
        self.blocks_are_up && self.control.is_some()
    }
}

/// Links are in order of ranks, and the step source names no others.
pub(crate) fn link_to(links: &[BlockLink], rank: Rank) -> usize {
    links.binary_search_by_key(&rank, |link| link.rank).expect("a peer of the schedule has a link")
}
