//! The receives that were posted to an endpoint.

use std::collections::VecDeque;

use crate::{Completion, EndpointId, PostError, Region, Slice, Token, check::check_slice};

/// A posted buffer.
#[derive(Debug)]
pub(crate) struct Recv {
    pub(crate) region: Region,
    pub(crate) offset: usize,
    pub(crate) len: usize,
    pub(crate) token: Token,
}

impl Recv {
    pub(crate) fn new(into: Slice<'_>, token: Token) -> Recv {
        Recv { region: into.region.clone(), offset: into.offset, len: into.len, token }
    }
}

/// An endpoint's receives.
#[derive(Default)]
pub(crate) struct RecvQueue {
    /// The oldest first.
    pub(crate) queue: VecDeque<Recv>,
    /// Whether a receive found the queue full, so that `Room` is owed.
    was_full: bool,
}

impl RecvQueue {
    #[inline]
    pub(crate) fn post(&mut self, depth: usize, into: Slice<'_>, token: Token) -> Result<(), PostError> {
        check_slice(into)?;
        if self.queue.len() >= depth {
            self.was_full = true;
            return Err(PostError::Full);
        }
        self.queue.push_back(Recv::new(into, token));
        Ok(())
    }

    /// The number of further receives that it takes.
    pub(crate) fn room(&self, depth: usize) -> usize {
        depth.saturating_sub(self.queue.len())
    }

    /// Reports room where there was none.
    #[inline]
    pub(crate) fn report_room(&mut self, depth: usize, endpoint: EndpointId, out: &mut Vec<Completion>) {
        if self.was_full && self.queue.len() < depth {
            self.was_full = false;
            out.push(Completion::Room { endpoint });
        }
    }

    pub(crate) fn tokens(&self) -> impl Iterator<Item = Token> {
        self.queue.iter().map(|recv| recv.token)
    }
}
