//! The work of a poll for graphs: requests that a completion lets go are handed over before the poll returns.

use super::{Executor, Next, Queue, Work, WorkGraph};
use crate::{Completion, EndpointId, GraphError, Op, PostError, Token};

/// A fabric's side of the graphs that run on it.
pub(crate) trait Host {
    /// The errors that a post of this meets whenever it is made.
    fn check(&mut self, on: EndpointId, op: Op<'_>) -> Result<(), PostError>;

    /// Whether a queue takes another request now. (A post that it does not take would promise the caller `Room`.) An
    /// endpoint that is gone takes all, to refuse them.
    fn takes(&mut self, on: EndpointId, queue: Queue) -> bool;

    /// The number of receives that an endpoint takes now.
    fn recv_room(&mut self, on: EndpointId) -> usize;

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
        graph.check(|e, op| host.check(e, op))?;
        self.start(graph, token, |e| host.recv_room(e))?;
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
        while let Some(next) = self.next(|e, queue| host.takes(e, queue)) {
            let Next::Post(e, work, token) = next else { continue };
            if host.post_request(e, &work, token).is_err() {
                self.refused(e, token);
            }
        }
    }
}
