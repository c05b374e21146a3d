//! A process's attachment to an RDMA device.

use std::{
    io,
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use crossbeam::channel::Receiver;
use rustix::{
    event::{Timespec, epoll},
    io::Errno,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};

use super::{
    attachment::Attachment,
    bell::{BELL, Bells},
    completions::Completions,
    config::{VerbsConfig, VerbsError},
    connect,
    endpoint::{ConnectionStage, Ending, Endpoint, endpoint_of},
    memory::{self, Memories},
    post,
    queue::{Completed, Piece, Room},
    sending::RESERVED,
    stats::VerbsStats,
    watch::Watches,
};
use crate::{
    BreakReason, Completion, EndpointId, Fabric, GraphError, GroupTag, NodeId, Op, PostError, Region, RegionKind,
    RegisterError, Time, Token, WorkGraph,
    check::check_region,
    endpoints::{Endpoints, VERBS},
    graph::Executor,
    net::{Command, Control, Events, Net, Plane, PortMonitor, ServiceId, ServiceStream},
    shm::doorbell::Doorbell,
};

/// A [`Fabric`] over an RDMA device. See the [module](super).
///
/// Dropping it tells the peers. Regions may outlive it.
#[derive(derive_more::Debug)]
#[debug(
    "VerbsFabric {{ node: {node:?}, device: {:?}, port: {}, stats: {:?} }}",
    self.device(), attachment.port, self.stats()
)]
pub struct VerbsFabric {
    pub(super) node: NodeId,
    pub(super) endpoints: Endpoints<Endpoint>,
    pub(super) core: Core,
    pub(super) attachment: Attachment,
    pub(super) room: Room,
    /// The time that an acknowledgement is waited for, as verbs number it.
    pub(super) timeout: u8,
    pub(super) traffic_class: u8,
    pub(super) service_level: u8,
    pub(super) completions: Completions,
    /// Completions of bells, which no layer sees.
    pub(super) of_bells: Vec<Completion>,
    /// Scratch of `poll`.
    completed: Vec<Completed>,
    graphs: Executor,
    pub(super) doorbell: Arc<Doorbell>,
    /// The timer that ends a wait when an endpoint is due to break.
    pub(super) timer: OwnedFd,
    /// Readable when the doorbell, the completion channel, the timer or the device's reports are.
    pub(super) signal: OwnedFd,
    control: Control,
    pub(super) events: Events,
    net: Arc<Net>,
}

/// The state that endpoints share.
pub(super) struct Core {
    pub(super) depth: usize,
    pub(super) max_message: usize,
    pub(super) failure_timeout: Duration,
    pub(super) memories: Memories,
    pub(super) watches: Watches,
    /// The endpoints with work to hand over, or with completions since the last poll. All others cost a poll nothing.
    pub(super) active: Vec<EndpointId>,
    /// The endpoints whose peers must be told of the next sleep: see `watch`.
    pub(super) unannounced: Vec<EndpointId>,
    pub(super) bells: Bells,
    /// The commands that the next poll sends to the control thread.
    pub(super) commands: Vec<Command>,
    /// Whether the last poll left work behind that would come without a signal.
    pub(super) unfinished: bool,
    /// Whether something was learned since the thread armed that calls for one more look: see `watch`.
    pub(super) look_again: bool,
    /// Whether an endpoint is about to break.
    pub(super) has_endings: bool,
    /// The reason for which there are no endpoints any more: the device failed.
    pub(super) dead: Option<BreakReason>,
    /// The time at which endpoints end that the port does not serve any more.
    pub(super) look_at_port: Option<Time>,
    /// The time from which the next poll takes the device's reports; never, once they can't be read.
    pub(super) reports_due: Time,
    pub(super) stats: VerbsStats,
}

impl Core {
    fn new(config: &VerbsConfig, attachment: &Attachment) -> Core {
        Core {
            depth: config.queue_depth,
            max_message: attachment.max_message,
            failure_timeout: config.net.failure_timeout,
            memories: Memories::new(&attachment.pd, config.kept_bytes),
            watches: Watches::default(),
            active: Vec::new(),
            unannounced: Vec::new(),
            bells: Bells::default(),
            commands: Vec::new(),
            unfinished: false,
            look_again: false,
            has_endings: false,
            dead: None,
            look_at_port: None,
            reports_due: Time::ZERO,
            stats: VerbsStats::default(),
        }
    }

    /// A piece of a region as the device knows it. If it is very long, no message fills more than its first part.
    #[inline]
    pub(super) fn piece(&mut self, region: &Region, offset: usize, len: usize) -> io::Result<Piece> {
        if len == 0 {
            return Ok(Piece { addr: 0, len: 0, key: 0 });
        }
        let key = self.memories.local_key(region)?;
        Ok(Piece { addr: post::address(region, offset, len), len: len.min(self.max_message) as u32, key })
    }
}

/// The interval at which a thread that does not sleep takes the device's reports. One that sleeps is woken by them.
const REPORTS_EVERY: Duration = Duration::from_millis(10);

impl VerbsFabric {
    /// Attaches this process as a node to an RDMA device, and opens its port. Fails if there is no device that can be
    /// used, if it can't have such queues, or if the port can't be opened.
    pub fn open(config: VerbsConfig) -> Result<VerbsFabric, VerbsError> {
        config.check()?;
        let net = Arc::new(Net::open(&config.net)?);
        VerbsFabric::on(net, config)
    }

    /// Opens as [`open`](VerbsFabric::open) does, for a node whose port is open.
    pub(crate) fn on(net: Arc<Net>, config: VerbsConfig) -> Result<VerbsFabric, VerbsError> {
        config.check()?;
        let attachment = Attachment::open(&config)?;
        // Each post may take two requests, a write and its word; one that finds no room waits.
        let sends = (2 * config.queue_depth + RESERVED).min(attachment.max_requests);
        let recvs = config.queue_depth;
        let most = attachment.max_entries.saturating_sub(sends).min(attachment.max_requests);
        if recvs > most || sends <= RESERVED {
            let device = attachment.device().to_owned();
            return Err(VerbsError::QueuesTooShort { device, depth: config.queue_depth, most });
        }
        let room = Room { sends: sends as u32, recvs: recvs as u32, inline: config.inline_bytes as u32 };
        let completions = Completions::new(&attachment.pd.context, attachment.max_entries, room.entries())
            .map_err(VerbsError::system("create a completion channel"))?;
        let errno = |attempt| move |error: Errno| VerbsError::system(attempt)(error.into());
        let doorbell = Arc::new(Doorbell::new().map_err(errno("create its doorbell"))?);
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)
            .map_err(errno("create a timer"))?;
        let signal = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(errno("create an epoll"))?;
        let reports = attachment.context().reports();
        for fd in [doorbell.eventfd.as_fd(), completions.channel.fd(), timer.as_fd(), reports] {
            epoll::add(&signal, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                .map_err(errno("watch its descriptors"))?;
        }
        let (control, events) = net.plane(Plane::Verbs, {
            let doorbell = Arc::clone(&doorbell);
            move || doorbell.wake()
        });
        tracing::debug!(
            node = config.net.node.0,
            device = attachment.device(),
            port = attachment.port,
            gid_index = attachment.address.gid_index,
            "verbs fabric opened"
        );
        Ok(VerbsFabric {
            node: config.net.node,
            endpoints: Endpoints::new(VERBS),
            core: Core::new(&config, &attachment),
            attachment,
            room,
            timeout: connect::ack_timeout(config.net.failure_timeout),
            traffic_class: config.traffic_class,
            service_level: config.service_level,
            completions,
            of_bells: Vec::new(),
            completed: Vec::new(),
            graphs: Executor::default(),
            doorbell,
            timer,
            signal,
            control,
            events,
            net,
        })
    }

    /// The counts since it was opened.
    pub fn stats(&self) -> VerbsStats {
        self.core.stats
    }

    /// The counts of the node's port.
    pub fn port(&self) -> PortMonitor {
        self.net.monitor()
    }

    /// The addresses at which the node's port listens, ports filled in.
    pub fn local_addrs(&self) -> &[SocketAddr] {
        self.net.local_addrs()
    }

    /// Sets the addresses at which a node listens, as [`NetConfig::peers`](crate::net::NetConfig::peers) does. Links
    /// that are up stay up.
    pub fn learn(&mut self, node: NodeId, addresses: &[String]) {
        self.net.set_peer(node, addresses.to_vec());
    }

    /// Takes the streams that peers open for a service, from now on and in place of an earlier receiver.
    pub fn take_service(&self, service: ServiceId) -> Receiver<ServiceStream> {
        self.net.take_service(service)
    }

    /// The device's name.
    pub fn device(&self) -> &str {
        self.attachment.device()
    }

    /// The longest message that the device sends, in bytes. (Writes and reads may be longer.)
    pub fn max_message_bytes(&self) -> usize {
        self.core.max_message
    }

    /// Takes an endpoint out, which is then dropped or finished.
    fn remove(&mut self, id: EndpointId) -> Option<Endpoint> {
        let endpoint = self.endpoints.remove(id)?;
        self.completions.release(endpoint.cq, endpoint.qp.room.entries());
        Some(endpoint)
    }

    fn break_endpoint(&mut self, id: EndpointId, reason: BreakReason, out: &mut Vec<Completion>) {
        if let Some(endpoint) = self.remove(id) {
            let peer = endpoint.peer;
            self.finish(endpoint, reason, out);
            self.close_idle_bell(peer);
        }
    }

    fn finish(&mut self, endpoint: Endpoint, reason: BreakReason, out: &mut Vec<Completion>) {
        let out = if endpoint.is_bell() { &mut self.of_bells } else { out };
        if let Some(watch) = endpoint.finish(reason, out) {
            self.core.watches.give_back(watch);
        }
        self.core.memories.forget_unused();
    }

    /// Takes in the device's completions.
    fn take_completions(&mut self, now: Time, out: &mut Vec<Completion>) {
        let mut completed = std::mem::take(&mut self.completed);
        match self.completions.take_all(&mut completed) {
            Ok(all) => self.core.unfinished |= !all,
            Err(error) => {
                let reason = BreakReason::Failed(format!("the device's completions could not be read: {error}"));
                for id in self.endpoints.ids() {
                    if let Some(endpoint) = self.endpoints.get_mut(id) {
                        endpoint.ending.get_or_insert(Ending::Known(reason.clone()));
                    }
                }
                self.core.has_endings = true;
            }
        }
        self.core.stats.completions += completed.len() as u64;
        for completed in completed.drain(..) {
            let (id, recv) = endpoint_of(completed.id);
            // Completions of endpoints that are no more are ignored.
            if let Some(endpoint) = self.endpoints.get_mut(id) {
                let out = if endpoint.is_bell() { &mut self.of_bells } else { &mut *out };
                endpoint.on_completed(completed, recv, &mut self.core, now, out);
            }
        }
        self.completed = completed;
    }

    /// Hands the active endpoints' work to the device.
    #[inline]
    fn hand_over(&mut self) {
        for at in 0..self.core.active.len() {
            let Some(endpoint) = self.endpoints.get_mut(self.core.active[at]) else { continue };
            if endpoint.ending.is_some() {
                continue;
            }
            let Endpoint { qp, id, sending, .. } = endpoint;
            if let Err(error) = sending.pump(qp, *id, &mut self.core) {
                endpoint.fail(&mut self.core, post::failed(&error));
            } else if let Some(reason) = sending.due() {
                endpoint.fail(&mut self.core, reason);
            }
            self.core.unfinished |= endpoint.sending.is_doomed();
        }
    }

    /// Ends endpoints that are due, and sets the timer for others.
    #[cold]
    fn end(&mut self, now: Time, out: &mut Vec<Completion>) {
        self.look_at_port(now);
        let mut next = self.core.look_at_port.unwrap_or(Time::MAX);
        let mut due = Vec::new();
        for endpoint in self.endpoints.all() {
            match &endpoint.ending {
                None => {}
                Some(Ending::Known(reason)) => due.push((endpoint.id, reason.clone())),
                Some(Ending::Suspected(reason, until)) if *until <= now => due.push((endpoint.id, reason.clone())),
                Some(Ending::Suspected(_, until)) => next = next.min(*until),
            }
        }
        for (id, reason) in due {
            self.break_endpoint(id, reason.clone(), out);
            self.core.commands.push(Command::Close { endpoint: id, reason });
        }
        self.core.has_endings = next != Time::MAX;
        if next != Time::MAX {
            let left = next.since(now).max(Duration::from_millis(1));
            let it_value = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
            if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
                tracing::error!(%error, "a timer could not be set");
            }
        }
    }
}

// SAFETY: each region is memory of its own, which another gets only when it is gone. An endpoint's queue pair is gone
// before its end is reported, and the device is done with work that it reports.
unsafe impl Fabric for VerbsFabric {
    fn node(&self) -> NodeId {
        self.node
    }

    fn register(&mut self, kind: RegionKind, bytes: usize) -> Result<Region, RegisterError> {
        check_region(kind, bytes)?;
        self.core
            .memories
            .register(kind, bytes)
            .map_err(|error| RegisterError::System { bytes, cause: format!("{error}{}", memory::hint(&error)) })
    }

    fn connect(&mut self, peer: NodeId, tag: GroupTag, expose: &[Region], hello: &[u8]) -> EndpointId {
        let id = self.endpoints.reserve();
        let endpoint = match tag {
            BELL => Err(BreakReason::TagInUse),
            _ => self.new_endpoint(id, peer, tag, expose, hello),
        };
        self.endpoints.put(id, (peer, tag), endpoint)
    }

    fn disconnect(&mut self, on: EndpointId) {
        let Some(endpoint) = self.remove(on) else { return };
        self.graphs.endpoint_gone(on);
        tracing::debug!(peer = %endpoint.peer, tag = ?endpoint.tag, endpoint = on.0, "disconnected");
        // Of an endpoint that was not announced yet, the control thread knows nothing.
        let announced = !matches!(endpoint.stage, ConnectionStage::New);
        let peer = endpoint.peer;
        self.finish(endpoint, BreakReason::PeerClosed, &mut Vec::new());
        if announced {
            // Earlier commands go along, to keep their order.
            self.core.commands.push(Command::Close { endpoint: on, reason: BreakReason::PeerClosed });
            self.control.send(self.core.commands.drain(..));
        }
        self.close_idle_bell(peer);
    }

    #[inline]
    fn post(&mut self, on: EndpointId, op: Op<'_>, token: Token) -> Result<(), PostError> {
        if token.is_reserved() {
            return Err(PostError::ReservedToken { token: token.0 });
        }
        self.endpoints.get_mut(on).ok_or(PostError::Broken)?.post(&mut self.core, op, token)
    }

    fn post_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        let mut graphs = std::mem::take(&mut self.graphs);
        let begun = graphs.begin(self, graph, token);
        self.graphs = graphs;
        begun
    }

    fn poll(&mut self, now: Time, out: &mut Vec<Completion>) {
        let before = out.len();
        self.core.unfinished = false;
        if self.core.reports_due <= now {
            self.core.reports_due = now + REPORTS_EVERY;
            self.take_reports(now);
        }
        self.hand_over();
        let ends = self.take_events(out);
        // Completions that came before a peer closed are reported before that.
        self.take_completions(now, out);
        for (id, reason) in ends {
            self.break_endpoint(id, reason, out);
        }
        self.make_bells();
        if self.endpoints.has_news() {
            self.endpoints.report_stillborn(out);
            self.announce();
        }
        self.hand_over();
        if self.core.has_endings {
            self.end(now, out);
        }
        for id in &self.core.active {
            if let Some(endpoint) = self.endpoints.get_mut(*id) {
                endpoint.report_room(self.core.depth, out);
            }
        }
        if !self.graphs.is_idle() {
            let mut graphs = std::mem::take(&mut self.graphs);
            graphs.go_on(self, before, out);
            self.graphs = graphs;
            self.hand_over();
        }
        // Work that waits for room goes on when a completion comes, which makes its endpoint active again.
        for id in self.core.active.drain(..) {
            if let Some(endpoint) = self.endpoints.get_mut(id) {
                endpoint.is_active = false;
            }
        }
        self.serve_bells();
        if !self.core.commands.is_empty() {
            self.control.send(self.core.commands.drain(..));
        }
    }
}

impl Drop for VerbsFabric {
    fn drop(&mut self) {
        for id in self.endpoints.ids() {
            self.break_endpoint(id, BreakReason::PeerClosed, &mut Vec::new());
        }
    }
}
