//! Long messages: a sender lends a copy, and its receivers fetch it by a remote read.
//!
//! That takes one copy less than a slot that is written remotely, and no slot of the message's length; but it takes a
//! round trip where reads take one. The slot has the place of the copy instead of its bytes. A receiver frees the slot
//! when it has the bytes, and so gives the copy back.

use std::ops::Range;

use squall_fabric::Region;

/// The blocks of memory that a lane lends, which all peers may read.
#[derive(Debug)]
pub(crate) struct Lending {
    region: Region,
    /// The offset of this lane's blocks in the region.
    base: usize,
    block_bytes: usize,
    free: Vec<usize>,
    /// The number of ranks that will still read each block.
    readers: Vec<usize>,
    /// The part of the vector that was copied last, and its block: other ranks may get the same.
    last: Option<(Range<usize>, usize)>,
}

impl Lending {
    pub(crate) fn new(region: Region, base: usize, block_bytes: usize, blocks: usize) -> Lending {
        let free = (0..blocks).rev().collect();
        Lending { region, base, block_bytes, free, readers: vec![0; blocks], last: None }
    }

    /// A block with this part of the vector, if there is one already.
    pub(crate) fn copied(&self, part: &Range<usize>) -> Option<usize> {
        self.last.as_ref().filter(|(range, _)| range == part).map(|(_, block)| *block)
    }

    /// Copies a part of the vector into a free block, if there is one.
    pub(crate) fn copy(&mut self, part: &Range<usize>, bytes: &[u8]) -> Option<usize> {
        self.forget();
        let block = self.free.pop()?;
        self.region.write(self.offset(block), bytes);
        self.readers[block] = 1;
        self.last = Some((part.clone(), block));
        Some(block)
    }

    /// Forgets the last copy, because the vector changes: no other rank gets it.
    #[inline]
    pub(crate) fn forget(&mut self) {
        if let Some((_, block)) = self.last.take() {
            self.give_back(block);
        }
    }

    /// Counts one more reader of the block.
    pub(crate) fn lend(&mut self, block: usize) {
        self.readers[block] += 1;
    }

    /// Counts one reader of the block less.
    pub(crate) fn give_back(&mut self, block: usize) {
        self.readers[block] -= 1;
        if self.readers[block] == 0 {
            self.free.push(block);
        }
    }

    /// The offset of a block in the region.
    pub(crate) fn offset(&self, block: usize) -> usize {
        self.base + block * self.block_bytes
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{RegionKey, RegionKind};

    use super::*;

    #[test]
    fn a_block_is_used_again_once_nobody_reads_it() {
        let region = Region::heap(RegionKind::Lent, RegionKey(1), 64 + 2 * 16);
        let mut lending = Lending::new(region.clone(), 64, 16, 2);
        let first = lending.copy(&(0..16), &[1; 16]).expect("two are free");
        lending.lend(first);
        lending.lend(first);
        assert_eq!(lending.copied(&(0..16)), Some(first));
        let second = lending.copy(&(16..32), &[2; 16]).expect("one is free");
        assert_eq!((lending.copied(&(0..16)), lending.copied(&(16..32))), (None, Some(second)));
        lending.give_back(first);
        lending.lend(second);
        assert_eq!(lending.copy(&(32..40), &[3; 8]), None, "both are lent");
        lending.give_back(first);
        let third = lending.copy(&(32..40), &[3; 8]).expect("all have read the first");
        let mut bytes = [0; 16];
        region.read(lending.offset(third), &mut bytes[..8]);
        region.read(lending.offset(second), &mut bytes[8..]);
        assert_eq!(bytes, [3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2]);
    }
}
