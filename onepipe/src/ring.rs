//! The bytes of a ring, by positions that only grow.

use std::sync::atomic::Ordering;

use squall_fabric::{Region, Window, read_words, write_words};

use crate::record::{HEADER, Header};

/// The words of a record before its payload.
const HEADER_WORDS: usize = HEADER / 8;

/// The distance from the read position at which memory is fetched ahead, in bytes. Small records are delivered in the
/// order in which they lie, each in some 15 ns, and a cache line comes from another core in some 100 ns.
const AHEAD: u64 = 640;

/// A part of a region that is used as a ring. Positions count bytes since it began, in multiples of 8, and wrap around
/// in it.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    window: Window,
    /// The offset of the ring in the region.
    base: usize,
    /// The size in bytes, a power of two.
    capacity: usize,
}

impl Ring {
    pub(crate) fn new(region: Region, base: usize, capacity: usize) -> Ring {
        debug_assert!(capacity.is_power_of_two());
        Ring { window: region.window(base, capacity), base, capacity }
    }

    pub(crate) fn region(&self) -> &Region {
        self.window.region()
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// The offset of a position from the ring's beginning.
    #[inline]
    pub(crate) fn place(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    /// The offset of a position in the region.
    #[inline]
    pub(crate) fn offset(&self, position: u64) -> usize {
        self.base + self.place(position)
    }

    /// The number of bytes from `from` on, at most up to `to`, that lie in one piece.
    #[inline]
    pub(crate) fn run(&self, from: u64, to: u64) -> usize {
        ((to - from) as usize).min(self.capacity - self.place(from))
    }

    /// Writes a record.
    #[inline]
    pub(crate) fn write(&self, position: u64, header: Header, payload: &[u8]) {
        let words = &self.window.words()[self.place(position) / 8..];
        let header = header.encode(position);
        match words.get(..HEADER_WORDS + payload.len().div_ceil(8)) {
            Some(record) => {
                record[0].store(header[0], Ordering::Relaxed);
                record[1].store(header[1], Ordering::Relaxed);
                write_words(&record[HEADER_WORDS..], payload);
            }
            None => self.write_around(position, header, payload),
        }
    }

    /// Writes a record that goes on at the ring's beginning.
    #[cold]
    fn write_around(&self, position: u64, header: [u64; 2], payload: &[u8]) {
        let words = self.window.words();
        for (word, position) in header.into_iter().zip([position, position + 8]) {
            words[self.place(position) / 8].store(word, Ordering::Relaxed);
        }
        let begin = position + HEADER as u64;
        let (head, rest) = payload.split_at(self.run(begin, begin + payload.len() as u64));
        write_words(&words[self.place(begin) / 8..], head);
        write_words(words, rest);
    }

    /// Copies out the payload of the record at `position`, and prefetches the records behind it.
    #[inline]
    pub(crate) fn read(&self, position: u64, payload: &mut [u8]) {
        self.window.prefetch(self.place(position + AHEAD) / 8);
        let begin = position + HEADER as u64;
        let words = &self.window.words()[self.place(begin) / 8..];
        match words.get(..payload.len().div_ceil(8)) {
            Some(words) => read_words(words, payload),
            None => self.read_around(begin, payload),
        }
    }

    /// Copies out bytes that begin at a position and go on at the ring's beginning.
    #[cold]
    fn read_around(&self, begin: u64, payload: &mut [u8]) {
        let words = self.window.words();
        let (head, rest) = payload.split_at_mut(self.run(begin, begin + payload.len() as u64));
        read_words(&words[self.place(begin) / 8..], head);
        read_words(words, rest);
    }

    /// The header at a position; none if there is no record.
    #[inline]
    pub(crate) fn header(&self, position: u64) -> Option<Header> {
        let words = self.window.words();
        let load = |position| words[self.place(position) / 8].load(Ordering::Relaxed);
        Header::decode([load(position), load(position + 8)], position, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{RegionKey, RegionKind};

    use super::*;
    use crate::{record::Label, timestamp::Timestamp};

    #[test]
    fn what_lies_across_the_end_comes_back_whole() {
        let ring = Ring::new(Region::heap(RegionKind::Polled, RegionKey(1), 64 + 1024), 64, 1024);
        let bytes: Vec<u8> = (0..200).collect();
        for position in (0..4096).step_by(8) {
            let header = Header { stamp: Timestamp::from_nanos(position), label: Label::new(bytes.len(), 7) };
            ring.write(position, header, &bytes);
            assert_eq!(ring.header(position), Some(header));
            let mut back = vec![0; bytes.len()];
            ring.read(position, &mut back);
            assert_eq!(back, bytes, "at {position}");
        }
        assert_eq!(ring.region().load(0), 0, "nothing was written before the ring");
    }
}
