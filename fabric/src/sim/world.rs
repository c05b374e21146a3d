//! The state of the whole network, virtual time, and the sending side of every endpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fastrand::Rng;

use super::{
    config::{Sabotage, SimConfig},
    endpoint::{Side, SideState},
    path::Network,
    payload::Payload,
    queue::{Event, EventQueue, NodeIx},
    trace::{TraceEvent, Tracer},
};
use crate::{Completion, EndpointId, GroupTag, MIN_RECV_DEPTH, NodeId, Time, graph::Executor};

pub(super) struct World {
    pub(super) config: SimConfig,
    pub(super) now: Time,
    pub(super) rng: Rng,
    /// Draws the keys of regions, so that the number of regions that a layer registers changes nothing else of a run.
    pub(super) keys: Rng,
    pub(super) queue: EventQueue,
    pub(super) network: Network,
    pub(super) nodes: Vec<Node>,
    pub(super) by_id: BTreeMap<NodeId, NodeIx>,
    /// The sides, indexed by `EndpointId`; ids are never used again.
    pub(super) sides: Vec<Option<Box<Side>>>,
    /// The living endpoint of (node, peer, tag).
    pub(super) tags: BTreeMap<(NodeId, NodeId, GroupTag), EndpointId>,
    /// Nodes that the driver has not been told of yet.
    ready: Vec<NodeIx>,
    /// Buffers of operations that have landed.
    spare: Vec<Vec<u8>>,
    pub(super) reads: u64,
    pub(super) events: u64,
    pub(super) tracer: Option<Tracer>,
}

/// One node: its process (if it is up) and its NIC.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    /// The number of times that its process was started.
    pub(super) incarnation: u64,
    pub(super) up: bool,
    pub(super) paused: bool,
    ready: bool,
    notice_scheduled: bool,
    pub(super) sides: BTreeSet<EndpointId>,
    /// The time until which it sets up connections that have met.
    pub(super) connects_until: Time,
    /// Endpoints with connects or posts that wait for the next poll.
    pub(super) unsent: Vec<EndpointId>,
    /// The completions that the next poll reports.
    pub(super) completions: Vec<Completion>,
    /// The graphs that its interface carries out by itself.
    pub(super) graphs: Executor,
    pub(super) graphs_scheduled: bool,
}

/// The number of buffers that are kept for use again.
const SPARE_BUFFERS: usize = 64;

impl World {
    pub(super) fn new(config: SimConfig, seed: u64) -> World {
        let config = SimConfig { recv_depth: config.recv_depth.max(MIN_RECV_DEPTH), ..config };
        World {
            config,
            now: Time::ZERO,
            rng: Rng::with_seed(seed),
            keys: Rng::with_seed(!seed),
            queue: EventQueue::default(),
            network: Network::default(),
            nodes: Vec::new(),
            by_id: BTreeMap::new(),
            sides: Vec::new(),
            tags: BTreeMap::new(),
            ready: Vec::new(),
            spare: Vec::new(),
            reads: 0,
            events: 0,
            tracer: None,
        }
    }

    pub(super) fn add_node(&mut self, id: NodeId) -> NodeIx {
        let ix = self.nodes.len() as NodeIx;
        self.by_id.insert(id, ix);
        self.network.add_node(id, &self.config);
        self.nodes.push(Node {
            id,
            incarnation: 0,
            up: false,
            paused: false,
            ready: false,
            notice_scheduled: false,
            sides: BTreeSet::new(),
            connects_until: Time::ZERO,
            unsent: Vec::new(),
            completions: Vec::new(),
            graphs: Executor::default(),
            graphs_scheduled: false,
        });
        ix
    }

    pub(super) fn node(&mut self, ix: NodeIx) -> &mut Node {
        &mut self.nodes[ix as usize]
    }

    pub(super) fn id(&self, ix: NodeIx) -> NodeId {
        self.nodes[ix as usize].id
    }

    #[inline]
    pub(super) fn side(&mut self, e: EndpointId) -> Option<&mut Side> {
        self.sides.get_mut(e.0 as usize)?.as_deref_mut()
    }

    #[inline]
    pub(super) fn sabotaged(&self, by: Sabotage) -> bool {
        self.config.sabotage == Some(by)
    }

    /// Reports an event to the tracer; costs nothing without one.
    #[inline]
    pub(super) fn trace(&mut self, event: impl FnOnce(&World) -> TraceEvent) {
        if self.tracer.is_some() {
            let event = event(self);
            if let Some(tracer) = &mut self.tracer {
                tracer(self.now, &event);
            }
        }
    }

    /// A random time up to `most`.
    pub(super) fn random(&mut self, most: Duration) -> Duration {
        match most.as_nanos() as u64 {
            0 => Duration::ZERO,
            nanos => Duration::from_nanos(self.rng.u64(0..=nanos)),
        }
    }

    pub(super) fn chance(&mut self, chance: f64) -> bool {
        chance > 0.0 && self.rng.f64() < chance
    }

    /// The delay of an operation on top of the latency.
    pub(super) fn jitter(&mut self) -> Duration {
        let most = if self.chance(self.config.rare_delay_chance) { self.config.rare_delay } else { self.config.jitter };
        self.random(most)
    }

    /// The time at which something small that sets out now is at the other side.
    pub(super) fn one_way(&mut self) -> Time {
        self.now + self.config.latency + self.jitter()
    }

    /// Processes events up to `limit`, until one gives a node something to look at.
    pub(super) fn advance(&mut self, limit: Time, ready: &mut Vec<NodeId>) {
        loop {
            for ix in std::mem::take(&mut self.ready) {
                let node = self.node(ix);
                node.ready = false;
                if node.up && !node.paused {
                    ready.push(node.id);
                }
            }
            if !ready.is_empty() {
                return;
            }
            let Some((time, event)) = self.queue.pop_until(limit) else {
                if limit != Time::MAX {
                    self.now = self.now.max(limit);
                }
                return;
            };
            self.now = self.now.max(time);
            self.events += 1;
            self.handle(event);
            if self.chance(self.config.spurious_chance) {
                let node = self.rng.usize(..self.nodes.len()) as NodeIx;
                self.notice(node);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Land(e) => self.land(e),
            Event::Pump(e) => {
                if let Some(side) = self.side(e) {
                    side.incoming.sending = false;
                    self.pump(e);
                }
            }
            Event::Hop(e) => self.hop(e),
            Event::Done(e) => {
                if let Some(side) = self.side(e) {
                    side.done_scheduled = false;
                    self.settle(e);
                    self.schedule_done(e);
                }
            }
            Event::Meet(e) => self.meet(e),
            Event::Connected(e) => self.report_connected(e),
            Event::Serve(e, id) => self.serve_read(e, id),
            Event::Return(e, id) => self.return_read(e, id),
            Event::Unreachable(e, partition) => self.time_out(e, partition),
            Event::GiveUp(e) => self.give_up(e),
            Event::Close(e) => {
                if let Some(node) = self.side(e).map(|side| side.node) {
                    self.close(node, e);
                }
            }
            Event::Notice(ix) => {
                self.node(ix).notice_scheduled = false;
                self.make_ready(ix);
            }
            Event::Graphs(ix) => self.run_graphs(ix),
        }
    }

    /// Has a node look, now or soon.
    pub(super) fn notice(&mut self, ix: NodeIx) {
        let at_once = self.config.notice_delay.is_zero() || self.rng.bool();
        let node = &self.nodes[ix as usize];
        if node.ready || node.notice_scheduled && !at_once {
            return;
        }
        if at_once { self.make_ready(ix) } else { self.notice_later(ix) }
    }

    pub(super) fn notice_later(&mut self, ix: NodeIx) {
        if !std::mem::replace(&mut self.node(ix).notice_scheduled, true) {
            let at = self.now + self.random(self.config.notice_delay);
            self.queue.at(at, Event::Notice(ix));
        }
    }

    fn make_ready(&mut self, ix: NodeIx) {
        let node = self.node(ix);
        if node.up && !std::mem::replace(&mut node.ready, true) {
            self.ready.push(ix);
        }
    }

    /// Has the next poll of a node report a completion.
    pub(super) fn report(&mut self, ix: NodeIx, completion: Completion) {
        if self.config.sabotage == Some(Sabotage::LateWrite)
            && completion.endpoint().is_some_and(|e| self.is_closing(e))
        {
            return;
        }
        if !self.node(ix).graphs.is_idle() {
            return self.report_past_graphs(ix, completion);
        }
        let node = self.node(ix);
        if node.up {
            node.completions.push(completion);
            self.notice(ix);
        }
    }

    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn give_buffer(&mut self, payload: Payload) {
        if let (Some(buffer), true) = (payload.into_buffer(), self.spare.len() < SPARE_BUFFERS) {
            self.spare.push(buffer);
        }
    }

    /// Hands over work that waited for this poll, and takes the completions that it reports.
    pub(super) fn poll(&mut self, ix: NodeIx, out: &mut Vec<Completion>) {
        if !self.node(ix).unsent.is_empty() {
            for e in std::mem::take(&mut self.node(ix).unsent) {
                let Some(side) = self.side(e) else { continue };
                side.unsent = false;
                match side.peer {
                    _ if side.state == SideState::New => self.announce(e),
                    Some(peer) => self.hand_over(peer),
                    None => {}
                }
            }
        }
        if self.node(ix).completions.is_empty() {
            return;
        }
        let mut completions = std::mem::take(&mut self.node(ix).completions);
        for completion in completions.drain(..) {
            if let Completion::Connected { endpoint, .. } = &completion
                && let Some(side) = self.side(*endpoint)
            {
                side.state = SideState::Up;
            }
            out.push(completion);
        }
        self.node(ix).completions = completions;
    }
}
