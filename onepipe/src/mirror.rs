//! The sender's side of a ring towards a receiver.

use squall_fabric::{Fabric, Op, Slice, Source, Target};

use crate::{
    Mode,
    error::Misbehaved,
    layout::Layout,
    peer_link::PeerLink,
    record::{Header, Label, record_bytes},
    ring::Ring,
    timestamp::Timestamp,
};

/// The sender's copy of a ring: records are written here, and pushed to the same place of the receiver's memory. They
/// stay until the receiver has freed them.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Mirror {
    ring: Ring,
    /// The position before which everything was written here.
    written: u64,
    /// The position before which everything was posted.
    posted: u64,
    /// The position before which everything has arrived, as the receiver has reported.
    arrived: u64,
    /// The position before which the receiver has taken everything out, as it has reported.
    freed: u64,
    /// The bytes of room that waiting scatterings keep.
    held: u64,
}

impl Mirror {
    pub(crate) fn new(ring: Ring) -> Mirror {
        Mirror { ring, written: 0, posted: 0, arrived: 0, freed: 0, held: 0 }
    }

    /// The bytes of records that can be written and that no waiting scattering holds.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.ring.capacity() as u64 - (self.written - self.freed) - self.held
    }

    /// Keeps room for a record; false if there is not enough.
    #[inline]
    pub(crate) fn hold(&mut self, bytes: u64) -> bool {
        let fits = bytes <= self.room();
        if fits {
            self.held += bytes;
        }
        fits
    }

    /// Gives up room that was held.
    #[inline]
    pub(crate) fn release(&mut self, bytes: u64) {
        self.held -= bytes;
    }

    /// Writes a record, for which there is room.
    #[inline]
    pub(crate) fn write(&mut self, stamp: u64, ticket: u32, bytes: &[u8]) {
        debug_assert!(record_bytes(bytes.len()) <= self.room());
        let header = Header { stamp: Timestamp::from_nanos(stamp), label: Label::new(bytes.len(), ticket) };
        self.ring.write(self.written, header, bytes);
        self.written += header.label.record_bytes();
    }

    #[inline]
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Whether all that was written is posted.
    #[inline]
    pub(crate) fn is_posted(&self) -> bool {
        self.posted == self.written
    }

    /// Posts the records written since the last push, in one piece or two, and behind them the ring's new tail. The
    /// rest goes with the next push if it can't be posted now. Returns whether there was anything.
    #[inline]
    pub(crate) fn push(&mut self, fabric: &mut impl Fabric, link: &PeerLink, layout: Layout, mode: Mode) -> bool {
        if self.is_posted() {
            return false;
        }
        while !self.is_posted() {
            let len = self.ring.run(self.posted, self.written);
            // The bytes change only after the receiver has freed them, and so after they were fetched.
            let slice = Slice { region: self.ring.region(), offset: self.ring.offset(self.posted), len };
            let source = Source::Region(slice);
            let target = Target { region: link.region, offset: layout.ring(mode) + self.ring.place(self.posted) };
            let op = match self.posted + len as u64 == self.written {
                true => {
                    let word_target = Target { region: link.region, offset: layout.tail(mode) };
                    Op::WriteThenWord { source, target, word: self.written, word_target }
                }
                false => Op::Write { source, target },
            };
            if !link.post(fabric, op) {
                break;
            }
            self.posted += len as u64;
        }
        true
    }

    /// Takes note of the receiver's report that records have arrived.
    #[inline]
    pub(crate) fn acknowledge(&mut self, arrived: u64) -> Result<(), Misbehaved> {
        if arrived > self.arrived {
            self.check_end(arrived)?;
            self.arrived = arrived;
        }
        Ok(())
    }

    /// Takes note of the receiver's report that it has taken records out. A record that was taken out has arrived.
    #[inline]
    pub(crate) fn free(&mut self, freed: u64) -> Result<(), Misbehaved> {
        self.acknowledge(freed)?;
        self.free_unacknowledged(freed)
    }

    /// Takes note of such a report in a mode whose receivers acknowledge nothing. Which records are on their way is
    /// then only for the report of messages to a rank that has failed. So a header is proof enough of a record's
    /// beginning, and the records before stay in no cache.
    #[inline]
    pub(crate) fn free_unacknowledged(&mut self, freed: u64) -> Result<(), Misbehaved> {
        if freed > self.freed {
            let is_end = freed <= self.posted
                && freed.is_multiple_of(8)
                && (freed == self.written || self.ring.header(freed).is_some());
            if !is_end {
                return Err(Misbehaved);
            }
            self.freed = freed;
            self.arrived = self.arrived.max(freed);
        }
        Ok(())
    }

    /// Checks a reported position behind an earlier one. A receiver counts whole records, and only posted ones. Those
    /// between are passed one by one, since a payload may look like a record.
    #[inline]
    fn check_end(&self, position: u64) -> Result<(), Misbehaved> {
        let mut at = self.arrived;
        while at < position && position <= self.posted {
            at += self.ring.header(at).ok_or(Misbehaved)?.label.record_bytes();
        }
        if at == position { Ok(()) } else { Err(Misbehaved) }
    }

    /// Treats written records as arrived, because the receiver is this rank itself.
    #[inline]
    pub(crate) fn keep_locally(&mut self, taken: u64) {
        (self.posted, self.arrived, self.freed) = (self.written, self.written, taken);
    }

    /// Gives up the receiver: nothing is sent any more, and there is no more room.
    pub(crate) fn abandon(&mut self) {
        (self.posted, self.arrived, self.freed) = (self.written, self.written, self.written);
        self.held = self.ring.capacity() as u64;
    }

    /// The wide timestamp of the oldest record that is not known to have arrived.
    #[inline]
    pub(crate) fn oldest_on_its_way(&self, near: u64) -> Option<u64> {
        if self.arrived == self.written {
            return None;
        }
        let header = self.ring.header(self.arrived);
        // Without it, nothing would hold the barrier back.
        assert!(header.is_some(), "no record begins where what has arrived ends");
        header.map(|header| header.stamp.widen(near))
    }

    /// Wide timestamps and tickets of the records that are not known to have arrived.
    pub(crate) fn on_their_way(&self, near: u64) -> impl Iterator<Item = (u64, u32)> {
        self.records(self.arrived, near)
    }

    /// Wide timestamps and tickets of the records that the receiver may still have in its ring.
    pub(crate) fn not_freed(&self, near: u64) -> impl Iterator<Item = (u64, u32)> {
        self.records(self.freed, near)
    }

    fn records(&self, from: u64, near: u64) -> impl Iterator<Item = (u64, u32)> {
        let mut at = from;
        std::iter::from_fn(move || {
            let header = if at < self.written { self.ring.header(at)? } else { return None };
            at += header.label.record_bytes();
            Some((header.stamp.widen(near), header.label.ticket()))
        })
    }
}

#[cfg(test)]
mod tests {
    use squall_fabric::{Region, RegionKey, RegionKind};

    use super::*;

    /// A ring of 1 KiB with records of 40 and 24 bytes, stamped 5 and 6, that were posted, and one of 32, stamped 7,
    /// that was not.
    fn mirror() -> Mirror {
        let mut mirror = Mirror::new(Ring::new(Region::heap(RegionKind::Polled, RegionKey(0), 1024), 0, 1024));
        mirror.write(5, 50, &[0; 24]);
        mirror.write(6, 60, &[0; 8]);
        mirror.posted = mirror.written;
        mirror.write(7, 70, &[0; 16]);
        mirror
    }

    fn stamps(records: impl Iterator<Item = (u64, u32)>) -> Vec<u64> {
        records.map(|(stamp, _)| stamp).collect()
    }

    #[test]
    fn what_has_arrived_and_what_is_freed_are_told_apart() {
        let mut mirror = mirror();
        assert_eq!(mirror.room(), 1024 - 96);
        assert_eq!(mirror.oldest_on_its_way(9), Some(5));
        assert_eq!(mirror.acknowledge(40), Ok(()));
        assert_eq!(mirror.oldest_on_its_way(9), Some(6));
        assert_eq!((stamps(mirror.on_their_way(9)), stamps(mirror.not_freed(9))), (vec![6, 7], vec![5, 6, 7]));
        assert_eq!(mirror.acknowledge(0), Ok(()), "an old word");
        assert_eq!(mirror.free(40), Ok(()));
        assert_eq!((mirror.room(), stamps(mirror.not_freed(9))), (1024 - 56, vec![6, 7]));
        // A freed record has arrived, whichever report is read first.
        assert_eq!(mirror.free(64), Ok(()));
        assert_eq!((mirror.oldest_on_its_way(9), mirror.room()), (Some(7), 1024 - 32));
        assert_eq!(mirror.free(40), Ok(()), "an old word");
        assert_eq!(mirror.room(), 1024 - 32);
        mirror.posted = mirror.written;
        assert_eq!(mirror.acknowledge(96), Ok(()));
        assert_eq!((mirror.oldest_on_its_way(9), stamps(mirror.not_freed(9))), (None, vec![7]));
    }

    #[test]
    fn only_ends_of_records_that_were_posted_are_counted() {
        let wrong = [4, 12, 8, 16, 48, 72, 96, 104, 1 << 40, u64::MAX];
        for arrived in [0, 40, 64] {
            let mut mirror = mirror();
            mirror.acknowledge(arrived).expect("a record ends there");
            for position in wrong {
                assert_eq!(mirror.free(position), Err(Misbehaved), "{position} of {arrived}");
                assert_eq!(mirror.free_unacknowledged(position), Err(Misbehaved), "{position} of {arrived}");
                let expected = if position > arrived { Err(Misbehaved) } else { Ok(()) };
                assert_eq!(mirror.acknowledge(position), expected, "{position} of {arrived}");
            }
            assert_eq!(stamps(mirror.not_freed(9)), [5, 6, 7]);
            assert_eq!((mirror.arrived, mirror.freed), (arrived, 0));
        }
    }

    #[test]
    fn a_payload_that_looks_like_a_record_is_none() {
        let mut mirror = Mirror::new(Ring::new(Region::heap(RegionKind::Polled, RegionKey(0), 1024), 0, 1024));
        let header = Header { stamp: Timestamp::from_nanos(9), label: Label::new(0, u32::MAX) };
        let payload = header.encode(16).map(u64::to_ne_bytes).concat();
        mirror.write(5, 50, &payload);
        mirror.write(6, 60, &[]);
        mirror.posted = mirror.written;
        assert_eq!(mirror.ring.header(16), Some(header));
        assert_eq!([mirror.acknowledge(16), mirror.free(16)], [Err(Misbehaved); 2]);
        assert_eq!([mirror.acknowledge(32), mirror.free(32)], [Ok(()); 2]);
        assert_eq!(stamps(mirror.on_their_way(9)), [6]);
    }

    #[test]
    fn room_that_is_held_is_nobody_elses() {
        let mut mirror = mirror();
        assert!(mirror.hold(900));
        assert_eq!(mirror.room(), 28);
        assert!(!mirror.hold(32));
        mirror.release(900);
        assert_eq!(mirror.room(), 1024 - 96);
        mirror.abandon();
        assert_eq!((mirror.room(), mirror.oldest_on_its_way(9)), (0, None));
        assert_eq!(stamps(mirror.not_freed(9)), []);
    }
}
