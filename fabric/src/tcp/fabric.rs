//! A process's attachment to a network, over TCP.

use std::{
    net::SocketAddr,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use crossbeam::channel::Receiver;
use rustix::{
    event::{PollFd, PollFlags},
    io::Errno,
};

use super::{
    config::{TcpConfig, TcpError},
    data::Data,
    memory,
    stats::TcpStats,
};
use crate::{
    Completion, EndpointId, Fabric, GraphError, GroupTag, NodeId, Op, PostError, Region, RegionKind, RegisterError,
    Time, Token, Wait, Waker, WorkGraph,
    check::check_region,
    graph::Executor,
    mixed_part::MixedPart,
    net::{Control, Events, Net, Plane, PortMonitor, ServiceId, ServiceStream},
    shm::doorbell::Doorbell,
    wait::wait_for,
};

/// A [`Fabric`] between hosts, over TCP. See the [module](super).
///
/// Dropping it tells the peers, and waits until its sockets are closed. Regions may outlive it.
#[derive(derive_more::Debug)]
#[debug("TcpFabric {{ node: {node:?}, stats: {:?} }}", self.stats())]
pub struct TcpFabric {
    node: NodeId,
    // It stands before the control plane, whose end tells the peers: by then their sockets must have been closed.
    pub(super) data: Data,
    graphs: Executor,
    bell: Arc<Doorbell>,
    control: Control,
    events: Events,
    net: Arc<Net>,
}

impl TcpFabric {
    /// Opens the node's port. Fails if a setting can't be had, if it is not possible to listen at an address, if the
    /// certificate is not that of this node and cluster, or if the system lacks resources.
    pub fn open(config: TcpConfig) -> Result<TcpFabric, TcpError> {
        let config = config.check()?;
        let net = Arc::new(Net::open(&config.net)?);
        TcpFabric::on(net, config)
    }

    /// Opens a fabric on a port that is open.
    pub(crate) fn on(net: Arc<Net>, config: TcpConfig) -> Result<TcpFabric, TcpError> {
        let config = config.check()?;
        let (node, cluster) = (config.net.node, config.net.cluster.clone());
        let bell = Arc::new(Doorbell::new().map_err(TcpError::system("create its doorbell"))?);
        let data = Data::new(config, &bell.eventfd).map_err(TcpError::system("watch its sockets"))?;
        let rung = Arc::clone(&bell);
        let (control, events) = net.plane(Plane::Tcp, move || rung.wake());
        tracing::debug!(node = node.0, cluster, "TCP fabric opened");
        Ok(TcpFabric { node, data, graphs: Executor::default(), bell, control, events, net })
    }

    /// The node's port.
    pub(crate) fn net(&self) -> &Arc<Net> {
        &self.net
    }

    /// The counts since it was opened.
    pub fn stats(&self) -> TcpStats {
        self.data.core.stats
    }

    /// The counts of the node's port.
    pub fn port(&self) -> PortMonitor {
        self.net.monitor()
    }

    /// The addresses at which this node listens, ports filled in.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.net.local_addrs()
    }

    /// Sets the addresses at which a node listens, as [`NetConfig::peers`](crate::net::NetConfig::peers) does.
    /// Connections that stand stay.
    pub fn learn(&mut self, node: NodeId, addresses: &[String]) {
        self.net.set_peer(node, addresses.to_vec());
    }

    /// Takes the streams that peers open for a service, from now on and in place of an earlier receiver.
    pub fn take_service(&self, service: ServiceId) -> Receiver<ServiceStream> {
        self.net.take_service(service)
    }

    /// Takes the control thread's events.
    #[cold]
    fn take_events(&mut self, out: &mut Vec<Completion>) {
        self.events.begin();
        loop {
            match self.events.next() {
                Ok(Some(event)) => self.data.on_event(event, out),
                Ok(None) => return,
                Err(reason) => {
                    for id in self.data.endpoints.ids() {
                        self.data.break_endpoint(id, reason.clone(), out);
                    }
                    return;
                }
            }
        }
    }

    fn send_commands(&mut self) {
        if !self.data.commands.is_empty() {
            self.control.send(self.data.commands.drain(..));
        }
    }

    /// Lends the graphs to a function that runs them on this fabric.
    fn with_graphs<R>(&mut self, run: impl FnOnce(&mut Executor, &mut TcpFabric) -> R) -> R {
        let mut graphs = std::mem::take(&mut self.graphs);
        let result = run(&mut graphs, self);
        self.graphs = graphs;
        result
    }
}

// SAFETY: each region has memory of its own. Only this process' polls and posts place bytes and read sources, for posts
// that wait, on endpoints that are up.
unsafe impl Fabric for TcpFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        check_region(kind, bytes)?;
        memory::register(kind, bytes)
            .map_err(|cause| RegisterError::System { bytes, cause: format!("{cause}{}", super::hint(cause)) })
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        self.data.connect(peer, tag, expose, hello)
    }

    fn disconnect(&mut self, on: EndpointId) {
        self.data.disconnect(on);
        self.graphs.endpoint_gone(on);
        self.send_commands();
    }

    #[inline]
    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if token.is_reserved() {
            return Err(PostError::ReservedToken { token: token.0 });
        }
        self.data.post(on, op, token)
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        self.with_graphs(|graphs, fabric| graphs.begin(fabric, graph, token))
    }

    fn poll(&mut self, _now: Time, out: &mut Vec<Completion>) {
        let before = out.len();
        if self.events.are_pending() {
            self.take_events(out);
        }
        self.data.poll(out);
        if !self.graphs.is_idle() {
            self.with_graphs(|graphs, fabric| graphs.go_on(fabric, before, out));
            self.data.send();
        }
        self.send_commands();
    }
}

impl Wait for TcpFabric {
    fn arm(&mut self) {
        self.data.rung = false;
        self.bell.arm();
    }

    fn disarm(&mut self) {
        self.bell.disarm();
    }

    /// Sleeps. The signal that ends the wait is left where it is, for the next poll to find. A wait that was not armed
    /// ends at once.
    fn wait(&mut self, until: Time) {
        if self.may_sleep() {
            while wait_for(&mut [PollFd::new(&self.data.epoll, PollFlags::IN)], until) == Err(Errno::INTR) {}
        }
        self.bell.disarm();
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::new(move || bell.wake())
    }
}

impl MixedPart for TcpFabric {
    fn depth(&self) -> usize {
        self.data.core.depth
    }

    fn signal(&self) -> BorrowedFd<'_> {
        self.data.epoll.as_fd()
    }

    fn may_sleep(&self) -> bool {
        // A poll since `arm` may have taken the doorbell's signal.
        self.bell.is_armed() && !self.data.rung && !self.data.is_unfinished()
    }
}

impl Drop for TcpFabric {
    fn drop(&mut self) {
        self.data.shut_down();
    }
}
