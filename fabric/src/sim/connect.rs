//! The meeting of two sides of a connection.

use super::{
    config::Sabotage,
    endpoint::{Flow, Side, SideState},
    queue::{Event, NodeIx},
    trace::TraceEvent,
    world::World,
};
use crate::{BreakReason, Completion, EndpointId, GroupTag, HELLO_BYTES, NodeId, Region, Time};

impl World {
    pub(super) fn connect(
        &mut self,
        node: NodeIx,
        peer: NodeId,
        tag: GroupTag,
        exposed: &[Region],
        hello: &[u8],
    ) -> EndpointId {
        let e = EndpointId(self.sides.len() as u64);
        let id = self.id(node);
        let refused = if peer == id {
            Some(BreakReason::Refused("a node can't connect to itself".into()))
        } else if self.tags.contains_key(&(id, peer, tag)) && !self.sabotaged(Sabotage::TagShared) {
            Some(BreakReason::TagInUse)
        } else {
            None
        };
        if let Some(reason) = refused {
            self.sides.push(None);
            self.trace(|_| TraceEvent::Broke { node: id, peer, endpoint: e, reason: reason.clone() });
            self.report(node, Completion::Broken { endpoint: e, peer, reason });
            return e;
        }
        self.tags.insert((id, peer, tag), e);
        self.sides.push(Some(Box::new(Side {
            node,
            peer_node: peer,
            peer_ix: NodeIx::MAX,
            tag,
            state: SideState::New,
            peer: None,
            exposed: exposed.to_vec(),
            hello: hello[..hello.len().min(HELLO_BYTES)].to_vec(),
            remote: Vec::new(),
            peer_hello: Vec::new(),
            incoming: Flow::default(),
            recvs: Default::default(),
            pending: Default::default(),
            pending_base: 0,
            signaled: 0,
            reported: false,
            done_scheduled: false,
            send_was_full: false,
            recv_was_full: false,
            graph_waits: false,
            unsent: true,
            serving: Vec::new(),
            returning: Vec::new(),
        })));
        self.node(node).sides.insert(e);
        self.node(node).unsent.push(e);
        self.notice_later(node);
        e
    }

    /// Announces an endpoint whose node has polled after `connect`: its receives are in place, and the peer may know.
    pub(super) fn announce(&mut self, e: EndpointId) {
        if let Some(side) = self.side(e) {
            side.state = SideState::Waiting;
            if self.sabotaged(Sabotage::ConnectOnce) {
                self.give_up_later(e);
            }
            self.try_to_meet(e);
        }
    }

    pub(super) fn try_to_meet(&mut self, e: EndpointId) {
        let at = self.one_way();
        self.queue.at(at, Event::Meet(e));
    }

    /// Joins two sides that both wait, if the network lets them.
    pub(super) fn meet(&mut self, a: EndpointId) {
        let Some((ix, peer_node, tag)) = self.waiting(a) else { return };
        let id = self.id(ix);
        let mut counterpart = self.tags.get(&(peer_node, id, tag)).copied();
        if self.sabotaged(Sabotage::TagsIgnored) {
            counterpart = self.any_waiting(peer_node, id);
        }
        let Some(b) = counterpart else { return };
        let Some((peer_ix, ..)) = self.waiting(b) else { return };
        if self.network.is_parted(id, peer_node).is_some() {
            return;
        }
        let begins = [ix, peer_ix].map(|ix| self.node(ix).connects_until).into_iter().fold(self.now, Time::max);
        if begins > self.now {
            return self.queue.at(begins, Event::Meet(a));
        }
        let connected = self.now + self.config.connect_time;
        [ix, peer_ix].into_iter().for_each(|ix| self.node(ix).connects_until = connected);
        for (mine, other, other_ix) in [(a, b, peer_ix), (b, a, ix)] {
            let mut remote: Vec<_> =
                self.side(other).map(|o| o.exposed.iter().map(Region::describe).collect()).unwrap_or_default();
            if self.sabotaged(Sabotage::ShuffledRegions) {
                self.rng.shuffle(&mut remote);
            }
            let mut hello = self.side(other).map(|o| o.hello.clone()).unwrap_or_default();
            if self.sabotaged(Sabotage::NoHello) {
                hello.clear();
            }
            let at = self.one_way() + self.config.connect_time;
            if let Some(side) = self.side(mine) {
                side.state = SideState::Met;
                side.peer = Some(other);
                side.peer_ix = other_ix;
                side.remote = remote;
                side.peer_hello = hello;
            }
            // Each side hears of it in its own time: bytes that one then writes may be there before the other has
            // heard.
            self.queue.at(at, Event::Connected(mine));
        }
    }

    pub(super) fn waiting(&mut self, e: EndpointId) -> Option<(NodeIx, NodeId, GroupTag)> {
        let side = self.side(e).filter(|side| side.state == SideState::Waiting)?;
        Some((side.node, side.peer_node, side.tag))
    }

    /// Reports `Connected`, unless it was reported.
    pub(super) fn report_connected(&mut self, e: EndpointId) {
        let Some(side) = self.side(e) else { return };
        if std::mem::replace(&mut side.reported, true) {
            return;
        }
        let (node, peer) = (side.node, side.peer_node);
        let (remote, hello) = (side.remote.clone(), std::mem::take(&mut side.peer_hello));
        self.trace(|w| TraceEvent::Connected { node: w.id(node), peer, endpoint: e });
        self.report(node, Completion::Connected { endpoint: e, remote, hello });
        self.graphs_may_go_on(e);
    }
}
