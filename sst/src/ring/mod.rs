//! Rings: the transport of small messages, and the order of all messages.
//!
//! A sender owns a byte ring of length-prefixed records. Application threads write records into the sender's own copy
//! ([`Ring`]). Its node's thread finds the complete ones, counts the *turns* that they take, and pushes their bytes to
//! the same place in every other member's copy ([`Outbox`]). A counter in the sender's row then announces the turns.
//! Receivers walk their copy record by record up to that counter: their node's thread checks what has arrived before
//! it counts ([`Checker`]), and the thread that delivers reads it ([`Reader`]). Both walk by the same rules.
//!
//! # Record
//!
//! Records begin at multiples of 16 bytes and never straddle the ring's end. The position of a record counts bytes
//! since the ring began and never wraps; its place is the position modulo the ring's capacity.
//!
//! ```text
//! bits of the first word (little-endian numbers)
//!  0..32   value: Inline: payload bytes · NullRun: turns · Pad: bytes up to the ring's end, this word included
//!          · Bulk, Time: the bytes of what follows
//! 32..40   kind: 1 Inline · 2 NullRun · 3 Pad · 4 Bulk · 7 Time
//! 40..64   the low 24 bits of position ÷ 16, so that a reader notices if it is not at a record
//! then     Inline: the payload · Bulk: the message's number and its length in bytes, a word each
//!          · Time: the time, a word; padded to the next record
//! ```
//!
//! An `Inline` record takes one turn, as does a `Bulk` one, whose message has travelled by other means. A `NullRun`
//! takes the number of turns in its value, a `Pad` and a `Time` none.
//!
//! A `Time` stands before the first message of each tick of the sender's clock, and holds for the messages behind it:
//! so a time costs next to nothing where messages are many. Both are reserved at once, since a `Time` without a message
//! behind it would never be freed. A reader accepts nothing else behind one, so that a faulty sender can't keep it from
//! coming to a turn.

mod checker;
#[cfg(all(test, squall_loom))]
mod loom_tests;
mod outbox;
mod producer;
mod reader;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod walk;

use squall_fabric::Region;

pub use checker::{Checker, Fault};
pub use outbox::Outbox;
pub use producer::{PushError, Ring, RingMemory};
pub use reader::{Reader, Turn};
pub use walk::Corrupt;

/// The version of the rings' format, which must be the same at all members.
pub const FORMAT: u64 = 2;

/// Records begin at multiples of this many bytes.
pub(crate) const ALIGN: u64 = 16;

/// The bytes of a record's first word.
pub(crate) const HEADER: u64 = 8;

/// The bytes behind the first word of a `Bulk` record.
pub(crate) const BULK_BYTES: u64 = 16;

/// A message that does not lie in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bulk {
    /// The number of the message among the sender's bulk messages, from 0.
    pub number: u64,
    /// The message's length, in bytes.
    pub len: u64,
}

impl Bulk {
    /// Loads the words behind the first one of a record at `offset`.
    fn load(memory: &impl RingMemory, offset: usize) -> Bulk {
        let word = |index: usize| memory.load(offset + HEADER as usize + index * 8);
        Bulk { number: word(0), len: word(1) }
    }
}

/// The bytes behind the first word of a `Time` record, and those of the whole record.
pub(crate) const TIME_BYTES: u64 = 8;
pub(crate) const TIME_RECORD: u64 = record_bytes(TIME_BYTES);

/// The smallest ring, in bytes.
pub const MIN_BYTES: usize = 1024;

/// The largest ring, in bytes: 1 GiB.
pub const MAX_BYTES: usize = 1 << 30;

/// The most records that a ring of `capacity` bytes has at a time.
pub const fn max_records(capacity: usize) -> u64 {
    capacity as u64 / ALIGN
}

/// The largest payload that a ring of `capacity` bytes takes: a quarter of it.
pub const fn max_payload(capacity: usize) -> usize {
    capacity / 4
}

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Inline = 1,
    NullRun = 2,
    Pad = 3,
    Bulk = 4,
    // One bit away from `Pad` alone, whose value is never that of a time: so a flipped bit in a kind is noticed.
    Time = 7,
}

/// A message's ticket and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// A number that the sender's node finds again when it delivers the message; 0 at other members.
    pub ticket: u32,
    /// The time when the message was sent, by the sender's wall clock, in nanoseconds since 1970 (UTC); or the time of
    /// an earlier message of the same sender, if that is later.
    pub time: u64,
}

/// A record's first word, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) value: u32,
}

impl Header {
    pub(crate) fn encode(self, position: u64) -> u64 {
        u64::from(self.value) | (self.kind as u64) << 32 | (position / ALIGN) << 40
    }

    /// Decodes the first word of a record at `position`. None if no record of a ring of `capacity` bytes begins with
    /// `word` there.
    #[inline]
    pub(crate) fn decode(word: u64, position: u64, capacity: u64) -> Option<Header> {
        if word >> 40 != (position / ALIGN) & 0xff_ffff {
            return None;
        }
        let value = word as u32;
        let to_end = capacity - place(position, capacity);
        let kind = match (word >> 32) as u8 {
            1 if u64::from(value) <= capacity / 4 && record_bytes(u64::from(value)) <= to_end => Kind::Inline,
            2 if value > 0 => Kind::NullRun,
            // A pad is shorter than the longest record with its time, which would have fitted otherwise. So no pad
            // follows a pad.
            3 if u64::from(value) == to_end && to_end < TIME_RECORD + record_bytes(capacity / 4) => Kind::Pad,
            4 if u64::from(value) == BULK_BYTES && record_bytes(BULK_BYTES) <= to_end => Kind::Bulk,
            7 if u64::from(value) == TIME_BYTES && TIME_RECORD <= to_end => Kind::Time,
            _ => return None,
        };
        Some(Header { kind, value })
    }

    /// The bytes from this record's beginning to the next one's.
    #[inline]
    pub(crate) fn stride(self) -> u64 {
        match self.kind {
            Kind::Inline | Kind::Bulk | Kind::Time => record_bytes(u64::from(self.value)),
            Kind::NullRun => ALIGN,
            Kind::Pad => u64::from(self.value),
        }
    }

    #[inline]
    pub(crate) fn is_message(self) -> bool {
        matches!(self.kind, Kind::Inline | Kind::Bulk)
    }

    /// The turns that the record takes.
    #[inline]
    pub(crate) fn turns(self) -> u64 {
        match self.kind {
            Kind::Inline | Kind::Bulk => 1,
            Kind::NullRun => u64::from(self.value),
            Kind::Pad | Kind::Time => 0,
        }
    }
}

/// The place of a position in a ring of `capacity` bytes, a power of two. (Without a division, since every message
/// takes several of these.)
#[inline]
pub(crate) const fn place(position: u64, capacity: u64) -> u64 {
    position & (capacity - 1)
}

#[inline]
pub(crate) const fn record_bytes(payload: u64) -> u64 {
    (HEADER + payload).next_multiple_of(ALIGN)
}

/// A payload in a ring's memory: read it, or copy it out, before the message counts as delivered.
#[derive(Clone, Copy, Debug)]
pub struct Payload<'a> {
    region: &'a Region,
    offset: usize,
    len: usize,
}

impl Payload<'_> {
    /// The payload's length, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The 8 bytes from `8 * index`, as a native-endian word; bytes beyond the payload's end have no meaning.
    ///
    /// # Panics
    ///
    /// If the word begins beyond the payload's end.
    pub fn word(&self, index: usize) -> u64 {
        assert!(index * 8 < self.len, "word {index} of a payload of {} bytes", self.len);
        self.region.load(self.offset + index * 8)
    }

    /// Copies the payload out.
    ///
    /// # Panics
    ///
    /// If `into` is not as long as the payload.
    pub fn read(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len, "a payload is copied as a whole");
        self.region.read(self.offset, into);
    }

    /// Replaces the contents of `into` by the payload.
    pub fn copy_to(&self, into: &mut Vec<u8>) {
        into.resize(self.len, 0);
        self.region.read(self.offset, into);
    }
}
