//! The ends of connections: broken, closed, or with their node; and partitions.

use std::time::Duration;

use super::{
    config::Sabotage,
    endpoint::{Side, SideState, Work, WorkKind},
    payload::Payload,
    queue::{Event, NodeIx},
    trace::TraceEvent,
    world::World,
};
use crate::{BreakReason, Completion, EndpointId, Flushed, NodeId, Time, Token, graph::Executor};

/// The length beyond which operations do not survive their poster's side: a copy would serve no purpose.
const KEPT_BYTES: usize = 64 * 1024;

impl World {
    /// Breaks one side: flushes its work, and tells the other side.
    pub(super) fn break_side(&mut self, e: EndpointId, reason: BreakReason) {
        self.settle(e);
        let news = self.one_way();
        let Some(mut side) = self.remove_side(e, reason.clone(), news) else { return };
        let (node, peer) = (side.node, side.peer_node);
        self.trace(|w| TraceEvent::Broke { node: w.id(node), peer, endpoint: e, reason: reason.clone() });
        let broken = Completion::Broken { endpoint: e, peer, reason };
        if self.sabotaged(Sabotage::LateFlush) || self.sabotaged(Sabotage::BreakTwice) {
            self.report(node, broken.clone());
        }
        if !self.sabotaged(Sabotage::NoFlush) {
            let receives = side.incoming.landing.take().and_then(|landing| landing.recv).into_iter().chain(side.recvs);
            let sends = side.pending.iter().map(|work| work.token).filter(|token| *token != Token::UNSIGNALED);
            for token in sends.chain(receives.map(|recv| recv.token)) {
                self.report(node, Completion::Done { endpoint: e, token, result: Err(Flushed) });
            }
        }
        if !self.sabotaged(Sabotage::LateFlush) {
            self.report(node, broken);
        }
    }

    /// Closes one side without a report.
    pub(super) fn disconnect(&mut self, node: NodeIx, e: EndpointId) {
        if self.sabotaged(Sabotage::LateWrite) {
            return self.disconnect_in_name_only(node, e);
        }
        self.close(node, e);
    }

    /// Closes one side, now.
    pub(super) fn close(&mut self, node: NodeIx, e: EndpointId) {
        // This drops reports of an endpoint that has broken by itself, too.
        if !self.sabotaged(Sabotage::ReportAfterDisconnect) {
            self.node(node).completions.retain(|completion| completion.endpoint() != Some(e));
        }
        let news = self.one_way();
        if let Some(side) = self.remove_side(e, BreakReason::PeerClosed, news) {
            self.graphs_lose(node, e);
            let peer = side.peer_node;
            self.trace(|w| TraceEvent::Disconnected { node: w.id(node), peer, endpoint: e });
        }
    }

    /// Ends a side and all operations that travel towards it (G6). Its counterpart hears of it at `news`, behind the
    /// operations that still get out.
    fn remove_side(&mut self, e: EndpointId, reason: BreakReason, news: Time) -> Option<Box<Side>> {
        let side = self.sides.get_mut(e.0 as usize)?.take()?;
        self.node(side.node).sides.remove(&e);
        let key = (self.id(side.node), side.peer_node, side.tag);
        if self.tags.get(&key) == Some(&e) && !self.sabotaged(Sabotage::TagKept) {
            self.tags.remove(&key);
        }
        if let Some(peer) = side.peer {
            self.end_flow(peer, reason, news);
        }
        Some(side)
    }

    /// Ends the operations towards `e`, whose poster is gone. Any prefix of them still lands, of the last operation
    /// perhaps only some words.
    fn end_flow(&mut self, e: EndpointId, reason: BreakReason, news: Time) {
        let latest = self.now + self.longest_detection();
        let torn = self.rng.bool();
        let silent = self.sabotaged(Sabotage::SilentBreak);
        let fetch_later = self.sabotaged(Sabotage::FetchAfterClose);
        let Some(side) = self.sides.get_mut(e.0 as usize).and_then(Option::as_deref_mut) else { return };
        side.peer = None;
        if silent {
            return;
        }
        let flow = &mut side.incoming;
        let mut keep = self.rng.usize(0..=flow.departed);
        if let Some(mut landing) = flow.landing.take() {
            if landing.work.payload.len <= KEPT_BYTES && self.rng.bool() {
                if !fetch_later {
                    landing.work.payload.settle();
                }
                flow.landing = Some(landing);
            } else {
                // The operation stays as it is: some of its bytes have landed. Its receive is flushed with the others.
                keep = 0;
                if let Some(recv) = landing.recv {
                    side.recvs.push_front(recv);
                }
            }
        }
        let gets_out =
            |work: &Work| work.arrival <= latest && (work.payload.len <= KEPT_BYTES || work.payload.is_taken());
        keep = flow.queue.iter().take(keep).take_while(|work| gets_out(work)).count();
        flow.queue.truncate(keep);
        for work in flow.queue.iter_mut().filter(|_| !fetch_later) {
            work.payload.settle();
        }
        let mut arrival = news;
        if let Some(last) = flow.queue.back_mut() {
            last.torn = torn;
            arrival = arrival.max(last.arrival);
        }
        let fin = WorkKind::Fin(reason);
        flow.queue.push_back(Work { seq: 0, kind: fin, payload: Payload::none(), arrival, torn: false });
        flow.departed = flow.queue.len();
        flow.handed = flow.departed;
        flow.sending = false;
        flow.passing = None;
        self.schedule_land(e);
    }

    /// The failure timeout, less the time of operations that are on the way when it runs out.
    fn longest_detection(&self) -> Duration {
        self.config.failure_timeout.mul_f64(0.9)
    }

    /// Ends a node's process. Peers learn that the process ended (`seen`), or only that it is silent.
    pub(super) fn crash(&mut self, ix: NodeIx, seen: bool) {
        let node = self.id(ix);
        self.trace(|_| TraceEvent::Crashed(node));
        for e in std::mem::take(&mut self.node(ix).sides) {
            let longest = self.longest_detection();
            let (reason, after) = if !seen {
                (BreakReason::Unreachable, longest / 2 + self.random(longest / 2))
            } else if self.rng.bool() {
                (BreakReason::ProcessGone, self.config.latency + self.random(self.config.jitter))
            } else {
                (BreakReason::ProcessGone, self.random(longest))
            };
            self.remove_side(e, reason, self.now + after);
        }
        let node = self.node(ix);
        node.up = false;
        node.paused = false;
        node.unsent.clear();
        node.completions.clear();
        node.graphs = Executor::default();
    }

    pub(super) fn cut(&mut self, from: NodeId, to: NodeId) {
        let Some(partition) = self.network.cut(from, to) else { return };
        self.trace(|_| TraceEvent::Cut { from, to });
        for e in self.sides_between(from, to) {
            let longest = self.longest_detection();
            let at = self.now + longest / 2 + self.random(longest / 2);
            self.queue.at(at, Event::Unreachable(e, partition));
        }
    }

    pub(super) fn heal(&mut self, from: NodeId, to: NodeId) {
        if !self.network.heal(from, to) {
            return;
        }
        self.trace(|_| TraceEvent::Healed { from, to });
        for e in self.sides_between(from, to) {
            self.schedule_land(e);
            let Some(side) = self.side(e) else { continue };
            let waits = side.state == SideState::Waiting;
            let stalled: Vec<u64> = side.returning.iter().filter(|read| read.stalled).map(|read| read.id).collect();
            for id in stalled {
                let at = self.one_way();
                self.queue.at(at, Event::Return(e, id));
            }
            if waits {
                self.try_to_meet(e);
            }
        }
    }

    /// The sides of connections between two nodes, at both.
    fn sides_between(&self, a: NodeId, b: NodeId) -> Vec<EndpointId> {
        let at = |node: NodeId, peer: NodeId| {
            let sides = self.by_id.get(&node).map(|ix| self.nodes[*ix as usize].sides.iter());
            sides
                .into_iter()
                .flatten()
                .copied()
                .filter(move |e| self.sides[e.0 as usize].as_ref().is_some_and(|side| side.peer_node == peer))
        };
        at(a, b).chain(at(b, a)).collect()
    }

    /// Breaks `e` if the partition that it waits out still lasts.
    pub(super) fn time_out(&mut self, e: EndpointId, partition: u64) {
        let Some(side) = self.side(e) else { return };
        let (node, peer, connected) = (side.node, side.peer_node, matches!(side.state, SideState::Met | SideState::Up));
        let node = self.id(node);
        let still = [self.network.is_cut(node, peer), self.network.is_cut(peer, node)].contains(&Some(partition));
        if connected && still && !self.sabotaged(Sabotage::NoTimeout) {
            self.break_side(e, BreakReason::Unreachable);
        }
    }
}
