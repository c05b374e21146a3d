//! The shared memory fabric as a host of work graphs: the room in its queues, and the posting of a graph's requests.

use super::fabric::ShmFabric;
use crate::{
    EndpointId, PostError, Token,
    graph::{Host, Queue, Work},
};

impl Host for ShmFabric {
    fn room(&mut self, on: EndpointId, queue: Queue) -> Option<usize> {
        let depth = self.core.depth;
        self.endpoints.get_mut(on).map(|endpoint| match queue {
            Queue::Recv => endpoint.recvs.room(depth),
            Queue::Send if endpoint.up.is_some() => depth.saturating_sub(endpoint.sending.outstanding()),
            Queue::Send => 0,
        })
    }

    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        let endpoint = self.endpoints.get_mut(on).ok_or(PostError::Broken)?;
        endpoint.post(&mut self.core, work.op(), token)?;
        // Work that is carried out at once, or that breaks its endpoint, ends without a signal.
        self.core.unfinished |= matches!(work, Work::Write { .. }) || endpoint.sending.breaks();
        Ok(())
    }
}
