//! The receiver's side of a ring from a sender.

use std::collections::BTreeSet;

use crate::{
    error::Misbehaved,
    record::{HEADER, Label},
    ring::Ring,
};

/// The receiver's ring: records that have arrived stay here until their turn comes.
#[derive(Debug)]
pub(crate) struct Inbound {
    ring: Ring,
    /// The position before which everything has arrived.
    tail: u64,
    /// The position of the first record that was not taken.
    taken: u64,
    /// The position up to which the sender was told that records were taken.
    told: u64,
    /// The wide timestamp and label of the first record that was not taken, if it was read.
    head: Option<(u64, Label)>,
    /// The wide timestamp of the record before.
    last: Option<u64>,
    /// The wide timestamps of records that are not to be delivered.
    recalled: BTreeSet<u64>,
    /// The wide timestamp from which on records are not to be delivered.
    limit: u64,
}

impl Inbound {
    pub(crate) fn new(ring: Ring) -> Inbound {
        Inbound { ring, tail: 0, taken: 0, told: 0, head: None, last: None, recalled: BTreeSet::new(), limit: u64::MAX }
    }

    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The wide timestamp of the last record that was taken.
    #[inline]
    pub(crate) fn last(&self) -> Option<u64> {
        self.last
    }

    /// Takes note that the ring is filled up to `tail`.
    #[inline]
    pub(crate) fn arrive(&mut self, tail: u64) -> Result<(), Misbehaved> {
        let beyond = tail.wrapping_sub(self.taken) > self.ring.capacity() as u64;
        if beyond || tail < self.tail || !tail.is_multiple_of(8) {
            return Err(Misbehaved);
        }
        self.tail = tail;
        Ok(())
    }

    /// Reads the first record, if that was not done. Returns its wide timestamp, or [`u64::MAX`] if there is none.
    #[inline]
    pub(crate) fn look(&mut self, near: u64) -> Result<u64, Misbehaved> {
        if self.head.is_none() {
            self.head = self.first(near)?;
        }
        Ok(self.head.map_or(u64::MAX, |(stamp, _)| stamp))
    }

    /// The first record that was not taken, if there is one to be delivered.
    #[inline]
    fn first(&mut self, near: u64) -> Result<Option<(u64, Label)>, Misbehaved> {
        if self.taken == self.tail {
            return Ok(None);
        }
        let header = self.ring.header(self.taken).ok_or(Misbehaved)?;
        let stamp = header.stamp.widen(near);
        if header.label.record_bytes() > self.tail - self.taken || Some(stamp) <= self.last {
            return Err(Misbehaved);
        }
        if stamp >= self.limit {
            // The same holds for all records behind it.
            self.taken = self.tail;
            return Ok(None);
        }
        Ok(Some((stamp, header.label)))
    }

    /// Takes out the record that was read, if there is one, with its payload, and returns its ticket.
    #[cfg(feature = "baseline")]
    #[inline]
    pub(crate) fn take(&mut self, payload: &mut Vec<u8>) -> Option<u32> {
        let (stamp, label) = self.head.take()?;
        self.take_out(stamp, label, payload);
        Some(label.ticket())
    }

    #[inline]
    fn take_out(&mut self, stamp: u64, label: Label, payload: &mut Vec<u8>) {
        if payload.len() != label.bytes() {
            payload.resize(label.bytes(), 0);
        }
        self.ring.read(self.taken, payload);
        self.last = Some(stamp);
        self.taken += label.record_bytes();
    }

    /// Hands out the records before `limit`, a wide timestamp, beginning with the one that was read, at most `max`.
    /// Returns how many, and the timestamp of the first behind them, as [`look`](Inbound::look) does.
    #[inline]
    pub(crate) fn take_below(
        &mut self,
        limit: u64,
        (near, max): (u64, usize),
        payload: &mut Vec<u8>,
        mut sink: impl FnMut(u64, &[u8]),
    ) -> (usize, Result<u64, Misbehaved>) {
        let mut delivered = 0;
        let mut next = Ok(self.head.take());
        while let Ok(Some((stamp, label))) = next
            && stamp < limit
            && delivered < max
        {
            self.take_out(stamp, label, payload);
            if self.recalled.is_empty() || !self.recalled.remove(&stamp) {
                sink(stamp, payload);
                delivered += 1;
            }
            next = self.first(near);
        }
        self.head = next.unwrap_or_default();
        (delivered, next.map(|head| head.map_or(u64::MAX, |(stamp, _)| stamp)))
    }

    /// Marks a record as not to be delivered. A sender that recalls more records than a ring holds recalls some that it
    /// has not sent.
    pub(crate) fn recall(&mut self, stamp: u64) -> Result<(), Misbehaved> {
        self.recalled.insert(stamp);
        let most = self.ring.capacity() / HEADER;
        if self.recalled.len() <= most { Ok(()) } else { Err(Misbehaved) }
    }

    /// Closes the ring: nothing more comes, and records from `limit` on are not to be delivered.
    pub(crate) fn close(&mut self, limit: u64) {
        self.limit = limit;
        if self.head.is_some_and(|(stamp, _)| stamp >= limit) {
            self.head = None;
            self.taken = self.tail;
        }
    }

    /// The position up to which the sender is to be told now that records were taken, if it is. It is told when another
    /// word is told anyway, when it may lack room for a record, or when the count is worth a word of its own.
    #[inline]
    pub(crate) fn credit(&mut self, anyway: bool) -> Option<u64> {
        let (capacity, due) = (self.ring.capacity() as u64, self.taken - self.told);
        let may_lack_room = self.tail - self.told > capacity - capacity / 4;
        if due == 0 || !(anyway || may_lack_room || due >= capacity / 4) {
            return None;
        }
        self.told = self.taken;
        Some(self.taken)
    }
}
