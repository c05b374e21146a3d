//! Work graphs, which a node's interface carries out in virtual time, whether or not the node's process runs.

use super::{
    config::Sabotage,
    endpoint::WorkKind,
    payload::Payload,
    queue::{Event, NodeIx},
    world::World,
};
use crate::{
    Completion, EndpointId, GraphError, Op, PostError, Source, Token, WorkGraph,
    check::{check_range, check_request},
    graph::{Next, Queue, Work},
};

impl World {
    pub(super) fn post_graph(&mut self, ix: NodeIx, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        let unchecked = self.sabotaged(Sabotage::PostsUnchecked);
        graph.check(|e, op| {
            if unchecked {
                return Ok(());
            }
            self.side(e).filter(|side| side.node == ix).ok_or(PostError::Broken)?;
            check_request(op, check_range)
        })?;
        let graph = if self.sabotaged(Sabotage::GraphUnordered) { graph.without_dependencies() } else { graph };
        let World { nodes, sides, config, .. } = self;
        let room = |e: EndpointId| {
            let side = sides.get(e.0 as usize).and_then(|side| side.as_deref());
            side.map_or(0, |side| config.recv_depth.saturating_sub(side.recvs.len()))
        };
        nodes[ix as usize].graphs.start(graph, token, room)?;
        self.run_graphs(ix);
        Ok(())
    }

    /// Hands over the requests that can go now.
    pub(super) fn run_graphs(&mut self, ix: NodeIx) {
        self.node(ix).graphs_scheduled = false;
        self.node(ix).graphs.retry();
        let drops = self.sabotaged(Sabotage::GraphDrops);
        loop {
            let World { nodes, sides, config, .. } = self;
            let takes = |e: EndpointId, queue| match sides.get(e.0 as usize).and_then(|side| side.as_deref()) {
                Some(side) if queue == Queue::Recv => drops || side.recvs.len() < config.recv_depth,
                Some(side) => side.reported && (drops || side.pending.len() < config.queue_depth),
                None => true,
            };
            match nodes[ix as usize].graphs.next(takes) {
                None => break,
                Some(Next::Stalled(e)) => {
                    if let Some(side) = self.side(e) {
                        side.graph_waits = true;
                        self.schedule_done(e);
                    }
                }
                Some(Next::Post(e, work, token)) => match self.post_of_graph(e, &work, token) {
                    Err(PostError::Full) if drops => {}
                    Err(_) => self.node(ix).graphs.refused(e, token),
                    Ok(()) => {}
                },
            }
        }
        self.report_ends(ix);
    }

    fn post_of_graph(&mut self, e: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        let (kind, source) = match work.op() {
            Op::Recv { into } => return self.post_recv(e, into, token),
            Op::Send { source, imm } => (WorkKind::Send { imm }, source),
            Op::Write { source, target } => (WorkKind::Write { to: target, imm: None, word: None }, source),
            _ => return Ok(()),
        };
        let payload = match source {
            Source::Inline(bytes) => Payload::taken(bytes.to_vec()),
            Source::Region(slice) => Payload::later(slice.region, slice.offset, slice.len),
        };
        self.submit(e, kind, payload, token)
    }

    /// Has graphs go on that wait for `e`, which has room, or is connected.
    pub(super) fn graphs_may_go_on(&mut self, e: EndpointId) {
        if let Some(side) = self.side(e)
            && std::mem::take(&mut side.graph_waits)
        {
            let ix = side.node;
            self.run_graphs_soon(ix);
        }
    }

    /// Schedules a run of the graphs. It does not run them at once, since a caller is in the middle of other work.
    fn run_graphs_soon(&mut self, ix: NodeIx) {
        if !std::mem::replace(&mut self.node(ix).graphs_scheduled, true) {
            let at = self.now + self.random(self.config.split_gap);
            self.queue.at(at, Event::Graphs(ix));
        }
    }

    /// Reports as `report` does, while graphs run: completions of their requests are not reported to the process.
    pub(super) fn report_past_graphs(&mut self, ix: NodeIx, completion: Completion) {
        let tells = self.sabotaged(Sabotage::GraphTells);
        let node = self.node(ix);
        if !node.up {
            return;
        }
        let before = node.completions.len();
        if tells {
            node.completions.push(completion.clone());
        }
        node.graphs.report(completion, &mut node.completions);
        self.sabotage_graphs(ix, before);
        if self.node(ix).completions.len() > before {
            self.notice(ix);
        }
        if self.node(ix).graphs.is_stirred() {
            self.run_graphs_soon(ix);
        }
    }

    /// Ends the graphs of a side of this node that was closed.
    pub(super) fn graphs_lose(&mut self, ix: NodeIx, e: EndpointId) {
        self.node(ix).graphs.endpoint_gone(e);
        self.report_ends(ix);
    }

    /// Reports graphs that ended without a completion.
    fn report_ends(&mut self, ix: NodeIx) {
        let node = self.node(ix);
        let before = node.completions.len();
        node.graphs.ended(&mut node.completions);
        self.sabotage_graphs(ix, before);
        if self.node(ix).completions.len() > before {
            self.notice(ix);
        }
    }
}
