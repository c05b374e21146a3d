//! One side of a connection.

use std::collections::VecDeque;

use super::{
    memory::{Handle, PeerMemory},
    peer::PeerIx,
    post::Dest,
    pull::Pull,
    ring,
    share::{Lease, Share},
};
use crate::{
    BreakReason, Completion, EndpointId, GroupTag, NodeId, Region, RegionKey, Target, Token,
    endpoints::report_end,
    graph::{Bytes, OwnedSlice},
    recvs::RecvQueue,
};

/// One side of a connection, from `connect` until it breaks or is closed.
pub(super) struct Endpoint {
    pub(super) id: EndpointId,
    pub(super) peer: NodeId,
    pub(super) tag: GroupTag,
    /// Private data for the peer, until it is announced.
    pub(super) hello: Vec<u8>,
    /// The regions that the peer may reach.
    pub(super) exposed: Vec<Region>,
    pub(super) recvs: RecvQueue,
    pub(super) sending: Sending,
    /// The peer's part, once the endpoint is connected.
    pub(super) up: Option<Up>,
    /// Whether the next poll looks at it.
    pub(super) is_due: bool,
}

/// The work that this side has posted, besides receives.
pub(super) struct Sending {
    pub(super) ring: ring::Sender,
    /// The handle by which the peer gets the ring, until the endpoint is connected.
    pub(super) handle: Option<Handle>,
    /// Work that was handed over or carried out, and is not reported yet, in the order of posts.
    pub(super) pending: VecDeque<Pending>,
    /// Work that waits for room in the ring, or for the peer to carry out what is in it.
    pub(super) backlog: VecDeque<Deferred>,
    /// Whether a post found the queue full, so that `Room` is owed.
    pub(super) was_full: bool,
}

/// Work that is complete once the peer has consumed the ring up to `end`.
pub(super) struct Pending {
    pub(super) end: u64,
    pub(super) token: Token,
    /// Keeps the memory that the peer is to find.
    pub(super) _keep: Option<Keep>,
}

/// The memory that the peer needs until the work is complete.
pub(super) enum Keep {
    /// A region that it pulls from.
    Region(#[expect(dead_code, reason = "held")] Region),
    Share(#[expect(dead_code, reason = "held")] Lease),
}

/// Work that waits for its turn.
pub(super) struct Deferred {
    pub(super) work: DeferredWork,
    pub(super) token: Token,
}

pub(super) enum DeferredWork {
    Transfer {
        source: Bytes,
        into: Dest,
    },
    Share {
        share: Share,
        imm: Option<u32>,
    },
    Read {
        from: Target,
        into: OwnedSlice,
        /// The number of bytes that are copied.
        done: usize,
    },
    /// A post that breaks the endpoint when its turn comes.
    Break(BreakReason),
}

/// The peer's part of a connected endpoint.
pub(super) struct Up {
    pub(super) peer: PeerIx,
    /// The regions that the peer exposed.
    pub(super) remote: Vec<PeerMemory>,
    pub(super) ring: ring::Receiver,
    /// A descriptor of the peer that is being carried out.
    pub(super) pulling: Option<Pull>,
}

impl Up {
    /// The peer's region of that key. (There are few, so a search costs less than a map.)
    #[inline]
    pub(super) fn remote(&self, key: RegionKey) -> Option<&PeerMemory> {
        self.remote.iter().find(|memory| memory.describe.key == key)
    }
}

impl Endpoint {
    /// Whether polls look at it without news from the peer.
    #[inline]
    pub(super) fn has_own_work(&self) -> bool {
        let Sending { pending, backlog, .. } = &self.sending;
        // A descriptor that was begun waits for its source, which comes as no news.
        let pulling = || self.up.as_ref().is_some_and(|up| up.pulling.is_some());
        !pending.is_empty() || !backlog.is_empty() || pulling()
    }

    /// Reports work that is complete, and the room that it leaves.
    pub(super) fn retire(&mut self, depth: usize, out: &mut Vec<Completion>) {
        let sending = &mut self.sending;
        if !sending.pending.is_empty() {
            let consumed = sending.ring.consumed();
            while let Some(done) = sending.pending.pop_front_if(|first| first.end <= consumed) {
                if done.token != Token::UNSIGNALED {
                    out.push(Completion::Done { endpoint: self.id, token: done.token, result: Ok(()) });
                }
            }
        }
        if sending.was_full && sending.outstanding() < depth {
            sending.was_full = false;
            out.push(Completion::Room { endpoint: self.id });
        }
        self.recvs.report_room(depth, self.id, out);
    }

    /// Reports the end: the work that is complete, the work that is not, and then the reason.
    pub(super) fn finish(mut self, reason: BreakReason, out: &mut Vec<Completion>) {
        self.close();
        // With a depth of 0, room that can't be used any more is not reported.
        self.retire(0, out);
        let pending = self.sending.pending.iter().map(|pending| pending.token);
        let backlog = self.sending.backlog.iter().map(|deferred| deferred.token);
        report_end(self.id, (self.peer, self.tag), pending.chain(backlog), &self.recvs, reason, out);
    }

    /// Tells the peer's posts that nothing more is taken, and its pulls that nothing more is there, ahead of the packet
    /// that says so. Buffers of posted work may be used again after this.
    pub(super) fn close(&self) {
        self.sending.ring.withdraw();
        if let Some(up) = &self.up {
            up.ring.close();
        }
    }
}

impl Sending {
    /// The number of posts that count against the queue's depth.
    #[inline]
    pub(super) fn outstanding(&self) -> usize {
        self.pending.len() + self.backlog.len()
    }

    /// Whether the last work that was posted will break the endpoint.
    pub(super) fn breaks(&self) -> bool {
        matches!(self.backlog.back(), Some(Deferred { work: DeferredWork::Break(_), .. }))
    }
}
