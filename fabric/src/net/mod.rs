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

mod access;
mod attempt;
mod config;
mod credentials;
mod dial;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod greeting;
mod handshake;
mod handshake_rate;
mod heartbeat;
mod identity;
mod identity_error;
mod known_addresses;
mod link;
mod pairing;
mod peer;
mod peer_user;
mod pipe;
mod places;
mod plane;
mod principal;
mod revoked;
mod service;
mod service_dial;
mod socket;
mod stats;
#[cfg(test)]
mod test_keys;
#[cfg(test)]
mod tests;
mod thread;
mod tls;
mod verifier;
mod wire;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use crossbeam::channel::{Receiver, Sender, bounded};

pub use access::{Access, Call, CallerAccess, Denied};
pub use config::{CLUSTER_BYTES, NetConfig, NetError, Security};
pub use identity::{Expiry, Identity, IdentityError, KeyFiles};
pub(crate) use plane::{Command, Connect, DataStream, Event, Paired, Plane};
pub use principal::{ClientRights, OwnerNameError, Principal, Role, certificate_name, check_owner_name};
pub use service::{ServiceHangUp, ServiceId, ServiceReader, ServiceStream, ServiceWriter};
pub use service_dial::{DialError, ServiceDial, dial_service};
pub use stats::{NetStats, PortMonitor, RefusalStats};
pub(crate) use tls::{RECORD_BYTES, Session};

use crate::{
    NodeId,
    control::{self, Commands, EventSender},
    random,
};
use identity::Revocable;

/// The number of streams of one service that may wait to be taken; one more is refused.
const WAITING_STREAMS: usize = 64;

/// An order to the control thread.
enum Order {
    Command(Plane, Command),
    /// The addresses at which a node can be reached from now on.
    SetPeer(NodeId, Vec<String>),
    /// A fabric takes its events.
    Plane(Plane, EventSender<Event>),
    /// A thread takes a service's streams.
    Service(ServiceId, Sender<ServiceStream>),
    /// Some certificates may be revoked.
    Revoked,
    /// The addresses that a peer's host names stand for.
    Resolved {
        node: NodeId,
        texts: Vec<String>,
        addresses: Vec<SocketAddr>,
    },
    Shutdown,
}

/// The way to the control thread, for any thread.
type Orders = Commands<Order>;

/// A polling thread's end of a fabric's events.
pub(crate) type Events = control::Events<Event>;

/// A fabric's way to the control thread, for any thread.
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

/// A node's port, and the thread that serves it.
pub(crate) struct Net {
    orders: Orders,
    local_addrs: Vec<SocketAddr>,
    counters: Arc<stats::Counters>,
    /// Lives as long as this thread is to hear of revoked certificates.
    _revocation: Arc<dyn Revocable>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// A call to the control thread to look for peers whose certificates are revoked.
struct Revocation(Orders);

impl Revocable for Revocation {
    fn end_if_revoked(&self, _: &revoked::Revoked) {
        self.0.send([Order::Revoked]);
    }
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
        let (orders, to_thread) =
            control::commands().map_err(|error| system("create an eventfd", error.to_string()))?;
        let counters = Arc::new(stats::Counters::default());
        let incarnation = random::number().map_err(|error| system("draw a random number", error.to_string()))?;
        let revocation: Arc<dyn Revocable> = Arc::new(Revocation(orders.clone()));
        if let Security::Tls(identity) = &config.security {
            identity.watch();
            identity.track(Arc::downgrade(&revocation));
        }
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
        let thread = Mutex::new(Some(thread));
        Ok(Net { orders, local_addrs, counters, _revocation: revocation, thread })
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
        let (sender, events) = control::events(bell);
        self.orders.send([Order::Plane(plane, sender)]);
        (Control { plane, orders: self.orders.clone() }, events)
    }

    /// Takes the streams that peers open for a service, from now on and in place of an earlier receiver.
    pub(crate) fn take_service(&self, service: ServiceId) -> Receiver<ServiceStream> {
        let (sender, streams) = bounded(WAITING_STREAMS);
        self.orders.send([Order::Service(service, sender)]);
        streams
    }

    /// The counts since the port was opened, for any thread.
    pub(crate) fn monitor(&self) -> PortMonitor {
        PortMonitor(Arc::clone(&self.counters))
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
