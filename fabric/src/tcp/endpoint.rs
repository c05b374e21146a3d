//! One side of a connection.

use std::collections::VecDeque;

use super::{receive::Receiver, send::SendQueue, socket::Socket};
use crate::{
    BreakReason, Completion, EndpointId, GroupTag, NodeId, Region, RegionKey, RemoteRegion, Time, Token,
    endpoints::report_end, graph::OwnedSlice, recvs::RecvQueue,
};

/// One side of a connection, from `connect` until it breaks or is closed.
pub(super) struct Endpoint {
    pub(super) id: EndpointId,
    pub(super) peer: NodeId,
    pub(super) tag: GroupTag,
    /// Private data for the peer.
    pub(super) hello: Vec<u8>,
    /// Whether the control plane knows of it.
    pub(super) announced: bool,
    /// The regions that the peer may reach.
    pub(super) exposed: Vec<Region>,
    pub(super) recvs: RecvQueue,
    /// The connection, once it stands.
    pub(super) up: Option<Up>,
}

/// A connection that stands.
pub(super) struct Up {
    pub(super) socket: Socket,
    /// The regions that the peer exposed.
    pub(super) remote: Vec<RemoteRegion>,
    /// The number of reads that the peer may have outstanding.
    pub(super) peer_depth: usize,
    pub(super) receiver: Receiver,
    pub(super) send_queue: SendQueue,
    /// Work that is not reported yet, in the order of posts.
    pub(super) pending: VecDeque<Pending>,
    /// Whether a post found the queue full, so that `Room` is owed.
    pub(super) was_full: bool,
    /// Reads that the peer has not answered, oldest first.
    pub(super) reads: VecDeque<OwnedSlice>,
    /// Reads that it has answered and that are not reported.
    pub(super) answered: u64,
    /// The origins of answers that the peer asked for, until these are queued; none for a read of no bytes.
    pub(super) asked: Vec<Option<OwnedSlice>>,
    /// The ends, in the outgoing stream, of answers that have not left.
    pub(super) answers: VecDeque<u64>,
    /// The reason to break, if work that can't be carried out is among the pending: nothing after it is sent.
    pub(super) breaking: Option<BreakReason>,
    /// The reason for the stream's end, if it has ended. The control plane may give a better one.
    pub(super) ended: Option<String>,
    /// Whether the peer has closed its side: the stream is taken in to its end.
    pub(super) closed: bool,
    /// The time since which the socket takes nothing.
    pub(super) stuck_since: Option<Time>,
    pub(super) listed: Listed,
}

/// The fabric's lists that an endpoint is on.
#[derive(Default)]
pub(super) struct Listed {
    pub(super) readable: bool,
    pub(super) sending: bool,
    pub(super) touched: bool,
    pub(super) stuck: bool,
}

/// Work that is not reported yet.
pub(super) struct Pending {
    pub(super) token: Token,
    pub(super) until: Until,
}

/// The event that makes work complete.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// The socket has taken the stream up to here.
    Sent(u64),
    /// The peer has answered.
    Answered,
    /// The work is never complete.
    Never,
}

impl Up {
    /// The peer's region of that key. (There are few, so a search costs less than a map.)
    #[inline]
    pub(super) fn remote(&self, key: RegionKey) -> Option<&RemoteRegion> {
        self.remote.iter().find(|region| region.key == key)
    }

    /// Whether there is something that the socket could take.
    #[inline]
    pub(super) fn may_send(&self) -> bool {
        self.ended.is_none() && self.socket.writable && !self.send_queue.is_empty()
    }

    /// The first work that is pending, if it is complete.
    fn next_complete(&mut self) -> Option<Pending> {
        let sent = self.send_queue.sent();
        let complete = match self.pending.front()?.until {
            Until::Sent(end) => end <= sent,
            Until::Answered => self.answered > 0,
            Until::Never => false,
        };
        if !complete {
            return None;
        }
        let first = self.pending.pop_front()?;
        self.answered -= u64::from(matches!(first.until, Until::Answered));
        Some(first)
    }
}

impl Endpoint {
    /// Reports work that is complete, and the room that it leaves. A reason breaks the endpoint.
    pub(super) fn retire(&mut self, depth: usize, out: &mut Vec<Completion>) -> Option<BreakReason> {
        let endpoint = self.id;
        self.recvs.report_room(depth, endpoint, out);
        let up = self.up.as_mut()?;
        while let Some(done) = up.next_complete() {
            if done.token != Token::UNSIGNALED {
                out.push(Completion::Done { endpoint, token: done.token, result: Ok(()) });
            }
        }
        if up.was_full && up.pending.len() < depth {
            up.was_full = false;
            out.push(Completion::Room { endpoint });
        }
        // Work that can't be carried out breaks the endpoint when everything before it is complete.
        let turn = up.pending.front().is_some_and(|first| matches!(first.until, Until::Never));
        up.breaking.clone().filter(|_| turn)
    }

    /// Reports the end: the work that is complete, the work that is not, and then the reason.
    pub(super) fn finish(mut self, reason: BreakReason, out: &mut Vec<Completion>) {
        // With a depth of 0, room that can't be used any more is not reported.
        self.retire(0, out);
        let pending = self.up.iter().flat_map(|up| &up.pending).map(|pending| pending.token);
        report_end(self.id, (self.peer, self.tag), pending, &self.recvs, reason, out);
    }
}
