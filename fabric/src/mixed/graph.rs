//! Work graphs, whose requests may be of several fabrics.

use super::fabric::Parts;
use crate::{
    EndpointId, Op, PostError, Token,
    graph::{Host, Queue, Work},
};

impl Host for Parts {
    fn check(&mut self, on: EndpointId, op: Op<'_>) -> Result<(), PostError> {
        self.of(on).ok_or(PostError::Broken)?.check(on, op)
    }

    fn takes(&mut self, on: EndpointId, queue: Queue) -> bool {
        self.of(on).is_none_or(|part| part.takes(on, queue))
    }

    fn recv_room(&mut self, on: EndpointId) -> usize {
        self.of(on).map_or(0, |part| part.recv_room(on))
    }

    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError> {
        self.of(on).ok_or(PostError::Broken)?.post_request(on, work, token)
    }
}
