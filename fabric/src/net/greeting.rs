//! The greeting that makes a peer of a connection: both ends say which node they are, and whether they can work
//! together.

use std::{
    io::ErrorKind,
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    access::{Call, CallerAccess},
    config::Security,
    handshake::Handshake,
    link::NetLink,
    pipe::{Pipe, PipeError},
    plane::DataStream,
    principal::Principal,
    service::{ServiceId, ServiceStream},
    socket::{Channel, ChannelError},
    stats::RefusalKind,
    thread::Thread,
    tls::TlsError,
    wire::{GREETING_BYTES, Greeting, Hello, Nonce, Refusal, Service},
};
use crate::{
    NodeId,
    control::{self, LinkId, and_more, mismatch},
    random,
    share::CallerNetwork,
};

/// The time after which the system is asked again when it has refused to accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// The number of connections that are accepted before others have their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// A connection that was accepted, and whose other end was asked to repeat a challenge.
pub(super) struct Greeted {
    pub(super) channel: Channel,
    challenge: Nonce,
    /// Whether its handshake was counted, or it needs none.
    is_counted: bool,
}

/// The same, before the other end has said which node it is.
type PendingPeer = control::PendingPeer<SocketAddr, Greeted>;

/// The kind under which a connection with an error is counted.
fn refusal_kind(error: &ChannelError) -> RefusalKind {
    match error {
        ChannelError::End | ChannelError::System(_) => RefusalKind::Left,
        ChannelError::Pipe(PipeError::Malformed(_)) => RefusalKind::Malformed,
        ChannelError::Pipe(PipeError::Tls(TlsError::PeerCertificate(_) | TlsError::UnknownCa)) => {
            RefusalKind::Certificate
        }
        ChannelError::Pipe(PipeError::Tls(_)) => RefusalKind::Tls,
    }
}

impl Thread {
    /// Takes connections from the listeners.
    pub(super) fn accept(&mut self, listener: usize, now: Instant) {
        for _ in 0..ACCEPTS_PER_TURN {
            match self.listeners[listener].accept() {
                Ok((socket, from)) => self.welcome_pending_peer(socket, from, now),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
                    _ => {
                        if let Some(more) = self.log.permits(now) {
                            let hint = match error.raw_os_error() {
                                // EMFILE, ENFILE
                                Some(24 | 23) => "; raise the limit of open files (`ulimit -n`)",
                                _ => "",
                            };
                            tracing::error!("a connection could not be accepted: {error}{hint}{}", and_more(more));
                        }
                        // The error would be reported again at once.
                        self.accept_again = Some(now + ACCEPT_AGAIN);
                        return;
                    }
                },
            }
        }
    }

    fn welcome_pending_peer(&mut self, socket: TcpStream, from: SocketAddr, now: Instant) {
        if let Err(error) = self.config.security.check_user(&socket) {
            return self.refuse_connection(from, error.kind(), &error.to_string());
        }
        let pipe = match &self.config.security {
            Security::Tls(identity) => match Handshake::accept(identity) {
                Ok(handshake) => Pipe::shaking(handshake, Vec::new()),
                Err(error) => return self.refuse_connection(from, RefusalKind::Tls, &error.to_string()),
            },
            Security::LoopbackOnly | Security::None => Pipe::plain(),
        };
        let (Ok(challenge), Ok(())) = (random::bytes(), socket.set_nonblocking(true)) else {
            return self.refuse_connection(from, RefusalKind::Left, "the system has no numbers for it");
        };
        let mut channel = Channel::new(socket, pipe);
        let greeting = Greeting::Challenge { version: self.config.protocol, challenge };
        if let Err(error) = channel.send(&greeting.encode()) {
            return self.refuse_connection(from, RefusalKind::Left, &error.to_string());
        }
        let is_counted = !channel.pipe.is_shaking();
        let holder = self.known_addresses.holder(from.ip());
        let last = self.pending_peers.add(from, Greeted { channel, challenge, is_counted }, now, holder);
        self.refuse_last(last);
    }

    /// Whether a connection that is ready may go on with its handshake. It counts from its first bytes on: one without
    /// any costs a place, and no signature. If it may not, it is closed.
    pub(super) fn may_shake(&mut self, id: u64) -> bool {
        let Some(pending) = self.pending_peers.get_mut(id).filter(|pending| !pending.connection.is_counted) else {
            return true;
        };
        if !matches!(pending.connection.channel.socket.peek(&mut [0]), Ok(1..)) {
            return true;
        }
        pending.connection.is_counted = true;
        let holder = self.known_addresses.holder(pending.from.ip());
        if self.handshake_rate.permits(&holder, Instant::now()) {
            return true;
        }
        if let Some(pending) = self.pending_peers.take(id) {
            let why = "too many TLS handshakes begin at its address, or at all of its kind";
            self.refuse_connection(pending.from, RefusalKind::Rate, why);
        }
        false
    }

    /// Counts a connection that has lost its place to another.
    fn refuse_last(&mut self, last: Option<PendingPeer>) {
        if let Some(last) = last {
            let why = "too many connections have not said which node they are of";
            self.refuse_connection(last.from, RefusalKind::TooMany, why);
        }
    }

    /// Gives a connection that has shown its certificate the place and the time of its owner.
    fn recognise(&mut self, id: u64) {
        let Some(pending) = self.pending_peers.get_mut(id) else { return };
        let from = pending.from.ip();
        let owner =
            pending.connection.channel.pipe.session().and_then(|session| session.peer_owner(&self.config.cluster));
        let holder = owner.map_or_else(|| self.known_addresses.holder(from), |owner| owner.holder());
        self.known_addresses.prove(from, &holder);
        let last = self.pending_peers.recognise(id, holder, Instant::now());
        self.refuse_last(last);
    }

    /// Counts a connection that was closed, and logs it, unless the last one of its network was closed for the same
    /// reason.
    pub(super) fn refuse_connection(&mut self, from: SocketAddr, kind: RefusalKind, why: &str) {
        self.counters.refuse(kind);
        let party = (CallerNetwork::of(from.ip()), kind);
        if let Some(more) = self.refusals_logged.permits(&mut self.log, party, why, Instant::now()) {
            tracing::warn!(%from, "a connection was refused: {why}{}", and_more(more));
        }
    }

    /// Closes connections that took too long.
    pub(super) fn expire_pending_peers(&mut self, now: Instant) {
        while let Some(pending) = self.pending_peers.take_late(now) {
            self.refuse_connection(pending.from, RefusalKind::TooSlow, "it did not say in time which node it is of");
        }
    }

    /// Reads the greeting of a connection's other end.
    pub(super) fn hear_pending_peer(&mut self, id: u64) {
        let Some(pending) = self.pending_peers.get_mut(id) else { return };
        let channel = &mut pending.connection.channel;
        let was_shaking = channel.pipe.is_shaking();
        let heard = channel.read().map(|_| channel.pipe.next_frame(GREETING_BYTES).map_err(ChannelError::Pipe));
        // After an error, too, there may be an alert to send.
        let flushed = channel.flush();
        let heard = heard.and_then(|frame| frame);
        if matches!(heard, Ok(None)) && flushed.is_ok() {
            if was_shaking && !channel.pipe.is_shaking() {
                self.recognise(id);
            }
            return;
        }
        let Some(pending) = self.pending_peers.take(id) else { return };
        let frame = match heard {
            Ok(Some(frame)) => frame,
            Ok(None) => return self.refuse_connection(pending.from, RefusalKind::Left, "it left"),
            Err(error) => return self.refuse_connection(pending.from, refusal_kind(&error), &error.to_string()),
        };
        match Greeting::decode(&frame, self.config.protocol) {
            Ok(Greeting::Hello(hello)) => self.judge(pending, hello),
            Ok(_) => self.refuse_connection(pending.from, RefusalKind::Malformed, "its first frame is not a greeting"),
            Err(error) => self.refuse_connection(pending.from, RefusalKind::Malformed, &error.to_string()),
        }
    }

    /// Says no to a node that can't be admitted.
    fn refuse(&mut self, pending: PendingPeer, kind: RefusalKind, why: Refusal, sentence: &str) {
        self.refuse_connection(pending.from, kind, sentence);
        self.say_no(pending, why);
    }

    /// Says no to a caller whose certificate does not permit its call, which was logged.
    fn deny(&mut self, pending: PendingPeer) {
        self.counters.refuse(RefusalKind::Denied);
        self.say_no(pending, Refusal::Denied);
    }

    fn say_no(&mut self, mut pending: PendingPeer, why: Refusal) {
        let greeting = Greeting::Refuse { version: self.config.protocol, why, cluster: self.config.cluster.clone() };
        // If it does not get through, the peer dials again.
        let channel = &mut pending.connection.channel;
        let _ = channel.send(&greeting.encode());
        channel.pipe.farewell();
        let _ = channel.flush();
    }

    /// The rights of a connection's other end, which calls itself `peer`. Fails if its certificate is another's.
    fn access_of(&self, pending: &PendingPeer, peer: NodeId) -> Result<CallerAccess, TlsError> {
        let Some(session) = pending.connection.channel.pipe.session() else {
            return Ok(match self.config.security {
                Security::None => CallerAccess::unprotected(pending.from.ip()),
                _ => CallerAccess::unchecked(),
            });
        };
        let principal = session.verify_peer(&self.config.cluster, peer)?;
        Ok(CallerAccess::new(principal, self.config.node, Arc::clone(&self.counters.denials)))
    }

    /// Decides about a connection whose other end has introduced itself.
    fn judge(&mut self, pending: PendingPeer, hello: Hello) {
        let from = pending.from;
        let peer = hello.from;
        let access = match self.access_of(&pending, peer) {
            Ok(access) => access,
            Err(error) => return self.refuse_connection(from, RefusalKind::Certificate, &error.to_string()),
        };
        let cluster = hello.rest.as_ref().map(|rest| rest.cluster.as_str());
        if let Some(sentence) =
            mismatch((self.config.protocol, &self.config.cluster), &peer.to_string(), hello.version, cluster)
        {
            let (kind, why) = if hello.version == self.config.protocol {
                (RefusalKind::OtherCluster, Refusal::Cluster)
            } else {
                (RefusalKind::OtherVersion, Refusal::Version)
            };
            self.refuse(pending, kind, why, &sentence);
            // Any other process could say so in the peer's name: a client takes its id for itself.
            if access.principal().is_some_and(|principal| *principal == Principal::Member(peer)) {
                self.pairing.refuse(peer, sentence, Instant::now());
                self.settle();
            }
            return;
        }
        let Some(rest) = hello.rest else { return };
        if rest.challenge != pending.connection.challenge {
            return self.refuse_connection(from, RefusalKind::Replayed, "its greeting was made for another connection");
        }
        let anyone = rest.to.is_none() && matches!(rest.service, Service::Application(_));
        if rest.to != Some(self.config.node) && !anyone {
            return self.refuse(pending, RefusalKind::OtherNode, Refusal::Node, "it looks for another node");
        }
        if !matches!(rest.service, Service::Application(_)) && access.check(Call::Link, None).is_err() {
            return self.deny(pending);
        }
        match rest.service {
            Service::Link { dialer_listens } => {
                if peer == self.config.node || peer > self.config.node && dialer_listens {
                    let why = format!("{peer} should not dial");
                    return self.refuse(pending, RefusalKind::OtherNode, Refusal::Order, &why);
                }
                self.answer_link(pending, peer, rest.incarnation, rest.nonce);
            }
            Service::Data { link, mine, yours } => {
                let Some(endpoint) = self.awaits_data(peer, link, mine, yours) else {
                    let why = format!("{peer} has data for an endpoint that does not wait for them");
                    return self.refuse(pending, RefusalKind::NoService, Refusal::NoEndpoint, &why);
                };
                let Some(channel) = self.admit(pending, peer, rest.incarnation, rest.nonce) else { return };
                if let Some(stream) = self.hand_over(channel, from) {
                    self.pair(endpoint, Some(stream));
                }
            }
            Service::Application(service) => {
                self.answer_service(pending, (peer, access), ServiceId(service), rest.nonce);
            }
        }
    }

    /// Hands a connection to the taker of a service, if the caller may have it.
    fn answer_service(
        &mut self,
        pending: PendingPeer,
        (peer, access): (NodeId, CallerAccess),
        service: ServiceId,
        nonce: Nonce,
    ) {
        let from = pending.from;
        let Some(taker) = self.services.get(&service).filter(|taker| !taker.is_full()).cloned() else {
            let why = format!("{peer} asks for {service}, which this node does not offer now, or too many wait for it");
            return self.refuse(pending, RefusalKind::NoService, Refusal::NoService, &why);
        };
        if access.check_service(service).is_err() {
            return self.deny(pending);
        }
        let Some(place) = self.places.take(service, access.holder()) else {
            let why = format!("{peer} has its share of the streams of {service} already, or there is room for no more");
            return self.refuse(pending, RefusalKind::Share, Refusal::Busy, &why);
        };
        let Some(channel) = self.admit(pending, peer, self.incarnation, nonce) else { return };
        let Some(DataStream { socket, tls, early }) = self.hand_over(channel, from) else { return };
        match ServiceStream::new((peer, access), socket, tls, early, Some(place)) {
            Ok(stream) => {
                stream.end_with_certificate(&self.config.security);
                // Only this thread fills it. If the receiver is gone, the peer reads an end.
                drop(taker.try_send(stream));
            }
            Err(error) => self.refuse_connection(from, RefusalKind::Left, &error.to_string()),
        }
    }

    /// Makes a connection the link with a peer, unless there is one that still holds.
    fn answer_link(&mut self, pending: PendingPeer, peer: NodeId, incarnation: u64, nonce: Nonce) {
        if let Some(id) = self.pairing.link_with(peer) {
            // The end of the old link may have come already.
            self.read_link(id);
            self.replace_link(peer, incarnation);
        }
        if let Some(link) = self.pairing.link_with(peer).and_then(|id| self.links.get_mut(&id)) {
            // If the peer knows nothing of it any more, its kernel says so now.
            link.send(&super::wire::LinkFrame::Beat);
            return self.say_no(pending, Refusal::Busy);
        }
        let (from, challenge) = (pending.from, pending.connection.challenge);
        let Some(channel) = self.admit(pending, peer, incarnation, nonce) else { return };
        let id = LinkId(self.new_id());
        self.link_up(NetLink::new(id, peer, incarnation, channel, challenge, from, false));
    }

    /// Answers a peer's `Hello` with `Welcome`, and returns the connection. Refuses the connection, and returns
    /// nothing, if the `Welcome` can't be sent at once.
    fn admit(&mut self, pending: PendingPeer, peer: NodeId, incarnation: u64, nonce: Nonce) -> Option<Channel> {
        let version = self.config.protocol;
        let welcome = Greeting::Welcome { version, from: self.config.node, incarnation: self.incarnation, nonce };
        let mut channel = pending.connection.channel;
        match channel.send(&welcome.encode()) {
            // A socket that has room for nothing yet is none at whose other end a node waits.
            Ok(()) if !channel.is_stuffed() => {
                tracing::debug!(%peer, incarnation, "welcome");
                Some(channel)
            }
            Ok(()) => {
                self.refuse_connection(pending.from, RefusalKind::TooSlow, "it does not read");
                None
            }
            Err(error) => {
                self.refuse_connection(pending.from, refusal_kind(&error), &error.to_string());
                None
            }
        }
    }

    /// Takes a connection out of this thread's hands.
    pub(super) fn hand_over(&mut self, channel: Channel, from: SocketAddr) -> Option<DataStream> {
        let Channel { socket, pipe } = channel;
        match pipe.into_parts() {
            Ok((tls, early)) => Some(DataStream { socket, tls, early }),
            Err(error) => {
                self.refuse_connection(from, RefusalKind::Malformed, &error.to_string());
                None
            }
        }
    }
}
