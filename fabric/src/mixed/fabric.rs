//! The fabric made of others, and its routes.

use std::collections::BTreeMap;

use crossbeam::channel::Receiver;

use super::{
    choice::{Choice, News},
    held_endpoints::HeldEndpoints,
    router::{EndpointRouter, Fabrics},
    transport::Transport,
};
#[cfg(feature = "verbs")]
use crate::verbs::{VerbsConfig, VerbsError, VerbsFabric};
use crate::{
    BreakReason, Completion, EndpointId, Fabric, GraphError, GroupTag, NodeId, Op, PostError, Region, RegionKind,
    RegisterError, Time, Token, Wait, WorkGraph,
    graph::Executor,
    net::{PortMonitor, ServiceId, ServiceStream},
    shm::ShmFabric,
    tcp::TcpFabric,
};

/// A [`Fabric`] made of others. See the [module](super).
///
/// At least one must have been added before it is used. The first in the order of [`Transport`] registers memory, which
/// the others use by its address.
#[derive(derive_more::Debug)]
#[debug("MixedFabric {{ node: {node:?}, routes: {routes:?} }}")]
pub struct MixedFabric {
    node: NodeId,
    pub(super) router: EndpointRouter,
    routes: BTreeMap<NodeId, Transport>,
    otherwise: Transport,
    /// The choice between transports, where there is a network on which nodes can ask each other.
    choice: Option<Choice>,
    graphs: Executor,
}

impl MixedFabric {
    /// A node without a fabric yet, which reaches peers `otherwise` unless there is a [route](MixedFabric::route).
    pub fn new(node: NodeId, otherwise: Transport) -> MixedFabric {
        MixedFabric {
            node,
            router: EndpointRouter { fabrics: Fabrics::default(), held: HeldEndpoints::new(), unfinished: false },
            routes: BTreeMap::new(),
            otherwise,
            choice: None,
            graphs: Executor::default(),
        }
    }

    /// Adds shared memory, of the same node.
    pub fn with_shm(mut self, fabric: ShmFabric) -> MixedFabric {
        self.router.fabrics.shm = Some(fabric);
        self
    }

    /// Shared memory, if it was added.
    pub fn shm(&self) -> Option<&ShmFabric> {
        self.router.fabrics.shm.as_ref()
    }

    /// Shared memory, if it was added, for what no other fabric can do: [shares](ShmFabric::share).
    pub fn shm_mut(&mut self) -> Option<&mut ShmFabric> {
        self.router.fabrics.shm.as_mut()
    }

    /// Adds TCP, of the same node.
    pub fn with_tcp(mut self, fabric: TcpFabric) -> MixedFabric {
        self.choice = Some(Choice::new(self.node, fabric.net(), fabric.waker()));
        self.router.fabrics.tcp = Some(fabric);
        self
    }

    /// TCP, if it was added.
    pub fn tcp(&self) -> Option<&TcpFabric> {
        self.router.fabrics.tcp.as_ref()
    }

    /// Adds RDMA verbs, of the same node.
    #[cfg(feature = "verbs")]
    pub fn with_verbs(mut self, fabric: VerbsFabric) -> MixedFabric {
        self.router.fabrics.verbs = Some(fabric);
        self
    }

    /// Opens RDMA verbs on the port of the TCP fabric, which must have been added, and adds them. Fails as
    /// [`VerbsFabric::open`] does.
    #[cfg(feature = "verbs")]
    pub fn open_verbs(self, config: VerbsConfig) -> Result<MixedFabric, VerbsError> {
        let fabric = match self.tcp() {
            Some(tcp) => VerbsFabric::on(std::sync::Arc::clone(tcp.net()), config)?,
            None => VerbsFabric::open(config)?,
        };
        Ok(self.with_verbs(fabric))
    }

    /// RDMA verbs, if they were added.
    #[cfg(feature = "verbs")]
    pub fn verbs(&self) -> Option<&VerbsFabric> {
        self.router.fabrics.verbs.as_ref()
    }

    /// The counts of this node's port. None without a network.
    pub fn port(&self) -> Option<PortMonitor> {
        let port = self.tcp().map(TcpFabric::port);
        #[cfg(feature = "verbs")]
        let port = port.or_else(|| self.verbs().map(VerbsFabric::port));
        port
    }

    /// Takes the streams that peers open for a service at this node's port, as
    /// [`TcpFabric::take_service`] does. None without a network.
    pub fn take_service(&self, service: ServiceId) -> Option<Receiver<ServiceStream>> {
        let streams = self.tcp().map(|tcp| tcp.take_service(service));
        #[cfg(feature = "verbs")]
        let streams = streams.or_else(|| self.verbs().map(|verbs| verbs.take_service(service)));
        streams
    }

    /// Says at which addresses a node listens, for endpoints that are connected from now on.
    ///
    /// It does not matter for the [transport](Transport::Best) to it.
    pub fn learn(&mut self, node: NodeId, addresses: &[String]) {
        #[cfg(feature = "verbs")]
        if let Some(verbs) = &mut self.router.fabrics.verbs {
            verbs.learn(node, addresses);
        }
        if let Some(tcp) = &mut self.router.fabrics.tcp {
            tcp.learn(node, addresses);
        }
    }

    /// The transport of endpoints to a peer, if it is known by now; and the reason for which that is not shared memory,
    /// though both are on one host.
    pub fn transport(&self, peer: NodeId) -> (Option<Transport>, Option<&str>) {
        match (self.routes.get(&peer).unwrap_or(&self.otherwise), &self.choice) {
            (Transport::Best, Some(choice)) => (choice.chosen(peer), choice.unshared(peer)),
            (Transport::Best, None) => (None, None),
            (&known, _) => (Some(known), None),
        }
    }

    /// The number of bytes that have come into bulk memory over shared memory and TCP.
    pub fn bytes_received(&self) -> u64 {
        let shm = self.shm().map_or(0, |shm| shm.stats().bytes_pulled);
        shm + self.tcp().map_or(0, |tcp| tcp.stats().bulk_received)
    }

    /// Sets the transport of endpoints to `peer` that are connected from now on. Both nodes must say the same.
    pub fn route(&mut self, peer: NodeId, transport: Transport) {
        self.routes.insert(peer, transport);
    }
}

// SAFETY: each fabric that it consists of promises the same.
unsafe impl Fabric for MixedFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        match self.router.fabrics.all_mut().next() {
            Some(part) => part.register(kind, bytes),
            None => Err(RegisterError::System { bytes, cause: "the node has no fabric yet".to_owned() }),
        }
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let route = *self.routes.get(&peer).unwrap_or(&self.otherwise);
        let known = match (route, &self.choice) {
            (Transport::Best, Some(choice)) if peer != self.node => {
                let Some(chosen) = choice.chosen(peer) else {
                    return self.router.held.hold(peer, tag, expose, hello);
                };
                chosen
            }
            (Transport::Best, _) => Transport::Tcp,
            (known, _) => known,
        };
        if let Some(part) = known.space().and_then(|space| self.router.fabrics.get_mut(space)) {
            return part.connect(peer, tag, expose, hello);
        }
        let text = format!("it is to be reached by {known}, which this node does not use");
        self.router.held.refuse((peer, tag), BreakReason::Failed(text))
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.graphs.endpoint_gone(on);
        if let Some((part, inner)) = self.router.of(on) {
            part.disconnect(inner);
        }
        self.router.held.remove(on);
    }

    #[inline]
    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        match self.router.of(on) {
            Some((part, inner)) => part.post(inner, op, token),
            None if token.is_reserved() => Err(PostError::ReservedToken { token: token.0 }),
            None => self.router.post_held(on, op, token),
        }
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        self.graphs.begin(&mut self.router, graph, token)
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        let before = out.len();
        self.router.unfinished = false;
        if self.router.held.endpoints.has_news() {
            self.router.held.endpoints.report_stillborn(out);
        }
        let ended = self.choose(out);
        self.router.fabrics.all_mut().for_each(|part| part.poll(now, out));
        if let Some(shm) = &self.router.fabrics.shm {
            // The next poll takes them.
            self.router.unfinished |= shm.has_tried();
            // A peer in another life may choose another transport, and would never meet them.
            ended.into_iter().for_each(|(peer, reason)| shm.break_unmet(peer, reason));
        }
        self.router.held.rename(&mut out[before..]);
        if !self.graphs.is_idle() {
            self.graphs.go_on(&mut self.router, before, out);
        }
    }
}

impl MixedFabric {
    /// Asks the peers that endpoints wait for, and goes on with those that have answered. Returns the peers whose
    /// answers don't hold any more.
    fn choose(&mut self, out: &mut Vec<Completion>) -> Vec<(NodeId, BreakReason)> {
        let mut ended = Vec::new();
        let Some(choice) = &mut self.choice else { return ended };
        let fabrics = &mut self.router.fabrics;
        let (has_verbs, life) = (fabrics.has_verbs(), fabrics.shm.as_ref().map(ShmFabric::incarnation));
        for id in self.router.held.endpoints.take_new() {
            if let Some(held) = self.router.held.get_mut(id) {
                choice.ask(held.peer, has_verbs, life);
            }
        }
        let mut news = Vec::new();
        choice.take_news(&mut news);
        let tried = fabrics.shm.as_mut().map(ShmFabric::take_tried).unwrap_or_default();
        news.extend(tried.into_iter().filter_map(|attempt| choice.tried(attempt)));
        for news in news {
            match news {
                News::Try(peer, life) => {
                    if let Some(shm) = &self.router.fabrics.shm {
                        shm.try_link(peer, life);
                    }
                }
                News::Ended(peer, reason) => ended.push((peer, reason)),
                News::Chosen(peer, transport) => {
                    if let Some(space) = transport.space() {
                        self.router.resolve(peer, space, out);
                    }
                }
                News::Failed(peer, reason) => self.router.abandon(peer, &reason, out),
            }
        }
        ended
    }
}
