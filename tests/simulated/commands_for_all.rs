//! Commands of simulated clients to which all members reply.

use std::{
    collections::BTreeMap,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
};

use squall::{
    NodeId, Time,
    client::{ClientError, Replies, SubmitAll},
};

/// A command under way to which all members reply.
pub(crate) struct AskedAll {
    pub(crate) shard: usize,
    pub(crate) number: u64,
    pub(crate) asking: Asking,
    pub(crate) replies: BTreeMap<NodeId, Result<u64, ClientError>>,
    /// The lives of nodes, and the places since which they had the shard, at the time of the call.
    pub(crate) before: BTreeMap<NodeId, Tenure>,
    /// The time at which each must have replied, or failed.
    pub(crate) deadline: Time,
    pub(crate) is_patient: bool,
}

pub(crate) enum Asking {
    Sending(SubmitAll<u64>),
    Sent(Replies<u64>),
}

/// The number of a node's starts, and the place since which it has had a shard's state.
pub(crate) type Tenure = (u64, Option<String>);

impl AskedAll {
    /// Takes the replies that have come. Returns the outcome once there is nothing more to come.
    pub(crate) fn poll(&mut self) -> Option<Result<(), ClientError>> {
        let mut context = Context::from_waker(Waker::noop());
        if let Asking::Sending(call) = &mut self.asking {
            match Pin::new(call).poll(&mut context) {
                Poll::Pending => return None,
                Poll::Ready(Ok(replies)) => self.asking = Asking::Sent(replies),
                Poll::Ready(Err(error)) => return Some(Err(error)),
            }
        }
        let Asking::Sent(replies) = &mut self.asking else { return None };
        loop {
            match pin!(replies.next()).poll(&mut context) {
                Poll::Pending => return None,
                Poll::Ready(None) => return Some(Ok(())),
                Poll::Ready(Some((node, reply))) => _ = self.replies.insert(node, reply),
            }
        }
    }
}
