//! The layout of the region that one rank writes into another's memory.
//!
//! ```text
//! 0    tail × 2         the bytes that the writer has put into its ring of each mode  after the ring's bytes
//! 16   status           the writer's reports, see `Status`: words on their own        after the data posted before
//! 104  recall number    the number of the batch of recalls behind it                  after the batch
//! 128  recall           count, timestamps: see `recall`
//! 384  ring × 2         records, see `record`
//! ```
//!
//! Each pair of ranks has one such region for each direction, and so has each rank with itself. All rings begin at
//! cache lines; tails share one with the barriers, since they change together.

use squall_fabric::INLINE_BYTES;

use crate::Mode;

/// The offset of the status words.
pub(crate) const STATUS: usize = 16;

/// The offset of the recall batch's number.
pub(crate) const RECALL_NUMBER: usize = 104;

/// The offset of the batch: a count, and the stamps.
pub(crate) const RECALL_BATCH: usize = 128;

/// The offset of the first ring.
const RINGS: usize = (RECALL_BATCH + INLINE_BYTES).next_multiple_of(64);

/// The sizes that decide every offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) ring_bytes: usize,
}

impl Layout {
    /// The offset of the count of bytes in a ring.
    #[inline]
    pub(crate) fn tail(self, mode: Mode) -> usize {
        8 * mode.index()
    }

    /// The offset of a ring.
    #[inline]
    pub(crate) fn ring(self, mode: Mode) -> usize {
        RINGS + mode.index() * self.ring_bytes
    }

    /// The region's size in bytes.
    pub(crate) fn region_bytes(self) -> usize {
        RINGS + 2 * self.ring_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    #[test]
    fn nothing_overlaps() {
        let layout = Layout { ring_bytes: 1024 };
        let mut ranges = vec![(STATUS, 8 * Status::WORDS), (RECALL_NUMBER, 8), (RECALL_BATCH, INLINE_BYTES)];
        for mode in Mode::ALL {
            ranges.push((layout.tail(mode), 8));
            ranges.push((layout.ring(mode), 1024));
            assert!(layout.ring(mode).is_multiple_of(64));
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "{ranges:?}");
        assert!(ranges.iter().all(|(offset, bytes)| offset + bytes <= layout.region_bytes()));
    }
}
