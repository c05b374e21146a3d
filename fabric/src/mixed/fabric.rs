//! The routes, and what goes which way.

use std::{collections::BTreeMap, fmt};

use crate::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, PostError, Region, RegionKind, RegisterError,
    Time, Token, WorkGraph,
    endpoints::{Endpoints, Identified, space_of},
    graph::{Executor, GraphError},
    part::Part,
    shm::ShmFabric,
};

/// How a peer is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transport {
    /// Shared memory: its process is one of this user on this host.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA verbs.
    #[cfg(feature = "verbs")]
    Verbs,
}

impl Transport {
    /// The fabric's number in the ids of its endpoints.
    pub(crate) const fn space(self) -> u8 {
        match self {
            Transport::Shm => 0,
            Transport::Tcp => 1,
            #[cfg(feature = "verbs")]
            Transport::Verbs => 2,
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Transport::Shm => "shared memory",
            Transport::Tcp => "TCP",
            #[cfg(feature = "verbs")]
            Transport::Verbs => "RDMA verbs",
        })
    }
}

/// How many fabrics there may be.
const PARTS: usize = 3;

/// What stands in the ids of endpoints without a fabric.
const NO_FABRIC: u8 = 7;

/// A [`Fabric`] made of others. See the [module](super).
///
/// At least one must have been added before it is used; the first in the order of [`Transport`] registers memory, which the others use by its address.
pub struct MixedFabric {
    node: NodeId,
    pub(super) parts: Parts,
    routes: BTreeMap<NodeId, Transport>,
    otherwise: Transport,
    /// Endpoints to peers whose fabric is not there, for the next poll to report.
    stillborn: Endpoints<Stillborn>,
    pub(super) graphs: Executor,
}

/// The fabrics there are, by their numbers.
pub(super) struct Parts([Option<Box<dyn Part>>; PARTS]);

impl Parts {
    /// The fabric that an endpoint belongs to.
    #[inline]
    pub(super) fn of(&mut self, endpoint: EndpointId) -> Option<&mut (dyn Part + 'static)> {
        self.0.get_mut(usize::from(space_of(endpoint)))?.as_deref_mut()
    }

    fn get_mut(&mut self, transport: Transport) -> Option<&mut (dyn Part + 'static)> {
        self.0[usize::from(transport.space())].as_deref_mut()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &(dyn Part + 'static)> {
        self.0.iter().flatten().map(|part| &**part)
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut (dyn Part + 'static)> {
        self.0.iter_mut().flatten().map(|part| &mut **part)
    }
}

struct Stillborn {
    id: EndpointId,
    peer: NodeId,
    reason: BreakReason,
}

impl Identified for Stillborn {
    fn id(&self) -> EndpointId {
        self.id
    }
}

impl MixedFabric {
    /// A node without a fabric yet, which reaches peers `otherwise` unless there is a [route](MixedFabric::route).
    pub fn new(node: NodeId, otherwise: Transport) -> MixedFabric {
        MixedFabric {
            node,
            parts: Parts([const { None }; PARTS]),
            routes: BTreeMap::new(),
            otherwise,
            stillborn: Endpoints::new(NO_FABRIC),
            graphs: Executor::default(),
        }
    }

    /// Adds shared memory.
    pub fn with_shm(self, fabric: ShmFabric) -> MixedFabric {
        self.with(Transport::Shm, Box::new(fabric))
    }

    /// Adds RDMA verbs.
    #[cfg(feature = "verbs")]
    pub fn with_verbs(self, fabric: crate::verbs::VerbsFabric) -> MixedFabric {
        self.with(Transport::Verbs, Box::new(fabric))
    }

    fn with(mut self, transport: Transport, part: Box<dyn Part>) -> MixedFabric {
        assert_eq!(part.node(), self.node, "the fabrics of one node have its id");
        self.parts.0[usize::from(transport.space())] = Some(part);
        self
    }

    /// From now on, endpoints to `peer` are connected this way. Both nodes must say the same.
    pub fn route(&mut self, peer: NodeId, transport: Transport) {
        self.routes.insert(peer, transport);
    }
}

impl Fabric for MixedFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        match self.parts.all_mut().next() {
            Some(part) => part.register(kind, bytes),
            None => Err(RegisterError::System { bytes, cause: "the node has no fabric yet".to_owned() }),
        }
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let transport = *self.routes.get(&peer).unwrap_or(&self.otherwise);
        if let Some(part) = self.parts.get_mut(transport) {
            return part.connect(peer, tag, expose, hello);
        }
        let id = self.stillborn.reserve();
        let reason = BreakReason::Failed(format!("it is to be reached by {transport}, which this node does not use"));
        self.stillborn.put(Stillborn { id, peer, reason });
        id
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.graphs.endpoint_gone(on);
        match self.parts.of(on) {
            Some(part) => part.disconnect(on),
            None => drop(self.stillborn.remove(on)),
        }
    }

    #[inline]
    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        match self.parts.of(on) {
            Some(part) => part.post(on, op, token),
            None if token.is_reserved() => Err(PostError::ReservedToken { token: token.0 }),
            None if self.stillborn.get_mut(on).is_some() => Err(PostError::NotConnected),
            None => Err(PostError::Broken),
        }
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        self.graphs.begin(&mut self.parts, graph, token)
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        let before = out.len();
        for id in self.stillborn.ids() {
            if let Some(Stillborn { id, peer, reason }) = self.stillborn.remove(id) {
                out.push(Completion::Broken { endpoint: id, peer, reason });
            }
        }
        self.parts.all_mut().for_each(|part| part.poll(now, out));
        if !self.graphs.is_idle() {
            self.graphs.go_on(&mut self.parts, before, out);
        }
    }
}

impl fmt::Debug for MixedFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MixedFabric").field("node", &self.node).field("routes", &self.routes).finish_non_exhaustive()
    }
}
