//! Memory for the bulk messages of one sender, at one member.

use std::{collections::VecDeque, sync::Arc};

use squall_fabric::Region;
use squall_rdmc::Buffer;

/// The most bytes of a reserve that may stay in memory while nothing is handed out.
const KEPT_BYTES: usize = 1 << 20;

/// A region of memory that hands out ranges of whole blocks, and takes them back, mostly in the same order.
///
/// Each range follows the one before it. It begins at the region's start where it would straddle the end, or where
/// nothing is handed out. So a sender of one message at a time uses the same memory again and again.
#[derive(Debug)]
pub(crate) struct Reserve {
    region: Region,
    block_bytes: usize,
    /// The ranges that are handed out, and the ranges between them that came back; oldest first.
    ranges: VecDeque<Range>,
    bytes: usize,
    /// The end of the furthest range that was ever handed out.
    touched: usize,
    /// Whether anything was handed out since [`is_idle`](Reserve::is_idle) was last called.
    used: bool,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    start: usize,
    end: usize,
    /// The range's address in this process's memory.
    address: usize,
    /// Whether the range came back. It stays until all ranges that were handed out before it are back.
    is_back: bool,
}

impl Reserve {
    /// Makes a reserve of all of `region`, whose size is a multiple of `block_bytes`.
    pub(crate) fn new(region: Region, block_bytes: usize) -> Reserve {
        debug_assert!(region.len().is_multiple_of(block_bytes));
        Reserve { region, block_bytes, ranges: VecDeque::new(), bytes: 0, touched: 0, used: false }
    }

    /// Returns the length of the longest range that can be handed out, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.region.len()
    }

    /// Returns the number of bytes that are handed out.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the number of ranges that are handed out.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.iter().filter(|range| !range.is_back).count()
    }

    /// Hands out a buffer for `bytes` bytes, which is not 0. None while there is no room for it.
    pub(crate) fn take(&mut self, bytes: usize) -> Option<Buffer> {
        let (start, len) = self.place(bytes)?;
        // SAFETY: `place` returns only memory that is not handed out. A range leaves `ranges` only when its buffer, of
        // which there are no copies, came back; and the owner of this reserve gives the region to nothing else.
        let buffer = unsafe { Buffer::part(self.region.clone(), start, len) };
        self.ranges.push_back(Range { start, end: start + len, address: buffer.as_ptr().addr(), is_back: false });
        self.bytes += len;
        self.touched = self.touched.max(start + len);
        self.used = true;
        Some(buffer)
    }

    /// Returns the start and the length of a range of so many bytes, rounded up to whole blocks.
    fn place(&self, bytes: usize) -> Option<(usize, usize)> {
        let len = bytes.checked_next_multiple_of(self.block_bytes).filter(|&len| len > 0 && len <= self.capacity())?;
        let (Some(first), Some(last)) = (self.ranges.front(), self.ranges.back()) else { return Some((0, len)) };
        if last.end > first.start {
            // The free memory lies behind the last range, and before the first.
            if len <= self.capacity() - last.end {
                Some((last.end, len))
            } else {
                (len <= first.start).then_some((0, len))
            }
        } else {
            (len <= first.start - last.end).then_some((last.end, len))
        }
    }

    /// Takes a buffer back.
    ///
    /// # Panics
    ///
    /// If it is no buffer of this reserve.
    pub(crate) fn give_back(&mut self, buffer: Buffer) {
        let address = buffer.as_ptr().addr();
        let range = self.ranges.iter_mut().find(|range| range.address == address && !range.is_back);
        let range = range.expect("a buffer goes back where it came from");
        range.is_back = true;
        self.bytes -= range.end - range.start;
        while self.ranges.front().is_some_and(|range| range.is_back) {
            self.ranges.pop_front();
        }
    }

    /// Returns whether much of the reserve was used, but none since the last call, and nothing is handed out.
    pub(crate) fn is_idle(&mut self) -> bool {
        !std::mem::take(&mut self.used) && self.ranges.is_empty() && self.touched > KEPT_BYTES
    }

    /// Goes on with a new region of the same size, so that the memory of the old one goes back to the system.
    ///
    /// # Panics
    ///
    /// If something is handed out.
    pub(crate) fn renew(&mut self, region: Region) {
        assert!(self.ranges.is_empty() && region.len() == self.region.len(), "an idle reserve is renewed");
        (self.region, self.touched) = (region, 0);
    }

    /// Takes a buffer back if it has no other owner, else returns it.
    pub(crate) fn reclaim(&mut self, buffer: Arc<Buffer>) -> Result<(), Arc<Buffer>> {
        Arc::try_unwrap(buffer).map(|buffer| self.give_back(buffer))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use squall_fabric::{RegionKey, RegionKind};

    use super::*;

    const BLOCK: usize = 64;

    fn reserve(blocks: usize) -> Reserve {
        Reserve::new(Region::heap(RegionKind::Bulk, RegionKey(1), blocks * BLOCK), BLOCK)
    }

    fn range(buffer: &Buffer, base: usize) -> std::ops::Range<usize> {
        let start = buffer.as_ptr().addr() - base;
        start..start + buffer.capacity()
    }

    proptest! {
        /// Ranges that are handed out never overlap, in whatever order they come back. When all are back, any message
        /// fits.
        #[test]
        fn ranges_never_overlap(
            steps in prop::collection::vec((any::<bool>(), 1..700usize, any::<prop::sample::Index>()), 1..200),
            in_order in any::<bool>(),
        ) {
            let mut reserve = reserve(10);
            let first = reserve.take(1).expect("it is empty");
            let base = first.as_ptr().addr();
            reserve.give_back(first);
            let mut out: Vec<Buffer> = Vec::new();
            for (take, bytes, which) in steps {
                if take {
                    let Some(buffer) = reserve.take(bytes) else {
                        prop_assert!(!out.is_empty() || bytes > reserve.capacity());
                        continue;
                    };
                    let new = range(&buffer, base);
                    prop_assert!(buffer.capacity() >= bytes && new.end <= reserve.capacity());
                    for other in &out {
                        let other = range(other, base);
                        prop_assert!(new.end <= other.start || other.end <= new.start, "{new:?} and {other:?}");
                    }
                    out.push(buffer);
                } else if !out.is_empty() {
                    let at = if in_order { 0 } else { which.index(out.len()) };
                    reserve.give_back(out.remove(at));
                }
                prop_assert_eq!(reserve.ranges(), out.len());
                prop_assert_eq!(reserve.bytes(), out.iter().map(Buffer::capacity).sum::<usize>());
            }
            out.into_iter().for_each(|buffer| reserve.give_back(buffer));
            let whole = reserve.take(reserve.capacity()).expect("all is free");
            prop_assert_eq!(range(&whole, base), 0..reserve.capacity());
        }
    }

    #[test]
    fn who_has_one_message_at_a_time_uses_the_same_memory() {
        let mut reserve = reserve(10);
        let addresses = [7, 2, 9].map(|blocks| {
            let buffer = reserve.take(blocks * BLOCK).expect("nothing is out");
            let address = buffer.as_ptr().addr();
            reserve.give_back(buffer);
            address
        });
        assert_eq!(addresses, [addresses[0]; 3]);
    }

    #[test]
    fn a_reserve_that_was_much_used_becomes_idle() {
        let blocks = KEPT_BYTES / BLOCK + 1;
        let mut reserve = reserve(blocks);
        let few = reserve.take(1).expect("nothing is out");
        reserve.give_back(few);
        assert!(!reserve.is_idle() && !reserve.is_idle(), "it takes little memory");
        let much = reserve.take(blocks * BLOCK).expect("nothing is out");
        assert!(!reserve.is_idle() && !reserve.is_idle(), "it is in use");
        reserve.give_back(much);
        assert!(reserve.is_idle());
        let few = reserve.take(1).expect("nothing is out");
        reserve.give_back(few);
        assert!(!reserve.is_idle(), "it was just used");
        assert!(reserve.is_idle());
        reserve.renew(Region::heap(RegionKind::Bulk, RegionKey(2), blocks * BLOCK));
        assert!(!reserve.is_idle());
    }

    #[test]
    fn what_somebody_reads_is_not_reclaimed() {
        let mut reserve = reserve(1);
        let buffer = Arc::new(reserve.take(1).expect("nothing is out"));
        let reader = Arc::clone(&buffer);
        let buffer = reserve.reclaim(buffer).expect_err("it is read");
        assert!(reserve.take(1).is_none());
        drop(reader);
        assert!(reserve.reclaim(buffer).is_ok() && reserve.take(1).is_some());
    }
}
