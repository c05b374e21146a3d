//! The sender's side: messages from the queue to the group, and from there into the ring.

use std::{collections::VecDeque, sync::Arc};

use squall_rdmc::{Buffer, Group};
use squall_sst::ring::{self, Ring};

use super::{
    Arrivals, Arrived,
    queue::{BulkQueue, Queued},
};

/// A sender's messages on their way from the queue into the ring. The receivers' side is
/// [`Incoming`](super::incoming::Incoming).
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Arc<BulkQueue>,
    ring: Arc<Ring>,
    /// The queue from which this member delivers its own bulk messages.
    arrivals: Arc<Arrivals>,
    /// The messages that are not in the ring yet, oldest first.
    waiting: VecDeque<Queued>,
    /// The number of messages in `waiting` that [`send`](Outgoing::send) has looked at.
    seen: usize,
    /// The number of bulk messages that were handed to the group.
    sent: u64,
    /// The number of bulk messages that have a turn.
    announced: u64,
    /// The memory of the bulk messages that some member has not delivered, oldest first.
    live: VecDeque<Arc<Buffer>>,
    /// The number of bulk messages that have left `live`.
    freed: u64,
}

impl Outgoing {
    pub(super) fn new(queue: Arc<BulkQueue>, ring: Arc<Ring>, arrivals: Arc<Arrivals>) -> Outgoing {
        Outgoing {
            queue,
            ring,
            arrivals,
            waiting: VecDeque::new(),
            seen: 0,
            sent: 0,
            announced: 0,
            live: VecDeque::new(),
            freed: 0,
        }
    }

    /// Returns whether any message is on its way into the ring.
    #[inline]
    pub(super) fn is_engaged(&self) -> bool {
        self.queue.is_engaged()
    }

    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Hands new bulk messages to the group, and returns their number. A sender that is the only member has no group,
    /// and needs none.
    pub(super) fn send(&mut self, mut group: Option<&mut Group>) -> u64 {
        self.queue.take(&mut self.waiting);
        let before = self.sent;
        for queued in self.waiting.iter().skip(self.seen) {
            if let Queued::Bulk { message, len, .. } = queued {
                let number = self.sent;
                if let Some(group) = &mut group
                    && let Err(error) = group.send(Arc::clone(message), *len)
                {
                    // The group has failed, and with it this view.
                    tracing::debug!(%error, number, "a bulk message stays here");
                    break;
                }
                self.arrivals.push(Arrived { number, message: Arc::clone(message), len: *len });
                self.live.push_back(Arc::clone(message));
                self.sent += 1;
            }
            self.seen += 1;
        }
        self.sent - before
    }

    /// Puts into the ring the bulk messages that all members hold, which are the first `held`, and the messages that
    /// follow them. Returns whether there was any.
    pub(super) fn announce(&mut self, held: u64) -> bool {
        let (mut any, mut small, mut small_bytes) = (false, 0, 0);
        while self.seen > 0
            && let Some(first) = self.waiting.front()
        {
            let pushed = match first {
                Queued::Bulk { len, tag, .. } if self.announced < held => {
                    let bulk = ring::Bulk { number: self.announced, len: *len as u64 };
                    self.ring.push_bulk(bulk, *tag).inspect(|()| self.announced += 1)
                }
                Queued::Bulk { .. } => break,
                Queued::Small { payload, tag } => self.ring.push_accepted(payload, *tag).inspect(|()| {
                    small += 1;
                    small_bytes += payload.len();
                }),
            };
            // The ring is full until older messages are delivered.
            if pushed.is_err() {
                break;
            }
            any = true;
            self.waiting.pop_front();
            self.seen -= 1;
        }
        if small > 0 {
            self.queue.passed_on(small, small_bytes);
        }
        if any && self.waiting.is_empty() {
            self.queue.disengage();
        }
        any
    }

    /// Takes note that every member has delivered the first `delivered` bulk messages. Returns whether memory became
    /// free.
    pub(super) fn free(&mut self, delivered: u64) -> bool {
        if delivered == self.freed {
            return false;
        }
        // A message that the group still relays keeps its memory for a moment.
        let reclaimed = self.queue.reclaim(&mut self.live, (delivered - self.freed) as usize);
        self.freed += reclaimed as u64;
        reclaimed > 0
    }

    /// Returns the messages that have no turn, oldest first. None while a thread still copies one.
    pub(super) fn without_turn(&mut self) -> Option<impl Iterator<Item = &Queued>> {
        self.queue.close();
        if self.queue.is_filling() {
            return None;
        }
        self.queue.take(&mut self.waiting);
        Some(self.waiting.iter())
    }

    /// Returns the bytes of a message that has a turn, and that some member has not delivered.
    pub(super) fn announced(&self, bulk: ring::Bulk) -> &[u8] {
        &self.live[(bulk.number - self.freed) as usize][..bulk.len as usize]
    }

    pub(super) fn queue(&self) -> &BulkQueue {
        &self.queue
    }
}
