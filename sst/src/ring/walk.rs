//! Walking from record to record: the rules that a ring's bytes keep.

use squall_fabric::Region;

use super::{Header, Kind, place};

/// A ring's bytes are not what its sender may write: the sender is faulty, and nothing after them can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring has no valid record at position {position} (its first word is {word:#018x})")]
pub struct Corrupt {
    /// The position, in bytes since the ring began.
    pub position: u64,
    /// The word at the position.
    pub word: u64,
}

/// A walk over the records of one member's copy of a ring.
#[derive(Debug)]
pub(super) struct Walk {
    region: Region,
    capacity: u64,
    at: u64,
}

/// A record that a walk came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) header: Header,
    /// Its position.
    pub(super) at: u64,
    /// Its place in the ring's memory.
    pub(super) offset: usize,
}

impl Walk {
    /// Begins at the start of a ring.
    ///
    /// # Panics
    ///
    /// If the capacity is not a power of two.
    pub(super) fn new(region: Region, capacity: usize) -> Walk {
        assert!(capacity.is_power_of_two(), "a ring of {capacity} bytes");
        Walk { region, capacity: capacity as u64, at: 0 }
    }

    /// The ring's memory.
    pub(super) fn region(&self) -> &Region {
        &self.region
    }

    /// The ring's size, in bytes.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The position of the next record.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// Goes on to the next record, which must have arrived. Fails if there is none that a correct sender writes.
    // Inlined, since a call would cost as much as the body.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Result<Record, Corrupt> {
        let at = self.at;
        let offset = place(at, self.capacity) as usize;
        let word = self.region.load(offset);
        let Some(header) = Header::decode(word, at, self.capacity) else {
            return Err(Corrupt { position: at, word });
        };
        self.at += header.stride();
        if header.kind == Kind::Time {
            self.expect_message()?;
        }
        Ok(Record { header, at, offset })
    }

    /// Checks that the next record, behind a time, is a message.
    #[cold]
    fn expect_message(&self) -> Result<(), Corrupt> {
        let word = self.region.load(place(self.at, self.capacity) as usize);
        match Header::decode(word, self.at, self.capacity) {
            Some(header) if header.is_message() => Ok(()),
            _ => Err(Corrupt { position: self.at, word }),
        }
    }
}
