//! A message in a ring.
//!
//! ```text
//! 0    timestamp 48 bits | mark 16 bits     the mark is the low bits of position ÷ 8
//! 8    length u32 | ticket u32              of the payload, in bytes; by the ticket the writer recognises the message
//! 16   payload                              padded with zeros to whole words
//! ```
//!
//! Records follow one another without gaps, and may lie across the ring's end. The mark tells a reader if it is not at
//! a record.

use crate::timestamp::Timestamp;

/// The bytes of a record before its payload.
pub(crate) const HEADER: usize = 16;

const MARK_BITS: u32 = 64 - Timestamp::BITS;

/// The size of a record with a payload of `payload` bytes.
#[inline]
pub(crate) const fn record_bytes(payload: usize) -> u64 {
    (HEADER + payload.next_multiple_of(8)) as u64
}

/// The longest payload in a ring of `capacity` bytes.
pub(crate) const fn max_payload(capacity: usize) -> usize {
    capacity / 4 - HEADER
}

/// A record's first two words, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) stamp: Timestamp,
    pub(crate) label: Label,
}

/// A record's second word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Label(u64);

impl Label {
    /// The label of a payload of `bytes` bytes, at most `u32::MAX`.
    #[inline]
    pub(crate) fn new(bytes: usize, ticket: u32) -> Label {
        Label(bytes as u64 | u64::from(ticket) << 32)
    }

    /// The payload's length, in bytes.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    pub(crate) fn ticket(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The record's size, in bytes.
    #[inline]
    pub(crate) fn record_bytes(self) -> u64 {
        record_bytes(self.bytes())
    }
}

impl Header {
    #[inline]
    pub(crate) fn encode(self, position: u64) -> [u64; 2] {
        [self.stamp.as_nanos() << MARK_BITS | mark(position), self.label.0]
    }

    /// Decodes the first words of a record at `position`. None if no record of a ring of `capacity` bytes begins with
    /// these words there.
    #[inline]
    pub(crate) fn decode([first, second]: [u64; 2], position: u64, capacity: usize) -> Option<Header> {
        let label = Label(second);
        if first & ((1 << MARK_BITS) - 1) != mark(position) || label.bytes() > max_payload(capacity) {
            return None;
        }
        Some(Header { stamp: Timestamp::from_nanos(first >> MARK_BITS), label })
    }
}

#[inline]
fn mark(position: u64) -> u64 {
    (position / 8) & ((1 << MARK_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back() {
        let header = Header { stamp: Timestamp::from_nanos(u64::MAX), label: Label::new(240, u32::MAX) };
        assert_eq!((header.label.bytes(), header.label.ticket()), (240, u32::MAX));
        for position in [0, 8, 1 << 19, (1 << 40) + 24] {
            assert_eq!(Header::decode(header.encode(position), position, 1024), Some(header));
        }
    }

    #[test]
    fn what_is_no_record_is_noticed() {
        let header = Header { stamp: Timestamp::from_nanos(5), label: Label::new(240, 0) };
        assert_eq!(Header::decode(header.encode(16), 24, 1024), None, "written elsewhere");
        let long = Header { label: Label::new(241, 0), ..header };
        assert_eq!(Header::decode(long.encode(16), 16, 1024), None, "longer than any");
    }

    #[test]
    fn a_record_is_whole_words() {
        assert_eq!([0, 1, 8, 9].map(record_bytes), [16, 24, 24, 32]);
        assert_eq!(record_bytes(max_payload(1024)), 256);
    }
}
