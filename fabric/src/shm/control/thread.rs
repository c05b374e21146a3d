//! The control thread's loop.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicU64},
    time::{Duration, Instant},
};

use rustix::event::PollFlags;

use super::{Command, Event, attempt::Attempt, greeting::Dial, link::ShmLink, pairing::ShmMedium};
use crate::{
    BreakReason, NodeId,
    control::{CommandReceiver, EventSender, LinkId, LogLimit, Pairing, PendingPeers, Watched},
    shm::{
        config::ShmConfig,
        doorbell::{Doorbell, PeerBell},
        signals::Signals,
        socket::{self, Listener, Packet},
        wire::{FRAME_BYTES, Frame},
    },
};

/// The number of packets of one link that are read before others have their turn.
const PACKETS_PER_TURN: usize = 64;

/// The spell of the limit on lines about strangers.
const LOG_SPELL: Duration = Duration::from_secs(10);

/// The ends of the channels with the polling thread, and the bell that this thread shows to peers.
pub(super) struct Ends {
    pub(super) commands: CommandReceiver<Command>,
    pub(super) events: EventSender<Event>,
    pub(super) bell: Arc<Doorbell>,
    pub(super) signals: Arc<Signals>,
}

/// The control thread's state. Its parts are in `greeting`, `link` and `pairing`.
pub(super) struct Thread {
    pub(super) config: ShmConfig,
    pub(super) incarnation: u64,
    pub(super) bell: Arc<Doorbell>,
    pub(super) signals: Arc<Signals>,
    commands: CommandReceiver<Command>,
    pub(super) events: EventSender<Event>,
    pub(super) listener: Listener,
    /// The time to accept again, after the system has refused to.
    pub(super) accept_again: Option<Instant>,
    pub(super) pending_peers: PendingPeers<(), OwnedFd>,
    pub(super) connections_refused: Arc<AtomicU64>,
    pub(super) log: LogLimit,
    pub(super) dials: BTreeMap<NodeId, Dial>,
    pub(super) attempts: BTreeMap<NodeId, Attempt>,
    pub(super) links: BTreeMap<LinkId, ShmLink>,
    pub(super) pairing: Pairing<ShmMedium>,
    next_link: u64,
    pub(super) stopping: bool,
}

/// A descriptor that may be ready.
#[derive(Clone, Copy)]
enum Ready {
    Commands,
    Listener,
    Link(LinkId),
    Dial(NodeId),
    PendingPeer(u64),
}

impl Thread {
    pub(super) fn new(
        config: ShmConfig,
        incarnation: u64,
        listener: Listener,
        ends: Ends,
        connections_refused: Arc<AtomicU64>,
    ) -> Thread {
        Thread {
            bell: ends.bell,
            signals: ends.signals,
            pending_peers: PendingPeers::new(config.max_pending_peers, config.handshake_timeout),
            config,
            incarnation,
            commands: ends.commands,
            events: ends.events,
            listener,
            accept_again: None,
            connections_refused,
            log: LogLimit::new(LOG_SPELL),
            dials: BTreeMap::new(),
            attempts: BTreeMap::new(),
            links: BTreeMap::new(),
            pairing: Pairing::new(),
            next_link: 0,
            stopping: false,
        }
    }

    /// Runs until the fabric is dropped.
    pub(super) fn run(mut self) {
        let span = tracing::info_span!("shm", node = self.config.node.0);
        let _entered = span.enter();
        while !self.stopping {
            for (ready, flags) in self.sleep() {
                self.serve(ready, flags);
            }
            while let Some(command) = self.commands.next() {
                self.carry_out(command);
            }
            let now = Instant::now();
            self.accept_again = self.accept_again.filter(|at| *at > now);
            self.expire_pending_peers(now);
            self.expire_attempts(now);
            self.dial_due(now);
            self.drop_failed();
            self.events.flush();
        }
        for link in self.links.values_mut() {
            link.send(&Frame::Goodbye, Vec::new());
        }
    }

    /// Waits until something is ready, or due.
    fn sleep(&self) -> Vec<(Ready, PollFlags)> {
        let mut watched = Watched::new();
        // Links first: a peer's end comes before its next life.
        for link in self.links.values() {
            watched.add(Ready::Link(link.id), link.socket.as_fd(), link.is_stuffed());
        }
        for (peer, dial) in &self.dials {
            if let Some(dialed) = &dial.dialed {
                watched.add(Ready::Dial(*peer), dialed.socket.as_fd(), false);
            }
        }
        for pending in self.pending_peers.iter() {
            watched.add(Ready::PendingPeer(pending.id), pending.connection.as_fd(), false);
        }
        if self.accept_again.is_none() {
            watched.add(Ready::Listener, self.listener.as_fd(), false);
        }
        watched.add(Ready::Commands, self.commands.signal(), false);
        watched.wait(self.deadline())
    }

    /// The time at which something is due even if nothing becomes ready.
    fn deadline(&self) -> Option<Instant> {
        let dials = self.dials.values().map(|dial| dial.dialed.as_ref().map_or(dial.next, |dialed| dialed.deadline));
        let attempts = self.attempts.values().map(|attempt| attempt.deadline);
        dials.chain(attempts).chain(self.pending_peers.deadline()).chain(self.accept_again).min()
    }

    fn serve(&mut self, ready: Ready, flags: PollFlags) {
        match ready {
            Ready::Commands => self.commands.calm(),
            Ready::Listener => self.accept(Instant::now()),
            Ready::Dial(peer) => self.hear_dialed(peer, Instant::now()),
            Ready::PendingPeer(id) => self.hear_pending_peer(id),
            Ready::Link(link) => {
                if flags.contains(PollFlags::OUT)
                    && let Some(link) = self.links.get_mut(&link)
                {
                    link.flush();
                }
                if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    self.read_link(link);
                }
            }
        }
    }

    /// Takes a connection whose other end is a node of this cluster.
    pub(super) fn link_up(&mut self, peer: NodeId, incarnation: u64, socket: OwnedFd, bell: PeerBell) {
        self.next_link += 1;
        let id = LinkId(self.next_link);
        tracing::debug!(%peer, incarnation, "linked");
        self.links.insert(id, ShmLink::new(id, peer, incarnation, socket));
        self.dials.remove(&peer);
        self.events.send(Event::LinkUp { link: id, node: peer, bell });
        self.pairing.link_up(id, peer, self.dials_to(peer));
        self.settle();
        if self.is_other_process(peer, incarnation) {
            // This process does not end.
            if let Some(link) = self.links.get_mut(&id) {
                link.send(&Frame::Goodbye, Vec::new());
            }
            self.link_down(id, &BreakReason::PeerClosed);
            self.dials.insert(peer, Dial::later(Instant::now()));
        }
    }

    /// Reads the packets that a peer has sent.
    pub(super) fn read_link(&mut self, id: LinkId) {
        let mut buffer = [0; FRAME_BYTES];
        for _ in 0..PACKETS_PER_TURN {
            let Some(link) = self.links.get(&id) else { return };
            let outcome = match socket::recv(&link.socket, &mut buffer) {
                Packet::None => return,
                Packet::Bytes(len, fds) => match Frame::decode(&buffer[..len], self.config.protocol) {
                    Ok(frame) => self.on_frame(id, frame, fds).map_err(|error| error.to_string()),
                    Err(error) => Err(error.to_string()),
                },
                Packet::End => {
                    // A peer that could not say goodbye may be alive, and others rely on this report.
                    let gone = !link.goodbye && link.is_process_gone();
                    let reason = if gone { BreakReason::ProcessGone } else { BreakReason::PeerClosed };
                    return self.link_down(id, &reason);
                }
                Packet::TooLong => Err("it sent a packet that is longer than any".to_owned()),
                Packet::NoDescriptors => {
                    Err("this process has too many files open for what a peer hands over: raise `ulimit -n`".to_owned())
                }
            };
            if let Err(text) = outcome {
                return self.give_up(id, &text);
            }
        }
    }

    /// Ends a link, and with it all that was connected over it.
    fn link_down(&mut self, id: LinkId, reason: &BreakReason) {
        let Some(link) = self.links.remove(&id) else { return };
        tracing::debug!(peer = %link.node, "link ended: {reason}");
        self.pairing.link_down(id, reason);
        self.settle();
        self.events.send(Event::LinkDown { link: id });
    }

    /// Closes a link that can't be used, for the reason that a sentence gives.
    fn give_up(&mut self, id: LinkId, text: &str) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let peer = link.node;
        tracing::error!(%peer, "a link is given up: {text}");
        // This process does not end, and the peer shall not believe that it did.
        link.send(&Frame::Goodbye, Vec::new());
        let reason = BreakReason::Failed(format!("{peer}: {text}"));
        self.link_down(id, &reason);
        // Another try would most likely come to the same end.
        self.pairing.fail_waiting(peer, &reason);
        self.settle();
    }

    /// Gives up links over which nothing can be sent.
    fn drop_failed(&mut self) {
        let failed = self.links.values().find_map(|link| Some((link.id, link.failed.clone()?)));
        if let Some((id, text)) = failed {
            self.give_up(id, &text);
        }
    }
}
