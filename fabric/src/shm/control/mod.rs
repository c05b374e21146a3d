//! The control thread: it owns all sockets, so that the polling thread never waits for the system.
//!
//! The polling thread sends it [`Command`]s and takes [`Event`]s from it. Between two nodes there is one connection,
//! which the node with the smaller id dials: so two nodes never dial each other at once. Once both have said which node
//! they are (`greeting`), it is a [`link`], over which endpoints meet (`pairing`). When a process ends, the kernel
//! closes its sockets: by that its peers learn of it.

mod greeting;
mod link;
mod pairing;
mod thread;

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use rustix::io::Errno;

use self::link::Untaken;
use super::{
    config::{ShmConfig, ShmError},
    doorbell::{self, Doorbell, PeerBell},
    memory::{Handle, OwnMemory, PeerMemory},
    peer::Source,
    ring,
    share::SharedCopy,
    socket,
};
use crate::{BreakReason, EndpointId, GroupTag, NodeId, RegionKey, control::LinkId};

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
    /// The fabric is dropped.
    Shutdown,
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
///
/// The channel has no bound, so that no thread waits. Each command is about an endpoint or a region that this process
/// holds, and the descriptors and memory that those take are bounded by the system.
#[derive(Clone)]
pub(super) struct Control {
    commands: Sender<Command>,
    wake: Arc<OwnedFd>,
}

impl Control {
    /// Sends commands, and wakes the thread if there were any. After its end they go nowhere, since no peer is left to
    /// be told.
    pub(super) fn send(&self, commands: impl IntoIterator<Item = Command>) {
        let mut any = false;
        for command in commands {
            any |= self.commands.send(command).is_ok();
        }
        if any {
            // A full eventfd is one that is signaled already.
            let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

/// The polling thread's end of the events.
pub(super) struct Events {
    events: Receiver<Event>,
    pending: Arc<AtomicBool>,
}

impl Events {
    /// Whether there may be events: one load, and no more on a hot path.
    #[inline]
    pub(super) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes note of all events that there are so far; they are the next ones of [`next`](Events::next).
    pub(super) fn begin(&self) {
        // An event that is sent after this sets the flag again.
        self.pending.swap(false, Ordering::Acquire);
    }

    /// The next event, if there is one. An error says that the control thread is no more.
    pub(super) fn next(&self) -> Result<Option<Event>, ()> {
        match self.events.try_recv() {
            Ok(event) => Ok(Some(event)),
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
/// events that peers cause are bounded by the endpoints of this side and by [`link::MAX_UNTAKEN`].
struct EventSender {
    events: Option<Sender<Event>>,
    pending: Arc<AtomicBool>,
    bell: Arc<Doorbell>,
    unflushed: bool,
}

impl EventSender {
    fn send(&mut self, event: Event) {
        if let Some(events) = &self.events {
            // The receiver goes with the fabric, after which no thread waits for events.
            let _ = events.send(event);
            self.unflushed = true;
        }
    }

    /// Tells the polling thread of events.
    fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            self.pending.store(true, Ordering::Release);
            self.bell.wake();
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

/// A running control thread.
pub(super) struct ControlThread {
    pub(super) control: Control,
    pub(super) events: Events,
    pub(super) strangers_refused: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl ControlThread {
    /// Takes the node's name and starts the thread.
    pub(super) fn start(config: &ShmConfig, incarnation: u64, bell: &Arc<Doorbell>) -> Result<ControlThread, ShmError> {
        let listener = socket::listener(config.rendezvous(), config.node).map_err(|cause| match cause {
            Errno::ADDRINUSE => ShmError::NodeRuns { node: config.node, cluster: config.cluster.clone() },
            cause => ShmError::System { attempt: "take its socket's name", cause },
        })?;
        let wake = Arc::new(doorbell::new_eventfd().map_err(ShmError::system("create an eventfd"))?);
        let (commands, to_thread) = unbounded();
        let (to_fabric, events) = unbounded();
        let pending = Arc::new(AtomicBool::new(false));
        let sender = EventSender {
            events: Some(to_fabric),
            pending: Arc::clone(&pending),
            bell: Arc::clone(bell),
            unflushed: false,
        };
        let strangers_refused = Arc::new(AtomicU64::new(0));
        let thread = thread::Thread::new(
            config.clone(),
            incarnation,
            listener,
            thread::Ends { commands: to_thread, wake: Arc::clone(&wake), events: sender },
            Arc::clone(&strangers_refused),
        );
        let thread = std::thread::Builder::new()
            .name(format!("squall-shm-{}", config.node.0))
            .spawn(move || thread.run())
            .map_err(|error| ShmError::System {
                attempt: "start its control thread",
                cause: Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
            })?;
        let control = Control { commands, wake };
        Ok(ControlThread { control, events: Events { events, pending }, strangers_refused, thread: Some(thread) })
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
