//! The fabric's part for work graphs.

use super::fabric::TcpFabric;
use crate::{
    EndpointId, PostError, Token,
    graph::{Host, Queue, Work},
};

impl Host for TcpFabric {
    fn room(&mut self, on: EndpointId, queue: Queue) -> Option<usize> {
        let depth = self.data.core.depth;
        self.data.endpoints.get_mut(on).map(|endpoint| match queue {
            Queue::Recv => endpoint.recvs.room(depth),
            Queue::Send => endpoint.up.as_ref().map_or(0, |up| depth.saturating_sub(up.pending.len())),
        })
    }

    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        self.data.post(on, work.op(), token)
    }
}
