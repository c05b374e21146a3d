//! The course of a connection that was dialed, until the other end answers with `Welcome`.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::{
    config::{Security, UNPROTECTED},
    handshake::Handshake,
    link::NetLink,
    pipe::{Pipe, PipeError},
    socket::{self, Channel, ChannelError},
    thread::Thread,
    tls::TlsError,
    verifier::Wanted,
    wire::{GREETING_BYTES, Greeting, Hello, HelloRest, Nonce, Refusal, Service},
};
use crate::{
    BreakReason, EndpointId, NodeId,
    control::{LinkId, and_more, mismatch},
    random,
};

/// The purpose of a dialed connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    Link,
    Data(EndpointId),
}

/// A connection that was dialed and that the other end has not answered with `Welcome` yet.
pub(super) struct Attempt {
    pub(super) peer: NodeId,
    address: SocketAddr,
    pub(super) goal: Goal,
    pub(super) channel: Channel,
    pub(super) connecting: bool,
    nonce: Nonce,
    /// The challenge that the other end asked to repeat.
    challenge: Option<Nonce>,
    /// The time of its last step.
    stepped: Instant,
    pub(super) deadline: Instant,
}

/// The time after which an attempt without progress leaves its place to others: the peer may not be there.
const STUCK_AFTER: Duration = Duration::from_millis(250);

impl Attempt {
    /// The steps that it has taken: connected, protected, challenged.
    fn step(&self) -> (bool, bool, bool) {
        (!self.connecting, !self.channel.pipe.is_shaking(), self.challenge.is_some())
    }

    /// The time until which it is taken for one that goes on.
    pub(super) fn goes_on_until(&self) -> Instant {
        self.stepped + STUCK_AFTER
    }
}

impl Thread {
    /// Begins to connect.
    pub(super) fn attempt(&mut self, peer: NodeId, address: SocketAddr, goal: Goal, now: Instant) -> Option<u64> {
        if !self.config.security.permits(address) {
            self.dial_problem(peer, address, UNPROTECTED);
            return None;
        }
        self.counters.count(|stats| stats.dials += 1);
        let socket = match socket::dial(address) {
            Ok(socket) => socket,
            Err(error) => {
                self.dial_problem(peer, address, &hint(error));
                return None;
            }
        };
        let pipe = match &self.config.security {
            Security::Tls(identity) => {
                let mut out = Vec::new();
                match Handshake::dial(identity, Wanted::Member(peer), &mut out) {
                    Ok(handshake) => Pipe::shaking(handshake, out),
                    Err(error) => {
                        self.dial_problem(peer, address, &error.to_string());
                        return None;
                    }
                }
            }
            Security::LoopbackOnly | Security::None => Pipe::plain(),
        };
        let nonce = random::bytes().ok()?;
        let id = self.new_id();
        let deadline = self.connects_until(now);
        let channel = Channel::new(socket, pipe);
        let attempt =
            Attempt { peer, address, goal, channel, connecting: true, nonce, challenge: None, stepped: now, deadline };
        self.attempts.insert(id, attempt);
        Some(id)
    }

    fn dial_problem(&mut self, peer: NodeId, address: SocketAddr, text: &str) {
        if let Some(more) = self.dials_logged.permits(&mut self.log, (peer, address), text, Instant::now()) {
            tracing::warn!(%peer, %address, "dialing did not succeed: {text}{}", and_more(more));
        }
    }

    /// Ends an attempt that has come to nothing; there will be others.
    pub(super) fn attempt_failed(&mut self, id: u64, text: &str) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        tracing::debug!(peer = %attempt.peer, address = %attempt.address, "dialing did not succeed: {text}");
        if let Goal::Data(endpoint) = attempt.goal {
            self.retry_data_dial(endpoint);
        }
    }

    /// Reads the answer of a dialed node.
    ///
    /// An attempt that comes a step further has the time for the next: there are three steps, so a peer can't keep an
    /// attempt for long.
    pub(super) fn hear_attempt(&mut self, id: u64) {
        let before = self.attempts.get(&id).map(Attempt::step);
        self.take_answer(id);
        let now = Instant::now();
        let Some(attempt) = self.attempts.get_mut(&id).filter(|attempt| Some(attempt.step()) != before) else { return };
        (attempt.stepped, attempt.deadline) = (now, now + self.config.handshake_timeout);
    }

    fn take_answer(&mut self, id: u64) {
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        if attempt.connecting {
            match socket::dialed(&attempt.channel.socket) {
                Ok(()) => attempt.connecting = false,
                Err(error) => return self.attempt_failed(id, &hint(error)),
            }
            let _ = attempt.channel.flush();
            return;
        }
        let heard = attempt.channel.read();
        if let Err(error) = heard {
            // After an error, too, there may be an alert to send.
            let _ = attempt.channel.flush();
            return self.attempt_error(id, &error);
        }
        loop {
            let Some(attempt) = self.attempts.get_mut(&id) else { return };
            let frame = attempt.channel.pipe.next_frame(GREETING_BYTES);
            let flushed = attempt.channel.flush();
            let greeting = match frame {
                Ok(None) if flushed.is_ok() => return,
                Ok(None) => return self.attempt_failed(id, "it closed the connection"),
                Ok(Some(frame)) => Greeting::decode(&frame, self.config.protocol).map_err(PipeError::from),
                Err(error) => Err(error),
            };
            match greeting {
                Ok(greeting) => self.on_greeting(id, greeting),
                Err(error) => return self.attempt_error(id, &ChannelError::Pipe(error)),
            }
        }
    }

    fn attempt_error(&mut self, id: u64, error: &ChannelError) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let (peer, address) = (attempt.peer, attempt.address);
        match error {
            ChannelError::End | ChannelError::System(_) => {}
            // The other end has proved that it is the peer.
            ChannelError::Pipe(PipeError::Tls(TlsError::OwnCertificate(_))) => {
                return self.refused(id, format!("{peer}: {error}"));
            }
            ChannelError::Pipe(_) => self.dial_problem(peer, address, &error.to_string()),
        }
        self.attempt_failed(id, &error.to_string());
    }

    /// Ends an attempt at a node that says that it can't work with this one.
    fn refused(&mut self, id: u64, sentence: String) {
        let Some(attempt) = self.attempts.remove(&id) else { return };
        let now = Instant::now();
        let party = (attempt.peer, attempt.address);
        if let Some(more) = self.dials_logged.permits(&mut self.log, party, &sentence, now) {
            tracing::warn!("{sentence}{}", and_more(more));
        }
        match attempt.goal {
            Goal::Link => {
                self.forget_dial(attempt.peer);
                self.pairing.refuse(attempt.peer, sentence, now);
                self.settle();
            }
            Goal::Data(endpoint) => self.break_both(endpoint, BreakReason::Refused(sentence)),
        }
    }

    /// Answers a peer's challenge.
    fn introduce(&mut self, id: u64, challenge: Nonce) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let service = match attempt.goal {
            Goal::Link => Service::Link { dialer_listens: !self.listeners.is_empty() },
            Goal::Data(endpoint) => match self.data_of(endpoint) {
                Some((link, theirs)) => Service::Data { link: link.nonce, mine: endpoint.0, yours: theirs },
                None => return drop(self.attempts.remove(&id)),
            },
        };
        let rest = HelloRest {
            to: Some(attempt.peer),
            incarnation: self.incarnation,
            challenge,
            nonce: attempt.nonce,
            service,
            cluster: self.config.cluster.clone(),
        };
        let hello = Hello { version: self.config.protocol, from: self.config.node, rest: Some(rest) };
        let Some(attempt) = self.attempts.get_mut(&id) else { return };
        attempt.challenge = Some(challenge);
        if let Err(error) = attempt.channel.send(&Greeting::Hello(hello).encode()) {
            self.attempt_error(id, &error);
        }
    }

    fn on_greeting(&mut self, id: u64, greeting: Greeting) {
        let Some(attempt) = self.attempts.get(&id) else { return };
        let (peer, address) = (attempt.peer, attempt.address);
        match greeting {
            Greeting::Challenge { challenge, .. } if attempt.challenge.is_none() => {
                match self.config.security.check_user(&attempt.channel.socket) {
                    Ok(()) => self.introduce(id, challenge),
                    Err(error) => {
                        self.refuse_connection(address, error.kind(), &error.to_string());
                        self.attempt_failed(id, &error.to_string());
                    }
                }
            }
            Greeting::Welcome { version, from, incarnation, nonce }
                if (version, from, nonce) == (self.config.protocol, peer, attempt.nonce) =>
            {
                let Some(attempt) = self.attempts.remove(&id) else { return };
                let Some(challenge) = attempt.challenge else { return };
                match attempt.goal {
                    Goal::Link if self.pairing.link_with(peer).is_some() => {}
                    Goal::Link => {
                        let id = LinkId(self.new_id());
                        self.link_up(NetLink::new(id, peer, incarnation, attempt.channel, challenge, address, true));
                    }
                    Goal::Data(endpoint) => {
                        if self.data_of(endpoint).is_none() {
                            return;
                        }
                        match self.hand_over(attempt.channel, address) {
                            Some(stream) => self.pair(endpoint, Some(stream)),
                            // The counterpart believes that it has the connection.
                            None => self.break_both(endpoint, BreakReason::Lost("its greeting was malformed".into())),
                        }
                    }
                }
            }
            Greeting::Refuse { version, why: Refusal::Version | Refusal::Cluster, cluster } => {
                match mismatch((self.config.protocol, &self.config.cluster), &peer.to_string(), version, Some(&cluster))
                {
                    Some(sentence) => self.refused(id, sentence),
                    None => self.attempt_failed(id, "it refuses for no reason"),
                }
            }
            Greeting::Refuse { why: Refusal::Node, .. } => {
                let sentence =
                    format!("another node than {peer} listens at {address}: correct the addresses of {peer}");
                self.refused(id, sentence);
            }
            Greeting::Refuse { why: Refusal::Denied, .. } => {
                let sentence = format!(
                    "{peer} links with members only, which this node's certificate does not make it: give it one of a member"
                );
                self.refused(id, sentence);
            }
            Greeting::Refuse { why: Refusal::NoEndpoint, .. } => {
                if let Goal::Data(endpoint) = attempt.goal {
                    self.doubt_data_dial(endpoint);
                }
                self.attempt_failed(id, "it has no such endpoint");
            }
            Greeting::Refuse { why, .. } => self.attempt_failed(id, &format!("it refuses: {why:?}")),
            _ => {
                self.dial_problem(peer, address, "it does not answer as a node does");
                self.attempt_failed(id, "it does not answer as a node does");
            }
        }
    }
}

/// The user's remedy for an error of `connect`.
fn hint(error: Errno) -> String {
    match error {
        Errno::MFILE | Errno::NFILE => format!("{error}; raise the limit of open files (`ulimit -n`)"),
        error => error.to_string(),
    }
}
