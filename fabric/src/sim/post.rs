//! The sending side: work is posted, fetched, handed over and put on the wire.

use super::{
    config::Sabotage,
    endpoint::{Passing, Pending, Work, WorkKind},
    payload::{Fetch, Payload},
    queue::{Event, NodeIx},
    trace::TraceEvent,
    world::World,
};
use crate::{EndpointId, PostError, Time, Token};

impl World {
    /// Queues work on an endpoint that is up.
    pub(super) fn submit(
        &mut self,
        e: EndpointId,
        kind: WorkKind,
        mut payload: Payload,
        token: Token,
    ) -> Result<(), PostError> {
        self.settle(e);
        let depth = self.config.queue_depth;
        let side = self.side(e).ok_or(PostError::Broken)?;
        if side.pending.len() >= depth {
            if self.sabotaged(Sabotage::DropWhenFull) {
                return Ok(());
            }
            if let Some(side) = self.side(e) {
                side.send_was_full = true;
            }
            self.schedule_done(e);
            return Err(PostError::Full);
        }
        let (ix, peer, peer_node) = (side.node, side.peer, side.peer_node);
        let seq = side.pending_base + side.pending.len() as u64;
        let is_read = matches!(kind, WorkKind::Read { .. });
        self.trace(|w| TraceEvent::Posted {
            node: w.id(ix),
            peer: peer_node,
            endpoint: e,
            op: kind.name(),
            bytes: payload.len,
        });

        self.choose_fetch(&mut payload);
        let mut ready_at = None;
        let small = payload.len <= self.config.packet_bytes;
        if small && payload.is_taken() && !is_read && self.chance(self.config.early_done_chance) {
            ready_at = Some(self.now + self.random(self.config.latency + self.config.jitter));
        }
        if self.sabotaged(Sabotage::FetchAfterDone) && !is_read || self.sabotaged(Sabotage::EarlyReadDone) && is_read {
            ready_at = Some(self.now);
        }
        let signal_all = self.sabotaged(Sabotage::SignalAll);
        if let Some(side) = self.side(e) {
            side.signaled += usize::from(token != Token::UNSIGNALED || signal_all);
            side.pending.push_back(Pending { token, ready_at });
        }
        if ready_at.is_some() {
            self.schedule_done(e);
        }
        // When the peer's side is gone, the work goes nowhere, and is flushed when this side hears of it.
        if let Some(peer) = peer {
            self.enqueue(peer, Work { seq, kind, payload, arrival: Time::MAX, torn: false });
            // The posts of a graph wait for no poll.
            if token.is_reserved() { self.hand_over(peer) } else { self.hand_over_or_wait(e, ix, peer) }
        }
        Ok(())
    }

    /// Fetches a region's bytes now, partly now, or as they land.
    fn choose_fetch(&mut self, payload: &mut Payload) {
        if payload.len > self.config.packet_bytes || !matches!(payload.from, Fetch::Later(..)) {
            return;
        }
        let roll = self.rng.f64();
        let early = self.config.early_fetch_chance;
        if roll < 2.0 * early && !self.sabotaged(Sabotage::FetchAfterDone) {
            let buffer = self.take_buffer();
            payload.fetch(buffer, roll >= early);
        }
    }

    fn enqueue(&mut self, peer: EndpointId, work: Work) {
        let stale_inline = self.sabotaged(Sabotage::StaleInline);
        if self.sabotaged(Sabotage::EarlyRead) && matches!(work.kind, WorkKind::Read { .. }) {
            return self.start_read(peer, work);
        }
        let Some(side) = self.side(peer) else { return };
        let flow = &mut side.incoming;
        if let (true, Fetch::Taken(new)) = (stale_inline, &work.payload.from) {
            for before in &mut flow.queue {
                if let Fetch::Taken(old) = &mut before.payload.from
                    && old.len() == new.len()
                {
                    old.copy_from_slice(new);
                }
            }
        }
        flow.queue.push_back(work);
    }

    fn hand_over_or_wait(&mut self, e: EndpointId, ix: NodeIx, peer: EndpointId) {
        let lazy = self.chance(self.config.lazy_chance);
        let Some(side) = self.side(e) else { return };
        if side.unsent {
            return;
        }
        if lazy {
            side.unsent = true;
            self.node(ix).unsent.push(e);
            self.notice_later(ix);
        } else {
            self.hand_over(peer);
        }
    }

    /// Hands all work that was posted towards `target` to the network.
    pub(super) fn hand_over(&mut self, target: EndpointId) {
        if let Some(side) = self.side(target) {
            side.incoming.handed = side.incoming.queue.len();
            self.pump(target);
        }
    }

    /// Sends work that was handed over: small operations at once, large ones one after the other.
    pub(super) fn pump(&mut self, target: EndpointId) {
        loop {
            let jitter = self.jitter();
            let Some(side) = self.sides.get_mut(target.0 as usize).and_then(Option::as_deref_mut) else { return };
            let (from, to) = (side.peer_ix, side.node);
            let flow = &mut side.incoming;
            if flow.sending || flow.departed >= flow.handed {
                break;
            }
            let work = &mut flow.queue[flow.departed];
            let bytes = if matches!(work.kind, WorkKind::Read { .. }) { 0 } else { work.payload.len };
            if self.config.segment_bytes > 0 && bytes > self.config.packet_bytes {
                flow.sending = true;
                flow.passing = Some(Passing { left: bytes, hop: 0, clear: 0 });
                self.hop(target);
                break;
            }
            let passage = self.network.send(self.now, from, to, bytes, &self.config);
            work.arrival = (passage.arrive + jitter).max(flow.last_arrival);
            flow.last_arrival = work.arrival;
            flow.departed += 1;
            if bytes > self.config.packet_bytes {
                flow.sending = true;
                self.queue.at(passage.clear, Event::Pump(target));
            }
        }
        self.schedule_land(target);
    }

    /// Moves the segment that is on its way towards `target` into its next port. After the last port it goes on with
    /// the next segment, or with the work after the whole operation.
    pub(super) fn hop(&mut self, target: EndpointId) {
        let (segment_bytes, now) = (self.config.segment_bytes, self.now);
        let Some(side) = self.sides.get_mut(target.0 as usize).and_then(Option::as_deref_mut) else { return };
        let way = (side.peer_ix, side.node);
        // The endpoint broke meanwhile.
        let Some(passing) = side.incoming.passing.as_mut() else { return };
        let bytes = passing.left.min(segment_bytes);
        let entered = self.network.enter(now, way, passing.hop, bytes, &self.config);
        passing.clear = passing.clear.max(entered.end);
        if !entered.last {
            passing.hop += 1;
            return self.queue.at(entered.begun, Event::Hop(target));
        }
        let clear = Time::from_nanos(passing.clear);
        passing.left -= bytes;
        passing.hop = 0;
        if passing.left > 0 {
            return self.queue.at(clear, Event::Hop(target));
        }
        let arrive = Time::from_nanos(passing.clear + entered.latency) + self.jitter();
        let Some(side) = self.side(target) else { return };
        let flow = &mut side.incoming;
        flow.passing = None;
        let work = &mut flow.queue[flow.departed];
        work.arrival = arrive.max(flow.last_arrival);
        flow.last_arrival = work.arrival;
        flow.departed += 1;
        self.queue.at(clear, Event::Pump(target));
        self.schedule_land(target);
    }
}
