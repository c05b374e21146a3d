//! The dialing of peers that endpoints wait for, and of the data connections of a link.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use super::{
    Order,
    attempt::{Attempt, Goal},
    peer::{FIRST_BACKOFF, LAST_BACKOFF, Peer, Step, pause},
    thread::Thread,
};
use crate::{BreakReason, EndpointId, NodeId};

/// The number of data connections with one peer that are dialed at a time, so that it does not take them for strangers'
/// work.
const DATA_DIALS: usize = 4;

/// The number of connections that are set up at a time. All at once would wait for each other at their ends until some
/// are given up, after work in vain.
const DIALS: usize = 16;

/// The time that an address may take to accept a connection. Beyond that the system would try again too seldom.
const CONNECTS_WITHIN: Duration = Duration::from_secs(2);

/// A data connection that this side is to dial.
pub(super) struct DataDial {
    next: Instant,
    backoff: Duration,
    /// The time until which the peer may say that it has no such endpoint. It says so where it closed the endpoint,
    /// which the link tells, too; or where it has answered an earlier connection with `Welcome` that this side has
    /// given up.
    until: Option<Instant>,
    attempt: Option<u64>,
}

impl Thread {
    /// Sets the addresses at which a node can be reached from now on.
    pub(super) fn set_peer(&mut self, node: NodeId, texts: Vec<String>) {
        let is_known = self.peers.get(&node).is_some_and(|peer| peer.is_at(&texts));
        if is_known && (self.pairing.link_with(node).is_some() || self.is_dialing(node)) {
            return;
        }
        self.forget_dial(node);
        if !is_known {
            self.known_addresses.set_peer(node, &texts);
        }
        let now = Instant::now();
        let peer = match self.peers.get(&node) {
            Some(peer) => peer.moved(texts, now),
            None => Peer::new(texts, now),
        };
        self.peers.insert(node, peer);
    }

    /// Whether an attempt at a link with a peer is under way.
    fn is_dialing(&self, node: NodeId) -> bool {
        self.attempts.values().any(|attempt| attempt.peer == node && attempt.goal == Goal::Link)
    }

    /// Takes the addresses that a peer's names stand for.
    pub(super) fn resolved(&mut self, node: NodeId, texts: &[String], addresses: Vec<SocketAddr>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            if peer.is_at(texts) {
                self.known_addresses.resolved(node, &addresses);
            }
            peer.resolved(texts, addresses, Instant::now());
        }
    }

    /// Forgets the attempts at a peer that is linked, or shall be looked for elsewhere.
    pub(super) fn forget_dial(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.reset(Instant::now());
        }
        self.attempts.retain(|_, attempt| attempt.peer != node || attempt.goal != Goal::Link);
    }

    /// Gives up on peers that do not answer.
    pub(super) fn expire_attempts(&mut self, now: Instant) {
        let late: Vec<u64> =
            self.attempts.iter().filter(|(_, attempt)| attempt.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.attempt_failed(id, "it did not answer in time");
        }
    }

    /// Dials the peers that are due.
    pub(super) fn dial_due(&mut self, now: Instant) {
        self.dial_at = None;
        let unlinked = self.pairing.unlinked_peers();
        // The node with the smaller id dials, and so does a node that can't be dialed.
        let (wanted, awaited): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            unlinked.into_iter().partition(|peer| *peer > self.config.node || self.listeners.is_empty());
        self.attempts.retain(|_, attempt| attempt.goal != Goal::Link || wanted.contains(&attempt.peer));
        for node in wanted {
            if let Some(at) = self.dial_peer(node, now) {
                self.dial_by(at);
            }
        }
        for node in awaited {
            if let Some(at) = self.look_up(node, now) {
                self.dial_by(at);
            }
        }
        let due: Vec<EndpointId> = self.data_dials.keys().copied().collect();
        for endpoint in due {
            self.dial_data(endpoint, now);
        }
    }

    fn dial_by(&mut self, at: Instant) {
        self.dial_at = Some(self.dial_at.map_or(at, |other| other.min(at)));
    }

    /// The time at which another connection may be set up, if not now.
    fn room_at(&self, now: Instant) -> Option<Instant> {
        let going = self.attempts.values().map(Attempt::goes_on_until).filter(|until| *until > now);
        // An attempt that ends earlier makes room, too.
        if going.clone().count() < DIALS { None } else { going.min() }
    }

    /// Goes on to look for a peer, and returns the time at which that is to be done next.
    fn dial_peer(&mut self, node: NodeId, now: Instant) -> Option<Instant> {
        loop {
            let (is_trying, room_at) = (self.is_dialing(node), self.room_at(now));
            match self.peers.get_mut(&node)?.step(now, is_trying, room_at, &mut self.rng) {
                Step::Rest(until) => return until,
                Step::Resolve(texts) => {
                    self.resolve(node, texts);
                    return None;
                }
                Step::Dial(address) => {
                    self.attempt(node, address, Goal::Link, now);
                }
            }
        }
    }

    /// Looks up the names of a peer that is to dial this node, so that its address is known when it comes. Returns the
    /// time at which that is to be done again.
    fn look_up(&mut self, node: NodeId, now: Instant) -> Option<Instant> {
        match self.peers.get_mut(&node)?.look_up(now) {
            Ok(again) => again,
            Err(texts) => {
                self.resolve(node, texts);
                None
            }
        }
    }

    /// Asks the system for a peer's addresses, on a thread that may have to wait for it.
    fn resolve(&mut self, node: NodeId, texts: Vec<String>) {
        let (orders, own_texts) = (self.orders.clone(), texts.clone());
        let thread = std::thread::Builder::new().name("squall-names".into()).spawn(move || {
            let mut addresses = Vec::new();
            for text in &texts {
                match text.to_socket_addrs() {
                    Ok(some) => addresses.extend(some),
                    Err(error) => tracing::debug!(%node, address = %text, "has no address: {error}"),
                }
            }
            orders.send([Order::Resolved { node, texts, addresses }]);
        });
        if let Err(error) = thread {
            tracing::error!(%node, "its name could not be looked up: {error}");
            self.resolved(node, &own_texts, Vec::new());
        }
    }

    /// Dials an endpoint's data connection, if it is time.
    pub(super) fn dial_data(&mut self, endpoint: EndpointId, now: Instant) {
        let dial = self.data_dials.entry(endpoint).or_insert(DataDial {
            next: now,
            backoff: FIRST_BACKOFF,
            until: None,
            attempt: None,
        });
        let (due, late) = (dial.attempt.is_none() && dial.next <= now, dial.until.is_some_and(|until| until <= now));
        let Some((link, _)) = self.data_of(endpoint) else {
            self.data_dials.remove(&endpoint);
            return;
        };
        let (peer, address) = (link.node, link.address);
        if late {
            let text = format!("no data connection came about with {address}, though there is a link");
            return self.break_both(endpoint, BreakReason::Lost(text));
        }
        let is_data = |attempt: &&Attempt| attempt.peer == peer && attempt.goal != Goal::Link;
        if !due {
            return;
        }
        let room_at = self.room_at(now);
        if room_at.is_some() || self.attempts.values().filter(is_data).count() >= DATA_DIALS {
            room_at.into_iter().for_each(|at| self.dial_by(at));
        } else {
            let attempt = self.attempt(peer, address, Goal::Data(endpoint), now);
            if let Some(dial) = self.data_dials.get_mut(&endpoint) {
                dial.attempt = attempt;
                if attempt.is_none() {
                    dial.next = now + LAST_BACKOFF;
                }
            }
        }
    }

    /// Takes note that the peer has no such endpoint as a data connection is for.
    pub(super) fn doubt_data_dial(&mut self, endpoint: EndpointId) {
        let until = Instant::now() + self.config.failure_timeout.max(CONNECTS_WITHIN);
        if let Some(dial) = self.data_dials.get_mut(&endpoint) {
            dial.until.get_or_insert(until);
        }
    }

    /// The time until which a connection may take to be accepted.
    pub(super) fn connects_until(&self, now: Instant) -> Instant {
        now + self.config.handshake_timeout.min(CONNECTS_WITHIN)
    }

    /// Has a data connection dialed again after a failed attempt.
    pub(super) fn retry_data_dial(&mut self, endpoint: EndpointId) {
        let Some(backoff) = self.data_dials.get(&endpoint).map(|dial| dial.backoff) else { return };
        let next = Instant::now() + pause(backoff, &mut self.rng);
        if let Some(dial) = self.data_dials.get_mut(&endpoint) {
            (dial.attempt, dial.next, dial.backoff) = (None, next, (backoff * 2).min(LAST_BACKOFF));
        }
    }

    /// Ends the dialing for an endpoint that needs no data connection any more.
    pub(super) fn stop_data_dial(&mut self, endpoint: EndpointId) {
        if let Some(dial) = self.data_dials.remove(&endpoint)
            && let Some(attempt) = dial.attempt
        {
            self.attempts.remove(&attempt);
        }
    }

    /// The time at which something is to be dialed, or given up.
    pub(super) fn dials_due(&self) -> Option<Instant> {
        let attempts = self.attempts.values().map(|attempt| attempt.deadline);
        let now = Instant::now();
        // A dial that is due and waits for others to be done goes on when those are.
        let data = self.data_dials.values().flat_map(|dial| [Some(dial.next).filter(|next| *next > now), dial.until]);
        attempts.chain(data.flatten()).chain(self.dial_at).min()
    }
}
