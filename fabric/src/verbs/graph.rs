//! The verbs fabric as a host of work graphs: the room in its queues, and the posting of a graph's requests.

use super::fabric::VerbsFabric;
use crate::{
    EndpointId, PostError, Token,
    graph::{Host, Queue, Work},
};

impl Host for VerbsFabric {
    fn room(&mut self, on: EndpointId, queue: Queue) -> Option<usize> {
        let depth = self.core.depth;
        self.endpoints.get_mut(on).map(|endpoint| match queue {
            Queue::Recv => endpoint.recvs.room(depth),
            Queue::Send if endpoint.up().is_some() => depth.saturating_sub(endpoint.sending.outstanding()),
            Queue::Send => 0,
        })
    }

    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        self.endpoints.get_mut(on).ok_or(PostError::Broken)?.post(&mut self.core, work.op(), token)
    }
}
