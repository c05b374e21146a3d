//! The meeting of endpoints with their counterparts, and their parting.
//!
//! The node with the larger id *offers* its endpoints; the other one *accepts* an offer once it has an endpoint of that
//! tag itself, and the offering side *confirms*:
//!
//! ```text
//! larger id          smaller id
//!   │── Offer(b) ──────▶│         b waits here until a is connected too
//!   │◀── Accept(a, b) ──│
//!   │── Confirm(b, a) ─▶│         a is connected
//! b is connected        │
//! ```
//!
//! One side decides which endpoints meet, so a tag that is closed and connected again never meets its earlier
//! counterpart. If `b` was closed in the meantime, its `Close` comes instead of the `Confirm`, and `a` waits for
//! another offer. `a` can't have been used by then, so it is as new.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::fd::{AsFd, OwnedFd},
    time::Instant,
};

use super::{
    Command, Connect, Connected, Event, PeerSetUp,
    link::{Link, MAX_EXPOSED, MAX_OFFERS, MAX_SOURCES, MAX_UNTAKEN, Offer, Untaken},
    thread::Thread,
};
use crate::{
    BreakReason, EndpointId, NodeId, RegionKey, RegionKind, RemoteRegion,
    shm::{
        memory::{Access, Handle, PeerMemory},
        peer::LinkId,
        ring,
        share::SharedCopy,
        wire::{EXPOSE_REGIONS, Frame, Malformed, SetUp},
    },
};

/// An endpoint of this node.
pub(super) struct Local {
    connect: Box<Connect>,
    state: State,
}

enum State {
    /// There is no link with its peer, or no offer of its tag.
    Waiting,
    Offered(LinkId),
    Accepted {
        link: LinkId,
        theirs: u64,
        set_up: PeerSetUp,
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
            State::Offered(link) | State::Accepted { link, .. } | State::Paired { link, .. } => Some(*link),
        }
    }
}

/// All endpoints of this node that have not ended.
#[derive(Default)]
pub(super) struct Locals(BTreeMap<EndpointId, Local>);

impl Locals {
    fn waiting_for(&self, peer: NodeId) -> Vec<EndpointId> {
        let waits = |local: &Local| local.connect.peer == peer && matches!(local.state, State::Waiting);
        self.0.iter().filter(|(_, local)| waits(local)).map(|(endpoint, _)| *endpoint).collect()
    }

    fn on_link(&self, link: LinkId) -> Vec<EndpointId> {
        self.0.iter().filter(|(_, local)| local.state.link() == Some(link)).map(|(endpoint, _)| *endpoint).collect()
    }
}

impl Thread {
    /// Carries out a command of the polling thread.
    pub(super) fn carry_out(&mut self, command: Command) {
        match command {
            Command::Connect(connect) => {
                let (endpoint, peer) = (connect.endpoint, connect.peer);
                self.locals.0.insert(endpoint, Local { connect, state: State::Waiting });
                if self.by_node.contains_key(&peer) {
                    self.advance(endpoint);
                } else if let Some(sentence) = self.refusals.get(peer, Instant::now()) {
                    self.break_local(endpoint, BreakReason::Refused(sentence));
                }
            }
            Command::Close { endpoint, reason } => {
                let Some(local) = self.locals.0.remove(&endpoint) else { return };
                let Some(link) = local.state.link().and_then(|link| self.links.get_mut(&link)) else { return };
                if let State::Accepted { theirs, .. } | State::Paired { theirs, .. } = local.state {
                    link.by_theirs.remove(&theirs);
                }
                link.send(&Frame::Close { mine: endpoint.0, reason }, Vec::new());
            }
            Command::Lend { link, memory } => {
                if let Some(link) = self.links.get_mut(&link) {
                    let frame = Frame::Source(memory.describe);
                    link.send(&frame, vec![Handle::Memory(memory)]);
                }
            }
            Command::Share { link, key, bytes, fd } => {
                if let Some(link) = self.links.get_mut(&link) {
                    link.send(&Frame::Share { key, bytes: bytes as u64 }, vec![Handle::Plain(fd)]);
                }
            }
            Command::Forget { key, links } => {
                for link in links {
                    if let Some(link) = self.links.get_mut(&link) {
                        link.send(&Frame::Forget(key), Vec::new());
                    }
                }
            }
            Command::Shutdown => self.stopping = true,
        }
    }

    /// The peers with which there is no link, but an endpoint that waits for one.
    pub(super) fn unlinked_peers(&self) -> BTreeSet<NodeId> {
        let locals = self.locals.0.values().filter(|local| matches!(local.state, State::Waiting));
        locals.map(|local| local.connect.peer).filter(|peer| !self.by_node.contains_key(peer)).collect()
    }

    /// Takes an endpoint that waits as far as it can come now.
    fn advance(&mut self, endpoint: EndpointId) {
        let Some(local) = self.locals.0.get_mut(&endpoint) else { return };
        let connect = &local.connect;
        let link = self.by_node.get(&connect.peer).and_then(|link| self.links.get_mut(link));
        let (State::Waiting, Some(link)) = (&local.state, link) else { return };
        if self.config.node > connect.peer {
            offer(link, connect, Frame::Offer);
            local.state = State::Offered(link.id);
        } else if let Some(at) = link.offers.iter().position(|offer| offer.tag == connect.tag) {
            let Offer { theirs, set_up, .. } = link.offers.remove(at);
            offer(link, connect, |mine| Frame::Accept { set_up: mine, yours: theirs });
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
    fn break_local(&mut self, endpoint: EndpointId, reason: BreakReason) {
        if self.locals.0.remove(&endpoint).is_some() {
            self.events.send(Event::Broken { endpoint, reason });
        }
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
            let Some(local) = self.locals.0.get_mut(&endpoint) else { continue };
            match local.state {
                State::Paired { .. } => self.break_local(endpoint, reason.clone()),
                _ => local.state = State::Waiting,
            }
        }
    }

    /// Carries out a peer's packet.
    pub(super) fn on_frame(&mut self, id: LinkId, frame: Frame, fds: Vec<OwnedFd>) -> Result<(), Malformed> {
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let peer = link.node;
        let dialed = self.config.node < peer;
        match frame {
            Frame::Expose { endpoint, regions } => take_exposed(link, endpoint, &regions, fds)?,
            Frame::Offer(set_up) if dialed => {
                let (theirs, tag) = (set_up.endpoint, set_up.tag);
                if link.offers.len() >= MAX_OFFERS {
                    return Err(Malformed("it offers more endpoints than a node may"));
                }
                if link.by_theirs.contains_key(&theirs) || link.offers.iter().any(|offer| offer.theirs == theirs) {
                    return Err(Malformed("it offers an endpoint twice"));
                }
                match take_set_up(link, set_up, fds)? {
                    Ok(set_up) => {
                        link.offers.push(Offer { theirs, tag, set_up });
                        self.advance_all(peer);
                    }
                    Err(text) => {
                        link.send(&Frame::Reject { yours: theirs, text: text.clone() }, Vec::new());
                        tracing::warn!(%peer, ?tag, "an endpoint was rejected: {text}");
                        let of_tag = |endpoint: &EndpointId| self.locals.0[endpoint].connect.tag == tag;
                        for endpoint in self.locals.waiting_for(peer).into_iter().filter(of_tag).collect::<Vec<_>>() {
                            self.break_local(endpoint, BreakReason::Failed(text.clone()));
                        }
                    }
                }
            }
            Frame::Accept { set_up, yours } if !dialed => {
                let theirs = set_up.endpoint;
                let set_up = take_set_up(link, set_up, fds)?;
                let endpoint = EndpointId(yours);
                let Some(local) = self.locals.0.get_mut(&endpoint) else { return Ok(()) };
                if !matches!(local.state, State::Offered(on) if on == id) {
                    return Err(Malformed("it accepts what was not offered"));
                }
                if link.by_theirs.contains_key(&theirs) {
                    return Err(Malformed("one of its endpoints accepts two"));
                }
                match set_up {
                    Ok(set_up) => {
                        link.send(&Frame::Confirm { mine: yours, yours: theirs }, Vec::new());
                        link.by_theirs.insert(theirs, endpoint);
                        local.state = State::Paired { link: id, theirs };
                        let connected = Connected { endpoint, link: id, set_up };
                        self.events.send(Event::Connected(Box::new(connected)));
                    }
                    Err(text) => {
                        let reason = BreakReason::Failed(text);
                        link.send(&Frame::Close { mine: yours, reason: reason.clone() }, Vec::new());
                        self.break_local(endpoint, reason);
                    }
                }
            }
            Frame::Confirm { mine: theirs, yours } if dialed => {
                let endpoint = EndpointId(yours);
                let Some(local) = self.locals.0.get_mut(&endpoint) else { return Ok(()) };
                match std::mem::replace(&mut local.state, State::Paired { link: id, theirs }) {
                    State::Accepted { link, theirs: accepted, set_up } if (link, accepted) == (id, theirs) => {
                        let connected = Connected { endpoint, link: id, set_up };
                        self.events.send(Event::Connected(Box::new(connected)));
                    }
                    before => {
                        local.state = before;
                        return Err(Malformed("it confirms what was not accepted"));
                    }
                }
            }
            Frame::Reject { yours, text } if !dialed => {
                let endpoint = EndpointId(yours);
                let local = self.locals.0.get(&endpoint);
                if local.is_some_and(|local| matches!(local.state, State::Offered(on) if on == id)) {
                    self.break_local(endpoint, BreakReason::Failed(text));
                }
            }
            Frame::Close { mine: theirs, reason } => self.on_close(id, theirs, reason),
            Frame::Source(region) => {
                let untaken = take_source(link, region.key)?;
                let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Malformed("a region came without memory"))?;
                let source = PeerMemory::map(fd.as_fd(), region, Access::ReadOnly).map_err(|e| e.to_string());
                self.events.send(Event::Source { link: id, key: region.key, source, _untaken: untaken });
            }
            Frame::Share { key, bytes } => {
                let untaken = take_source(link, key)?;
                let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Malformed("a share came without memory"))?;
                let copy = SharedCopy::map_foreign(fd.as_fd(), bytes).map_err(|error| error.to_string());
                self.events.send(Event::Share { link: id, key, copy, _untaken: untaken });
            }
            Frame::Forget(key) => {
                if link.sources.remove(&key) {
                    self.events.send(Event::Forget { link: id, key, _untaken: link.untaken.clone() });
                }
            }
            Frame::Goodbye => link.goodbye = true,
            _ => return Err(Malformed("it is none that this side expects")),
        }
        Ok(())
    }

    /// Takes note that the peer's endpoint is no more.
    fn on_close(&mut self, id: LinkId, theirs: u64, reason: BreakReason) {
        let Some(link) = self.links.get_mut(&id) else { return };
        link.exposed.remove(&theirs);
        link.offers.retain(|offer| offer.theirs != theirs);
        let Some(endpoint) = link.by_theirs.remove(&theirs) else { return };
        let Some(local) = self.locals.0.get_mut(&endpoint) else { return };
        if matches!(local.state, State::Accepted { .. }) && reason == BreakReason::PeerClosed {
            local.state = State::Waiting;
            self.advance(endpoint);
        } else {
            self.break_local(endpoint, reason);
        }
    }
}

/// Takes note of memory that a peer has pulled from, or shares.
fn take_source(link: &mut Link, key: RegionKey) -> Result<Untaken, Malformed> {
    if link.sources.len() >= MAX_SOURCES {
        return Err(Malformed("it has more memory pulled or taken at a time than a node may"));
    }
    if link.untaken.count() >= MAX_UNTAKEN {
        return Err(Malformed("it hands over memory, and takes it back, faster than this node can look"));
    }
    if !link.sources.insert(key) {
        return Err(Malformed("it hands over memory under a key that it uses"));
    }
    Ok(link.untaken.clone())
}

/// Hands this side's part of a connection to the peer, in the packet that `frame` makes of it.
fn offer(link: &mut Link, connect: &Connect, frame: impl FnOnce(SetUp) -> Frame) {
    let endpoint = connect.endpoint.0;
    for some in connect.expose.chunks(EXPOSE_REGIONS) {
        let regions = some.iter().map(|memory| memory.describe).collect();
        let handles = some.iter().cloned().map(Handle::Memory).collect();
        link.send(&Frame::Expose { endpoint, regions }, handles);
    }
    let Connect { tag, ring_slots, ref hello, ref ring, .. } = *connect;
    link.send(&frame(SetUp { endpoint, tag, ring_slots, hello: hello.clone() }), vec![ring.clone()]);
}

/// Maps regions that a peer exposes to an endpoint.
fn take_exposed(link: &mut Link, endpoint: u64, regions: &[RemoteRegion], fds: Vec<OwnedFd>) -> Result<(), Malformed> {
    if fds.len() != regions.len() {
        return Err(Malformed("regions came without their memory"));
    }
    if link.exposed.len() >= MAX_OFFERS && !link.exposed.contains_key(&endpoint) {
        return Err(Malformed("it exposes memory to more endpoints than a node may"));
    }
    let exposed = link.exposed.entry(endpoint).or_insert_with(|| Ok(Vec::new()));
    for (region, fd) in regions.iter().zip(fds) {
        let Ok(memories) = exposed else { break };
        if memories.len() >= MAX_EXPOSED {
            return Err(Malformed("it exposes more regions to an endpoint than a node may"));
        }
        let access = match region.kind {
            RegionKind::Polled => Access::ReadWrite,
            RegionKind::Bulk | RegionKind::Phantom => Access::ReadOnly,
        };
        match PeerMemory::map(fd.as_fd(), *region, access) {
            Ok(memory) => memories.push(memory),
            Err(error) => *exposed = Err(format!("{}: {error}", link.node)),
        }
    }
    Ok(())
}

/// Maps the ring that a peer hands over for an endpoint, and takes its exposed regions. The inner error is a sentence.
fn take_set_up(link: &mut Link, set_up: SetUp, fds: Vec<OwnedFd>) -> Result<Result<PeerSetUp, String>, Malformed> {
    let [fd] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| Malformed("an endpoint came without its ring"))?;
    let remote = match link.exposed.remove(&set_up.endpoint).unwrap_or_else(|| Ok(Vec::new())) {
        Ok(remote) => remote,
        Err(text) => return Ok(Err(text)),
    };
    let ring = ring::Receiver::map(fd.as_fd(), set_up.ring_slots);
    Ok(ring
        .map(|ring| PeerSetUp { ring, remote, hello: set_up.hello })
        .map_err(|error| format!("{}: {error}", link.node)))
}
