//! The bytes of a ring, by positions that only grow.

use squall_fabric::Region;

use crate::record::{HEADER, Header};

/// A part of a region that is used as a ring. Positions count bytes since it began, in multiples of 8, and wrap around in
/// it.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    region: Region,
    /// Where it begins in the region.
    base: usize,
    /// A power of two.
    capacity: usize,
}

impl Ring {
    pub(crate) fn new(region: Region, base: usize, capacity: usize) -> Ring {
        debug_assert!(capacity.is_power_of_two());
        Ring { region, base, capacity }
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Where a position lies, from the ring's beginning.
    #[inline]
    pub(crate) fn place(&self, position: u64) -> usize {
        position as usize & (self.capacity - 1)
    }

    /// Where a position lies in the region.
    #[inline]
    pub(crate) fn offset(&self, position: u64) -> usize {
        self.base + self.place(position)
    }

    /// How many bytes from `from` on, at most up to `to`, lie in one piece.
    #[inline]
    pub(crate) fn run(&self, from: u64, to: u64) -> usize {
        ((to - from) as usize).min(self.capacity - self.place(from))
    }

    /// Writes a record.
    #[inline]
    pub(crate) fn write(&self, position: u64, header: Header, payload: &[u8]) {
        let [first, second] = header.encode(position);
        self.region.store(self.offset(position), first);
        self.region.store(self.offset(position + 8), second);
        let begin = position + HEADER as u64;
        let (head, rest) = payload.split_at(self.run(begin, begin + payload.len() as u64));
        self.region.write(self.offset(begin), head);
        if !rest.is_empty() {
            self.region.write(self.base, rest);
        }
    }

    /// Copies out the payload of the record at `position`.
    #[inline]
    pub(crate) fn read(&self, position: u64, payload: &mut [u8]) {
        let begin = position + HEADER as u64;
        let run = self.run(begin, begin + payload.len() as u64);
        let (head, rest) = payload.split_at_mut(run);
        self.region.read(self.offset(begin), head);
        if !rest.is_empty() {
            self.region.read(self.base, rest);
        }
    }

    /// The header at a position; none if there is no record.
    #[inline(always)]
    pub(crate) fn header(&self, position: u64) -> Option<Header> {
        let first = self.region.load(self.offset(position));
        let second = self.region.load(self.offset(position + 8));
        Header::decode([first, second], position, self.capacity)
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
