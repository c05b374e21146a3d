//! The control thread's loop.

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use crossbeam::channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    Order, Orders,
    attempt::Attempt,
    config::NetConfig,
    dial::DataDial,
    greeting::Greeted,
    handshake_rate::HandshakeRate,
    known_addresses::KnownAddresses,
    link::NetLink,
    pairing::NetMedium,
    peer::Peer,
    places::StreamPlaces,
    plane::{Event, Plane},
    service::{ServiceId, ServiceStream},
    stats::{Counters, RefusalKind},
    wire::LinkFrame,
};
use crate::{
    EndpointId, NodeId,
    control::{CommandReceiver, EventSender, LinkId, LogChanges, LogLimit, Pairing, PendingPeers, Untaken, Watched},
    share::CallerNetwork,
};

/// The time for which peers that do not read hold up the end.
const FAREWELL: Duration = Duration::from_millis(50);

/// The spell of the limit on lines about peers and strangers.
const LOG_SPELL: Duration = Duration::from_secs(1);

/// The number of orders that are carried out before sockets have their turn.
const ORDERS_PER_TURN: usize = 1024;

/// The number of connections in their handshake that are heard before links have their turn again, of those that were
/// dialed and of those that came. Each may cost some signatures, and heartbeats must not wait for those of many.
const HANDSHAKES_PER_TURN: usize = 4;

/// The ends of the channels with other threads.
pub(super) struct Ends {
    pub(super) to_thread: CommandReceiver<Order>,
    pub(super) orders: Orders,
    pub(super) counters: Arc<Counters>,
}

/// The control thread's state. Its parts are in `greeting`, `dial`, `attempt`, `link` and `pairing`.
pub(super) struct Thread {
    pub(super) config: NetConfig,
    pub(super) incarnation: u64,
    to_thread: CommandReceiver<Order>,
    pub(super) orders: Orders,
    pub(super) counters: Arc<Counters>,
    planes: BTreeMap<Plane, EventSender<Event>>,
    /// The `Told` events of each plane that its polling thread has not taken.
    pub(super) untaken: BTreeMap<Plane, Untaken>,
    pub(super) services: BTreeMap<ServiceId, Sender<ServiceStream>>,
    pub(super) listeners: Vec<TcpListener>,
    /// The time to accept again, after the system has refused to.
    pub(super) accept_again: Option<Instant>,
    pub(super) log: LogLimit,
    pub(super) refusals_logged: LogChanges<(CallerNetwork, RefusalKind)>,
    pub(super) dials_logged: LogChanges<(NodeId, SocketAddr)>,
    pub(super) pending_peers: PendingPeers<SocketAddr, Greeted>,
    pub(super) known_addresses: KnownAddresses,
    pub(super) handshake_rate: HandshakeRate,
    pub(super) places: Arc<StreamPlaces>,
    pub(super) peers: BTreeMap<NodeId, Peer>,
    pub(super) attempts: BTreeMap<u64, Attempt>,
    pub(super) data_dials: BTreeMap<EndpointId, DataDial>,
    /// The time at which a peer is to be dialed.
    pub(super) dial_at: Option<Instant>,
    pub(super) links: BTreeMap<LinkId, NetLink>,
    pub(super) pairing: Pairing<NetMedium>,
    next_id: u64,
    pub(super) rng: fastrand::Rng,
    /// Whether orders may be left from the turn before.
    backlog: bool,
    stopping: bool,
}

/// A descriptor that may be ready.
#[derive(Clone, Copy)]
enum Ready {
    Orders,
    Listener(usize),
    Link(LinkId),
    Attempt(u64),
    PendingPeer(u64),
}

impl Thread {
    pub(super) fn new(config: NetConfig, incarnation: u64, listeners: Vec<TcpListener>, ends: Ends) -> Thread {
        let now = Instant::now();
        let peers = config.peers.iter().map(|(node, texts)| (*node, Peer::new(texts.clone(), now))).collect();
        let mut known_addresses = KnownAddresses::default();
        config.peers.iter().for_each(|(node, texts)| known_addresses.set_peer(*node, texts));
        Thread {
            pending_peers: PendingPeers::new(config.max_pending_peers, config.handshake_timeout),
            config,
            incarnation,
            to_thread: ends.to_thread,
            orders: ends.orders,
            counters: ends.counters,
            planes: BTreeMap::new(),
            untaken: BTreeMap::new(),
            services: BTreeMap::new(),
            listeners,
            accept_again: None,
            log: LogLimit::new(LOG_SPELL),
            refusals_logged: LogChanges::new(),
            dials_logged: LogChanges::new(),
            known_addresses,
            handshake_rate: HandshakeRate::new(now),
            places: Arc::default(),
            peers,
            attempts: BTreeMap::new(),
            data_dials: BTreeMap::new(),
            dial_at: None,
            links: BTreeMap::new(),
            pairing: Pairing::new(),
            next_id: 0,
            rng: fastrand::Rng::new(),
            backlog: false,
            stopping: false,
        }
    }

    /// A number that was not given before.
    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Runs until the port is dropped.
    pub(super) fn run(mut self) {
        let span = tracing::info_span!("net", node = self.config.node.0);
        let _entered = span.enter();
        while !self.stopping {
            let (mut attempts, mut pending_peers) = (0, 0);
            for (ready, flags) in self.sleep() {
                let count = match ready {
                    Ready::Attempt(_) => &mut attempts,
                    // Those that are refused cost little.
                    Ready::PendingPeer(id) if !self.may_shake(id) => continue,
                    Ready::PendingPeer(_) => &mut pending_peers,
                    Ready::Orders | Ready::Listener(_) | Ready::Link(_) => &mut 0,
                };
                *count += 1;
                // The connections that are left over are ready in the next turn.
                if *count <= HANDSHAKES_PER_TURN {
                    self.serve(ready, flags);
                }
            }
            self.take_orders();
            let now = Instant::now();
            self.accept_again = self.accept_again.filter(|at| *at > now);
            // A connection that was not heard is not late; but strangers that always have something to say must not
            // keep their places by that.
            let late = |ready| {
                let spared = if ready > HANDSHAKES_PER_TURN { self.config.handshake_timeout } else { Duration::ZERO };
                now.checked_sub(spared)
            };
            let (peers_late, attempts_late) = (late(pending_peers), late(attempts));
            peers_late.into_iter().for_each(|before| self.expire_pending_peers(before));
            attempts_late.into_iter().for_each(|before| self.expire_attempts(before));
            self.dial_due(now);
            self.keep_links(now);
            self.drop_failed();
            for plane in self.planes.values_mut() {
                plane.flush();
            }
        }
        self.say_goodbye();
    }

    fn take_orders(&mut self) {
        for _ in 0..ORDERS_PER_TURN {
            match self.to_thread.next() {
                Some(order) => self.take_order(order),
                None => {
                    self.backlog = false;
                    return;
                }
            }
        }
        self.backlog = true;
    }

    fn take_order(&mut self, order: Order) {
        match order {
            Order::Command(plane, command) => self.carry_out(plane, command),
            Order::SetPeer(node, texts) => self.set_peer(node, texts),
            Order::Plane(plane, events) => drop(self.planes.insert(plane, events)),
            Order::Service(service, streams) => drop(self.services.insert(service, streams)),
            Order::Revoked => self.end_revoked(),
            Order::Resolved { node, texts, addresses } => self.resolved(node, &texts, addresses),
            Order::Shutdown => self.stopping = true,
        }
    }

    pub(super) fn send_event(&mut self, plane: Plane, event: Event) {
        if let Some(events) = self.planes.get_mut(&plane) {
            events.send(event);
        }
    }

    /// Waits until something is ready, or due.
    fn sleep(&self) -> Vec<(Ready, PollFlags)> {
        let mut watched = Watched::new();
        // Links first: a peer's end comes before its next life.
        for link in self.links.values() {
            watched.add(Ready::Link(link.id), link.channel.socket.as_fd(), link.channel.is_stuffed());
        }
        for (id, attempt) in &self.attempts {
            let stuffed = attempt.connecting || attempt.channel.is_stuffed();
            watched.add(Ready::Attempt(*id), attempt.channel.socket.as_fd(), stuffed);
        }
        for pending in self.pending_peers.iter() {
            let channel = &pending.connection.channel;
            watched.add(Ready::PendingPeer(pending.id), channel.socket.as_fd(), channel.is_stuffed());
        }
        if self.accept_again.is_none() {
            for (index, listener) in self.listeners.iter().enumerate() {
                watched.add(Ready::Listener(index), listener.as_fd(), false);
            }
        }
        watched.add(Ready::Orders, self.to_thread.signal(), false);
        watched.wait(self.deadline())
    }

    /// The time at which something is due even if nothing becomes ready.
    fn deadline(&self) -> Option<Instant> {
        if self.backlog {
            return Some(Instant::now());
        }
        self.pending_peers
            .deadline()
            .into_iter()
            .chain(self.accept_again)
            .chain(self.dials_due())
            .chain(self.links_due())
            .min()
    }

    fn serve(&mut self, ready: Ready, flags: PollFlags) {
        match ready {
            Ready::Orders => self.to_thread.calm(),
            Ready::Listener(index) => self.accept(index, Instant::now()),
            Ready::Attempt(id) => self.hear_attempt(id),
            Ready::PendingPeer(id) => self.hear_pending_peer(id),
            Ready::Link(id) => {
                if flags.contains(PollFlags::OUT) {
                    self.flush_link(id);
                }
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.read_link(id);
                }
            }
        }
    }

    /// Tells the peers that this node leaves.
    fn say_goodbye(&mut self) {
        let until = Instant::now() + FAREWELL;
        for link in self.links.values_mut() {
            link.send(&LinkFrame::Goodbye);
            link.channel.pipe.farewell();
            let _ = link.channel.flush();
        }
        while let Some(link) = self.links.values_mut().find(|link| link.channel.is_stuffed()) {
            let left = until.saturating_duration_since(Instant::now());
            let left_spec = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let ready = poll(&mut [PollFd::new(&link.channel.socket, PollFlags::OUT)], Some(&left_spec));
            if left.is_zero() || ready.is_err() || link.channel.flush().is_err() {
                link.channel.pipe.out.clear();
            }
        }
    }
}
