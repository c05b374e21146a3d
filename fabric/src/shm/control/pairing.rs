//! The meeting of endpoints over links, and the memory that goes with it.
//!
//! [`Pairing`](crate::control::Pairing) says which endpoints meet. The node with the smaller id accepts offers. Each
//! side hands over the memory that it exposes to an endpoint before it, and its ring along with it.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use super::{
    Command, Connect, Connected, Event, PeerSetUp,
    link::{MAX_EXPOSED, MAX_SOURCES, MAX_UNTAKEN, ShmLink},
    thread::Thread,
};
use crate::{
    BreakReason, EndpointId, GroupTag, RegionKey, RemoteRegion,
    control::{Counterpart, LinkId, MAX_OFFERS, Medium, PairingEffect, PairingMessage, Untaken},
    shm::{
        memory::{Access, Handle, PeerMemory},
        ring,
        share::SharedCopy,
        wire::{EXPOSE_REGIONS, Frame, Malformed, SetUp},
    },
};

/// The memory of one host.
pub(super) struct ShmMedium;

impl Medium for ShmMedium {
    type Tag = GroupTag;
    type SetUp = Arc<Connect>;
    type PeerSetUp = PeerSetUp;
}

impl Thread {
    /// Carries out a command of the polling thread.
    pub(super) fn carry_out(&mut self, command: Command) {
        match command {
            Command::Connect(connect) => {
                let (endpoint, peer, tag) = (connect.endpoint, connect.peer, connect.tag);
                self.pairing.connect(endpoint, peer, tag, Arc::from(connect), Instant::now());
            }
            Command::Close { endpoint, reason } => self.pairing.close(endpoint, reason),
            Command::Lend { link, memory } => {
                let frame = Frame::Source(memory.describe);
                self.send(link, &frame, vec![Handle::Memory(memory)]);
            }
            Command::Share { link, key, bytes, fd } => {
                self.send(link, &Frame::Share { key, bytes: bytes as u64 }, vec![Handle::Plain(fd)]);
            }
            Command::Forget { key, links } => {
                links.into_iter().for_each(|link| self.send(link, &Frame::Forget(key), Vec::new()));
            }
            Command::TryLink { peer, incarnation } => self.try_link(peer, incarnation, Instant::now()),
            Command::BreakUnmet { peer, reason } => self.pairing.break_unmet(peer, &reason),
            Command::Shutdown => self.stopping = true,
        }
        self.settle();
    }

    fn send(&mut self, link: LinkId, frame: &Frame, handles: Vec<Handle>) {
        if let Some(link) = self.links.get_mut(&link) {
            link.send(frame, handles);
        }
    }

    /// Carries out the effects of the last call to `pairing`.
    pub(super) fn settle(&mut self) {
        while let Some(effect) = self.pairing.next_effect() {
            match effect {
                PairingEffect::Send(link, message) => {
                    if let Some(link) = self.links.get_mut(&link) {
                        send_message(link, message);
                    }
                }
                PairingEffect::Matched(endpoint) => {
                    if let Some((link, set_up)) = self.pairing.complete(endpoint) {
                        self.events.send(Event::Connected(Box::new(Connected { endpoint, link, set_up })));
                    }
                }
                PairingEffect::Unmatched(_) => {}
                PairingEffect::Broken { endpoint, reason, .. } => self.events.send(Event::Broken { endpoint, reason }),
            }
        }
    }

    /// Carries out a peer's packet.
    pub(super) fn on_frame(&mut self, id: LinkId, frame: Frame, fds: Vec<OwnedFd>) -> Result<(), Malformed> {
        let Some(peer) = self.links.get(&id).map(|link| link.node) else { return Ok(()) };
        let dialed = self.dials_to(peer);
        let Some(link) = self.links.get_mut(&id) else { return Ok(()) };
        let from = |theirs| Counterpart { link: id, theirs };
        match frame {
            Frame::Expose { endpoint, regions } => take_exposed(link, endpoint, &regions, fds)?,
            Frame::Offer(set_up) if dialed => {
                let (theirs, tag) = (set_up.endpoint, set_up.tag);
                self.pairing.check_offer(from(theirs))?;
                match take_set_up(link, set_up, fds)? {
                    Ok(set_up) => self.pairing.on_offer(from(theirs), tag, set_up)?,
                    Err(text) => {
                        link.send(&Frame::Reject { yours: theirs, text: text.clone() }, Vec::new());
                        tracing::warn!(%peer, ?tag, "an endpoint was rejected: {text}");
                        self.pairing.fail_tag(peer, tag, BreakReason::Failed(text));
                    }
                }
            }
            Frame::Accept { set_up, yours } if !dialed => {
                let from = from(set_up.endpoint);
                let set_up = take_set_up(link, set_up, fds)?.map_err(BreakReason::Failed);
                self.pairing.on_accept(from, EndpointId(yours), set_up)?;
            }
            Frame::Confirm { mine, yours } if dialed => self.pairing.on_confirm(from(mine), EndpointId(yours))?,
            Frame::Reject { yours, text } if !dialed => {
                self.pairing.on_reject(id, EndpointId(yours), BreakReason::Failed(text));
            }
            Frame::Close { mine, reason } => {
                link.exposed.remove(&mine);
                self.pairing.on_close(from(mine), reason);
            }
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
        self.settle();
        Ok(())
    }
}

fn send_message(link: &mut ShmLink, message: PairingMessage<ShmMedium>) {
    match message {
        PairingMessage::Offer { set_up, .. } => offer(link, &set_up, Frame::Offer),
        PairingMessage::Accept { yours, set_up, .. } => offer(link, &set_up, |set_up| Frame::Accept { set_up, yours }),
        PairingMessage::Confirm { mine, yours } => link.send(&Frame::Confirm { mine: mine.0, yours }, Vec::new()),
        PairingMessage::Close { mine, reason } => link.send(&Frame::Close { mine: mine.0, reason }, Vec::new()),
    }
}

/// Takes note of memory that a peer has pulled from, or shares.
fn take_source(link: &mut ShmLink, key: RegionKey) -> Result<Untaken, Malformed> {
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
fn offer(link: &mut ShmLink, connect: &Connect, frame: impl FnOnce(SetUp) -> Frame) {
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
fn take_exposed(
    link: &mut ShmLink,
    endpoint: u64,
    regions: &[RemoteRegion],
    fds: Vec<OwnedFd>,
) -> Result<(), Malformed> {
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
        match PeerMemory::map(fd.as_fd(), *region, Access::of_peers(region.kind)) {
            Ok(memory) => memories.push(memory),
            Err(error) => *exposed = Err(format!("{}: {error}", link.node)),
        }
    }
    Ok(())
}

/// Maps the ring that a peer hands over for an endpoint, and takes its exposed regions. The inner error is a sentence.
fn take_set_up(link: &mut ShmLink, set_up: SetUp, fds: Vec<OwnedFd>) -> Result<Result<PeerSetUp, String>, Malformed> {
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
