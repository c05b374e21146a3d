//! The breaking of guarantees, for showing that a check bites: the parts that do not fit into the line that keeps the
//! guarantee.

use std::time::Duration;

use super::{
    config::Sabotage,
    endpoint::{Landing, Pieces, SideState},
    payload::Fetch,
    queue::{Event, NodeIx},
    world::World,
};
use crate::{BreakReason, Completion, EndpointId, GroupTag, NodeId, RegionKind};

impl World {
    /// Spoils an operation that begins to land.
    pub(super) fn sabotage_landing(&mut self, e: EndpointId, landing: &mut Landing) {
        match self.config.sabotage {
            Some(Sabotage::WordFirst) => {
                if let Some((region, offset, word)) = &landing.word {
                    region.store(*offset, *word);
                    landing.pieces = Pieces::cut(landing.work.payload.len, 8, 2, false, &mut self.rng);
                }
            }
            Some(Sabotage::TornWord) => {
                if let (Some((to, at)), Fetch::Taken(bytes)) = (&landing.to, &landing.work.payload.from)
                    && to.kind() == RegionKind::Polled
                {
                    for (i, word) in bytes.chunks_exact(8).enumerate() {
                        let new = word.try_into().map_or(0, u64::from_ne_bytes);
                        let old = to.load(at + 8 * i);
                        to.store(at + 8 * i, new & 0xffff_ffff | old & !0xffff_ffff);
                    }
                    landing.pieces = Pieces::after_pause(bytes.len());
                }
            }
            Some(Sabotage::CutMessage) => {
                if let Some(recv) = &landing.recv
                    && landing.work.payload.len > recv.len
                {
                    landing.work.payload.len = recv.len;
                    landing.pieces = Pieces::cut(recv.len, 8, 1, false, &mut self.rng);
                }
            }
            Some(Sabotage::BoundsCut) => {
                if let Some((to, at)) = &landing.to
                    && landing.work.payload.len > to.len() - at
                {
                    landing.work.payload.len = to.len() - at;
                    landing.pieces = Pieces::cut(to.len() - at, 8, 1, false, &mut self.rng);
                }
            }
            Some(Sabotage::EarlyReceive) => {
                if let Some(recv) = &landing.recv
                    && let Some(node) = self.side(e).map(|side| side.node)
                {
                    let bytes = landing.work.payload.len;
                    let completion = Completion::Received { endpoint: e, token: recv.token, bytes, imm: None };
                    self.report(node, completion);
                    landing.pieces = Pieces::cut(bytes, 8, 4, false, &mut self.rng);
                }
            }
            _ => {}
        }
    }

    /// `TagsIgnored`: finds any side of `node` that waits for `peer`.
    pub(super) fn any_waiting(&mut self, node: NodeId, peer: NodeId) -> Option<EndpointId> {
        let of = |(key, e): (&(NodeId, NodeId, GroupTag), &EndpointId)| (key.0 == node && key.1 == peer).then_some(*e);
        let candidates: Vec<EndpointId> = self.tags.iter().filter_map(of).collect();
        candidates.into_iter().find(|e| self.waiting(*e).is_some())
    }

    /// `ConnectOnce`: schedules the end of the waiting of a side whose peer has not called `connect` before.
    pub(super) fn give_up_later(&mut self, e: EndpointId) {
        let at = self.now + self.config.latency * 10;
        self.queue.at(at, Event::GiveUp(e));
    }

    /// `ConnectOnce`: breaks a side that still waits.
    pub(super) fn give_up(&mut self, e: EndpointId) {
        if self.waiting(e).is_some() {
            self.break_side(e, BreakReason::Unreachable);
        }
    }

    /// `LateWrite`: whether nothing more is to be reported of it.
    pub(super) fn is_closing(&mut self, e: EndpointId) -> bool {
        self.side(e).is_some_and(|side| side.state == SideState::Closing)
    }

    /// `LateWrite`: closes an endpoint such that nothing is reported any more, but the memory can still be reached.
    pub(super) fn disconnect_in_name_only(&mut self, node: NodeIx, e: EndpointId) {
        self.node(node).completions.retain(|completion| completion.endpoint() != Some(e));
        self.queue.at(self.now + Duration::from_millis(1), Event::Close(e));
        if let Some(side) = self.side(e) {
            side.state = SideState::Closing;
        }
    }

    /// Spoils the next reports of a node's graphs, from position `from` on.
    pub(super) fn sabotage_graphs(&mut self, node: NodeIx, from: usize) {
        let sabotage = self.config.sabotage;
        let node = self.node(node);
        let is_end = |completion: &Completion| matches!(completion, Completion::GraphDone { .. });
        match sabotage {
            Some(Sabotage::GraphEarly) => {
                if let Some(end) = node.graphs.almost_done() {
                    node.completions.push(end);
                }
            }
            Some(Sabotage::GraphTwice) => {
                let again: Vec<Completion> = node.completions[from..].iter().filter(|c| is_end(c)).cloned().collect();
                node.completions.extend(again);
            }
            Some(Sabotage::GraphLost) => {
                let mut at = 0;
                node.completions.retain(|completion| {
                    at += 1;
                    at <= from || !matches!(completion, Completion::GraphDone { result: Err(_), .. })
                });
            }
            _ => {}
        }
    }

    /// `CutLoses`: loses the next operation towards `e`.
    pub(super) fn lose_one(&mut self, e: EndpointId) {
        if let Some(flow) = self.side(e).map(|side| &mut side.incoming)
            && flow.departed > 0
        {
            flow.departed -= 1;
            flow.handed -= 1;
            flow.queue.pop_front();
            self.schedule_land(e);
        }
    }
}
