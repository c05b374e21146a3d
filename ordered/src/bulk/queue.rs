//! The queue in which a sender's bulk messages wait, and the messages that it sends after them.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use squall_fabric::sync::Lock;
use squall_rdmc::Buffer;
use squall_sst::ring::Tag;

use super::reserve::Reserve;
use crate::error::SubmitRefused;

/// A message that goes through the queue.
#[derive(Debug)]
pub(crate) enum Queued {
    /// A bulk message: its length, and the memory that it lies in.
    Bulk { message: Arc<Buffer>, len: usize, tag: Tag },
    /// A small message that came after a bulk message.
    Small { payload: Box<[u8]>, tag: Tag },
}

impl Queued {
    pub(crate) fn tag(&self) -> Tag {
        match self {
            Queued::Bulk { tag, .. } | Queued::Small { tag, .. } => *tag,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Queued::Bulk { message, len, .. } => &message[..*len],
            Queued::Small { payload, .. } => payload,
        }
    }
}

/// A queue that takes bulk messages from any thread, and hands them to the node's thread.
///
/// While any bulk message is under way, later messages of the same sender follow it through the queue, so that none
/// overtakes another.
#[derive(Debug)]
pub(crate) struct BulkQueue {
    /// Whether messages must go through the queue. Set by a thread that submits a bulk message, cleared by the node's
    /// thread.
    engaged: AtomicBool,
    /// The limit of `small_bytes`. A single message may exceed it.
    max_small_bytes: usize,
    state: Lock<QueueState>,
}

#[derive(Debug)]
struct QueueState {
    reserve: Reserve,
    entries: VecDeque<QueueEntry>,
    /// The number of entries that have been taken.
    taken: u64,
    /// The bytes of small messages, each with its [`OVERHEAD`]. Includes messages that were taken and are not in the
    /// ring yet.
    small_bytes: usize,
    closed: bool,
}

#[derive(Debug)]
enum QueueEntry {
    /// A thread is copying the message.
    Filling,
    Ready(Queued),
}

/// The bytes that a small message counts for besides its own.
const OVERHEAD: usize = 64;

impl BulkQueue {
    pub(crate) fn new(reserve: Reserve, max_small_bytes: usize) -> BulkQueue {
        let state = QueueState { reserve, entries: VecDeque::new(), taken: 0, small_bytes: 0, closed: false };
        BulkQueue { engaged: AtomicBool::new(false), max_small_bytes, state: Lock::new(state) }
    }

    /// Returns whether messages must go through the queue.
    #[inline]
    pub(crate) fn is_engaged(&self) -> bool {
        // Acquire: a thread that sees that the queue is empty comes behind all messages that the queue put into the
        // ring.
        self.engaged.load(Ordering::Acquire)
    }

    /// Accepts a bulk message.
    pub(crate) fn submit_bulk(&self, payload: &[u8], tag: Tag) -> Result<(), SubmitRefused> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(SubmitRefused::Closed);
        }
        let max = state.reserve.capacity();
        if payload.len() > max {
            return Err(SubmitRefused::TooLarge { bytes: payload.len(), max });
        }
        let mut message = state.reserve.take(payload.len()).ok_or(SubmitRefused::Full)?;
        let place = state.taken + state.entries.len() as u64;
        state.entries.push_back(QueueEntry::Filling);
        // Relaxed: this thread sees the store, and so does any thread that learns of this message from it.
        self.engaged.store(true, Ordering::Relaxed);
        // The lock is released, since the node's thread must not wait for so long a copy.
        drop(state);
        message[..payload.len()].copy_from_slice(payload);
        let message = Queued::Bulk { message: Arc::new(message), len: payload.len(), tag };
        let mut state = self.state.lock();
        let index = usize::try_from(place - state.taken).expect("what is not ready is not taken");
        state.entries[index] = QueueEntry::Ready(message);
        Ok(())
    }

    /// Accepts a small message, unless the queue is no longer engaged. Returns whether it was accepted.
    pub(crate) fn submit_small(&self, payload: &[u8], tag: Tag) -> Result<bool, SubmitRefused> {
        let boxed: Box<[u8]> = payload.into();
        let mut state = self.state.lock();
        if !self.engaged.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if state.closed {
            return Err(SubmitRefused::Closed);
        }
        let bytes = payload.len() + OVERHEAD;
        if state.small_bytes > 0 && state.small_bytes + bytes > self.max_small_bytes {
            return Err(SubmitRefused::Full);
        }
        state.small_bytes += bytes;
        state.entries.push_back(QueueEntry::Ready(Queued::Small { payload: boxed, tag }));
        Ok(true)
    }

    /// Appends the messages that are ready to `into`, up to the first that is not.
    pub(crate) fn take(&self, into: &mut VecDeque<Queued>) {
        let mut state = self.state.lock();
        while let Some(QueueEntry::Ready(_)) = state.entries.front() {
            let Some(QueueEntry::Ready(queued)) = state.entries.pop_front() else { unreachable!("it was looked at") };
            state.taken += 1;
            into.push_back(queued);
        }
    }

    /// Lets messages go straight to the ring again, if none has come since. Called when all messages that were taken
    /// are in the ring.
    pub(crate) fn disengage(&self) {
        let state = self.state.lock();
        if state.entries.is_empty() {
            // Release: see `is_engaged`.
            self.engaged.store(false, Ordering::Release);
        }
    }

    /// Notes that so many of the small messages that were taken are in the ring, of so many bytes together.
    pub(crate) fn passed_on(&self, messages: usize, bytes: usize) {
        self.state.lock().small_bytes -= bytes + messages * OVERHEAD;
    }

    /// Takes back the memory of the `count` oldest messages, up to the first that is still in use. Returns their
    /// number.
    pub(crate) fn reclaim(&self, live: &mut VecDeque<Arc<Buffer>>, count: usize) -> usize {
        let mut state = self.state.lock();
        let mut reclaimed = 0;
        while reclaimed < count
            && let Some(buffer) = live.pop_front()
        {
            if let Err(buffer) = state.reserve.reclaim(buffer) {
                live.push_front(buffer);
                break;
            }
            reclaimed += 1;
        }
        reclaimed
    }

    /// Lets `renew` replace the reserve's region; nothing is handed out meanwhile.
    pub(crate) fn tidy(&self, mut renew: impl FnMut(&mut Reserve)) {
        renew(&mut self.state.lock().reserve);
    }

    /// Refuses further messages.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
    }

    /// Returns whether a thread is still copying a message.
    pub(crate) fn is_filling(&self) -> bool {
        self.state.lock().entries.iter().any(|entry| matches!(entry, QueueEntry::Filling))
    }

    /// Returns the number of messages that have memory of the reserve, and the bytes of that memory.
    pub(crate) fn in_flight(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.reserve.ranges(), state.reserve.bytes())
    }

    /// Returns the length of the longest message that fits, in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.state.lock().reserve.capacity()
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{Region, RegionKey, RegionKind};

    use super::*;

    const BLOCK: usize = 64;

    fn queue(blocks: usize, small_bytes: usize) -> BulkQueue {
        let region = Region::heap(RegionKind::Bulk, RegionKey(1), blocks * BLOCK);
        BulkQueue::new(Reserve::new(region, BLOCK), small_bytes)
    }

    fn tag(ticket: u32) -> Tag {
        Tag { ticket, time: 0 }
    }

    fn tickets(queue: &BulkQueue) -> Vec<u32> {
        let mut taken = VecDeque::new();
        queue.take(&mut taken);
        taken.iter().map(|queued| queued.tag().ticket).collect()
    }

    #[test]
    fn small_messages_go_through_it_only_behind_bulk_ones() {
        let queue = queue(4, 1000);
        assert_eq!(queue.submit_small(b"a", tag(1)), Ok(false), "nothing is ahead of it");
        queue.submit_bulk(&[1; 100], tag(2)).expect("there is room");
        assert!(queue.is_engaged());
        assert_eq!(queue.submit_small(b"b", tag(3)), Ok(true));
        queue.submit_bulk(&[1; 100], tag(4)).expect("there is room");
        assert_eq!(tickets(&queue), [2, 3, 4]);
        assert_eq!(queue.submit_small(b"c", tag(5)), Ok(true), "what was taken is not in the ring yet");
        queue.disengage();
        assert!(queue.is_engaged(), "another has come");
        assert_eq!(tickets(&queue), [5]);
        queue.disengage();
        assert_eq!((queue.is_engaged(), queue.submit_small(b"d", tag(6))), (false, Ok(false)));
    }

    #[test]
    fn what_it_holds_is_bounded() {
        let queue = queue(2, 2 * (OVERHEAD + 10));
        assert_eq!(
            queue.submit_bulk(&[1; 2 * BLOCK + 1], tag(1)),
            Err(SubmitRefused::TooLarge { bytes: 129, max: 128 })
        );
        queue.submit_bulk(&[1; BLOCK + 1], tag(2)).expect("there is room");
        assert_eq!(queue.submit_bulk(&[1], tag(3)), Err(SubmitRefused::Full));
        for ticket in [4, 5] {
            assert_eq!(queue.submit_small(&[1; 10], tag(ticket)), Ok(true));
        }
        assert_eq!(queue.submit_small(&[1], tag(6)), Err(SubmitRefused::Full));
        let mut taken = VecDeque::new();
        queue.take(&mut taken);
        assert_eq!(queue.submit_small(&[1], tag(6)), Err(SubmitRefused::Full), "they are not in the ring yet");
        queue.passed_on(1, 10);
        assert_eq!(queue.submit_small(&[1; 10], tag(6)), Ok(true));
        let Some(Queued::Bulk { message, .. }) = taken.pop_front() else { panic!("the first was a bulk message") };
        assert_eq!(queue.in_flight(), (1, 2 * BLOCK));
        assert_eq!(queue.reclaim(&mut VecDeque::from([message]), 1), 1);
        queue.submit_bulk(&[1; 2 * BLOCK], tag(7)).expect("the memory is free again");
    }

    #[test]
    fn what_it_accepted_stays_when_it_is_closed() {
        let queue = queue(2, 1000);
        queue.submit_bulk(b"a", tag(1)).expect("there is room");
        queue.submit_small(b"b", tag(2)).expect("there is room");
        queue.close();
        assert_eq!(queue.submit_bulk(b"c", tag(3)), Err(SubmitRefused::Closed));
        assert_eq!(queue.submit_small(b"d", tag(4)), Err(SubmitRefused::Closed));
        assert!(!queue.is_filling());
        assert_eq!(tickets(&queue), [1, 2]);
    }
}
