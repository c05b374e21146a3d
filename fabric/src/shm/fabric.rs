//! A process's attachment to shared memory.

use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use rustix::io::Errno;

use super::{
    LinkAttempt,
    config::{ShmConfig, ShmError},
    control::{Command, Connect, Connected, Control, ControlThread, Event},
    doorbell::Doorbell,
    due::Due,
    endpoint::{Endpoint, Sending, Up},
    memory::{self, OwnMemory},
    peer::Peers,
    ring,
    share::{Share, SharedCopy},
    signals::Signals,
    stats::ShmStats,
};
use crate::{
    BreakReason, Completion, EndpointId, Fabric, GraphError, GroupTag, HELLO_BYTES, NodeId, Op, PostError, Region,
    RegionKey, RegionKind, RegisterError, Time, Token, Wait, Waker, WorkGraph,
    check::check_region,
    endpoints::{Endpoints, SHM},
    graph::Executor,
    mixed_part::MixedPart,
    random,
    recvs::RecvQueue,
};

/// A [`Fabric`] between processes of one user on one host, over shared memory. See the [module](super).
///
/// Dropping it tells the peers, and waits until its sockets are closed. Regions may outlive it.
#[derive(derive_more::Debug)]
#[debug("ShmFabric {{ cluster: {:?}, node: {:?}, stats: {:?} }}", config.cluster, config.node, self.stats())]
pub struct ShmFabric {
    config: ShmConfig,
    pub(super) core: Core,
    pub(super) endpoints: Endpoints<Endpoint>,
    pub(super) graphs: Executor,
    bell: Arc<Doorbell>,
    signals: Arc<Signals>,
    control: ControlThread,
    /// The links that were tried since the last call for them.
    tried: Vec<LinkAttempt>,
}

/// The state that endpoints share.
#[derive(Default)]
pub(super) struct Core {
    pub(super) incarnation: u64,
    pub(super) depth: usize,
    pub(super) peers: Peers,
    pub(super) due: Due,
    /// The commands that the next poll sends to the control thread.
    pub(super) commands: Vec<Command>,
    /// Whether the last poll left work behind that would come without a signal.
    pub(super) unfinished: bool,
    pub(super) stats: ShmStats,
    /// The copies that peers have shared, by the receive that each consumed, until the next poll.
    pub(super) shared: Vec<(EndpointId, Token, SharedCopy)>,
    /// The number of shares that were posted.
    shares: u64,
}

impl ShmFabric {
    /// Attaches this process as a node. Fails if another process of this user has the node's id on this host.
    pub fn open(config: ShmConfig) -> Result<ShmFabric, ShmError> {
        config.check()?;
        let incarnation = random::number().map_err(ShmError::system("draw a random number"))?;
        let bell = Arc::new(Doorbell::new().map_err(ShmError::system("create its doorbell"))?);
        let signals = Arc::new(Signals::new(&bell).map_err(ShmError::system("watch its doorbell"))?);
        let control = ControlThread::start(&config, incarnation, &bell, &signals)?;
        tracing::debug!(node = config.node.0, cluster = config.cluster, "shared-memory fabric opened");
        Ok(ShmFabric {
            core: Core { incarnation, depth: config.queue_depth, ..Core::default() },
            config,
            endpoints: Endpoints::new(SHM),
            graphs: Executor::default(),
            bell,
            signals,
            control,
            tried: Vec::new(),
        })
    }

    /// The counts since it was opened.
    pub fn stats(&self) -> ShmStats {
        let connections_refused = self.control.connections_refused.load(std::sync::atomic::Ordering::Relaxed);
        ShmStats { connections_refused, ..self.core.stats }
    }

    /// A random number that no other process has, nor a later life of this node.
    pub fn incarnation(&self) -> u64 {
        self.core.incarnation
    }

    /// Links with the process of a node that has that incarnation, before an endpoint waits for it. This node's id must
    /// be the smaller one.
    pub(crate) fn try_link(&self, peer: NodeId, incarnation: u64) {
        self.control.control.send([Command::TryLink { peer, incarnation }]);
    }

    /// Takes the results of attempts to link that polls have seen.
    pub(crate) fn take_tried(&mut self) -> Vec<LinkAttempt> {
        std::mem::take(&mut self.tried)
    }

    /// Whether there are such results.
    pub(crate) fn has_tried(&self) -> bool {
        !self.tried.is_empty()
    }

    /// Breaks the endpoints that have not met their counterparts at a peer, of those that a poll has announced.
    pub(crate) fn break_unmet(&self, peer: NodeId, reason: BreakReason) {
        self.control.control.send([Command::BreakUnmet { peer, reason }]);
    }

    /// Makes this side's part of a connection.
    fn new_endpoint(
        &mut self,
        id: EndpointId,
        peer: NodeId,
        tag: GroupTag,
        expose: &[Region],
        hello: &[u8],
    ) -> Result<Endpoint, BreakReason> {
        self.endpoints.check(self.config.node, peer, tag)?;
        if expose.iter().any(|region| OwnMemory::of(region, self.core.incarnation).is_none()) {
            let text = "a region that was not registered with this fabric can't be exposed";
            return Err(BreakReason::Failed(text.to_owned()));
        }
        let (ring, handle) = ring::Sender::create(self.core.depth).map_err(|cause| {
            BreakReason::Failed(format!("no memory for an endpoint's ring: {cause}{}", memory::hint(cause)))
        })?;
        Ok(Endpoint {
            id,
            peer,
            tag,
            exposed: expose.to_vec(),
            recvs: RecvQueue::default(),
            sending: Sending {
                ring,
                handle: Some(handle),
                pending: VecDeque::new(),
                backlog: VecDeque::new(),
                was_full: false,
            },
            up: None,
            is_due: false,
            hello: hello[..hello.len().min(HELLO_BYTES)].to_vec(),
        })
    }

    /// Hands new endpoints to the control thread, which lets them meet their counterparts.
    fn announce(&mut self) {
        for id in self.endpoints.take_new() {
            let Some(endpoint) = self.endpoints.get_mut(id) else { continue };
            let Some(ring) = endpoint.sending.handle.take() else { continue };
            let expose =
                endpoint.exposed.iter().filter_map(|region| OwnMemory::of(region, self.core.incarnation).cloned());
            let connect = Connect {
                endpoint: id,
                peer: endpoint.peer,
                tag: endpoint.tag,
                hello: std::mem::take(&mut endpoint.hello),
                ring,
                ring_slots: endpoint.sending.ring.slots(),
                expose: expose.collect(),
            };
            self.core.commands.push(Command::Connect(Box::new(connect)));
        }
    }

    /// Takes the control thread's events.
    #[cold]
    fn take_events(&mut self, out: &mut Vec<Completion>) {
        self.control.events.begin();
        loop {
            match self.control.events.next() {
                Ok(Some(event)) => self.on_event(event, out),
                Ok(None) => return,
                Err(reason) => {
                    for id in self.endpoints.ids() {
                        self.break_endpoint(id, reason.clone(), out);
                    }
                    return;
                }
            }
        }
    }

    fn on_event(&mut self, event: Event, out: &mut Vec<Completion>) {
        match event {
            Event::LinkUp { link, node, bell } => self.core.peers.add(link, node, bell),
            Event::LinkDown { link } => self.core.peers.remove(link),
            Event::Tried(attempt) => self.tried.push(attempt),
            Event::Connected(connected) => self.on_connected(*connected, out),
            Event::Broken { endpoint, reason } => self.break_endpoint(endpoint, reason, out),
            Event::Source { link, key, source, .. } => {
                if let Some(peer) = self.core.peers.by_link(link) {
                    peer.sources.insert(key, source);
                }
            }
            Event::Share { link, key, copy, .. } => {
                if let Some(peer) = self.core.peers.by_link(link) {
                    peer.shares.insert(key, copy);
                }
            }
            Event::Forget { link, key, .. } => {
                if let Some(peer) = self.core.peers.by_link(link) {
                    peer.sources.remove(&key);
                    peer.shares.remove(&key);
                }
            }
        }
    }

    fn on_connected(&mut self, connected: Connected, out: &mut Vec<Completion>) {
        let Connected { endpoint: id, link, set_up } = connected;
        // The endpoint may have been closed meanwhile.
        let (Some(endpoint), Some(ix)) = (self.endpoints.get_mut(id), self.core.peers.find(link)) else { return };
        let Some(peer) = self.core.peers.get_mut(ix) else { return };
        peer.endpoints.push(id);
        // The peer's news may have come before.
        self.core.due.add(endpoint);
        tracing::debug!(peer = %endpoint.peer, tag = ?endpoint.tag, endpoint = id.0, "connected");
        let remote = set_up.remote.iter().map(|memory| memory.describe).collect();
        endpoint.up = Some(Up { peer: ix, remote: set_up.remote, ring: set_up.ring, pulling: None });
        out.push(Completion::Connected { endpoint: id, remote, hello: set_up.hello });
    }

    /// Posts the share that `share` makes of a new key.
    pub(super) fn post_share(
        &mut self,
        on: EndpointId,
        share: impl FnOnce(RegionKey, Control) -> Share,
        imm: Option<u32>,
        token: Token,
    ) -> Result<(), PostError> {
        if token.is_reserved() {
            return Err(PostError::ReservedToken { token: token.0 });
        }
        let endpoint = self.endpoints.get_mut(on).ok_or(PostError::Broken)?;
        self.core.shares += 1;
        // Unlike a region's key, it gives access to nothing.
        let share = share(RegionKey(self.core.shares), self.control.control.clone());
        endpoint.share(&mut self.core, share, imm, token)
    }

    fn remove(&mut self, id: EndpointId) -> Option<Endpoint> {
        let endpoint = self.endpoints.remove(id)?;
        if let Some(up) = &endpoint.up
            && let Some(peer) = self.core.peers.get_mut(up.peer)
        {
            peer.endpoints.retain(|other| *other != id);
        }
        Some(endpoint)
    }

    fn break_endpoint(&mut self, id: EndpointId, reason: BreakReason, out: &mut Vec<Completion>) {
        if let Some(endpoint) = self.remove(id) {
            endpoint.finish(reason, out);
        }
    }

    /// Goes on with the work of all endpoints that may have some.
    #[inline]
    fn serve(&mut self, out: &mut Vec<Completion>) {
        let Core { peers, due, .. } = &mut self.core;
        for id in peers.with_news() {
            if let Some(endpoint) = self.endpoints.get_mut(id) {
                due.add(endpoint);
            }
        }
        if !due.is_empty() {
            self.serve_due(out);
        }
    }

    fn serve_due(&mut self, out: &mut Vec<Completion>) {
        let mut budget = self.config.poll_bytes.max(MIN_POLL_BYTES);
        let core = &mut self.core;
        let mut broken = Vec::new();
        let round = core.due.begin();
        for id in &round {
            let Some(endpoint) = self.endpoints.get_mut(*id) else { continue };
            endpoint.is_due = false;
            core.stats.endpoints_looked_at += 1;
            let (before, unfinished) = (budget, std::mem::take(&mut core.unfinished));
            let pulled = endpoint.pull(core, &mut budget, out);
            let pumped = endpoint.pump(core, &mut budget);
            endpoint.retire(core.depth, out);
            let is_cut = core.unfinished;
            core.unfinished |= unfinished;
            // An endpoint that got nothing has the first turn of the next round; one that was stopped in the middle has
            // the last.
            if is_cut && budget == before {
                core.due.cut_short();
            }
            if is_cut || endpoint.has_own_work() {
                core.due.add(endpoint);
            }
            if is_cut {
                core.due.cut_short();
            }
            if let Some(reason) = pulled.err().or(pumped) {
                broken.push((*id, reason));
            }
        }
        core.due.end(round);
        for (id, reason) in broken {
            self.break_endpoint(id, reason.clone(), out);
            self.core.commands.push(Command::Close { endpoint: id, reason });
        }
    }
}

/// The least number of bytes that a poll may copy before it returns.
const MIN_POLL_BYTES: usize = 4096;

// SAFETY: each region is a mapping of its own. Only this process' polls and posts place bytes, and peers read sources,
// for posts that wait, on endpoints that are up.
unsafe impl Fabric for ShmFabric {
    fn node(&self) -> NodeId {
        self.config.node
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        check_region(kind, bytes)?;
        OwnMemory::register(kind, bytes, self.core.incarnation, &self.control.control)
            .map_err(|cause| RegisterError::System { bytes, cause: format!("{cause}{}", memory::hint(cause)) })
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let id = self.endpoints.reserve();
        let endpoint = self.new_endpoint(id, peer, tag, expose, hello);
        self.endpoints.put(id, (peer, tag), endpoint)
    }

    fn disconnect(&mut self, on: EndpointId) {
        let Some(endpoint) = self.remove(on) else { return };
        endpoint.close();
        self.graphs.endpoint_gone(on);
        tracing::debug!(peer = %endpoint.peer, tag = ?endpoint.tag, endpoint = on.0, "disconnected");
        // Of an endpoint that was not announced yet, the control thread knows nothing.
        if endpoint.sending.handle.is_none() {
            // Earlier commands go along, to keep their order.
            self.core.commands.push(Command::Close { endpoint: on, reason: BreakReason::PeerClosed });
            self.control.control.send(self.core.commands.drain(..));
        }
    }

    #[inline]
    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if token.is_reserved() {
            return Err(PostError::ReservedToken { token: token.0 });
        }
        let endpoint = self.endpoints.get_mut(on).ok_or(PostError::Broken)?;
        endpoint.post(&mut self.core, op, token)
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        let mut graphs = std::mem::take(&mut self.graphs);
        let begun = graphs.begin(self, graph, token);
        self.graphs = graphs;
        begun
    }

    fn poll(&mut self, _now: Time, out: &mut Vec<Completion>) {
        let before = out.len();
        self.core.unfinished = false;
        self.core.shared.clear();
        if self.control.events.are_pending() {
            self.take_events(out);
        }
        if self.endpoints.has_news() {
            self.endpoints.report_stillborn(out);
            self.announce();
        }
        // Rings for posts since the last poll; and, after pulling, for the progress that peers wait to hear of.
        self.core.peers.ring(&self.bell, &mut self.core.stats);
        self.serve(out);
        if !self.graphs.is_idle() {
            let mut graphs = std::mem::take(&mut self.graphs);
            graphs.go_on(self, before, out);
            self.graphs = graphs;
        }
        self.core.peers.ring(&self.bell, &mut self.core.stats);
        if !self.core.commands.is_empty() {
            self.control.control.send(self.core.commands.drain(..));
        }
    }
}

impl Wait for ShmFabric {
    fn arm(&mut self) {
        self.bell.arm();
    }

    fn disarm(&mut self) {
        self.bell.disarm();
    }

    /// Sleeps; the `doorbell` module shows that no wake-up is lost. A wait that was not armed ends at once.
    fn wait(&mut self, until: Time) {
        // No signal comes for work that the last poll did not finish.
        while self.may_sleep() {
            let signaled = self.signals.sleep(until);
            if signaled == Err(Errno::INTR) {
                continue;
            }
            self.bell.disarm();
            match signaled {
                Ok(0) => {}
                // Peers that rang while this thread woke up would end the next sleep in vain.
                Ok(_) => self.signals.discard(),
                Err(error) => tracing::error!(%error, "waiting failed"),
            }
        }
        self.bell.disarm();
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::new(move || bell.wake())
    }
}

impl MixedPart for ShmFabric {
    fn depth(&self) -> usize {
        self.core.depth
    }

    fn signal(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }

    fn may_sleep(&self) -> bool {
        self.bell.is_armed() && !self.core.unfinished
    }
}

impl Drop for ShmFabric {
    fn drop(&mut self) {
        // The peers' posts stop at once, before the peers hear of it.
        self.endpoints.all().for_each(Endpoint::close);
    }
}
