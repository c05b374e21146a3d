//! The control thread: it owns all sockets, so that the polling thread never waits for the system.
//!
//! The polling thread sends it [`Command`]s and takes [`Event`]s from it. Between two nodes there is one connection,
//! which the node with the smaller id dials: so two nodes never dial each other at once. Once both have said which node
//! they are (`greeting`), it is a [`link`], over which endpoints meet (`pairing`). When a process ends, the kernel
//! closes its sockets: by that its peers learn of it.

mod attempt;
mod greeting;
mod link;
mod pairing;
mod thread;

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicU64},
    thread::JoinHandle,
};

use rustix::io::Errno;

use super::{
    config::{ShmConfig, ShmError},
    doorbell::{Doorbell, PeerBell},
    memory::{Handle, OwnMemory, PeerMemory},
    peer::Source,
    ring,
    share::SharedCopy,
    signals::Signals,
    socket,
};
use crate::{
    BreakReason, EndpointId, GroupTag, NodeId, RegionKey,
    control::{self, Commands, Events, LinkId, Untaken},
    local_name::LocalNameError,
};

/// A request of the polling thread.
pub(super) enum Command {
    /// Has an endpoint meet its counterpart.
    Connect(Box<Connect>),
    /// An endpoint is no more, and its counterpart shall learn the reason.
    Close { endpoint: EndpointId, reason: BreakReason },
    /// Lets the peer pull from this memory.
    Lend { link: LinkId, memory: Arc<OwnMemory> },
    /// Gives sealed memory to the peer, under this key.
    Share { link: LinkId, key: RegionKey, bytes: usize, fd: Arc<OwnedFd> },
    /// The memory of that key is gone, or the share of that key complete.
    Forget { key: RegionKey, links: Vec<LinkId> },
    /// Links with the process of a node, if it can: [`Event::Tried`] has the result.
    TryLink { peer: NodeId, incarnation: u64 },
    /// Breaks the endpoints that have not met their counterparts at a peer.
    BreakUnmet { peer: NodeId, reason: BreakReason },
    /// The fabric is dropped.
    Shutdown,
}

/// The result of an attempt to link with the process of a node that has an incarnation. An error is a sentence.
pub(crate) struct LinkAttempt {
    pub(crate) peer: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) result: Result<(), String>,
}

/// This side's part of a connection.
pub(super) struct Connect {
    pub(super) endpoint: EndpointId,
    pub(super) peer: NodeId,
    pub(super) tag: GroupTag,
    pub(super) hello: Vec<u8>,
    pub(super) ring: Handle,
    pub(super) ring_slots: u64,
    pub(super) expose: Vec<Arc<OwnMemory>>,
}

/// News for the polling thread.
pub(super) enum Event {
    LinkUp {
        link: LinkId,
        node: NodeId,
        bell: PeerBell,
    },
    /// A link has ended; all its endpoints have broken before.
    LinkDown {
        link: LinkId,
    },
    Tried(LinkAttempt),
    Connected(Box<Connected>),
    Broken {
        endpoint: EndpointId,
        reason: BreakReason,
    },
    /// Memory that a peer has its bytes pulled from.
    Source {
        link: LinkId,
        key: RegionKey,
        source: Source,
        _untaken: Untaken,
    },
    /// Sealed memory that a peer shares, or the reason for which it could not be mapped.
    Share {
        link: LinkId,
        key: RegionKey,
        copy: Result<SharedCopy, String>,
        _untaken: Untaken,
    },
    /// The peer has given that memory up, or its share was taken.
    Forget {
        link: LinkId,
        key: RegionKey,
        _untaken: Untaken,
    },
}

/// The peer's part of a connection.
pub(super) struct Connected {
    pub(super) endpoint: EndpointId,
    pub(super) link: LinkId,
    pub(super) set_up: PeerSetUp,
}

/// The memory that a peer handed over for one endpoint, mapped here.
pub(super) struct PeerSetUp {
    pub(super) ring: ring::Receiver,
    pub(super) remote: Vec<PeerMemory>,
    pub(super) hello: Vec<u8>,
}

/// The way to the control thread, for any thread.
pub(super) type Control = Commands<Command>;

/// A running control thread.
pub(super) struct ControlThread {
    pub(super) control: Control,
    pub(super) events: Events<Event>,
    pub(super) connections_refused: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Takes the node's name and starts the thread.
    pub(super) fn start(
        config: &ShmConfig,
        incarnation: u64,
        bell: &Arc<Doorbell>,
        signals: &Arc<Signals>,
    ) -> Result<ControlThread, ShmError> {
        let listener = socket::listener(config.rendezvous(), config.node).map_err(|error| match error {
            LocalNameError::Directory(error) => ShmError::Directory(error),
            LocalNameError::System(cause) => ShmError::System { attempt: "take its socket's name", cause },
            LocalNameError::Taken | LocalNameError::Absent => {
                ShmError::NodeRuns { node: config.node, cluster: config.cluster.clone() }
            }
        })?;
        let (control, commands) = control::commands().map_err(ShmError::system("create an eventfd"))?;
        let own_bell = Arc::clone(bell);
        let (sender, events) = control::events(move || own_bell.wake());
        let connections_refused = Arc::new(AtomicU64::new(0));
        let thread = thread::Thread::new(
            config.clone(),
            incarnation,
            listener,
            thread::Ends { commands, events: sender, bell: Arc::clone(bell), signals: Arc::clone(signals) },
            Arc::clone(&connections_refused),
        );
        let thread = std::thread::Builder::new()
            .name(format!("squall-shm-{}", config.node.0))
            .spawn(move || thread.run())
            .map_err(|error| ShmError::System {
                attempt: "start its control thread",
                cause: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            })?;
        Ok(ControlThread { control, events, connections_refused, thread: Some(thread) })
    }
}

impl Drop for ControlThread {
    /// Says goodbye to the peers, and waits until all sockets are closed.
    fn drop(&mut self) {
        self.control.send([Command::Shutdown]);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the control thread of a shared-memory fabric had panicked");
        }
    }
}
