//! Work graphs, which a poll carries out: what a completion of this poll lets go is handed over before it returns.

use super::{
    endpoint::Endpoint,
    fabric::ShmFabric,
    post::{check_slice, check_source},
};
use crate::{
    Completion, GraphError, Op, PostError, Token, WorkGraph,
    graph::{Next, Queue, Work},
};

impl Endpoint {
    /// Whether a queue takes another request. (A post that it does not take would promise the caller `Room`.)
    fn takes(&self, queue: Queue, depth: usize) -> bool {
        match queue {
            Queue::Recv => self.recvs.len() < depth,
            Queue::Send => self.up.is_some() && self.sending.outstanding() < depth,
        }
    }
}

impl ShmFabric {
    pub(super) fn start_graph(&mut self, graph: WorkGraph, token: Token) -> Result<(), GraphError> {
        let (endpoints, depth) = (&mut self.endpoints, self.core.depth);
        graph.check(|e, op| {
            endpoints.get_mut(e).ok_or(PostError::Broken)?;
            match op {
                Op::Send { source, .. } | Op::Write { source, .. } => check_source(source),
                Op::Recv { into } | Op::Read { into, .. } => check_slice(into),
                Op::WriteWithImm { .. } | Op::WriteThenWord { .. } => Ok(()),
            }
        })?;
        let room = |e| endpoints.get_mut(e).map_or(0, |endpoint| depth.saturating_sub(endpoint.recvs.len()));
        self.graphs.start(graph, token, room)?;
        self.hand_over();
        Ok(())
    }

    /// Takes what concerns graphs out of what this poll has to report, from `begin` on, and goes on with them.
    pub(super) fn run_graphs(&mut self, begin: usize, out: &mut Vec<Completion>) {
        self.graphs.ended(out);
        for completion in out.split_off(begin) {
            self.graphs.report(completion, out);
        }
        self.graphs.retry();
        self.hand_over();
        self.graphs.ended(out);
    }

    fn hand_over(&mut self) {
        let (endpoints, core) = (&mut self.endpoints, &mut self.core);
        let depth = core.depth;
        while let Some(next) =
            self.graphs.next(|e, queue| endpoints.get_mut(e).is_none_or(|endpoint| endpoint.takes(queue, depth)))
        {
            let Next::Post(e, work, token) = next else { continue };
            let posted = endpoints.get_mut(e).map(|endpoint| {
                let posted = endpoint.post(core, work.op(), token);
                // One that is carried out at once, or that breaks its endpoint, ends without anybody's signal.
                core.unfinished |= matches!(work, Work::Write { .. }) || endpoint.sending.breaks();
                posted
            });
            if !matches!(posted, Some(Ok(()))) {
                self.graphs.refused(e, token);
            }
        }
    }
}
