//! The endpoints that the next poll looks at: those that a peer's news concerns, and those with work of their own.

use crate::EndpointId;

use super::endpoint::Endpoint;

/// Endpoints that may have something to do, in the order of their turns, each once.
///
/// An endpoint that has ended stays in the queue until its turn, when it is not found.
#[derive(Default)]
pub(super) struct Due {
    queue: Vec<EndpointId>,
    /// Memory for the next queue.
    spare: Vec<EndpointId>,
    /// The number of the queue's first endpoints that are to come last the next time.
    served: Option<usize>,
}

impl Due {
    /// Gives an endpoint a turn, after those that have one.
    #[inline]
    pub(super) fn add(&mut self, endpoint: &mut Endpoint) {
        if !endpoint.is_due {
            endpoint.is_due = true;
            self.queue.push(endpoint.id);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Begins a round, and returns the endpoints that have a turn in it. They are due no more, until they are added
    /// again.
    pub(super) fn begin(&mut self) -> Vec<EndpointId> {
        self.served = None;
        std::mem::replace(&mut self.queue, std::mem::take(&mut self.spare))
    }

    /// Notes that the round's allowance is used up: an endpoint that has not been added yet was not served.
    pub(super) fn cut_short(&mut self) {
        self.served.get_or_insert(self.queue.len());
    }

    /// Ends a round. Endpoints that were not served in it come first in the next one.
    pub(super) fn end(&mut self, mut round: Vec<EndpointId>) {
        if let Some(served) = self.served {
            self.queue.rotate_left(served);
        }
        round.clear();
        self.spare = round;
    }
}
