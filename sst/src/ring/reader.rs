//! Walking a copy of a ring, turn by turn.

use std::sync::Arc;

use squall_fabric::Region;

use super::{Bulk, HEADER, Header, Kind, Payload, Tag, place, producer::Ring};

/// A ring's bytes are not what its sender may write: the sender is faulty, and nothing after them can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring has no valid record at position {position} (its first word is {word:#018x})")]
pub struct Corrupt {
    /// The position, in bytes since the ring began.
    pub position: u64,
    /// The word at the position.
    pub word: u64,
}

/// A sender's use of a turn.
#[derive(Clone, Copy, Debug)]
pub enum Turn<'a> {
    /// A message.
    Message(Payload<'a>, Tag),
    /// A message that has travelled by other means.
    Bulk(Bulk, Tag),
    /// A run of nulls: this turn and the given number of turns after it.
    Nulls(u64),
}

/// A walk through one member's copy of a ring. The caller knows from the sender's counter how many turns have arrived.
#[derive(Debug)]
pub struct Reader {
    region: Region,
    capacity: u64,
    /// The ring itself, where this node is the sender: it has the tickets.
    own: Option<Arc<Ring>>,
    at: u64,
    /// The time of the messages from here on.
    time: u64,
}

impl Reader {
    /// Begins at the start of a copy that a peer writes. Its capacity is the region's size.
    ///
    /// # Panics
    ///
    /// If the size is not a power of two.
    pub fn of_copy(region: Region) -> Reader {
        assert!(region.len().is_power_of_two(), "a ring of {} bytes", region.len());
        Reader { capacity: region.len() as u64, region, own: None, at: 0, time: 0 }
    }

    /// Begins at the start of this node's own ring.
    pub fn of_own(ring: Arc<Ring>) -> Reader {
        Reader { capacity: ring.capacity() as u64, region: ring.memory().clone(), own: Some(ring), at: 0, time: 0 }
    }

    #[inline]
    fn tag(&self, at: u64) -> Tag {
        Tag { ticket: self.own.as_ref().map_or(0, |ring| ring.ticket(at)), time: self.time }
    }

    /// Takes the time at an offset, behind which a message must stand.
    #[cold]
    fn take_time(&mut self, offset: usize) -> Result<(), Corrupt> {
        self.time = self.time.max(self.region.load(offset + HEADER as usize));
        let word = self.region.load(place(self.at, self.capacity) as usize);
        match Header::decode(word, self.at, self.capacity) {
            Some(header) if header.is_message() => Ok(()),
            _ => Err(Corrupt { position: self.at, word }),
        }
    }

    /// Returns the next turn, which must have arrived. [`Turn::Nulls`] covers a whole run, whose rest is not returned
    /// again.
    ///
    /// Fails if the bytes there are none that a correct sender writes.
    // Inlined, since a call would cost as much as the body.
    #[inline(always)]
    pub fn next_turn(&mut self) -> Result<Turn<'_>, Corrupt> {
        loop {
            let offset = place(self.at, self.capacity) as usize;
            let word = self.region.load(offset);
            let Some(header) = Header::decode(word, self.at, self.capacity) else {
                return Err(Corrupt { position: self.at, word });
            };
            let here = self.at;
            self.at += header.stride();
            match header.kind {
                Kind::Pad => {}
                Kind::Time => self.take_time(offset)?,
                Kind::NullRun => return Ok(Turn::Nulls(u64::from(header.value) - 1)),
                Kind::Bulk => return Ok(Turn::Bulk(Bulk::load(&self.region, offset), self.tag(here))),
                Kind::Inline => {
                    let tag = self.tag(here);
                    let offset = offset + HEADER as usize;
                    let payload = Payload { region: &self.region, offset, len: header.value as usize };
                    return Ok(Turn::Message(payload, tag));
                }
            }
        }
    }
}
