//! The layout of the memory that a rank's peers write into: a region for each peer, exposed to that peer alone.
//!
//! ```text
//! 0     farewell         not 0 once the peer needs no other rank
//! 64    channels         for each lane
//!         0    signals   the number of messages without bytes that came
//!         64   freed     the number of this rank's messages to that peer that were taken out of its slots
//!         128  slots     each: the number of the message in it + 1 (8 bytes), then its bytes
//! ```
//!
//! A slot's word lies before its bytes, in one cache line with a short message. All parts begin at cache lines.
//!
//! Beside these there is one word that all peers may write: 1 + the rank that has failed, or 0. Whichever peer writes
//! it, it means the same.

use squall_fabric::Target;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The offset of the peer's farewell.
pub(crate) const FAREWELL: usize = 0;

/// The size in bytes of the region with the word that all peers may write.
pub(crate) const ABORT_BYTES: usize = 8;

/// The sizes that decide every offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLayout {
    pub(crate) ranks: usize,
    pub(crate) lanes: usize,
    pub(crate) slots: usize,
    pub(crate) slot_bytes: usize,
}

impl MemoryLayout {
    /// The offset of a lane's channel.
    pub(crate) fn channel(&self, lane: usize) -> usize {
        LINE + lane * self.channel_bytes()
    }

    fn channel_bytes(&self) -> usize {
        2 * LINE + self.slots * self.slot_stride()
    }

    fn slot_stride(&self) -> usize {
        (8 + self.slot_bytes).next_multiple_of(LINE)
    }

    /// The offset of the count of signals in a channel.
    pub(crate) fn signals(&self) -> usize {
        0
    }

    /// The offset of the count of freed slots in a channel.
    pub(crate) fn freed(&self) -> usize {
        LINE
    }

    /// The offset of a message's slot in a channel.
    pub(crate) fn slot(&self, message: u64) -> usize {
        2 * LINE + self.slot_index(message) * self.slot_stride()
    }

    fn slot_index(&self, message: u64) -> usize {
        // The number of slots is a power of two, so numbers that wrap around go on with the next slot.
        message as usize & (self.slots - 1)
    }

    /// The size in bytes of a peer's region.
    pub(crate) fn region_bytes(&self) -> usize {
        self.channel(self.lanes)
    }

    /// The offset of a message to `rank` in the staging region, which has as many slots.
    pub(crate) fn staged(&self, lane: usize, rank: usize, message: u64) -> usize {
        ((lane * self.ranks + rank) * self.slots + self.slot_index(message)) * self.slot_bytes
    }

    /// The number of blocks of a slot's bytes that a lane can lend. It is at least what a step of any schedule sends,
    /// so that no rank waits for another block before the others can go on.
    pub(crate) fn lent_blocks(&self) -> usize {
        self.ranks.max(16)
    }

    /// The offset of a lane's blocks in the region of lent blocks.
    pub(crate) fn lent(&self, lane: usize) -> usize {
        lane * self.lent_blocks() * self.slot_bytes
    }

    /// The size in bytes of the region of lent blocks.
    pub(crate) fn lent_bytes(&self) -> usize {
        self.lent(self.lanes)
    }

    /// The offset in the landing region where a lane's fetched message waits for its use.
    pub(crate) fn landing(&self, lane: usize) -> usize {
        lane * self.slot_bytes
    }

    /// The size in bytes of the region into which lanes fetch.
    pub(crate) fn landing_bytes(&self) -> usize {
        self.landing(self.lanes)
    }

    /// The staging region's size in bytes.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.lanes * self.ranks * self.slots * self.slot_bytes
    }
}

/// A peer's regions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerRegions {
    pub(crate) endpoint: squall_fabric::EndpointId,
    /// The region that this rank alone writes into.
    pub(crate) region: squall_fabric::RegionKey,
    pub(crate) abort: squall_fabric::RegionKey,
    /// The region of the blocks that the peer lends.
    pub(crate) lent: squall_fabric::RegionKey,
}

impl PeerRegions {
    pub(crate) fn target(&self, offset: usize) -> Target {
        Target { region: self.region, offset }
    }

    /// The word that names a failed rank.
    pub(crate) fn abort(&self) -> Target {
        Target { region: self.abort, offset: 0 }
    }

    pub(crate) fn lent(&self, offset: usize) -> Target {
        Target { region: self.lent, offset }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps() {
        let layout = MemoryLayout { ranks: 9, lanes: 2, slots: 4, slot_bytes: 72 };
        let mut ranges = vec![(FAREWELL, 8)];
        for lane in 0..2 {
            let channel = layout.channel(lane);
            ranges.push((channel + layout.signals(), LINE));
            ranges.push((channel + layout.freed(), LINE));
            ranges.extend((0..4).map(|message| (channel + layout.slot(message), 8 + 72)));
        }
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        let &(offset, bytes) = ranges.last().expect("a range");
        assert!(offset + bytes <= layout.region_bytes());
    }

    #[test]
    fn slots_follow_each_other_where_numbers_wrap() {
        let layout = MemoryLayout { ranks: 2, lanes: 1, slots: 4, slot_bytes: 8 };
        assert_eq!(layout.slot(u64::MAX), layout.slot(3));
        assert_eq!(layout.slot(u64::MAX.wrapping_add(1)), layout.slot(0));
    }
}
