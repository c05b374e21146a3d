//! Reading a copy of a ring, turn by turn.

use std::sync::Arc;

use squall_fabric::Region;

use super::{
    Bulk, HEADER, Kind, Payload, Tag,
    producer::Ring,
    walk::{Corrupt, Record, Walk},
};

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

/// A reader of one member's copy of a ring. The caller knows from the sender's counter how many turns have arrived.
#[derive(Debug)]
pub struct Reader {
    walk: Walk,
    /// The ring itself, where this node is the sender: it has the tickets.
    own: Option<Arc<Ring>>,
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
        let bytes = region.len();
        Reader { walk: Walk::new(region, bytes), own: None, time: 0 }
    }

    /// Begins at the start of this node's own ring.
    pub fn of_own(ring: Arc<Ring>) -> Reader {
        Reader { walk: Walk::new(ring.memory().clone(), ring.capacity()), own: Some(ring), time: 0 }
    }

    /// The position before which everything was read, in bytes since the ring began.
    pub fn position(&self) -> u64 {
        self.walk.position()
    }

    #[inline]
    fn tag(&self, at: u64) -> Tag {
        Tag { ticket: self.own.as_ref().map_or(0, |ring| ring.ticket(at)), time: self.time }
    }

    #[cold]
    fn take_time(&mut self, offset: usize) {
        self.time = self.time.max(self.walk.region().load(offset + HEADER as usize));
    }

    /// Returns the next turn, which must have arrived. [`Turn::Nulls`] covers a whole run, whose rest is not returned
    /// again.
    ///
    /// Fails if the bytes there are none that a correct sender writes.
    // Inlined, since a call would cost as much as the body.
    #[inline(always)]
    pub fn next_turn(&mut self) -> Result<Turn<'_>, Corrupt> {
        loop {
            let Record { header, at, offset } = self.walk.next()?;
            match header.kind {
                Kind::Pad => {}
                Kind::Time => self.take_time(offset),
                Kind::NullRun => return Ok(Turn::Nulls(u64::from(header.value) - 1)),
                Kind::Bulk => return Ok(Turn::Bulk(Bulk::load(self.walk.region(), offset), self.tag(at))),
                Kind::Inline => {
                    let (tag, offset) = (self.tag(at), offset + HEADER as usize);
                    let payload = Payload { region: self.walk.region(), offset, len: header.value as usize };
                    return Ok(Turn::Message(payload, tag));
                }
            }
        }
    }
}
