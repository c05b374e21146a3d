//! The side of a ring that application threads write.

use crossbeam::utils::CachePadded;
use squall_fabric::Region;

use super::{
    ALIGN, BULK_BYTES, Bulk, HEADER, Header, Kind, MAX_BYTES, MIN_BYTES, TIME_BYTES, TIME_RECORD, Tag, max_payload,
    place, record_bytes,
};
use crate::sync::{AtomicU64, Ordering};

/// Memory for a [`Ring`]. It is a trait so that loom can watch it; outside of tests it is a [`Region`].
pub trait RingMemory {
    /// Stores the word at `offset` bytes.
    fn store(&self, offset: usize, word: u64);
    /// Copies bytes in; a last partial word is filled up with zeros.
    fn write(&self, offset: usize, bytes: &[u8]);
    /// Loads the word at `offset` bytes.
    fn load(&self, offset: usize) -> u64;
}

impl RingMemory for Region {
    #[inline]
    fn store(&self, offset: usize, word: u64) {
        Region::store(self, offset, word);
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        Region::write(self, offset, bytes);
    }

    #[inline]
    fn load(&self, offset: usize) -> u64 {
        Region::load(self, offset)
    }
}

/// The reason why a record was not written. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// A lack of room, until older records are freed.
    #[error("the ring is full")]
    Full,
    /// The payload would never fit.
    #[error(
        "a message of {bytes} bytes exceeds the {max} bytes that the ring takes (a quarter of it): configure a larger ring"
    )]
    TooLarge {
        /// The payload's length, in bytes.
        bytes: usize,
        /// The length of the largest payload that fits, in bytes.
        max: usize,
    },
    /// The ring takes no more messages.
    #[error("the ring is closed")]
    Closed,
}

/// A sender's own copy of its ring: any number of threads write records, without a lock.
///
/// A thread reserves a range by moving `reserved`, writes its record there, and marks it complete in `commits`.
/// `commits` has a word for each place where a record can begin: the number of the lap, and the record's ticket. The
/// lap keeps the mark of an earlier lap from being taken for complete. The marks lie apart from the ring, since the
/// ring's old bytes may look like anything.
#[derive(derive_more::Debug)]
#[debug("Ring({capacity} bytes)")]
pub struct Ring<M = Region> {
    memory: M,
    capacity: u64,
    /// The position of the next record; [`CLOSED`] is set once the ring is closed.
    reserved: CachePadded<AtomicU64>,
    /// The position before which everything may be overwritten.
    freed: CachePadded<AtomicU64>,
    /// The latest time that the ring has a record of, at a place before any that is reserved from now on.
    time: CachePadded<AtomicU64>,
    commits: Box<[AtomicU64]>,
}

/// The bit of a closed ring. Records begin at multiples of 16, which leaves the lowest bit of a position free.
const CLOSED: u64 = 1;

impl<M: RingMemory> Ring<M> {
    /// An empty ring over `capacity` bytes of memory, a power of two from [`MIN_BYTES`] to [`MAX_BYTES`].
    ///
    /// # Panics
    ///
    /// If the capacity is another.
    pub fn new(memory: M, capacity: usize) -> Ring<M> {
        assert!(
            capacity.is_power_of_two() && (MIN_BYTES..=MAX_BYTES).contains(&capacity),
            "a ring of {capacity} bytes"
        );
        Ring::with_capacity(memory, capacity as u64)
    }

    pub(super) fn with_capacity(memory: M, capacity: u64) -> Ring<M> {
        let commits = (0..capacity / ALIGN).map(|_| AtomicU64::new(0)).collect();
        Ring {
            memory,
            capacity,
            reserved: CachePadded::new(AtomicU64::new(0)),
            freed: CachePadded::new(AtomicU64::new(0)),
            time: CachePadded::new(AtomicU64::new(0)),
            commits,
        }
    }

    /// The ring's size, in bytes.
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// The ring's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The number of free bytes, records' overhead included. More may be free a moment later; fewer if another thread
    /// appends.
    pub fn room(&self) -> usize {
        // `freed`, loaded later, may have passed the `reserved` that was loaded.
        let used = self.end().saturating_sub(self.freed.load(Ordering::Acquire));
        self.capacity().saturating_sub(used as usize)
    }

    /// Appends a message. Its ticket stays on this node, where the thread that delivers the record finds it again.
    /// Fails if the ring is full or closed, or if the payload would never fit.
    pub fn push(&self, payload: &[u8], tag: Tag) -> Result<(), PushError> {
        self.push_inline(payload, tag, 0)
    }

    /// Appends a message that was accepted before, as [`push`](Ring::push) does. A ring that was closed since takes it
    /// all the same. Fails if the ring is full, or if the payload would never fit.
    #[cold]
    pub fn push_accepted(&self, payload: &[u8], tag: Tag) -> Result<(), PushError> {
        self.push_inline(payload, tag, CLOSED)
    }

    /// Gives the next turn to a bulk message that was accepted before, and that every member holds. A ring that was
    /// closed since takes it all the same. Fails if the ring is full.
    #[cold]
    pub fn push_bulk(&self, bulk: Bulk, tag: Tag) -> Result<(), PushError> {
        let at = self.reserve_timed(record_bytes(BULK_BYTES), tag.time, CLOSED)?;
        let offset = (place(at, self.capacity) + HEADER) as usize;
        self.memory.store(offset, bulk.number);
        self.memory.store(offset + 8, bulk.len);
        self.commit(at, Header { kind: Kind::Bulk, value: BULK_BYTES as u32 }, tag.ticket);
        Ok(())
    }

    #[inline(always)]
    fn push_inline(&self, payload: &[u8], tag: Tag, even_if: u64) -> Result<(), PushError> {
        let max = max_payload(self.capacity());
        if payload.len() > max {
            return Err(PushError::TooLarge { bytes: payload.len(), max });
        }
        let at = self.reserve_timed(record_bytes(payload.len() as u64), tag.time, even_if)?;
        self.memory.write((place(at, self.capacity) + HEADER) as usize, payload);
        self.commit(at, Header { kind: Kind::Inline, value: payload.len() as u32 }, tag.ticket);
        Ok(())
    }

    /// Reserves room for a message's record, and returns its position. A record of its time goes ahead of it if no time
    /// in the ring is as late.
    #[inline(always)]
    fn reserve_timed(&self, bytes: u64, time: u64, even_if: u64) -> Result<u64, PushError> {
        // Acquire: a position that is reserved from here on lies behind the record of this time.
        if time <= self.time.load(Ordering::Acquire) {
            return self.reserve(bytes, even_if);
        }
        let at = self.reserve(TIME_RECORD + bytes, even_if)?;
        self.put_time(at, time);
        Ok(at + TIME_RECORD)
    }

    #[cold]
    fn put_time(&self, at: u64, time: u64) {
        self.memory.store((place(at, self.capacity) + HEADER) as usize, time);
        self.commit(at, Header { kind: Kind::Time, value: TIME_BYTES as u32 }, 0);
        self.time.fetch_max(time, Ordering::Release);
    }

    /// Gives up the next `turns` turns, of which there is at least one. A closed ring takes them too: the others still
    /// wait for this sender's turns.
    pub(super) fn push_nulls(&self, turns: u32) -> Result<(), PushError> {
        debug_assert!(turns > 0);
        let at = self.reserve(ALIGN, CLOSED)?;
        self.commit(at, Header { kind: Kind::NullRun, value: turns }, 0);
        Ok(())
    }

    /// Refuses messages from now on. A message whose space was reserved before still completes.
    pub fn close(&self) {
        self.reserved.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Whether the ring takes no more messages.
    pub fn is_closed(&self) -> bool {
        self.reserved.load(Ordering::Acquire) & CLOSED != 0
    }

    /// The end of the last record that any thread has begun.
    pub(super) fn end(&self) -> u64 {
        self.reserved.load(Ordering::Acquire) & !CLOSED
    }

    /// Reserves room for a record of `bytes` bytes, and returns its position. If the record would straddle the ring's
    /// end, the rest before the end becomes a pad. `even_if` is [`CLOSED`] for a record that a closed ring takes, else
    /// 0.
    #[inline(always)]
    fn reserve(&self, bytes: u64, even_if: u64) -> Result<u64, PushError> {
        let mut reserved = self.reserved.load(Ordering::Relaxed);
        loop {
            let (start, closed) = (reserved & !CLOSED, reserved & CLOSED);
            if closed & !even_if != 0 {
                return Err(PushError::Closed);
            }
            let to_end = self.capacity - place(start, self.capacity);
            let pad = if bytes > to_end { to_end } else { 0 };
            let end = start + pad + bytes;
            // Acquire: the readers of the records that lay here are done with them. Other threads may have filled and
            // freed the range behind `start` since it was loaded, and more: then `start` is stale, and the exchange
            // fails.
            if end.saturating_sub(self.freed.load(Ordering::Acquire)) > self.capacity {
                return Err(PushError::Full);
            }
            match self.reserved.compare_exchange_weak(reserved, end | closed, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    if pad > 0 {
                        self.commit(start, Header { kind: Kind::Pad, value: pad as u32 }, 0);
                    }
                    return Ok(start + pad);
                }
                Err(now) => reserved = now,
            }
        }
    }

    fn commit(&self, at: u64, header: Header, ticket: u32) {
        self.memory.store(place(at, self.capacity) as usize, header.encode(at));
        // Release: a thread that sees the mark sees the record.
        self.commits[self.slot(at)].store(self.lap(at) << 32 | u64::from(ticket), Ordering::Release);
    }

    fn slot(&self, at: u64) -> usize {
        (place(at, self.capacity) / ALIGN) as usize
    }

    /// The lap of a position. It is never 0 within the first 2³² laps, so a mark that was never set is no lap's.
    fn lap(&self, at: u64) -> u64 {
        ((at >> self.capacity.trailing_zeros()) + 1) & 0xffff_ffff
    }

    /// The record at `at`, if it is complete.
    #[inline]
    pub(super) fn committed(&self, at: u64) -> Option<Header> {
        let mark = self.commits[self.slot(at)].load(Ordering::Acquire);
        if mark >> 32 != self.lap(at) {
            return None;
        }
        let word = self.memory.load(place(at, self.capacity) as usize);
        Some(Header::decode(word, at, self.capacity).expect("a complete record is well-formed"))
    }

    /// The ticket of the complete record at `at`.
    #[inline]
    pub(super) fn ticket(&self, at: u64) -> u32 {
        self.commits[self.slot(at)].load(Ordering::Relaxed) as u32
    }

    /// Lets everything before `at` be overwritten.
    pub(super) fn free(&self, at: u64) {
        self.freed.store(at, Ordering::Release);
    }
}
