//! Whom this node dials, and when: the addresses of peers that endpoints wait for, and the data connections of a link.

use std::{
    collections::VecDeque,
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

use super::{
    Order,
    attempt::{Attempt, Goal},
    thread::Thread,
};
use crate::{BreakReason, EndpointId, NodeId};

/// How soon a peer that is not there is dialed again, at first.
const FIRST_BACKOFF: Duration = Duration::from_millis(5);

/// How soon at most.
const LAST_BACKOFF: Duration = Duration::from_millis(200);

/// How long an address may be mute before the next one is tried as well (RFC 8305, §5).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The most addresses of a node that are tried.
const MAX_ADDRESSES: usize = 16;

/// How many data connections with one peer are dialed at a time, so that it does not take them for strangers' work.
const DATA_DIALS: usize = 4;

/// How long what a name stands for is taken for granted, while nobody answers there.
const NAME_AGE: Duration = Duration::from_secs(5);

/// Where a peer can be reached, and the attempts to.
pub(super) struct Peer {
    /// As they were given.
    texts: Vec<String>,
    /// What they stand for, and since when this is known.
    addresses: Option<(Vec<SocketAddr>, Instant)>,
    resolving: bool,
    /// When to begin again.
    next: Instant,
    backoff: Duration,
    /// Addresses that were not tried in this round, and when the next one is.
    round: Option<(VecDeque<SocketAddr>, Instant)>,
}

impl Peer {
    pub(super) fn new(texts: Vec<String>) -> Peer {
        let now = Instant::now();
        Peer { texts, addresses: None, resolving: false, next: now, backoff: FIRST_BACKOFF, round: None }
    }

    fn rest(&mut self) {
        self.round = None;
        self.next = Instant::now();
        self.backoff = FIRST_BACKOFF;
    }
}

/// A data connection that this side is to dial.
pub(super) struct DataDial {
    next: Instant,
    backoff: Duration,
    until: Instant,
    attempt: Option<u64>,
}

impl Thread {
    /// Where a node can be reached from now on.
    pub(super) fn set_peer(&mut self, node: NodeId, texts: Vec<String>) {
        let is_known = self.peers.get(&node).is_some_and(|peer| peer.texts == texts);
        if is_known && (self.by_node.contains_key(&node) || self.is_dialing(node)) {
            return;
        }
        let resolving = self.peers.get(&node).is_some_and(|peer| peer.resolving);
        self.forget_dial(node);
        // A thread that looks up the old names is waited for, so that there is one at a time.
        self.peers.insert(node, Peer { resolving, ..Peer::new(texts) });
    }

    /// Whether an attempt at a link with a peer is under way.
    fn is_dialing(&self, node: NodeId) -> bool {
        self.attempts.values().any(|attempt| attempt.peer == node && attempt.goal == Goal::Link)
    }

    /// What a peer's names stand for.
    pub(super) fn resolved(&mut self, node: NodeId, texts: &[String], addresses: Vec<SocketAddr>) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.resolving = false;
            if peer.texts == texts {
                peer.addresses = Some((addresses, Instant::now()));
            }
        }
    }

    /// A peer is linked, or shall be looked for elsewhere.
    pub(super) fn forget_dial(&mut self, node: NodeId) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.rest();
        }
        self.attempts.retain(|_, attempt| attempt.peer != node || attempt.goal != Goal::Link);
    }

    /// Dials who is due, and gives up on who does not answer.
    pub(super) fn dial_due(&mut self, now: Instant) {
        let late: Vec<u64> =
            self.attempts.iter().filter(|(_, attempt)| attempt.deadline <= now).map(|(id, _)| *id).collect();
        for id in late {
            self.attempt_failed(id, "it did not answer in time");
        }
        let mut wanted = self.unlinked_peers();
        // The smaller id dials, and who can't be dialed.
        wanted.retain(|peer| *peer > self.config.node || self.listeners.is_empty());
        self.attempts.retain(|_, attempt| attempt.goal != Goal::Link || wanted.contains(&attempt.peer));
        self.dial_at = None;
        for node in wanted {
            if let Some(at) = self.dial_peer(node, now) {
                self.dial_at = Some(self.dial_at.map_or(at, |other| other.min(at)));
            }
        }
        let due: Vec<EndpointId> = self.data_dials.keys().copied().collect();
        for endpoint in due {
            self.dial_data(endpoint, now);
        }
    }

    /// Goes on to look for a peer, and says when that is to be done next.
    fn dial_peer(&mut self, node: NodeId, now: Instant) -> Option<Instant> {
        loop {
            let trying = self.is_dialing(node);
            let peer = self.peers.get_mut(&node).filter(|peer| !peer.texts.is_empty())?;
            match &mut peer.round {
                None if peer.next > now => return Some(peer.next),
                None => {
                    if peer.resolving {
                        return None;
                    }
                    let literals: Vec<SocketAddr> = peer.texts.iter().filter_map(|text| text.parse().ok()).collect();
                    let known = match &peer.addresses {
                        _ if literals.len() == peer.texts.len() => literals,
                        Some((addresses, at)) if now.saturating_duration_since(*at) < NAME_AGE => addresses.clone(),
                        _ => {
                            peer.resolving = true;
                            self.resolve(node);
                            return None;
                        }
                    };
                    peer.round = Some((known.into_iter().take(MAX_ADDRESSES).collect(), now));
                }
                Some((queue, at)) => {
                    if queue.is_empty() && !trying {
                        peer.round = None;
                        peer.next = now + peer.backoff;
                        peer.backoff = (peer.backoff * 3 / 2).min(LAST_BACKOFF);
                    } else if queue.is_empty() {
                        return None;
                    } else if *at > now && trying {
                        return Some(*at);
                    } else if let Some(address) = queue.pop_front() {
                        *at = now + NEXT_ADDRESS;
                        self.attempt(node, address, Goal::Link, now);
                    }
                }
            }
        }
    }

    /// Asks the system for a peer's addresses, on a thread that may have to wait for it.
    fn resolve(&mut self, node: NodeId) {
        let Some(texts) = self.peers.get(&node).map(|peer| peer.texts.clone()) else { return };
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
        let until = now + self.config.failure_timeout.max(self.config.handshake_timeout);
        let dial = self.data_dials.entry(endpoint).or_insert(DataDial {
            next: now,
            backoff: FIRST_BACKOFF,
            until,
            attempt: None,
        });
        let (due, late) = (dial.attempt.is_none() && dial.next <= now, dial.until <= now);
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
        if due && self.attempts.values().filter(is_data).count() < DATA_DIALS {
            let attempt = self.attempt(peer, address, Goal::Data(endpoint), now);
            if let Some(dial) = self.data_dials.get_mut(&endpoint) {
                dial.attempt = attempt;
                if attempt.is_none() {
                    dial.next = now + LAST_BACKOFF;
                }
            }
        }
    }

    /// An attempt has failed.
    pub(super) fn retry_data_dial(&mut self, endpoint: EndpointId) {
        if let Some(dial) = self.data_dials.get_mut(&endpoint) {
            dial.attempt = None;
            dial.next = Instant::now() + dial.backoff;
            dial.backoff = (dial.backoff * 2).min(LAST_BACKOFF);
        }
    }

    /// An endpoint needs no data connection any more.
    pub(super) fn stop_data_dial(&mut self, endpoint: EndpointId) {
        if let Some(dial) = self.data_dials.remove(&endpoint)
            && let Some(attempt) = dial.attempt
        {
            self.attempts.remove(&attempt);
        }
    }

    /// When something is to be dialed, or given up.
    pub(super) fn dials_due(&self) -> Option<Instant> {
        let attempts = self.attempts.values().map(|attempt| attempt.deadline);
        let now = Instant::now();
        // One that is due and waits for others to be done goes on when those are.
        let data =
            self.data_dials.values().map(|dial| if dial.next > now { dial.next.min(dial.until) } else { dial.until });
        attempts.chain(data).chain(self.dial_at).min()
    }
}
