//! The reports of a fabric.

use crate::{
    ids::{EndpointId, NodeId, Token},
    region::RemoteRegion,
};

/// Something that happened, on an endpoint or to a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completion {
    /// The connection, since both sides have called [`connect`](crate::Fabric::connect): the peer's memory can be
    /// reached. This is an endpoint's first completion, unless it breaks before; the peer's writes may have landed
    /// already.
    Connected {
        /// The endpoint.
        endpoint: EndpointId,
        /// The regions that the peer exposed, in its order.
        remote: Vec<RemoteRegion>,
        /// The peer's private data.
        hello: Vec<u8>,
    },
    /// The local completion (G4) of a signaled write, read or send, or the flush of a receive.
    Done {
        /// The endpoint.
        endpoint: EndpointId,
        /// The post's token.
        token: Token,
        /// Whether it succeeded.
        result: Result<(), Flushed>,
    },
    /// The arrival of a send, or of a write with immediate. It has consumed a posted receive, and its bytes are in
    /// place.
    Received {
        /// The endpoint.
        endpoint: EndpointId,
        /// The receive's token.
        token: Token,
        /// The number of bytes that came into the buffer (none for a write with immediate).
        bytes: usize,
        /// The immediate, if the sender gave one.
        imm: Option<u32>,
    },
    /// An endpoint that was [`Full`](crate::PostError::Full) takes posts again.
    Room {
        /// The endpoint.
        endpoint: EndpointId,
    },
    /// The end of a [work graph](crate::graph). Each posted graph is reported exactly once.
    GraphDone {
        /// The graph's token.
        token: Token,
        /// Whether all its requests are complete.
        result: Result<(), GraphFailure>,
    },
    /// The end of the endpoint. This is an endpoint's last completion.
    Broken {
        /// The endpoint.
        endpoint: EndpointId,
        /// The peer that it led to.
        peer: NodeId,
        /// The reason.
        reason: BreakReason,
    },
}

impl Completion {
    /// The endpoint that it happened on; none for a graph.
    pub fn endpoint(&self) -> Option<EndpointId> {
        match self {
            Completion::Connected { endpoint, .. }
            | Completion::Done { endpoint, .. }
            | Completion::Received { endpoint, .. }
            | Completion::Room { endpoint }
            | Completion::Broken { endpoint, .. } => Some(*endpoint),
            Completion::GraphDone { .. } => None,
        }
    }
}

/// The work was outstanding when its endpoint broke; it may still have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("flushed: the endpoint broke while this was outstanding")]
pub struct Flushed;

/// The reason for which a graph will never be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphFailure {
    /// An endpoint of its requests broke, or was closed.
    #[error("an endpoint of the graph broke or was closed")]
    Endpoint(EndpointId),
    /// A receive took a message of another length than its own.
    #[error("a receive of {wanted} bytes took a message of {bytes} bytes: the two sides' graphs differ")]
    Length {
        /// The receive's endpoint.
        endpoint: EndpointId,
        /// The message's length.
        bytes: usize,
        /// The receive's length.
        wanted: usize,
    },
}

/// The reason for which an endpoint broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BreakReason {
    /// The end of the peer's process; the kernel vouches for it.
    #[error("its process is gone")]
    ProcessGone,
    /// A close by the peer, of its side.
    #[error("it closed the connection")]
    PeerClosed,
    /// The silence of a peer for the failure timeout.
    #[error("it could not be reached for the failure timeout")]
    Unreachable,
    /// The end of the connection without a word, by the peer's host or something on the way. The peer may live.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// The peer's decision to give this node up, after it had heard nothing of it for the failure timeout.
    #[error("it gave this node up, after it had heard nothing of it for the failure timeout")]
    GivenUp,
    /// An operation with a key that the endpoint was not given, or outside its region; or a write of a lent one.
    #[error("an operation had a wrong key, lay outside its region, or wrote a lent one")]
    Access,
    /// A send, or a write with immediate, that found no posted receive, or too small a one.
    #[error("a message found no posted receive that could take it")]
    ReceiverNotReady,
    /// A tag that was in use already.
    #[error("a connection with the same tag exists already")]
    TagInUse,
    /// A difference with which the two sides can't work together; the sentence says which (protocol version, cluster
    /// name).
    #[error("refused: {0}")]
    Refused(String),
    /// A failure of the fabric itself; the sentence says in which way.
    #[error("the fabric failed: {0}")]
    Failed(String),
}
