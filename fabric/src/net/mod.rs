//! The meeting of nodes on a network: one port per node, and the agreement and trust there before any data moves.
//!
//! The fabrics for networks (`tcp`, `verbs`) share this. Between two nodes there is one *link*, a connection over which
//! endpoints meet and heartbeats go; an endpoint of the `tcp` fabric then gets a connection of its own. All of them
//! come in by the node's one port, pass the same handshake (TLS where the cluster has a CA, then a greeting), and are
//! sorted by their purpose. A thread of its own does all this, so that a thread that polls a fabric never waits for a
//! socket.
//!
//! ```text
//!   polling thread                         control thread
//!   Command::Connect { tag, set_up } ────▶ dials the peer, or waits for it ◀── link ──▶ the peer's
//!   Event::Paired { set_up, stream } ◀──── both sides have asked for the tag
//!   Command::Close ──────────────────────▶ the peer's Event::Broken
//!   Event::Broken ◀─────────────────────── nothing was heard for the failure timeout, or the peer closed
//! ```

mod attempt;
mod config;
mod dial;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod greeting;
mod handshake;
mod identity;
mod link;
mod pairing;
mod pipe;
mod plane;
mod service;
mod socket;
mod stats;
#[cfg(test)]
mod test_keys;
#[cfg(test)]
mod tests;
mod thread;
mod tls;
mod wire;

use std::{
    net::SocketAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
};

use crossbeam::channel::{Receiver, Sender, TryRecvError, bounded, unbounded};
use rustix::event::{EventfdFlags, eventfd};

pub use config::{CLUSTER_BYTES, NetConfig, NetError, Security};
pub use identity::{Identity, IdentityError, certificate_name};
pub(crate) use plane::{Command, Connect, DataStream, Event, Paired, Plane};
pub use service::{
    DialError, ServiceDial, ServiceHangUp, ServiceId, ServiceReader, ServiceStream, ServiceWriter, dial_service,
};
pub use stats::{NetStats, StrangerStats};
pub(crate) use tls::Session;

use crate::NodeId;

/// The number of streams of one service that may wait to be taken; one more is refused.
const WAITING_STREAMS: usize = 64;

/// An order to the control thread.
enum Order {
    Command(Plane, Command),
    /// The addresses at which a node can be reached from now on.
    SetPeer(NodeId, Vec<String>),
    /// A fabric takes its events.
    Plane(Plane, EventSender),
    /// A thread takes a service's streams.
    Service(ServiceId, Sender<ServiceStream>),
    /// The addresses that a peer's host names stand for.
    Resolved {
        node: NodeId,
        texts: Vec<String>,
        addresses: Vec<SocketAddr>,
    },
    Shutdown,
}

/// The way to the control thread, for any thread.
#[derive(Clone)]
struct Orders {
    orders: Sender<Order>,
    wake: Arc<OwnedFd>,
}

impl Orders {
    /// Sends orders. After the thread's end they go nowhere, since no peer is left to be told.
    fn send(&self, orders: impl IntoIterator<Item = Order>) {
        let mut any = false;
        for order in orders {
            any |= self.orders.send(order).is_ok();
        }
        if any {
            // A full eventfd is one that is signaled already.
            let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

/// A fabric's way to the control thread, for any thread.
///
/// The channel has no bound, so that no thread waits; each command is about an endpoint that this process holds.
#[derive(Clone)]
pub(crate) struct Control {
    plane: Plane,
    orders: Orders,
}

impl Control {
    /// Sends commands, and wakes the thread if there were any.
    pub(crate) fn send(&self, commands: impl IntoIterator<Item = Command>) {
        self.orders.send(commands.into_iter().map(|command| Order::Command(self.plane, command)));
    }
}

/// A polling thread's end of a fabric's events.
pub(crate) struct Events {
    events: Receiver<Event>,
    pending: Arc<AtomicBool>,
    told: Arc<AtomicUsize>,
}

impl Events {
    /// Whether there may be events: one load, and no more on a hot path.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes note of all events that there are so far; they are the next ones of [`next`](Events::next).
    pub(crate) fn begin(&self) {
        // An event that is sent after this sets the flag again.
        self.pending.swap(false, Ordering::Acquire);
    }

    /// The next event, if there is one. An error says that the control thread is no more.
    #[allow(clippy::result_unit_err)]
    pub(crate) fn next(&self) -> Result<Option<Event>, ()> {
        match self.events.try_recv() {
            Ok(event) => {
                if matches!(event, Event::Told { .. }) {
                    self.told.fetch_sub(1, Ordering::Relaxed);
                }
                Ok(Some(event))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                // Endpoints that are connected from now on shall learn of it as well.
                self.pending.store(true, Ordering::Relaxed);
                Err(())
            }
        }
    }
}

/// The control thread's end.
///
/// The channel has no bound, since the control thread must go on noticing deaths while the polling thread is busy. The
/// events that peers cause are bounded by the endpoints of this side, except `Told` events: `told` counts those.
struct EventSender {
    events: Option<Sender<Event>>,
    pending: Arc<AtomicBool>,
    told: Arc<AtomicUsize>,
    bell: Box<dyn Fn() + Send + Sync>,
    unflushed: bool,
}

impl EventSender {
    fn send(&mut self, event: Event) {
        if let Some(events) = &self.events {
            if matches!(event, Event::Told { .. }) {
                self.told.fetch_add(1, Ordering::Relaxed);
            }
            // The receiver goes with the fabric, after which no thread waits for events.
            let _ = events.send(event);
            self.unflushed = true;
        }
    }

    /// The number of `Told` events that were not taken yet.
    fn untaken(&self) -> usize {
        self.told.load(Ordering::Relaxed)
    }

    /// Tells the polling thread of events.
    fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            self.pending.store(true, Ordering::Release);
            (self.bell)();
        }
    }
}

impl Drop for EventSender {
    /// Has the polling thread look and find the end, for whatever reason this thread ends.
    fn drop(&mut self) {
        self.events = None;
        self.unflushed = true;
        self.flush();
    }
}

/// A node's port, and the thread that serves it.
pub(crate) struct Net {
    orders: Orders,
    local_addrs: Vec<SocketAddr>,
    counters: Arc<stats::Counters>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Net {
    /// Listens, and starts the thread.
    pub(crate) fn open(config: &NetConfig) -> Result<Net, NetError> {
        let system = |attempt, cause: String| NetError::System { attempt, cause };
        config.check()?;
        let listeners = socket::listeners(config)?;
        let local_addrs = listeners
            .iter()
            .map(|listener| listener.local_addr())
            .collect::<Result<_, _>>()
            .map_err(|error| system("learn its address", error.to_string()))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| system("create an eventfd", error.to_string()))?;
        let (sender, to_thread) = unbounded();
        let orders = Orders { orders: sender, wake: Arc::new(wake) };
        let counters = Arc::new(stats::Counters::default());
        let incarnation = u64::from_le_bytes(random().map_err(|error| system("draw a random number", error))?);
        let thread = thread::Thread::new(
            config.clone(),
            incarnation,
            listeners,
            thread::Ends { to_thread, orders: orders.clone(), counters: Arc::clone(&counters) },
        );
        let thread = std::thread::Builder::new()
            .name(format!("squall-net-{}", config.node.0))
            .spawn(move || thread.run())
            .map_err(|error| system("start its control thread", error.to_string()))?;
        Ok(Net { orders, local_addrs, counters, thread: Mutex::new(Some(thread)) })
    }

    /// The addresses at which this node listens, ports filled in.
    pub(crate) fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Sets the addresses at which a peer listens, as [`NetConfig::peers`] does. Links that are up stay up.
    pub(crate) fn set_peer(&self, node: NodeId, addresses: Vec<String>) {
        self.orders.send([Order::SetPeer(node, addresses)]);
    }

    /// Attaches a fabric.
    ///
    /// `bell` ends its wait, and is rung on the control thread after events were sent. A later call for the same plane
    /// takes its place.
    pub(crate) fn plane(&self, plane: Plane, bell: impl Fn() + Send + Sync + 'static) -> (Control, Events) {
        let (to_fabric, events) = unbounded();
        let (pending, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let sender = EventSender {
            events: Some(to_fabric),
            pending: Arc::clone(&pending),
            told: Arc::clone(&told),
            bell: Box::new(bell),
            unflushed: false,
        };
        self.orders.send([Order::Plane(plane, sender)]);
        (Control { plane, orders: self.orders.clone() }, Events { events, pending, told })
    }

    /// Takes the streams that peers open for a service, from now on and in place of an earlier receiver.
    pub(crate) fn take_service(&self, service: ServiceId) -> Receiver<ServiceStream> {
        let (sender, streams) = bounded(WAITING_STREAMS);
        self.orders.send([Order::Service(service, sender)]);
        streams
    }

    /// The counts since the port was opened.
    pub(crate) fn stats(&self) -> NetStats {
        self.counters.read()
    }
}

impl Drop for Net {
    /// Says goodbye to the peers, and waits until all sockets are closed.
    fn drop(&mut self) {
        self.orders.send([Order::Shutdown]);
        let thread = self.thread.get_mut().map(Option::take).unwrap_or_default();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the control thread of a node's port had panicked");
        }
    }
}

/// Bytes that can't be guessed.
fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(len) => filled += len,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(bytes)
}
