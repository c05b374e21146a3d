//! One message to a group by work graphs.

use std::collections::BTreeMap;

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, GraphError, GraphFailure, GroupTag, NodeId, Token};

use super::{GraphLink, compile};
use crate::{
    buffer::Buffer,
    config::{CreateError, GroupConfig},
    schedule::{Rank, Schedule},
};

/// The layers' numbers in a [`GroupTag`], beside those of groups: of the endpoints that carry blocks, and of those on
/// which receivers announce that they are ready.
const BLOCKS: u32 = 6;
const READY: u32 = 7;

/// The reason why a transfer could not begin here. It has no endpoints then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// The configuration is not possible.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The message does not fit its memory, or can't be cut into blocks.
    #[error(
        "a message of {len} bytes can't be moved in memory of {capacity} bytes and blocks of {block_bytes}: it may have \
         at most 2^32 - 1 blocks"
    )]
    Message {
        /// The message's length in bytes.
        len: usize,
        /// The size of the memory for it, in bytes.
        capacity: usize,
        /// The size of a block, in bytes.
        block_bytes: usize,
    },
    /// The fabric refused the graph.
    #[error("the transfer's graph was refused: {0}")]
    Graph(#[from] GraphError),
}

/// A transfer's progress or end.
#[derive(Debug)]
pub enum TransferEvent {
    /// The connection of this node to all its peers.
    Connected,
    /// The end of this node's part: the whole message is here, and this node's sends are complete locally (G4). Nothing
    /// uses its memory any more. Other members may still wait for blocks that are on their way from here.
    Done(Buffer),
    /// The failure of the transfer. Nothing lands any more: its connections are closed.
    Failed(TransferFailure),
}

/// The reason why a transfer failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferFailure {
    /// A member was lost.
    #[error("{0} was lost: {1}")]
    Peer(NodeId, BreakReason),
    /// A member has another configuration, or expects another length.
    #[error("{0} has another configuration, or expects a message of another length")]
    Differs(NodeId),
    /// The fabric gave the graph up.
    #[error(transparent)]
    Graph(GraphFailure),
}

/// One node's part of one message, whose length all members know.
///
/// It has connections of its own, for this message only. A receiver is ready from [`connect`](GraphTransfer::connect)
/// on; the root starts the message with [`send`](GraphTransfer::send). A member [leaves](GraphTransfer::disconnect)
/// when it knows that all are done, which a transfer does not tell it. One that leaves before may take blocks with it
/// that are on their way.
#[derive(Debug)]
pub struct GraphTransfer {
    config: GroupConfig,
    schedule: Schedule,
    buffer: Option<Buffer>,
    len: usize,
    token: Token,
    links: BTreeMap<Rank, GraphLink>,
    endpoints: BTreeMap<EndpointId, Rank>,
    connected: usize,
}

impl GraphTransfer {
    /// Connects to the members that this node exchanges blocks with; at a receiver, posts the graph.
    ///
    /// The first `len` bytes of `buffer` are the message, or take it. `config` and `len` are alike at all members. The
    /// fabric knows the graph by `token`, which no other graph of this node has.
    ///
    /// Fails if the configuration is not possible, if the message does not fit the buffer or has too many blocks, or if
    /// the fabric refuses the graph.
    pub fn connect(
        fabric: &mut impl Fabric,
        config: GroupConfig,
        buffer: Buffer,
        len: usize,
        token: Token,
    ) -> Result<GraphTransfer, TransferError> {
        let schedule = config.check(fabric.node())?;
        let (capacity, block_bytes) = (buffer.capacity(), config.block_bytes);
        if len > capacity || config.blocks(len).is_none() {
            return Err(TransferError::Message { len, capacity, block_bytes });
        }
        let hello = config.hello(len as u64);
        let mut connect = |peer: Rank, layer: u32| {
            let tag = GroupTag { layer, group: config.id.group, epoch: config.id.instance };
            fabric.connect(config.members[peer.index()], tag, &[], &hello)
        };
        let link = |peer| (peer, GraphLink { blocks: connect(peer, BLOCKS), ready: connect(peer, READY) });
        let links: BTreeMap<Rank, GraphLink> = schedule.peers().into_iter().map(link).collect();
        let endpoints = links.iter().flat_map(|(peer, link)| [(link.blocks, *peer), (link.ready, *peer)]).collect();
        let buffer = Some(buffer);
        let mut transfer = GraphTransfer { config, schedule, buffer, len, token, links, endpoints, connected: 0 };
        if !transfer.is_root()
            && let Err(error) = transfer.post(fabric)
        {
            transfer.disconnect(fabric);
            return Err(error);
        }
        Ok(transfer)
    }

    /// Starts the message, once, at the root; elsewhere, and after the end, it does nothing. The fabric does the rest,
    /// as members are connected. Fails if the fabric refuses the graph.
    pub fn send(&mut self, fabric: &mut impl Fabric) -> Result<(), TransferError> {
        if self.is_root() { self.post(fabric) } else { Ok(()) }
    }

    fn is_root(&self) -> bool {
        self.schedule.rank() == Rank::ROOT
    }

    fn post(&mut self, fabric: &mut impl Fabric) -> Result<(), TransferError> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let graph = compile(&self.schedule, buffer.slice(0, self.len), &self.config, |peer| self.links[&peer])?;
        Ok(fabric.post_graph(graph, self.token)?)
    }

    /// Takes note of a completion, if it is this transfer's.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion) -> Option<TransferEvent> {
        if let Completion::GraphDone { token, result } = completion {
            return match result {
                _ if *token != self.token => None,
                Ok(()) => self.buffer.take().map(TransferEvent::Done),
                // The endpoint's `Broken` follows, and says why.
                Err(GraphFailure::Endpoint(_)) => None,
                Err(failure) => self.fail(fabric, TransferFailure::Graph(*failure)),
            };
        }
        let rank = *self.endpoints.get(&completion.endpoint()?)?;
        let peer = self.config.members[rank.index()];
        match completion {
            Completion::Connected { hello, .. } if *hello != self.config.hello(self.len as u64) => {
                self.fail(fabric, TransferFailure::Differs(peer))
            }
            Completion::Connected { .. } => {
                self.connected += 1;
                (self.connected == self.endpoints.len()).then_some(TransferEvent::Connected)
            }
            Completion::Broken { reason, .. } => self.fail(fabric, TransferFailure::Peer(peer, reason.clone())),
            _ => None,
        }
    }

    /// Ends the transfer as failed, unless it has ended.
    fn fail(&mut self, fabric: &mut impl Fabric, failure: TransferFailure) -> Option<TransferEvent> {
        let unfinished = self.buffer.is_some();
        if unfinished {
            self.disconnect(fabric);
        }
        unfinished.then_some(TransferEvent::Failed(failure))
    }

    /// Closes this node's connections: nothing lands any more.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        for endpoint in std::mem::take(&mut self.endpoints).into_keys() {
            fabric.disconnect(endpoint);
        }
        self.buffer = None;
    }
}
