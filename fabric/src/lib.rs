//! The RDMA contract that every other layer of Squall is written against, and its backends.
//!
//! A [`Fabric`] is one process's attachment to an RDMA-capable network, real or emulated. Names follow the verbs:
//! memory is registered as a [`Region`], and an [`EndpointId`] names one side of a reliable connection to a peer (a
//! queue pair). Work is an [`Op`] that is posted, and its outcome comes back as a [`Completion`].
//!
//! # How data flows
//!
//! 1. A layer registers regions, and [connects](Fabric::connect) an endpoint to a peer under a [`GroupTag`] that both
//!    sides derive alike. With it goes the list of regions that the peer may reach through this endpoint, and no
//!    others.
//! 2. [`Completion::Connected`] brings the peer's list: one [`RemoteRegion`] for each region that the peer exposed.
//! 3. Writes then go straight into the peer's memory, and the peer notices them by reading it. Sends land in posted
//!    receives.
//!
//! # What upper layers may rely on
//!
//! Every backend gives these guarantees, and nothing more. The conformance suite (`tests/conformance`) checks each,
//! with the same code.
//!
//! - **G1 order.** On one endpoint, operations take effect at the target in posting order: a reader (acquire) that sees
//!   any byte of write B sees all of an earlier write A. A receive completion implies that all writes posted before
//!   that send are visible. Nothing is promised *within* one write, nor across endpoints. A read sees earlier writes of
//!   its endpoint, and may see later ones.
//! - **G2 words.** In [`Polled`](RegionKind::Polled) regions an aligned 8-byte word is never torn, and a word posted
//!   [inline](Source::Inline) has the value that the poster captured when it posted.
//! - **G3 arrival.** Sends and writes with immediate need a posted receive. Protocols know of one before they send, and
//!   a breach breaks the endpoint. A receive is in force when its post returns, and an endpoint has room for at least
//!   [`MIN_RECV_DEPTH`] of them. A receive completion is reported once, after all its bytes are in place. Receives
//!   posted between [`Fabric::connect`] and the next [`Fabric::poll`] are in place before the peer sees `Connected`.
//! - **G4 local completion.** Success means that the local buffer may be reused; it says nothing about the target.
//!   Writes, reads and sends of one endpoint are reported in posting order, so a success vouches for the unsignaled
//!   work before it. A failed operation may still have taken effect.
//! - **G5 breakage.** An endpoint breaks at most once. Both living sides learn of it: without delay where the peer's
//!   process died and this host's kernel says so, else within the failure timeout. Outstanding signaled work is flushed
//!   as failed before [`Completion::Broken`]; nothing is reported and nothing arrives after. A failed post is an error
//!   value, never a panic. A peer that is merely stopped breaks nothing where a NIC or shared memory acts for it: upper
//!   layers have heartbeats.
//! - **G6 fencing.** Endpoints and regions of one group never reach those of another. Once an endpoint is broken or
//!   disconnected, a late write of its peer can't reach memory that a later group uses, nor memory that the application
//!   was given. Of the work that this side had posted, the peer is told with the bytes that its buffers had by then, or
//!   not at all.
//! - **G7 bounds.** A write or read outside the region or with a key that the endpoint was not given, and a write of a
//!   [lent](RegionKind::Lent) region, harm nothing at the target: they break the endpoint with a reason.
//!
//! Bytes from a [`Source::Region`] are fetched at any time between the post and its local completion: a caller that
//! needs a value as of now posts it inline.

mod bytes;
mod check;
mod completion;
mod control;
mod endpoints;
mod error;
mod fingerprint;
pub mod graph;
#[cfg(feature = "sim")]
pub mod hostile;
mod ids;
pub mod local_name;
mod mapping;
pub mod mixed;
mod mixed_part;
pub mod name;
pub mod net;
mod op;
pub mod random;
mod recvs;
mod region;
#[cfg(test)]
mod seeds;
pub mod share;
pub mod shm;
#[cfg(feature = "sim")]
pub mod sim;
pub mod sync;
pub mod tcp;
mod time;
#[cfg(feature = "verbs")]
pub mod verbs;
mod wait;
mod wire;

pub use completion::{BreakReason, Completion, Flushed, GraphFailure};
pub use error::{PostError, RegisterError};
pub use fingerprint::Fingerprint;
pub use graph::{GraphError, WorkGraph};
pub use ids::{EndpointId, GroupTag, NodeId, NodeList, Token};
pub use op::{INLINE_BYTES, Op, Slice, Source, Target};
pub use region::{Region, RegionKey, RegionKind, RemoteRegion, Window, read_words, write_words};
pub use time::Time;
pub use wait::{Wait, Waker};

/// The largest private data that travels with a [`Fabric::connect`], in bytes (that of an rdma_cm connection on RoCE
/// is larger; of an InfiniBand one, 56 without its headers).
pub const HELLO_BYTES: usize = 48;

/// The number of receives that an endpoint has room for at least, on every backend and from [`Fabric::connect`] on
/// (G3).
pub const MIN_RECV_DEPTH: usize = 4;

/// One process's attachment to a network that carries one-sided writes and reads, sends and receives.
///
/// # To ensure correctness
///
/// An implementor keeps G1–G7 of the [crate's page](crate), passes the conformance suite, never blocks in any of these
/// methods, and bounds what it queues by its depth: a post beyond it is [`PostError::Full`], never dropped.
///
/// # Safety
///
/// Layers above make slices of bulk memory that is not exposed and in which no posted work lies. So `register` returns
/// memory that nothing else has. Once a receive or read is complete, or its endpoint broke or was closed, no byte of it
/// is placed any more, and the source of a send or write is not read any more (G3, G4, G6).
pub unsafe trait Fabric {
    /// The id of the node that this attachment belongs to.
    fn node(&self) -> NodeId;

    /// Registers `bytes` of zeroed memory, aligned to 64 bytes, and gives it a random key.
    ///
    /// The memory lives as long as any clone of the region does, or an endpoint that exposes it.
    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError>;

    /// Starts to connect an endpoint to `peer`, and lets the peer reach `expose` through it.
    ///
    /// The two sides meet when both have called this with the other's id and the same `tag`; until then the fabric
    /// keeps trying. Then both get [`Completion::Connected`] with the other's exposed regions, in the order that they
    /// were listed, and its `hello` (at most [`HELLO_BYTES`]; longer is cut). Nothing is sent before the next
    /// [`poll`](Fabric::poll), so receives posted until then precede whatever the peer sends.
    ///
    /// A tag names one connection: connecting the same peer and tag again, while the first endpoint is alive, breaks
    /// the new endpoint. So does connecting a node to itself.
    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId;

    /// Closes an endpoint. Nothing more is reported of it here; the peer sees it break with
    /// [`BreakReason::PeerClosed`]. Posted work may or may not take effect.
    fn disconnect(&mut self, on: EndpointId);

    /// Posts work to an endpoint's queue. It is handed to the network at the next [`poll`](Fabric::poll) at the latest.
    ///
    /// Receives may be posted from `connect` on, everything else from [`Completion::Connected`] on. A post that carries
    /// [`Token::UNSIGNALED`] is not reported, whether it succeeds or is flushed; receives are always reported.
    ///
    /// Tokens from [`Token::RESERVED`] up are the fabric's.
    ///
    /// After [`PostError::Full`], a later poll reports [`Completion::Room`] once when posts are possible again.
    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError>;

    /// Posts a graph of requests, which the fabric carries out on its own; `token` (not reserved, nor
    /// [`Token::UNSIGNALED`]) comes back with [`Completion::GraphDone`]. See [`graph`] for what holds of it.
    ///
    /// The graph's memory belongs to the fabric until then. A graph that is refused has taken no effect. A fabric that
    /// runs no graphs refuses all.
    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        let _ = (graph, token);
        Err(GraphError::Unsupported)
    }

    /// Hands posted work to the network, and appends what happened to `out`, without blocking.
    ///
    /// Bytes that a peer wrote into polled memory are not reported: a layer that waits for them reads the memory after
    /// each poll.
    fn poll(&mut self, now: Time, out: &mut Vec<Completion>);
}
