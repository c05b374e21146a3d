//! The fabric's part for work graphs.

use super::fabric::VerbsFabric;
use crate::{
    EndpointId, Op, PostError, Token,
    check::check_request,
    graph::{Host, Queue, Work},
};

impl Host for VerbsFabric {
    fn check(&mut self, on: EndpointId, op: Op<'_>) -> Result<(), PostError> {
        self.endpoints.get_mut(on).ok_or(PostError::Broken)?;
        check_request(op)
    }

    fn takes(&mut self, on: EndpointId, queue: Queue) -> bool {
        let depth = self.core.depth;
        self.endpoints.get_mut(on).is_none_or(|endpoint| match queue {
            Queue::Recv => endpoint.recvs.len() < depth,
            Queue::Send => endpoint.up().is_some() && endpoint.sending.outstanding() < depth,
        })
    }

    fn recv_room(&mut self, on: EndpointId) -> usize {
        let depth = self.core.depth;
        self.endpoints.get_mut(on).map_or(0, |endpoint| depth.saturating_sub(endpoint.recvs.len()))
    }

    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        self.endpoints.get_mut(on).ok_or(PostError::Broken)?.post(&mut self.core, work.op(), token)
    }
}
