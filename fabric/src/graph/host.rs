//! The work of a poll for graphs: requests that a completion lets go are handed over before the poll returns.

use super::{Executor, Next, Queue, Work, WorkGraph};
use crate::{
    Completion, EndpointId, GraphError, PostError, Token,
    check::{check_request, check_slice},
};

/// A fabric's side of the graphs that run on it.
pub(crate) trait Host {
    /// The number of requests that a queue takes now; none if the endpoint is gone. (A post that it does not take would
    /// promise the caller `Room`.)
    fn room(&mut self, on: EndpointId, queue: Queue) -> Option<usize>;

    /// Posts a request of a graph, whose token is reserved.
    fn post_request(&mut self, on: EndpointId, work: &Work, token: Token) -> Result<(), PostError>;
}

impl Executor {
    /// Takes a graph whose requests the host accepts, and hands over the requests that can go.
    pub(crate) fn begin(
        &mut self,
        host: &mut (impl Host + ?Sized),
        graph: WorkGraph,
        token: Token,
    ) -> Result<(), GraphError> {
        graph.check(|e, op| {
            host.room(e, Queue::Recv).ok_or(PostError::Broken)?;
            check_request(op, check_slice)
        })?;
        self.start(graph, token, |e| host.room(e, Queue::Recv).unwrap_or(0))?;
        self.hand_over(host);
        Ok(())
    }

    /// Takes the completions of graphs' requests out of a poll's report, from `begin` on, and goes on with the graphs.
    pub(crate) fn go_on(&mut self, host: &mut (impl Host + ?Sized), begin: usize, out: &mut Vec<Completion>) {
        self.ended(out);
        for completion in out.split_off(begin) {
            self.report(completion, out);
        }
        self.retry();
        self.hand_over(host);
        self.ended(out);
    }

    fn hand_over(&mut self, host: &mut (impl Host + ?Sized)) {
        // An endpoint that is gone takes all, to refuse them.
        while let Some(next) = self.next(|e, queue| host.room(e, queue) != Some(0)) {
            let Next::Post(e, work, token) = next else { continue };
            if host.post_request(e, &work, token).is_err() {
                self.refused(e, token);
            }
        }
    }
}
