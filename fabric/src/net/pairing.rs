//! The meeting of endpoints with their counterparts, and their parting.
//!
//! The side that accepted the link *offers* its endpoints. The one that dialed it *accepts* an offer once it has an
//! endpoint of that tag itself, and the offering side *confirms*. In the `tcp` plane the dialer then dials the data
//! connection, which it can't do before: so data never come for an endpoint that does not wait for them.
//!
//! ```text
//! acceptor           dialer
//!   │── Offer(b) ──────▶│         b waits here until a is connected too
//!   │◀── Accept(a, b) ──│
//!   │── Confirm(b, a) ─▶│         verbs: both are connected
//!   │◀═ Hello(a, b) ════│         tcp, on a connection of its own: b is connected
//!   │═══ Welcome ══════▶│         and so is a
//! ```
//!
//! One side decides which endpoints meet, so a tag that is closed and connected again never meets its earlier
//! counterpart. If `b` was closed in the meantime, its `Close` comes instead, and `a` waits for another offer. `a`
//! can't have been used by then, so it is as new.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{
    link::{Link, LinkId, MAX_OFFERED_BYTES, MAX_OFFERS, Offer},
    plane::{Command, Connect, DataStream, Event, Paired, Plane, SET_UP_BYTES, TELL_BYTES},
    thread::Thread,
    wire::{LinkFrame, Nonce},
};
use crate::{BreakReason, EndpointId, GroupTag, NodeId, wire::Malformed};

/// The number of `Tell`s that may wait before a polling thread takes them.
const MAX_UNTAKEN: usize = 4096;

/// The number of `Tell`s for an endpoint that is not connected on this side yet.
const MAX_EARLY: usize = 16;

/// An endpoint of this node.
pub(super) struct Local {
    plane: Plane,
    connect: Connect,
    state: State,
}

enum State {
    /// There is no link with its peer, or no offer of its tag.
    Waiting,
    Offered(LinkId),
    Accepted {
        link: LinkId,
        theirs: u64,
        set_up: Vec<u8>,
    },
    /// Both sides know of each other; the data connection is missing.
    Opening {
        link: LinkId,
        theirs: u64,
        set_up: Vec<u8>,
        told: Vec<Vec<u8>>,
    },
    Paired {
        link: LinkId,
        theirs: u64,
    },
}

impl State {
    fn link(&self) -> Option<LinkId> {
        match self {
            State::Waiting => None,
            State::Offered(link)
            | State::Accepted { link, .. }
            | State::Opening { link, .. }
            | State::Paired { link, .. } => Some(*link),
        }
    }

    fn theirs(&self) -> Option<u64> {
        match self {
            State::Waiting | State::Offered(_) => None,
            State::Accepted { theirs, .. } | State::Opening { theirs, .. } | State::Paired { theirs, .. } => {
                Some(*theirs)
            }
        }
    }
}

/// All endpoints of this node that have not ended.
#[derive(Default)]
pub(super) struct Locals {
    endpoints: BTreeMap<EndpointId, Local>,
    by_tag: BTreeMap<(NodeId, Plane, GroupTag), EndpointId>,
}

impl Locals {
    fn remove(&mut self, endpoint: EndpointId) -> Option<Local> {
        let local = self.endpoints.remove(&endpoint)?;
        self.by_tag.remove(&(local.connect.peer, local.plane, local.connect.tag));
        Some(local)
    }

    fn waiting_for(&self, peer: NodeId) -> Vec<EndpointId> {
        let waits = |local: &Local| local.connect.peer == peer && matches!(local.state, State::Waiting);
        self.endpoints.iter().filter(|(_, local)| waits(local)).map(|(endpoint, _)| *endpoint).collect()
    }

    fn on_link(&self, link: LinkId) -> Vec<EndpointId> {
        let on = |local: &Local| local.state.link() == Some(link);
        self.endpoints.iter().filter(|(_, local)| on(local)).map(|(endpoint, _)| *endpoint).collect()
    }
}

impl Thread {
    /// Carries out a command of a polling thread.
    pub(super) fn carry_out(&mut self, plane: Plane, command: Command) {
        match command {
            Command::Connect(connect) => self.connect(plane, connect),
            Command::Tell { endpoint, bytes } => {
                let Some(local) = self.locals.endpoints.get(&endpoint) else { return };
                let State::Paired { link, theirs } = local.state else { return };
                if bytes.len() > TELL_BYTES {
                    debug_assert!(false, "{} bytes are more than can be told", bytes.len());
                } else if let Some(link) = self.links.get_mut(&link) {
                    link.send(&LinkFrame::Tell { yours: theirs, bytes });
                }
            }
            Command::Close { endpoint, reason } => {
                let Some(local) = self.locals.remove(endpoint) else { return };
                self.stop_data_dial(endpoint);
                let Some(link) = local.state.link().and_then(|link| self.links.get_mut(&link)) else { return };
                if let Some(theirs) = local.state.theirs() {
                    link.by_theirs.remove(&theirs);
                }
                link.send(&LinkFrame::Close { mine: endpoint.0, reason });
            }
        }
    }

    fn connect(&mut self, plane: Plane, connect: Connect) {
        let (endpoint, peer, tag) = (connect.endpoint, connect.peer, connect.tag);
        let refused = if peer == self.config.node {
            Some(BreakReason::Refused(format!("{peer} is this node: an endpoint leads to another")))
        } else if self.locals.by_tag.contains_key(&(peer, plane, tag)) {
            Some(BreakReason::TagInUse)
        } else if connect.set_up.len() > SET_UP_BYTES {
            let len = connect.set_up.len();
            Some(BreakReason::Failed(format!("a set-up of {len} bytes is too long: expose fewer regions")))
        } else {
            None
        };
        if let Some(reason) = refused {
            return self.send_event(plane, Event::Broken { endpoint, reason });
        }
        self.locals.by_tag.insert((peer, plane, tag), endpoint);
        self.locals.endpoints.insert(endpoint, Local { plane, connect, state: State::Waiting });
        if self.by_node.contains_key(&peer) {
            self.advance(endpoint);
        } else if let Some(sentence) = self.refusals.get(peer, Instant::now()) {
            self.break_local(endpoint, BreakReason::Refused(sentence));
        }
    }

    /// The peers with which there is no link, but an endpoint that waits for one.
    pub(super) fn unlinked_peers(&self) -> BTreeSet<NodeId> {
        let locals = self.locals.endpoints.values().filter(|local| matches!(local.state, State::Waiting));
        locals.map(|local| local.connect.peer).filter(|peer| !self.by_node.contains_key(peer)).collect()
    }

    /// Takes an endpoint that waits as far as it can come now.
    fn advance(&mut self, endpoint: EndpointId) {
        let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { return };
        let connect = &local.connect;
        let link = self.by_node.get(&connect.peer).and_then(|link| self.links.get_mut(link));
        let (State::Waiting, Some(link)) = (&local.state, link) else { return };
        let is_counterpart = |offer: &Offer| offer.tag == connect.tag && offer.plane == local.plane;
        if !link.dialed {
            let (mine, set_up) = (endpoint.0, connect.set_up.clone());
            link.send(&LinkFrame::Offer { mine, plane: local.plane, tag: connect.tag, set_up });
            local.state = State::Offered(link.id);
        } else if let Some(at) = link.offers.iter().position(is_counterpart) {
            let Offer { theirs, set_up, .. } = link.offers.remove(at);
            link.send(&LinkFrame::Accept { mine: endpoint.0, yours: theirs, set_up: connect.set_up.clone() });
            link.by_theirs.insert(theirs, endpoint);
            local.state = State::Accepted { link: link.id, theirs, set_up };
        }
    }

    /// Takes all endpoints on that wait for a peer.
    pub(super) fn advance_all(&mut self, peer: NodeId) {
        for endpoint in self.locals.waiting_for(peer) {
            self.advance(endpoint);
        }
    }

    /// Ends an endpoint of which the peer knows nothing, or has said that it is over.
    pub(super) fn break_local(&mut self, endpoint: EndpointId, reason: BreakReason) {
        if let Some(local) = self.locals.remove(endpoint) {
            self.stop_data_dial(endpoint);
            self.send_event(local.plane, Event::Broken { endpoint, reason });
        }
    }

    /// Ends an endpoint on both sides.
    pub(super) fn break_both(&mut self, endpoint: EndpointId, reason: BreakReason) {
        let state = self.locals.endpoints.get(&endpoint).map(|local| (local.state.link(), local.state.theirs()));
        if let Some((Some(link), theirs)) = state
            && let Some(link) = self.links.get_mut(&link)
        {
            if let Some(theirs) = theirs {
                link.by_theirs.remove(&theirs);
            }
            link.send(&LinkFrame::Close { mine: endpoint.0, reason: reason.clone() });
        }
        self.break_local(endpoint, reason);
    }

    /// Ends all endpoints that wait for a peer which they can't have.
    pub(super) fn fail_waiting(&mut self, peer: NodeId, reason: &BreakReason) {
        for endpoint in self.locals.waiting_for(peer) {
            self.break_local(endpoint, reason.clone());
        }
    }

    /// Ends all connected endpoints of a link that is no more; those that were not connected wait for another.
    pub(super) fn part(&mut self, link: LinkId, reason: &BreakReason) {
        for endpoint in self.locals.on_link(link) {
            let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { continue };
            match local.state {
                State::Paired { .. } => self.break_local(endpoint, reason.clone()),
                _ => {
                    local.state = State::Waiting;
                    self.stop_data_dial(endpoint);
                }
            }
        }
    }

    /// The endpoint that waits for a data connection of that link with that counterpart.
    pub(super) fn awaits_data(&self, peer: NodeId, nonce: Nonce, theirs: u64, mine: u64) -> Option<EndpointId> {
        let link = self.links.get(self.by_node.get(&peer)?)?;
        let endpoint = EndpointId(mine);
        match &self.locals.endpoints.get(&endpoint)?.state {
            State::Opening { link: on, theirs: expected, .. }
                if *on == link.id && link.nonce == nonce && !link.dialed && *expected == theirs =>
            {
                Some(endpoint)
            }
            _ => None,
        }
    }

    /// The link and the counterpart that a data connection for an endpoint has to name.
    pub(super) fn data_of(&self, endpoint: EndpointId) -> Option<(&Link, u64)> {
        match &self.locals.endpoints.get(&endpoint)?.state {
            State::Opening { link, theirs, .. } => Some((self.links.get(link)?, *theirs)),
            _ => None,
        }
    }

    /// Reports an endpoint that has all that it needs.
    pub(super) fn pair(&mut self, endpoint: EndpointId, stream: Option<DataStream>) {
        let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { return };
        let State::Opening { link, theirs, set_up, told } = std::mem::replace(&mut local.state, State::Waiting) else {
            debug_assert!(false, "{endpoint:?} was not opening");
            return;
        };
        local.state = State::Paired { link, theirs };
        let plane = local.plane;
        self.stop_data_dial(endpoint);
        self.send_event(plane, Event::Paired(Box::new(Paired { endpoint, set_up, stream })));
        for bytes in told {
            self.send_event(plane, Event::Told { endpoint, bytes });
        }
    }

    /// Carries out a peer's frame.
    pub(super) fn on_frame(&mut self, id: LinkId, frame: LinkFrame) -> Result<(), Malformed> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let (peer, dialed) = (link.node, link.dialed);
        match frame {
            LinkFrame::Beat => {}
            LinkFrame::Offer { mine: theirs, plane, tag, set_up } if dialed => {
                let bytes: usize = link.offers.iter().map(|offer| offer.set_up.len()).sum();
                if link.offers.len() >= MAX_OFFERS || bytes + set_up.len() > MAX_OFFERED_BYTES {
                    return Err(Malformed("it offers more endpoints than a node may"));
                }
                if link.by_theirs.contains_key(&theirs) || link.offers.iter().any(|offer| offer.theirs == theirs) {
                    return Err(Malformed("it offers an endpoint twice"));
                }
                link.offers.push(Offer { theirs, plane, tag, set_up });
                if let Some(endpoint) = self.locals.by_tag.get(&(peer, plane, tag)).copied() {
                    self.advance(endpoint);
                }
            }
            LinkFrame::Accept { mine: theirs, yours, set_up } if !dialed => {
                let endpoint = EndpointId(yours);
                let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { return Ok(()) };
                if !matches!(local.state, State::Offered(on) if on == id) {
                    return Err(Malformed("it accepts what was not offered"));
                }
                if link.by_theirs.contains_key(&theirs) {
                    return Err(Malformed("one of its endpoints accepts two"));
                }
                link.send(&LinkFrame::Confirm { mine: yours, yours: theirs });
                link.by_theirs.insert(theirs, endpoint);
                local.state = State::Opening { link: id, theirs, set_up, told: Vec::new() };
                if local.plane != Plane::Tcp {
                    self.pair(endpoint, None);
                }
            }
            LinkFrame::Confirm { mine: theirs, yours } if dialed => {
                let endpoint = EndpointId(yours);
                let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { return Ok(()) };
                match std::mem::replace(&mut local.state, State::Waiting) {
                    State::Accepted { link, theirs: accepted, set_up } if (link, accepted) == (id, theirs) => {
                        local.state = State::Opening { link, theirs, set_up, told: Vec::new() };
                        match local.plane {
                            Plane::Verbs | Plane::Choice => self.pair(endpoint, None),
                            Plane::Tcp => self.dial_data(endpoint, Instant::now()),
                        }
                    }
                    before => {
                        local.state = before;
                        return Err(Malformed("it confirms what was not accepted"));
                    }
                }
            }
            LinkFrame::Tell { yours, bytes } => {
                let endpoint = EndpointId(yours);
                let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { return Ok(()) };
                let plane = local.plane;
                match &mut local.state {
                    State::Paired { link, .. } if *link == id => {
                        if self.untaken(plane) >= MAX_UNTAKEN {
                            return Err(Malformed("it tells more than is taken"));
                        }
                        self.send_event(plane, Event::Told { endpoint, bytes });
                    }
                    // The peer's side of the connection stands a moment earlier.
                    State::Opening { link, told, .. } if *link == id && told.len() < MAX_EARLY => told.push(bytes),
                    _ => return Err(Malformed("it tells an endpoint that it is not connected with")),
                }
            }
            LinkFrame::Close { mine: theirs, reason } => self.on_close(id, theirs, reason),
            LinkFrame::Goodbye => self.link_down(id, &BreakReason::PeerClosed),
            LinkFrame::GivenUp => {
                tracing::warn!(%peer, "it has given this node up");
                self.link_down(id, &BreakReason::GivenUp);
            }
            _ => return Err(Malformed("it is none that this side expects")),
        }
        Ok(())
    }

    /// Takes note that the peer's endpoint is no more.
    fn on_close(&mut self, id: LinkId, theirs: u64, reason: BreakReason) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.offers.retain(|offer| offer.theirs != theirs);
        let Some(endpoint) = link.by_theirs.remove(&theirs) else { return };
        let Some(local) = self.locals.endpoints.get_mut(&endpoint) else { return };
        if matches!(local.state, State::Accepted { .. } | State::Opening { .. }) && reason == BreakReason::PeerClosed {
            local.state = State::Waiting;
            self.stop_data_dial(endpoint);
            self.advance(endpoint);
        } else {
            self.break_local(endpoint, reason);
        }
    }
}
