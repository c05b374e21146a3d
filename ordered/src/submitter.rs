//! The part of a shard that application threads use.

use std::sync::Arc;

use squall_fabric::Time;
use squall_sst::ring::{Ring, Tag};

use crate::{bulk::BulkQueue, error::SubmitRefused, progress::Progress};

/// The handle that submits messages and asks for reads, from any thread, without a lock unless a bulk message is
/// concerned. The node's thread must be woken afterwards.
#[derive(Clone, Debug)]
pub struct Submitter {
    ring: Option<Arc<Ring>>,
    /// The queue of bulk messages; None if there are none.
    queue: Option<Arc<BulkQueue>>,
    /// The length of the longest message that is not a bulk message, in bytes.
    inline_bytes: usize,
    progress: Arc<Progress>,
}

impl Submitter {
    pub(crate) fn new(
        ring: Option<Arc<Ring>>,
        queue: Option<Arc<BulkQueue>>,
        inline_bytes: usize,
        progress: Arc<Progress>,
    ) -> Submitter {
        Submitter { ring, queue, inline_bytes, progress }
    }

    /// Accepts a message: from here on it is delivered exactly once, unless the shard ends before. Its ticket comes
    /// back with the message where this node delivers it. Ticket 0 says that no caller waits for it.
    ///
    /// Fails if this node is no sender, if there is no room, if the message is too long, or if the shard takes no more.
    pub fn submit(&self, payload: &[u8], tag: Tag) -> Result<(), SubmitRefused> {
        let ring = self.ring.as_ref().ok_or(SubmitRefused::NotASender)?;
        let is_queued = self.is_bulk(payload.len()) || self.queue.as_ref().is_some_and(|queue| queue.is_engaged());
        if is_queued && self.submit_queued(payload, tag)? {
            return Ok(());
        }
        Ok(ring.push(payload, tag)?)
    }

    /// Accepts a bulk message, or a small one behind one. Returns false if the message may go into the ring.
    #[cold]
    fn submit_queued(&self, payload: &[u8], tag: Tag) -> Result<bool, SubmitRefused> {
        let (bytes, max) = (payload.len(), self.inline_bytes);
        let queue = self.queue.as_ref().ok_or(SubmitRefused::TooLarge { bytes, max })?;
        if self.is_bulk(bytes) {
            queue.submit_bulk(payload, tag).map(|()| true)
        } else {
            queue.submit_small(payload, tag)
        }
    }

    /// Returns whether a message of so many bytes is a bulk message.
    pub fn is_bulk(&self, bytes: usize) -> bool {
        bytes > self.inline_bytes
    }

    /// Returns the length of the largest message that is accepted, in bytes; 0 if this node is no sender.
    pub fn max_bytes(&self) -> usize {
        let bulk = self.queue.as_ref().map_or(self.inline_bytes, |queue| queue.max_bytes().max(self.inline_bytes));
        if self.ring.is_some() { bulk } else { 0 }
    }

    /// Returns whether the ring has room for a few of the largest messages that it takes: at least a quarter of it is
    /// free. False if this node is no sender.
    pub fn is_roomy(&self) -> bool {
        self.ring.as_ref().is_some_and(|ring| ring.room() >= squall_sst::ring::max_payload(ring.capacity()))
    }

    /// Asks for one more linearizable read. [`Deliver::answer`](crate::Deliver::answer) follows once the state of this
    /// member includes whatever any member had delivered when this was called.
    pub fn ask_read(&self) {
        self.progress.ask();
    }

    /// Returns the place that this member's state must have reached for a linearizable read, if the member can tell by
    /// itself. `now` is a clock that was read after the read came in.
    ///
    /// None where the read must be [asked for](Submitter::ask_read): the lease has lapsed, or there is none.
    pub fn lease(&self, now: Time) -> Option<OrderPosition> {
        (now < self.progress.lease_until()).then(|| OrderPosition(self.progress.received()))
    }

    /// Returns whether the deliverer has come to a place.
    pub fn has_reached(&self, place: OrderPosition) -> bool {
        self.progress.delivered(0) >= place.0
    }

    /// Says that this member reads under its lease. Returns whether the node's thread must be woken, to renew it.
    pub fn keep_lease(&self, now: Time) -> bool {
        self.progress.ask_renewal(now)
    }

    /// Durable mode: returns the version of the state that this member's application has now, between two runs of its
    /// deliverer. 0 until the deliverer [has begun](crate::Deliverer::begin).
    pub fn version(&self) -> u64 {
        self.progress.versions.applied()
    }

    /// Durable mode: returns the last version that all members have on disk, as far as is known here. A crash of all
    /// members may still undo a later version. So a state of a later version that was read under a
    /// [lease](Submitter::lease) must not be shown to any caller.
    pub fn globally_persisted(&self) -> u64 {
        self.progress.versions.globally_persisted()
    }

    /// Refuses further messages.
    pub fn close(&self) {
        if let Some(ring) = &self.ring {
            ring.close();
        }
        if let Some(queue) = &self.queue {
            queue.close();
        }
    }
}

/// A place in a shard's order: a count of its first messages and nulls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderPosition(u64);
