//! Messages between two ranks in one lane, in both directions.
//!
//! A message goes into the slot after the previous one's, and a word with its number follows it. Its slot is used again
//! only after the receiver has said that it is free (thesis, §5.3). It says so when half of the slots are, so that a
//! short operation does not pay for it. Messages without bytes only count up a word, and take no slot.
//!
//! Bytes that are too many to be posted inline wait in registered memory, at a place of their slot's own: the slot's
//! being free says that they have arrived, hence that nobody fetches them any more.

use squall_fabric::{Fabric, INLINE_BYTES, Op, PostError, Region, Slice, Source, Token};

use crate::layout::{Layout, Link};

/// This rank's side of the two channels that lead to a peer and back. All counts wrap around.
#[derive(Debug)]
pub(crate) struct Channel {
    lane: usize,
    peer: usize,
    /// Where the peer's writes go in this rank's region.
    here: usize,
    /// Where this rank's writes go in the peer's region.
    there: usize,
    signalled: u64,
    awaited: u64,
    sent: u64,
    /// As the peer said last.
    freed: u64,
    taken: u64,
    /// How many of those taken the peer was told of.
    credited: u64,
}

impl Channel {
    /// Puts its words into their first state.
    pub(crate) fn new(layout: &Layout, region: &Region, lane: usize, me: usize, peer: usize, first: u64) -> Channel {
        let (here, there) = (layout.channel(lane, peer), layout.channel(lane, me));
        region.store(here + layout.signals(), first);
        region.store(here + layout.freed(), first);
        for slot in 0..layout.slots as u64 {
            // No message from the first on has it: theirs are their numbers + 1.
            region.store(here + layout.slot(slot), first);
        }
        Channel {
            lane,
            peer,
            here,
            there,
            signalled: first,
            awaited: first,
            sent: first,
            freed: first,
            taken: first,
            credited: first,
        }
    }

    /// Sends a message without bytes; false if it can't be posted now.
    #[inline]
    pub(crate) fn signal(&mut self, fabric: &mut impl Fabric, layout: &Layout, link: &Link) -> bool {
        let count = self.signalled.wrapping_add(1);
        let posted = post_word(fabric, link, self.there + layout.signals(), count);
        if posted {
            self.signalled = count;
        }
        posted
    }

    /// Takes a message without bytes; false if none is there.
    #[inline]
    pub(crate) fn take_signal(&mut self, layout: &Layout, region: &Region) -> bool {
        // The peer may be ahead by any number of them.
        let ahead = region.load(self.here + layout.signals()).wrapping_sub(self.awaited);
        let came = ahead > 0 && ahead <= u64::MAX / 2;
        if came {
            self.awaited = self.awaited.wrapping_add(1);
        }
        came
    }

    /// Sends a message of at most a slot's bytes; false if no slot is free, or it can't be posted now.
    pub(crate) fn send(
        &mut self,
        fabric: &mut impl Fabric,
        layout: &Layout,
        link: &Link,
        (region, staging): (&Region, &Region),
        bytes: &[u8],
    ) -> bool {
        let has_room = |freed: u64| self.sent.wrapping_sub(freed) < layout.slots as u64;
        if !has_room(self.freed) {
            let freed = region.load(self.here + layout.freed());
            // More than were sent can't be free.
            if self.sent.wrapping_sub(freed) > layout.slots as u64 || !has_room(freed) {
                return false;
            }
            self.freed = freed;
        }
        let number = self.sent.wrapping_add(1);
        let slot = self.there + layout.slot(self.sent);
        let mut padded = [0; INLINE_BYTES];
        let len = bytes.len().next_multiple_of(8);
        let source = if len > INLINE_BYTES {
            let offset = layout.staged(self.lane, self.peer, self.sent);
            staging.write(offset, bytes);
            Source::Region(Slice { region: staging, offset, len })
        } else if len == bytes.len() {
            Source::Inline(bytes)
        } else {
            padded[..bytes.len()].copy_from_slice(bytes);
            Source::Inline(&padded[..len])
        };
        let op =
            Op::WriteThenWord { source, target: link.target(slot + 8), word: number, word_target: link.target(slot) };
        let posted = is_posted(fabric.post(link.endpoint, op, Token::UNSIGNALED));
        if posted {
            self.sent = number;
        }
        posted
    }

    /// Where the next message's bytes lie in this rank's region, if it is there. They stay until it is
    /// [taken](Channel::take).
    #[inline]
    pub(crate) fn arrived(&self, layout: &Layout, region: &Region) -> Option<usize> {
        let slot = self.here + layout.slot(self.taken);
        (region.load(slot) == self.taken.wrapping_add(1)).then_some(slot + 8)
    }

    /// Gives up the slot of the next message.
    pub(crate) fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Tells the peer which slots are free, if enough are. What can't be posted now is told another time.
    #[inline]
    pub(crate) fn credit(&mut self, fabric: &mut impl Fabric, layout: &Layout, link: &Link) {
        let due = self.taken.wrapping_sub(self.credited);
        if due > 0 && due >= layout.slots as u64 / 2 && post_word(fabric, link, self.there + layout.freed(), self.taken)
        {
            self.credited = self.taken;
        }
    }
}

/// Writes a word into the peer's region; false if it can't be posted now.
#[inline]
pub(crate) fn post_word(fabric: &mut impl Fabric, link: &Link, offset: usize, word: u64) -> bool {
    let op = Op::Write { source: Source::Inline(&word.to_ne_bytes()), target: link.target(offset) };
    is_posted(fabric.post(link.endpoint, op, Token::UNSIGNALED))
}

/// # Panics
///
/// On an error that says that the post itself is wrong, which a bug in this crate would be.
#[inline]
fn is_posted(result: Result<(), PostError>) -> bool {
    match result {
        Ok(()) => true,
        // Of a break a completion tells.
        Err(PostError::Full | PostError::Broken | PostError::NotConnected) => false,
        Err(error) => panic!("a message of a collective operation could not be posted: {error}"),
    }
}
