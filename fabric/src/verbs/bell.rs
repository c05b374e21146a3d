//! The bell between two nodes, by which each wakes the other.
//!
//! A node that has written polled memory of a peer that sleeps must wake it: see `watch`. A message does that, but on
//! the endpoint itself it would take a receive of the layers. So two nodes have a queue pair for this purpose alone. A
//! *ring* on it is a send of no bytes, with the place of the endpoint in the peer's table as its immediate value. It
//! completes a receive at the sleeper, whose completion queues announce any completion. (They must, since a sleeper
//! waits for its own work, too. So a ring need not ask for a solicited event.)
//!
//! A bell is an endpoint under a tag of its own, which exposes nothing, and of which no layer sees a completion. Each
//! node makes its side once an endpoint has met its counterpart, and closes it with the last endpoint. There is one for
//! each peer: a second queue pair in each endpoint would double the number of queue pairs, and the time to set them up.
//! Without a bell, or with a full queue, the control plane carries the wake-up.
//!
//! # No wake-up is lost
//!
//! A node rings once its write is complete, so the order of the two queue pairs does not matter. A ring that does not
//! come to the peer's thread was lost with the bell of one side:
//!
//! - When a bell ends, its rings that are not known to be complete are told over the control plane.
//! - A complete ring has reached the peer's device. When the peer's bell ends before its thread has taken the ring, the
//!   thread is awake. It then counts all announcements to that node as used, and looks for work again before it sleeps.
//!
//! # Trust
//!
//! A peer can wake this node as often as it likes, as it can by messages. One poll takes at most `RINGS` of its rings;
//! further ones wait in the peer's device, which tries them again: a card without end, Soft-RoCE for a part of the
//! failure timeout, and then the bell ends. A ring counts for endpoints with its sender alone. A peer that takes no
//! rings fills the queue here, and no more. What it breaks is the bell, and no other endpoint. The control plane wakes
//! from then on, until the two nodes connect another endpoint, which brings another bell.

use std::io;

use super::{
    endpoint::{ConnectionStage, Endpoint, WAKE},
    fabric::{Core, VerbsFabric},
    post,
    queue::Room,
};
use crate::{
    Completion, EndpointId, Fabric, GroupTag, NodeId, Region, RegionKey, RegionKind, Slice, Token, net::Command,
    recvs::Recv,
};

/// The tag of bells. No layer has this number; the choice of a transport has it on the control plane alone.
pub(super) const BELL: GroupTag = GroupTag { layer: u32::MAX, group: 0, epoch: 0 };

/// The number of rings that may be under way to a peer, and again of those that a peer may have waiting here.
pub(super) const RINGS: usize = 16;

/// The room of a bell's queues.
pub(super) const ROOM: Room = Room { sends: RINGS as u32, recvs: RINGS as u32, inline: 0 };

/// The number of times that a ring is tried again which finds no receive: without end, on a card.
pub(super) const RNR_RETRIES: u8 = 7;

/// The token of receives, which no endpoint has as its id.
const RECEIVE: Token = Token(0);

/// The bells' part of a fabric.
pub(super) struct Bells {
    /// The peers with which endpoints have met since the last poll.
    pub(super) met: Vec<NodeId>,
    /// The endpoints whose peers are to be woken.
    pub(super) to_wake: Vec<EndpointId>,
    /// The region of receives, of no bytes.
    nothing: Region,
}

impl Default for Bells {
    fn default() -> Bells {
        let nothing = Region::heap(RegionKind::Bulk, RegionKey(0), 0);
        Bells { met: Vec::new(), to_wake: Vec::new(), nothing }
    }
}

impl VerbsFabric {
    /// Makes the bells with peers that were met, where there are none.
    pub(super) fn make_bells(&mut self) {
        let mut met = std::mem::take(&mut self.core.bells.met);
        met.sort_unstable();
        met.dedup();
        for peer in met {
            let has_one = self.endpoints.get_named((peer, BELL)).is_some();
            if has_one || !self.has_endpoint_with(peer) {
                continue;
            }
            let id = self.endpoints.reserve();
            let made = self.new_endpoint(id, peer, BELL, &[], b"");
            let refusal = made.as_ref().err().cloned();
            self.endpoints.put(id, (peer, BELL), made);
            if let Some(reason) = refusal {
                tracing::warn!(%peer, "the control plane wakes the peer, since there is no queue pair for that: {reason}");
                self.endpoints.remove(id);
            } else if let Some(bell) = self.endpoints.get_mut(id) {
                (0..RINGS).for_each(|_| bell.expect_ring(&mut self.core));
            }
        }
    }

    /// Closes the bell with a peer with which there is no other endpoint any more.
    pub(super) fn close_idle_bell(&mut self, peer: NodeId) {
        if let Some((bell, _)) = self.endpoints.get_named((peer, BELL))
            && !self.has_endpoint_with(peer)
        {
            self.disconnect(bell);
        }
    }

    fn has_endpoint_with(&self, peer: NodeId) -> bool {
        self.endpoints.all().any(|endpoint| endpoint.peer == peer && !endpoint.is_bell())
    }

    /// Takes in what the bells have reported, and wakes the peers that are to be.
    pub(super) fn serve_bells(&mut self) {
        for completion in std::mem::take(&mut self.of_bells) {
            match completion {
                Completion::Received { endpoint, imm, .. } => self.on_ring(endpoint, imm),
                // The ring may be lost.
                Completion::Done { token, result: Err(_), .. } => self.tell_awake(EndpointId(token.0)),
                Completion::Broken { peer, .. } => self.on_bell_gone(peer),
                _ => {}
            }
        }
        for id in std::mem::take(&mut self.core.bells.to_wake) {
            self.wake_peer(id);
        }
    }

    fn on_ring(&mut self, bell: EndpointId, slot: Option<u32>) {
        // Of one that has ended since, that is reported as well.
        let Some(bell) = self.endpoints.get_mut(bell) else { return };
        bell.expect_ring(&mut self.core);
        let peer = bell.peer;
        // A thread that armed before this must announce anew.
        self.core.look_again = true;
        if let Some(rung) = slot.and_then(|slot| self.endpoints.at_mut(slot))
            && rung.peer == peer
        {
            rung.on_wake(&mut self.core);
        }
    }

    fn on_bell_gone(&mut self, peer: NodeId) {
        self.core.look_again = true;
        for endpoint in self.endpoints.all_mut().filter(|endpoint| endpoint.peer == peer) {
            endpoint.on_wake(&mut self.core);
        }
    }

    /// Wakes the peer of an endpoint.
    fn wake_peer(&mut self, id: EndpointId) {
        let place = self.endpoints.get_mut(id).and_then(|endpoint| Some((endpoint.peer, endpoint.up()?.slot)));
        let Some((peer, slot)) = place else { return };
        let bell = self.endpoints.get_named((peer, BELL)).map(|(bell, _)| bell);
        match bell.and_then(|bell| self.endpoints.get_mut(bell)) {
            Some(bell) if bell.can_ring() => {
                bell.ring(&mut self.core, slot, Token(id.0));
                self.core.stats.rung += 1;
            }
            _ => self.tell_awake(id),
        }
    }

    /// Wakes the peer of an endpoint over the control plane.
    fn tell_awake(&mut self, id: EndpointId) {
        if self.endpoints.get_mut(id).is_some() {
            self.core.stats.told += 1;
            self.core.commands.push(Command::Tell { endpoint: id, bytes: vec![WAKE] });
        }
    }
}

impl Endpoint {
    pub(super) fn is_bell(&self) -> bool {
        self.tag == BELL
    }

    /// Takes note that the peer has woken this node for the endpoint's sake: the next sleep is to be announced anew.
    pub(super) fn on_wake(&mut self, core: &mut Core) {
        if !self.announcement.is_due() {
            self.announcement.used = true;
            core.unannounced.push(self.id);
        }
    }

    /// Whether a ring finds room here.
    pub(super) fn can_ring(&self) -> bool {
        matches!(self.stage, ConnectionStage::Up(_)) && self.ending.is_none() && self.sending.outstanding() < RINGS
    }

    pub(super) fn ring(&mut self, core: &mut Core, slot: u32, token: Token) {
        let rung = self.sending.ring(&self.qp, self.id, core, slot, token);
        self.fail_unless(core, rung);
    }

    /// Posts a receive for a ring.
    fn expect_ring(&mut self, core: &mut Core) {
        let nothing = core.bells.nothing.clone();
        let into = Slice { region: &nothing, offset: 0, len: 0 };
        self.recvs.queue.push_back(Recv::new(into, RECEIVE));
        let posted = self.hand_over_recv(core, into);
        self.fail_unless(core, posted);
    }

    fn fail_unless(&mut self, core: &mut Core, posted: io::Result<()>) {
        if let Err(error) = posted {
            self.fail(core, post::failed(&error));
        }
    }
}
