//! Work graphs: requests that wait for one another in the fabric, not in the process.
//!
//! A relay that hands on what it receives need not run for it. It posts the receive, and a send that waits for that
//! receive, and the NIC does the rest (CORE-Direct's cross-channel wait; RDMC, DSN 2018, §2 and §5.2.3). A
//! [`WorkGraph`] is a list of such requests. Each may wait for requests before it in the list, so there are no cycles.
//!
//! # What holds of a graph
//!
//! - A request is handed over once all that it waits for is complete, and the graph's earlier requests of the same
//!   queue (an endpoint's sends and writes, or its receives) were handed over: a queue keeps the order of the list.
//! - Receives that wait for nothing are in place when [`Fabric::post_graph`](crate::Fabric::post_graph) returns, if no
//!   other receive precedes them. That may be before the endpoint is connected: a graph that is posted between
//!   [`connect`](crate::Fabric::connect) and the next poll is ready for whatever the peer sends (G3). Sends and writes
//!   wait for the connection, and for room in the queue.
//! - A send or write is complete locally (G4), a receive once all its bytes are in place (G3). A receive takes a
//!   message of exactly its length.
//! - Work that was posted to an endpoint before the graph goes ahead of it. Work that is posted while the graph runs
//!   may go ahead of requests that still wait, or behind them; so may another graph's. The process and its graphs take
//!   no turns at a queue: after [`Room`](crate::Completion::Room), a graph may have filled it again before the process
//!   posts.
//! - None of its requests is reported. The whole is reported once, as
//!   [`Completion::GraphDone`](crate::Completion::GraphDone): when the last request is complete, or as soon as one
//!   can't be any more. The latter is so when its endpoint was closed, or broke; the report precedes
//!   [`Broken`](crate::Completion::Broken).
//! - Nothing more of a failed graph is handed over. Requests that were handed over stay in force: before the graph's
//!   memory is used again, its endpoints are to be closed.
//! - A NIC carries the graph out whatever its process does; a software engine does within
//!   [`poll`](crate::Fabric::poll), without a call to the layer above.

mod executor;
mod host;

use std::sync::Arc;

pub(crate) use executor::{Executor, Next};
pub(crate) use host::Host;

use crate::{
    error::PostError,
    ids::EndpointId,
    op::{Op, Slice, Source, Target},
    region::Region,
};

/// The place of a request in its [`WorkGraph`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u32);

/// Requests that wait for one another. See the [module](self).
///
/// ```
/// # use squall_fabric::{EndpointId, GraphError, Op, Region, Slice, Source, graph::WorkGraph};
/// /// Hands one block on.
/// fn relay(from: EndpointId, to: EndpointId, block: Slice<'_>) -> Result<WorkGraph, GraphError> {
///     let mut graph = WorkGraph::new();
///     let received = graph.add(from, Op::Recv { into: block }, &[])?;
///     graph.add(to, Op::Send { source: Source::Region(block), imm: None }, &[received])?;
///     Ok(graph)
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct WorkGraph {
    requests: Vec<Request>,
    /// The indices of the requests that each request waits for, one request's after the other's.
    after: Vec<u32>,
}

/// A piece of work, and the requests that must be complete before it is handed over.
#[derive(Clone, Debug)]
struct Request {
    endpoint: EndpointId,
    work: Work,
    /// The end of its dependencies in `WorkGraph::after`; they begin where the previous request's end.
    after_end: usize,
}

/// An [`Op`] that owns what it names.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    Send { source: Bytes, imm: Option<u32> },
    Write { bytes: Arc<[u8]>, target: Target },
    Recv { into: OwnedSlice },
}

/// A [`Source`] that owns what it names.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    Region(OwnedSlice),
    Inline(Arc<[u8]>),
}

/// A [`Slice`] that owns what it names.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSlice {
    pub(crate) region: Region,
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The two queues of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Queue {
    /// The first variant, so that receives go first where both may go.
    Recv,
    Send,
}

/// The reason for which a graph was not built, or not posted. Nothing of it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A request can wait for earlier ones of its graph only.
    #[error("request {request} can't wait for request {after}: only for one that was added to this graph before it")]
    Dependency {
        /// The request's index.
        request: usize,
        /// The index that it was to wait for.
        after: usize,
    },
    /// A graph takes only sends, receives, and writes of inline words.
    #[error("request {request} can't be part of a graph: only sends, receives and inline writes of whole words can")]
    Operation {
        /// The request's index.
        request: usize,
    },
    /// A request can't be posted.
    #[error("request {request} of the graph can't be posted: {cause}")]
    Request {
        /// The request's index.
        request: usize,
        /// The request's fault.
        cause: PostError,
    },
    /// Receives that wait for nothing are posted at once, and the endpoint's queue lacks room for them.
    #[error(
        "the graph posts {receives} receives at once on an endpoint that takes {room} more: send fewer, longer messages, \
         or let later receives wait for earlier ones"
    )]
    Receives {
        /// The number of receives that the graph posts at once.
        receives: usize,
        /// The number that the endpoint's queue takes.
        room: usize,
    },
    /// The token is one of the fabric's own.
    #[error("a graph can't be posted with the token {0:#x}: tokens from 2^63 up are the fabric's, take a lower one")]
    Token(u64),
    /// A fabric that runs no graphs.
    #[error("this fabric runs no work graphs: post their requests one by one as their dependencies complete")]
    Unsupported,
}

impl WorkGraph {
    /// A graph without requests, which is done at once.
    pub fn new() -> WorkGraph {
        WorkGraph::default()
    }

    /// Adds a request that waits for the requests in `after`.
    ///
    /// It is a send, a receive, or a write of whole inline words (a multiple of 8 bytes, offset likewise). Inline bytes
    /// are captured now; a region's are fetched once the request is handed over.
    ///
    /// Fails if the request is none of these, or waits for a request that is not in the graph.
    pub fn add(&mut self, endpoint: EndpointId, op: Op<'_>, after: &[RequestId]) -> Result<RequestId, GraphError> {
        let request = self.requests.len();
        let id = u32::try_from(request).map_err(|_| GraphError::Operation { request })?;
        if let Some(unknown) = after.iter().find(|after| after.0 >= id) {
            return Err(GraphError::Dependency { request, after: unknown.0 as usize });
        }
        let work = Work::of(op).ok_or(GraphError::Operation { request })?;
        self.after.extend(after.iter().map(|after| after.0));
        self.requests.push(Request { endpoint, work, after_end: self.after.len() });
        Ok(RequestId(id))
    }

    /// The number of requests.
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// The requests that a request waits for.
    fn after(&self, request: usize) -> &[u32] {
        let begin = request.checked_sub(1).map_or(0, |before| self.requests[before].after_end);
        &self.after[begin..self.requests[request].after_end]
    }

    /// Calls a backend's check for each request before any is posted.
    pub(crate) fn check(
        &self,
        mut check: impl FnMut(EndpointId, Op<'_>) -> Result<(), PostError>,
    ) -> Result<(), GraphError> {
        self.requests.iter().enumerate().try_for_each(|(request, Request { endpoint, work, .. })| {
            check(*endpoint, work.op()).map_err(|cause| GraphError::Request { request, cause })
        })
    }

    /// The same requests, none of which waits: for showing that a check bites.
    #[cfg(feature = "sim")]
    pub(crate) fn without_dependencies(mut self) -> WorkGraph {
        self.after.clear();
        self.requests.iter_mut().for_each(|request| request.after_end = 0);
        self
    }
}

impl Work {
    fn of(op: Op<'_>) -> Option<Work> {
        Some(match op {
            Op::Send { source, imm } => Work::Send { source: Bytes::of(source), imm },
            Op::Recv { into } => Work::Recv { into: into.into() },
            Op::Write { source: Source::Inline(bytes), target }
                if bytes.len().is_multiple_of(8) && target.offset.is_multiple_of(8) =>
            {
                Work::Write { bytes: bytes.into(), target }
            }
            _ => return None,
        })
    }

    pub(crate) fn op(&self) -> Op<'_> {
        match self {
            Work::Send { source, imm } => Op::Send { source: source.source(), imm: *imm },
            Work::Write { bytes, target } => Op::Write { source: Source::Inline(bytes), target: *target },
            Work::Recv { into } => Op::Recv { into: into.slice() },
        }
    }

    fn queue(&self) -> Queue {
        match self {
            Work::Recv { .. } => Queue::Recv,
            Work::Send { .. } | Work::Write { .. } => Queue::Send,
        }
    }
}

impl Bytes {
    pub(crate) fn of(source: Source<'_>) -> Bytes {
        match source {
            Source::Region(slice) => Bytes::Region(slice.into()),
            Source::Inline(bytes) => Bytes::Inline(bytes.into()),
        }
    }

    pub(crate) fn source(&self) -> Source<'_> {
        match self {
            Bytes::Region(slice) => Source::Region(slice.slice()),
            Bytes::Inline(bytes) => Source::Inline(bytes),
        }
    }
}

impl From<Slice<'_>> for OwnedSlice {
    fn from(Slice { region, offset, len }: Slice<'_>) -> OwnedSlice {
        OwnedSlice { region: region.clone(), offset, len }
    }
}

impl OwnedSlice {
    pub(crate) fn slice(&self) -> Slice<'_> {
        Slice { region: &self.region, offset: self.offset, len: self.len }
    }
}
