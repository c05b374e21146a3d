//! The greeting that makes a link of a connection with another process: both say which node they are, and whether they
//! can work together.

use std::{
    os::fd::{AsFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::thread::Thread;
use crate::{
    BreakReason, NodeId,
    control::{PendingPeer, and_more, mismatch},
    local_name::{LocalNameError, is_same_user},
    share::Holder,
    shm::{
        doorbell::PeerBell,
        signals::OwnSignal,
        socket::{self, Packet},
        wire::{FRAME_BYTES, Frame, Hello, HelloRest, RefuseWhy},
    },
};

/// The time after which a peer that is not there is dialed again, at first.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);

/// The reason for which memory is not shared with a process whose socket is not found.
const NO_SOCKET: &str = "its socket is not in this process's directory of names: give both the same mounts, and the same \
     XDG_RUNTIME_DIR";

/// The longest such time.
const LAST_BACKOFF: Duration = Duration::from_millis(50);

/// The attempts to reach a node.
pub(super) struct Dial {
    pub(super) next: Instant,
    backoff: Duration,
    /// Whether it was found out if the node runs as another user.
    asked_for_user: bool,
    pub(super) dialed: Option<Dialed>,
}

/// A connection that waits for a node's welcome.
pub(super) struct Dialed {
    pub(super) socket: OwnedFd,
    /// The signal that the node was given.
    own: OwnSignal,
    /// The end of the wait.
    pub(super) deadline: Instant,
}

impl Dial {
    pub(super) fn new(now: Instant) -> Dial {
        Dial { next: now, backoff: FIRST_BACKOFF, asked_for_user: false, dialed: None }
    }

    /// The attempts from a while later on.
    pub(super) fn later(now: Instant) -> Dial {
        Dial { backoff: LAST_BACKOFF, ..Dial::new(now + LAST_BACKOFF) }
    }

    fn retry(&mut self, now: Instant) {
        self.dialed = None;
        self.next = now + self.backoff;
        self.backoff = (self.backoff * 3 / 2).min(LAST_BACKOFF);
    }
}

impl Thread {
    /// Whether this side dials a node, and accepts its offers of endpoints: that of the smaller id does.
    pub(super) fn dials_to(&self, peer: NodeId) -> bool {
        self.config.node < peer
    }

    fn own_hello(&self, to: NodeId) -> Hello {
        let rest = HelloRest { to, incarnation: self.incarnation, cluster: self.config.cluster.clone() };
        Hello { version: self.config.protocol, from: self.config.node, rest: Some(rest) }
    }

    fn say_hello(&self, socket: &OwnedFd, frame: &Frame, own: &OwnSignal) -> Result<(), Errno> {
        socket::send(socket, &frame.encode(), &[self.bell.watch_fd.as_fd(), own.as_fd()])
    }

    /// The reason for which this node can't work with one of that version and cluster.
    fn mismatch(&self, peer: NodeId, version: u32, cluster: Option<&str>) -> Option<String> {
        mismatch((self.config.protocol, &self.config.cluster), &peer.to_string(), version, cluster)
    }

    /// Takes connections from the listener.
    pub(super) fn accept(&mut self, now: Instant) {
        for _ in 0..self.config.max_pending_peers.max(1) {
            match socket::accept(&self.listener) {
                Ok(Some(socket)) if is_same_user(&socket) => {
                    // All are of this host, so that the oldest one has to go.
                    if self.pending_peers.add((), socket, now, Holder::Trusted).is_some() {
                        self.refuse_connection("too many connections have not said which node they are of");
                    }
                }
                Ok(Some(_)) => self.refuse_connection("it belongs to another user"),
                Ok(None) => return,
                Err(cause) => {
                    tracing::error!(%cause, "a connection could not be accepted{}", crate::shm::memory::hint(cause));
                    // The error would be reported again at once.
                    self.accept_again = Some(now + LAST_BACKOFF);
                    return;
                }
            }
        }
    }

    /// Counts and logs a connection that was closed.
    fn refuse_connection(&mut self, why: &str) {
        let count = 1 + self.connections_refused.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if let Some(more) = self.log.permits(Instant::now()) {
            tracing::warn!(node = self.config.node.0, count, "a connection was refused: {why}{}", and_more(more));
        }
    }

    /// Closes connections that have been silent for too long.
    pub(super) fn expire_pending_peers(&mut self, now: Instant) {
        while self.pending_peers.take_late(now).is_some() {
            self.refuse_connection("it did not say in time which node it is of");
        }
    }

    /// Reads the introduction of a connection's other end.
    pub(super) fn hear_pending_peer(&mut self, id: u64) {
        let mut buffer = [0; FRAME_BYTES];
        let Some(pending) = self.pending_peers.get_mut(id) else { return };
        let packet = socket::recv(&pending.connection, &mut buffer);
        if matches!(packet, Packet::None) {
            return;
        }
        let Some(PendingPeer { connection: socket, .. }) = self.pending_peers.take(id) else { return };
        let (hello, fds) = match packet {
            Packet::Bytes(len, fds) => match Frame::decode(&buffer[..len], self.config.protocol) {
                Ok(Frame::Hello(hello)) => (hello, fds),
                Ok(_) => return self.refuse_connection("its first packet is not a greeting"),
                Err(error) => return self.refuse_connection(&error.to_string()),
            },
            Packet::End => return self.refuse_connection("it left without a word"),
            Packet::TooLong => return self.refuse_connection("its greeting is too long"),
            Packet::NoDescriptors => {
                return self.refuse_connection("this process has too many files open: raise `ulimit -n`");
            }
            Packet::None => return,
        };
        let peer = hello.from;
        // The smaller id dials.
        if peer >= self.config.node {
            return self.refuse_connection("its node id should not dial this one");
        }
        let cluster = hello.rest.as_ref().map(|rest| rest.cluster.as_str());
        if let Some(sentence) = self.mismatch(peer, hello.version, cluster) {
            let is_same = hello.version == self.config.protocol;
            let why = if is_same { RefuseWhy::Cluster } else { RefuseWhy::Version };
            let cluster = self.config.cluster.clone();
            let refuse = Frame::Refuse { version: self.config.protocol, why, cluster };
            // If it does not get through, the peer dials again.
            let _ = socket::send(&socket, &refuse.encode(), &[]);
            self.refuse_connection(&sentence);
            self.pairing.refuse(peer, sentence, Instant::now());
            return self.settle();
        }
        let Some(rest) = hello.rest.filter(|rest| rest.to == self.config.node) else {
            return self.refuse_connection("it looks for another node");
        };
        // A process that has ended has closed its end before another could take its id.
        if let Some(link) = self.pairing.link_with(peer) {
            self.read_link(link);
        }
        if self.pairing.link_with(peer).is_some() {
            let cluster = self.config.cluster.clone();
            let refuse = Frame::Refuse { version: self.config.protocol, why: RefuseWhy::Busy, cluster };
            let _ = socket::send(&socket, &refuse.encode(), &[]);
            return self.refuse_connection("a node with its id is connected already");
        }
        let failed = |error| format!("it could not be welcomed: {error}");
        let own = match self.signals.for_peer() {
            Ok(own) => own,
            Err(error) => return self.refuse_connection(&failed(error)),
        };
        let Some(bell) = bell_of(fds, own, self.config.node) else {
            return self.refuse_connection("its greeting carries no usable doorbell");
        };
        if let Err(error) = self.say_hello(&socket, &Frame::Welcome(self.own_hello(peer)), bell.own()) {
            return self.refuse_connection(&failed(error));
        }
        self.link_up(peer, rest.incarnation, socket, bell);
    }

    /// Dials the peers that are due, and gives up on those that do not answer.
    pub(super) fn dial_due(&mut self, now: Instant) {
        let mut wanted = self.pairing.unlinked_peers();
        wanted.extend(self.attempts.keys().filter(|peer| self.pairing.link_with(**peer).is_none()));
        wanted.retain(|peer| self.dials_to(*peer));
        self.dials.retain(|peer, _| wanted.contains(peer));
        for peer in wanted {
            let mut dial = self.dials.remove(&peer).unwrap_or_else(|| Dial::new(now));
            match &dial.dialed {
                Some(dialed) if dialed.deadline <= now => {
                    tracing::debug!(%peer, "did not answer the greeting in time");
                    dial.retry(now);
                }
                None if dial.next <= now => match self.try_dial(peer) {
                    Some((socket, own)) => {
                        dial.dialed = Some(Dialed { socket, own, deadline: now + self.config.handshake_timeout });
                    }
                    None => {
                        dial.retry(now);
                        self.ask_for_user(peer, &mut dial);
                    }
                },
                _ => {}
            }
            self.dials.insert(peer, dial);
        }
    }

    fn try_dial(&mut self, peer: NodeId) -> Option<(OwnedFd, OwnSignal)> {
        let socket = match socket::dial(self.config.rendezvous(), peer) {
            Ok(socket) => socket,
            // The peer is not there yet; but one that is tried has been there.
            Err(LocalNameError::Absent) => {
                self.end_attempt(peer, Err(NO_SOCKET.to_owned()));
                return None;
            }
            // Its queue of connections is full.
            Err(LocalNameError::Taken | LocalNameError::System(Errno::AGAIN)) => return None,
            Err(error) => {
                let cause = match error {
                    LocalNameError::System(cause) => format!("{cause}{}", crate::shm::memory::hint(cause)),
                    error => error.to_string(),
                };
                if let Some(more) = self.log.permits(Instant::now()) {
                    tracing::warn!(%peer, %cause, "could not be dialed{}", and_more(more));
                }
                self.note_problem(peer, &cause);
                return None;
            }
        };
        if !is_same_user(&socket) {
            self.refuse_connection("another user's process listens in the place of a node");
            return None;
        }
        let own = match self.signals.for_peer() {
            Ok(own) => own,
            Err(cause) => {
                let cause = format!("{cause}{}", crate::shm::memory::hint(cause));
                if let Some(more) = self.log.permits(Instant::now()) {
                    tracing::warn!(%peer, %cause, "could not be dialed{}", and_more(more));
                }
                self.note_problem(peer, &cause);
                return None;
            }
        };
        self.say_hello(&socket, &Frame::Hello(self.own_hello(peer)), &own).ok()?;
        Some((socket, own))
    }

    /// Logs once that a node which is not there for this user runs as another one.
    fn ask_for_user(&self, peer: NodeId, dial: &mut Dial) {
        // A node that starts just now has appeared by then.
        if dial.backoff < LAST_BACKOFF || std::mem::replace(&mut dial.asked_for_user, true) {
            return;
        }
        if socket::is_of_another_user(self.config.rendezvous(), peer) {
            tracing::warn!(%peer, "it runs as another user, and is not trusted: run both as the same user");
        }
    }

    /// Reads the answer of a dialed node.
    pub(super) fn hear_dialed(&mut self, peer: NodeId, now: Instant) {
        let Some(dial) = self.dials.get_mut(&peer) else { return };
        let Some(dialed) = &dial.dialed else { return };
        let mut buffer = [0; FRAME_BYTES];
        let packet = socket::recv(&dialed.socket, &mut buffer);
        let (frame, fds) = match packet {
            Packet::None => return,
            Packet::Bytes(len, fds) => (Frame::decode(&buffer[..len], self.config.protocol).ok(), fds),
            Packet::NoDescriptors => {
                dial.retry(now);
                return self.note_problem(peer, "this process has too many files open: raise `ulimit -n`");
            }
            Packet::End | Packet::TooLong => {
                dial.retry(now);
                return self.note_problem(peer, "it closed the connection: its own log says why");
            }
        };
        let (version, cluster) = match &frame {
            Some(Frame::Welcome(hello)) if hello.from == peer => {
                (hello.version, hello.rest.as_ref().map(|rest| rest.cluster.as_str()))
            }
            Some(Frame::Refuse { version, why: RefuseWhy::Version | RefuseWhy::Cluster, cluster }) => {
                (*version, Some(cluster.as_str()))
            }
            _ => return dial.retry(now),
        };
        if let Some(sentence) = self.mismatch(peer, version, cluster) {
            tracing::warn!(node = self.config.node.0, "{sentence}");
            self.dials.remove(&peer);
            self.end_attempt(peer, Err(sentence.clone()));
            self.pairing.fail_waiting(peer, &BreakReason::Refused(sentence));
            return self.settle();
        }
        let dialed = self.dials.get_mut(&peer).and_then(|dial| dial.dialed.take());
        let Some(Dialed { socket, own, .. }) = dialed else { return };
        match (frame, bell_of(fds, own, self.config.node)) {
            (Some(Frame::Welcome(Hello { rest: Some(rest), .. })), Some(bell)) => {
                self.dials.remove(&peer);
                self.link_up(peer, rest.incarnation, socket, bell);
            }
            _ => {
                if let Some(dial) = self.dials.get_mut(&peer) {
                    dial.retry(now);
                }
            }
        }
    }
}

fn bell_of(fds: Vec<OwnedFd>, own: OwnSignal, node: NodeId) -> Option<PeerBell> {
    let [watch, eventfd] = <[OwnedFd; 2]>::try_from(fds).ok()?;
    PeerBell::map(watch.as_fd(), eventfd, own, node)
        .inspect_err(|error| tracing::debug!(%error, "a doorbell was refused"))
        .ok()
}
