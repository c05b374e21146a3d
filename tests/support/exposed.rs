//! A fabric that notes which memory is exposed to which node for writing.

use squall_fabric::{
    Completion, EndpointId, Fabric, GraphError, GroupTag, NodeId, Op, PostError, Region, RegionKey, RegionKind,
    RegisterError, Time, Token, WorkGraph,
};

pub(crate) struct Exposed<F> {
    inner: F,
    /// The regions that nodes may write.
    given: Vec<(NodeId, RegionKey)>,
}

impl<F: Fabric> Exposed<F> {
    pub(crate) fn new(inner: F) -> Exposed<F> {
        Exposed { inner, given: Vec::new() }
    }

    /// The number of regions that more than one node may write, after a check that each of `nodes` may write some.
    #[track_caller]
    pub(crate) fn shared(&self, nodes: &[NodeId]) -> usize {
        for node in nodes {
            assert!(self.given.iter().any(|(to, _)| to == node), "{node} may write nothing");
        }
        let mut given = self.given.clone();
        given.sort_unstable_by_key(|&(node, key)| (key, node));
        given.dedup();
        given.chunk_by(|a, b| a.1 == b.1).filter(|nodes| nodes.len() > 1).count()
    }
}

// SAFETY: the memory that it registers is the inner fabric's.
unsafe impl<F: Fabric> Fabric for Exposed<F> {
    fn node(&self) -> NodeId {
        self.inner.node()
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        self.inner.register(kind, bytes)
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let writable = expose.iter().filter(|region| region.kind() != RegionKind::Lent);
        self.given.extend(writable.map(|region| (peer, region.key())));
        self.inner.connect(peer, tag, expose, hello)
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.inner.disconnect(on);
    }

    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        self.inner.post(on, op, token)
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        self.inner.post_graph(graph, token)
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        self.inner.poll(now, out);
    }
}
