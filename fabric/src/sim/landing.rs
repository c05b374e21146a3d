//! The effects of an operation at its target, in the order of posts (G1).

use std::time::Duration;

use super::{
    config::Sabotage,
    endpoint::{Landing, Pieces, SideState, Work, WorkKind},
    payload::Payload,
    queue::Event,
    trace::TraceEvent,
    world::World,
};
use crate::{BreakReason, Completion, EndpointId, Region, RegionKind, Target, recvs::Recv, region::PeerAccess};

/// The result of looking up an access.
enum Access {
    To(Region, usize),
    Denied,
    /// Sabotaged: the access has no effect.
    Ignored,
}

impl World {
    /// Makes sure that an event looks at the next operation towards `e`.
    pub(super) fn schedule_land(&mut self, e: EndpointId) {
        self.schedule_land_after(e, Duration::ZERO);
    }

    fn schedule_land_after(&mut self, e: EndpointId, gap: Duration) {
        let now = self.now;
        let Some(side) = self.side(e) else { return };
        let flow = &mut side.incoming;
        if flow.scheduled {
            return;
        }
        let next = match (&flow.landing, flow.queue.front()) {
            (Some(_), _) => now,
            (None, Some(head)) if flow.departed > 0 => head.arrival.max(now),
            _ => return,
        };
        flow.scheduled = true;
        self.queue.at(next + gap, Event::Land(e));
    }

    /// Lands the next arrival: a piece, an operation, or several that came together.
    pub(super) fn land(&mut self, e: EndpointId) {
        let Some(side) = self.side(e) else { return };
        side.incoming.scheduled = false;
        let (from, to) = (side.peer_node, side.node);
        let to = self.id(to);
        if self.sabotaged(Sabotage::CutLoses) && self.network.is_cut(from, to).is_some() {
            return self.lose_one(e);
        }
        // A partition holds the packets up: healing it schedules this again.
        while self.network.is_cut(from, to).is_none() {
            let now = self.now;
            let overtake = self.sabotaged(Sabotage::Overtake) && self.rng.bool();
            let Some(side) = self.side(e) else { return };
            let flow = &mut side.incoming;
            let landing = match flow.landing.take() {
                Some(landing) => landing,
                None if flow.departed == 0 || flow.queue[0].arrival > now => break,
                None => {
                    if overtake && flow.departed > 1 && !matches!(flow.queue[1].kind, WorkKind::Fin(_)) {
                        flow.queue.swap(0, 1);
                    }
                    flow.departed -= 1;
                    flow.handed -= 1;
                    let Some(work) = flow.queue.pop_front() else { return };
                    match self.begin(e, work) {
                        Some(landing) => landing,
                        None => continue,
                    }
                }
            };
            let whole = self.land_piece(e, landing);
            // Sometimes the target looks before the next.
            if !whole || self.rng.u8(..4) == 0 {
                let gap = self.random(self.config.split_gap);
                return self.schedule_land_after(e, gap);
            }
        }
        if self.network.is_cut(from, to).is_none() {
            self.schedule_land(e);
        }
    }

    /// Checks an operation and decides how it lands; none if nothing is left to land.
    fn begin(&mut self, e: EndpointId, work: Work) -> Option<Landing> {
        if self.sabotaged(Sabotage::EarlyWriteLost) && self.side(e).is_some_and(|side| side.state == SideState::Met) {
            return None;
        }
        let len = work.payload.len;
        let (mut to, mut announce, mut recv) = (None, None, None);
        match &work.kind {
            WorkKind::Fin(reason) => {
                self.break_side(e, reason.clone());
                return None;
            }
            WorkKind::Read { .. } => {
                self.start_read(e, work);
                return None;
            }
            WorkKind::Write { to: target, imm, word } => {
                if len > 0 {
                    match self.access(e, PeerAccess::Write, *target, len) {
                        Access::To(region, offset) => to = Some((region, offset)),
                        Access::Denied => return self.refuse(e, BreakReason::Access),
                        Access::Ignored => return None,
                    }
                }
                if let Some((word, target)) = word {
                    match self.access(e, PeerAccess::Write, *target, 8) {
                        Access::To(region, offset) if is_word(&region, offset) => {
                            announce = Some((region, offset, *word));
                        }
                        _ => return self.refuse(e, BreakReason::Access),
                    }
                }
                if imm.is_some() && !work.torn {
                    recv = self.take_recv(e, 0)?;
                }
            }
            WorkKind::Send { .. } if work.torn => {}
            WorkKind::Send { .. } => {
                recv = self.take_recv(e, len)?;
                to = recv.as_ref().map(|r| (r.region.clone(), r.offset));
            }
        }
        if work.torn {
            if let Some((region, offset)) = &to {
                work.payload.place_torn(region, *offset, &mut self.rng);
            }
            self.give_buffer(work.payload);
            return None;
        }
        let pieces = self.split(&work.payload, &to, recv.is_some() || announce.is_some());
        let mut landing = Landing { work, to, word: announce, recv, pieces };
        self.sabotage_landing(e, &mut landing);
        Some(landing)
    }

    /// Cuts the bytes into pieces, each of which lands at once; the announcement may come after a pause.
    fn split(&mut self, payload: &Payload, to: &Option<(Region, usize)>, announces: bool) -> Pieces {
        let Some((region, _)) = to else { return Pieces::default() };
        let split = self.chance(self.config.split_chance);
        let count = if split { self.rng.usize(2..=4) } else { 1 };
        let pause = announces && self.chance(self.config.split_chance);
        Pieces::cut(payload.len, payload.grain(region), count, pause, &mut self.rng)
    }

    /// Lands one piece, and with the last one the announcement. Returns whether the operation is complete.
    fn land_piece(&mut self, e: EndpointId, mut landing: Landing) -> bool {
        let part = landing.pieces.pop().unwrap_or_default();
        let (bytes, whole) = (part.len(), landing.pieces.is_empty());
        if let Some((region, offset)) = &landing.to {
            landing.work.payload.place(part, region, *offset, &mut self.rng);
        }
        let Some((node, from, peer)) = self.side(e).map(|side| (side.node, side.peer_node, side.peer)) else {
            return true;
        };
        let op = landing.work.kind.name();
        self.trace(|w| TraceEvent::Landed { from, to: w.id(node), endpoint: e, op, bytes, whole });
        self.notice(node);
        if !whole {
            if let Some(side) = self.side(e) {
                side.incoming.landing = Some(landing);
            }
            return false;
        }
        if let Some((region, offset, word)) = &landing.word {
            region.store(*offset, *word);
        }
        if let Some(recv) = landing.recv {
            self.report_received(e, &landing.work, &recv);
        }
        if let Some(peer) = peer {
            let at = self.now + self.config.latency + self.random(self.config.jitter);
            self.set_ready(peer, landing.work.seq, at);
        }
        self.give_buffer(landing.work.payload);
        true
    }

    /// Finds the memory that a peer's operation names, among the regions that the peer was given.
    fn access(&mut self, e: EndpointId, access: PeerAccess, target: Target, len: usize) -> Access {
        let (any_key, any_region) = (self.sabotaged(Sabotage::KeyUnchecked), self.sabotaged(Sabotage::AnyRegion));
        let access = if self.sabotaged(Sabotage::LentWritable) { PeerAccess::Read } else { access };
        let denied = if self.sabotaged(Sabotage::AccessIgnored) { Access::Ignored } else { Access::Denied };
        let Some(side) = self.side(e) else { return denied };
        let mut found = side.exposed.iter().find(|region| region.key() == target.region);
        if any_key {
            found = found.or(side.exposed.first());
        }
        let mut found = found.cloned();
        if any_region && found.is_none() {
            let node = side.node;
            let others = self.sides.iter().flatten().filter(|other| other.node == node);
            found = others.flat_map(|other| &other.exposed).find(|region| region.key() == target.region).cloned();
        }
        match found {
            Some(region) if region.describe().admits(access, target.offset, len) => Access::To(region, target.offset),
            Some(region) if self.sabotaged(Sabotage::BoundsCut) && target.offset <= region.len() => {
                Access::To(region, target.offset)
            }
            _ => denied,
        }
    }

    /// The region that a read fetches from, if the reader may.
    pub(super) fn readable(&mut self, e: EndpointId, from: Target, len: usize) -> Option<Region> {
        match self.access(e, PeerAccess::Read, from, len) {
            Access::To(region, offset) if region.holds(offset, len) => Some(region),
            Access::To(..) | Access::Ignored => None,
            Access::Denied => self.refuse(e, BreakReason::Access),
        }
    }

    /// Takes the receive that a message of `len` bytes consumes. The outer none means that there is none.
    fn take_recv(&mut self, e: EndpointId, len: usize) -> Option<Option<Recv>> {
        let late = self.sabotaged(Sabotage::LateReceives);
        let cut = self.sabotaged(Sabotage::CutMessage);
        let ignore = self.sabotaged(Sabotage::IgnoreNotReady);
        let no_room = self.sabotaged(Sabotage::NoRoom);
        let last_first = self.sabotaged(Sabotage::LastReceiveFirst);
        let newest_waits = self.sabotaged(Sabotage::NewestReceiveWaits);
        let side = self.side(e)?;
        let node = side.node;
        let fits = |recv: &Recv| len <= recv.len || cut;
        let in_force = side.recvs.len() > usize::from(newest_waits) && !(late && side.state != SideState::Up);
        if in_force && side.recvs.front().is_some_and(fits) {
            let recv = if last_first { side.recvs.pop_back() } else { side.recvs.pop_front() };
            if std::mem::take(&mut side.recv_was_full) && !no_room {
                self.report(node, Completion::Room { endpoint: e });
            }
            self.graphs_may_go_on(e);
            return Some(recv);
        }
        if ignore { None } else { self.refuse(e, BreakReason::ReceiverNotReady) }
    }

    fn refuse<T>(&mut self, e: EndpointId, reason: BreakReason) -> Option<T> {
        self.break_side(e, reason);
        None
    }

    fn report_received(&mut self, e: EndpointId, work: &Work, recv: &Recv) {
        let imm = match work.kind {
            WorkKind::Write { imm, .. } | WorkKind::Send { imm } => imm,
            _ => None,
        };
        let bytes = if matches!(work.kind, WorkKind::Send { .. }) { work.payload.len } else { 0 };
        let Some(node) = self.side(e).map(|side| side.node) else { return };
        let completion = Completion::Received { endpoint: e, token: recv.token, bytes, imm };
        // `Connected` comes first.
        self.report_connected(e);
        if self.sabotaged(Sabotage::DoubleReceive) {
            self.report(node, completion.clone());
        }
        if !self.sabotaged(Sabotage::EarlyReceive) {
            self.report(node, completion);
        }
    }
}

/// Whether a word can be announced there.
fn is_word(region: &Region, offset: usize) -> bool {
    region.kind() == RegionKind::Polled && offset.is_multiple_of(8) && offset < region.len()
}
