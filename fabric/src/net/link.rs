//! A connection with a node that has said which node it is.

use std::{io::ErrorKind, net::SocketAddr, time::Instant};

use super::{
    config::Security,
    heartbeat::Heartbeat,
    socket::{self, Channel, ChannelError},
    stats::RefusalKind,
    thread::Thread,
    wire::{LINK_FRAME_BYTES, LinkFrame, Nonce},
};
use crate::{
    BreakReason, NodeId,
    control::{LinkId, and_more},
    share::Holder,
};

/// The number of bytes that may wait for a peer that does not read.
const MAX_OUTBOX: usize = 32 << 20;

/// The reason for the end of a link whose peer's certificate is refused since.
const REVOKED: &str = "its certificate is revoked";

/// A connection with a node.
pub(super) struct NetLink {
    pub(super) id: LinkId,
    pub(super) node: NodeId,
    pub(super) incarnation: u64,
    pub(super) channel: Channel,
    /// The number by which data connections name it.
    pub(super) nonce: Nonce,
    /// The peer's address.
    pub(super) address: SocketAddr,
    /// Whether this side dialed, and so matches offers and dials data connections.
    pub(super) dialed: bool,
    heartbeat: Heartbeat,
    /// The reason for which nothing can be sent any more.
    pub(super) failed: Option<String>,
}

impl NetLink {
    pub(super) fn new(
        id: LinkId,
        node: NodeId,
        incarnation: u64,
        channel: Channel,
        nonce: Nonce,
        address: SocketAddr,
        dialed: bool,
    ) -> NetLink {
        let heartbeat = Heartbeat::new(Instant::now());
        NetLink { id, node, incarnation, channel, nonce, address, dialed, heartbeat, failed: None }
    }

    /// Sends a frame, now or when the peer has read others.
    pub(super) fn send(&mut self, frame: &LinkFrame) {
        if self.failed.is_some() {
            return;
        }
        if self.channel.pipe.out.len() > MAX_OUTBOX {
            self.failed = Some("it does not read its socket".to_owned());
            return;
        }
        match self.channel.send(&frame.encode()) {
            // A socket that has failed is also read to its end, and tells the reason behind the bytes that the peer
            // sent before.
            Ok(()) | Err(ChannelError::System(_) | ChannelError::End) => {}
            Err(ChannelError::Pipe(error)) => self.failed = Some(error.to_string()),
        }
    }
}

impl Thread {
    /// Takes a connection whose other end is a node of this cluster.
    pub(super) fn link_up(&mut self, link: NetLink) {
        let (id, peer, dialed) = (link.id, link.node, link.dialed);
        tracing::debug!(%peer, incarnation = link.incarnation, dialed, "linked");
        self.counters.count(|stats| stats.links_up += 1);
        socket::limit_silence(&link.channel.socket, self.config.failure_timeout);
        self.forget_dial(peer);
        if self.is_revoked(&link) {
            return self.refuse_connection(link.address, RefusalKind::Certificate, REVOKED);
        }
        if link.channel.pipe.session().is_some() {
            // It may dial this node another time, from an address of which only a name was given.
            self.known_addresses.prove(link.address.ip(), &Holder::Trusted);
        }
        self.links.insert(id, link);
        self.pairing.link_up(id, peer, dialed);
        self.settle();
        // Frames may have come behind the greeting.
        self.take_frames(id);
    }

    /// Reads the bytes that a peer has sent.
    pub(super) fn read_link(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        match link.channel.read() {
            Ok(heard) => {
                if heard {
                    link.heartbeat.hear(Instant::now());
                }
                self.take_frames(id);
            }
            Err(ChannelError::Pipe(error)) => self.give_up(id, &error.to_string()),
            Err(ChannelError::End) => {
                self.link_down(id, &BreakReason::Lost("the peer's host closed it without a word".to_owned()));
            }
            Err(ChannelError::System(error)) => {
                let reason = match error.kind() {
                    // Routers and neighbors cause the second and third, while the connection timed out.
                    ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                        BreakReason::Unreachable
                    }
                    _ => BreakReason::Lost(error.to_string()),
                };
                self.link_down(id, &reason);
            }
        }
    }

    /// Carries out the frames that have come.
    fn take_frames(&mut self, id: LinkId) {
        loop {
            let Some(link) = self.links.get_mut(&id) else { return };
            let frame = match link.channel.pipe.next_frame(LINK_FRAME_BYTES) {
                Ok(Some(frame)) => frame,
                Ok(None) => return,
                Err(error) => return self.give_up(id, &error.to_string()),
            };
            match LinkFrame::decode(&frame).and_then(|frame| self.on_frame(id, frame)) {
                Ok(()) => {}
                Err(error) => return self.give_up(id, &error.to_string()),
            }
        }
    }

    /// Sends the bytes that there is room for.
    pub(super) fn flush_link(&mut self, id: LinkId) {
        if let Some(link) = self.links.get_mut(&id) {
            // The next read reports an error.
            let _ = link.channel.flush();
        }
    }

    /// Ends a link, and with it all that was connected over it.
    pub(super) fn link_down(&mut self, id: LinkId, reason: &BreakReason) {
        let Some(link) = self.links.remove(&id) else { return };
        tracing::debug!(peer = %link.node, "link ended: {reason}");
        self.counters.count(|stats| stats.links_down += 1);
        self.pairing.link_down(id, reason);
        self.settle();
    }

    fn is_revoked(&self, link: &NetLink) -> bool {
        let (Security::Tls(identity), Some(session)) = (&self.config.security, link.channel.pipe.session()) else {
            return false;
        };
        session.is_revoked(&identity.credentials().revoked)
    }

    /// Ends the links with peers whose certificates are revoked.
    pub(super) fn end_revoked(&mut self) {
        let revoked: Vec<LinkId> =
            self.links.values().filter(|link| self.is_revoked(link)).map(|link| link.id).collect();
        revoked.into_iter().for_each(|id| self.give_up(id, REVOKED));
    }

    /// Lets a node's new process take the place of the earlier one, if that is not known to be gone.
    pub(super) fn replace_link(&mut self, peer: NodeId, incarnation: u64) {
        let Some(id) = self.pairing.link_with(peer) else { return };
        if self.links.get(&id).is_some_and(|link| link.incarnation != incarnation) {
            self.link_down(id, &BreakReason::Lost(format!("another process of {peer} has taken its place")));
        }
    }

    /// Closes a link that can't be used, for the reason that a sentence gives.
    fn give_up(&mut self, id: LinkId, text: &str) {
        let Some(peer) = self.links.get(&id).map(|link| link.node) else { return };
        if let Some(more) = self.log.permits(Instant::now()) {
            tracing::error!(%peer, "a link is given up: {text}{}", and_more(more));
        }
        let Some(link) = self.links.get_mut(&id) else { return };
        let reason = BreakReason::Failed(format!("{peer}: {text}"));
        link.send(&LinkFrame::Goodbye);
        link.channel.pipe.farewell();
        let _ = link.channel.flush();
        self.link_down(id, &reason);
        // Another try would most likely come to the same end.
        self.pairing.fail_waiting(peer, &reason);
        self.settle();
    }

    /// Gives up links over which nothing can be sent.
    pub(super) fn drop_failed(&mut self) {
        while let Some((id, text)) = self.links.values().find_map(|link| Some((link.id, link.failed.clone()?))) {
            self.give_up(id, &text);
        }
    }

    /// Sends heartbeats, and gives up peers of which nothing is heard.
    pub(super) fn keep_links(&mut self, now: Instant) {
        let timeout = self.config.failure_timeout;
        let mut silent = Vec::new();
        for link in self.links.values_mut() {
            if link.heartbeat.is_silent(timeout, now) {
                silent.push(link.id);
            } else if link.heartbeat.beats(timeout, now) {
                self.counters.count(|stats| stats.beats += 1);
                link.send(&LinkFrame::Beat);
            }
        }
        for id in silent {
            // If this process was stopped, the bytes that came meanwhile have to be read before a peer is called
            // silent.
            self.read_link(id);
            let Some(link) = self.links.get_mut(&id).filter(|link| link.heartbeat.is_silent(timeout, now)) else {
                continue;
            };
            tracing::warn!(peer = %link.node, "nothing was heard of it for the failure timeout");
            link.send(&LinkFrame::GivenUp);
            self.link_down(id, &BreakReason::Unreachable);
        }
    }

    /// The time at which the next heartbeat or judgement is due.
    pub(super) fn links_due(&self) -> Option<Instant> {
        self.links.values().map(|link| link.heartbeat.due(self.config.failure_timeout)).min()
    }
}
