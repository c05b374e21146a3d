//! A node whose start is under way.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use squall_fabric::NodeId;
use squall_membership::EndReason;
use squall_runtime::blocking;

use super::{running::Node, start_error::StartError, watch::WatchState};
use crate::clients::admin::{Admin, StatusReport};

/// A node that waits for the other members of its first view, or to be taken in.
///
/// A future for any executor; on a plain thread, [`wait`](Starting::wait). Dropping it ends the node, as dropping a
/// [`Node`] does: it gives back its name, its ports and its logs, and has no threads any more, but perhaps one that
/// waits for a file system that hangs. That takes a moment, as does a poll that fails: the thread is blocked for it.
#[must_use = "dropping it ends the node"]
pub struct Starting {
    /// None once the start is done.
    node: Option<Node>,
    started: Pin<Box<dyn Future<Output = Result<(), EndReason>> + Send>>,
}

impl Starting {
    pub(super) fn new(node: Node) -> Starting {
        let watch = Arc::clone(&node.operator.watch);
        let started = Box::pin(async move { watch.find(WatchState::started).await });
        Starting { node: Some(node), started }
    }

    /// Returns the node's id.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn id(&self) -> NodeId {
        self.node().id()
    }

    /// Reports the node's progress, as `squall status` shows it: its [condition](StatusReport::condition), the members
    /// that have not appeared (in [`waits`](StatusReport::waits)), and the state that it fetches for each
    /// [shard](StatusReport::shards).
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn status(&self) -> StatusReport {
        Admin::status(&*self.node().operator)
    }

    /// Blocks this thread until the node has started.
    ///
    /// # Errors
    ///
    /// [`StartError::NotFormed`] if the node's part ended before its first view.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(mut self) -> Result<Node, StartError> {
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }

    /// Ends the node, and waits until it has ended.
    pub fn cancel(self) {
        drop(self);
    }

    fn node(&self) -> &Node {
        self.node.as_ref().expect("its start is not done")
    }
}

impl Future for Starting {
    type Output = Result<Node, StartError>;

    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Node, StartError>> {
        assert!(self.node.is_some(), "a Starting was polled after it had resolved");
        let started = std::task::ready!(self.started.as_mut().poll(context));
        let node = self.node.take().expect("it was there");
        Poll::Ready(match started {
            Ok(()) => Ok(node),
            Err(reason) => Err(StartError::NotFormed(reason)),
        })
    }
}

impl fmt::Debug for Starting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starting").field("id", &self.node.as_ref().map(Node::id)).finish_non_exhaustive()
    }
}
