//! Messages between two ranks in one lane, in both directions.
//!
//! A message goes into the slot after the previous one's, and a word with its number follows it. Its slot is used again
//! only after the receiver has freed it (thesis, §5.3). The receiver announces freed slots when half of them are free,
//! so that a short operation does not pay for it. Messages without bytes only count up a word, and take no slot.
//!
//! A [lent](crate::lending) message is a slot with the place of the bytes.
//!
//! Bytes that are too many to be posted inline wait in registered memory, at a place of their slot's own. A free slot
//! means that they have arrived, hence that no peer fetches them any more.

use std::collections::VecDeque;

use squall_fabric::{Fabric, INLINE_BYTES, Op, PostError, Region, Slice, Source, Target, Token};

use crate::layout::{MemoryLayout, PeerRegions};

/// This rank's side of the two channels that lead to a peer and back. All counts wrap around.
#[derive(Debug)]
pub(crate) struct Channel {
    lane: usize,
    peer: usize,
    /// The memory of the peer's writes.
    region: Region,
    /// The offset of this lane's words and slots, in that memory and in the peer's.
    base: usize,
    signalled: u64,
    awaited: u64,
    sent: u64,
    /// The number of freed slots that the peer announced last.
    freed: u64,
    taken: u64,
    /// The number of taken messages that the peer was told of.
    credited: u64,
    /// The peer waits for a credit that was not posted yet.
    owing: bool,
    /// The messages whose bytes are lent: for each, the number of messages sent with it, and its block.
    lent: VecDeque<(u64, usize)>,
}

impl Channel {
    /// Sets the channel's words to their first state.
    pub(crate) fn new(layout: &MemoryLayout, region: Region, lane: usize, peer: usize, first: u64) -> Channel {
        let base = layout.channel(lane);
        region.store(base + layout.signals(), first);
        region.store(base + layout.freed(), first);
        for slot in 0..layout.slots as u64 {
            // No message from the first on has this word: theirs are their numbers + 1.
            region.store(base + layout.slot(slot), first);
        }
        Channel {
            lane,
            peer,
            region,
            base,
            signalled: first,
            awaited: first,
            sent: first,
            freed: first,
            taken: first,
            credited: first,
            owing: false,
            lent: VecDeque::new(),
        }
    }

    /// Sends a message without bytes; false if it can't be posted now.
    #[inline]
    pub(crate) fn signal(&mut self, fabric: &mut impl Fabric, layout: &MemoryLayout, link: &PeerRegions) -> bool {
        let count = self.signalled.wrapping_add(1);
        let posted = post_word(fabric, link, link.target(self.base + layout.signals()), count);
        if posted {
            self.signalled = count;
        }
        posted
    }

    /// Takes a message without bytes; false if none is there.
    #[inline]
    pub(crate) fn take_signal(&mut self, layout: &MemoryLayout) -> bool {
        // The peer may be ahead by any number of messages.
        let ahead = self.region.load(self.base + layout.signals()).wrapping_sub(self.awaited);
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
        layout: &MemoryLayout,
        link: &PeerRegions,
        staging: &Region,
        bytes: &[u8],
    ) -> bool {
        if !self.has_room(layout) {
            return false;
        }
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
        self.post_message(fabric, layout, link, source)
    }

    /// Sends a message that the peer is to fetch from `offset` in the lent region; false as for
    /// [`send`](Channel::send).
    pub(crate) fn send_lent(
        &mut self,
        fabric: &mut impl Fabric,
        layout: &MemoryLayout,
        link: &PeerRegions,
        (block, offset): (usize, usize),
    ) -> bool {
        let place = (offset as u64).to_ne_bytes();
        let posted = self.has_room(layout) && self.post_message(fabric, layout, link, Source::Inline(&place));
        if posted {
            self.lent.push_back((self.sent, block));
        }
        posted
    }

    /// Takes a block that the peer has read, if there is one.
    pub(crate) fn returned(&mut self, layout: &MemoryLayout) -> Option<usize> {
        let &(number, block) = self.lent.front()?;
        self.learn_freed(layout);
        let is_read = self.freed.wrapping_sub(number) <= u64::MAX / 2;
        is_read.then(|| {
            self.lent.pop_front();
            block
        })
    }

    fn learn_freed(&mut self, layout: &MemoryLayout) {
        let freed = self.region.load(self.base + layout.freed());
        // A count above that of the sent messages is impossible.
        if self.sent.wrapping_sub(freed) <= layout.slots as u64 {
            self.freed = freed;
        }
    }

    fn has_room(&mut self, layout: &MemoryLayout) -> bool {
        if self.sent.wrapping_sub(self.freed) >= layout.slots as u64 {
            self.learn_freed(layout);
        }
        self.sent.wrapping_sub(self.freed) < layout.slots as u64
    }

    fn post_message(
        &mut self,
        fabric: &mut impl Fabric,
        layout: &MemoryLayout,
        link: &PeerRegions,
        source: Source<'_>,
    ) -> bool {
        let number = self.sent.wrapping_add(1);
        let slot = self.base + layout.slot(self.sent);
        let op =
            Op::WriteThenWord { source, target: link.target(slot + 8), word: number, word_target: link.target(slot) };
        let posted = is_posted(fabric.post(link.endpoint, op, Token::UNSIGNALED));
        if posted {
            self.sent = number;
        }
        posted
    }

    /// The offset of the next message's bytes in the channel's [region](Channel::region), if it is there. They stay
    /// until it is [taken](Channel::take).
    #[inline]
    pub(crate) fn arrived(&self, layout: &MemoryLayout) -> Option<usize> {
        let slot = self.base + layout.slot(self.taken);
        (self.region.load(slot) == self.taken.wrapping_add(1)).then_some(slot + 8)
    }

    /// The memory of the peer's writes.
    #[inline]
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Frees the slot of the next message.
    pub(crate) fn take(&mut self) {
        self.taken = self.taken.wrapping_add(1);
    }

    /// Tells the peer which slots are free, if there are at least `least`. Returns false if that can't be posted now:
    /// the peer's writes may have come before this side of the connection is up.
    #[inline]
    pub(crate) fn credit(
        &mut self,
        fabric: &mut impl Fabric,
        layout: &MemoryLayout,
        link: Option<&PeerRegions>,
        least: usize,
    ) -> bool {
        let due = self.taken.wrapping_sub(self.credited);
        if due == 0 || (due < least as u64 && !self.owing) {
            return true;
        }
        let freed = self.base + layout.freed();
        self.owing = link.is_none_or(|link| !post_word(fabric, link, link.target(freed), self.taken));
        if !self.owing {
            self.credited = self.taken;
        }
        !self.owing
    }
}

/// Writes a word into the peer's memory; false if it can't be posted now.
#[inline]
pub(crate) fn post_word(fabric: &mut impl Fabric, link: &PeerRegions, target: Target, word: u64) -> bool {
    let op = Op::Write { source: Source::Inline(&word.to_ne_bytes()), target };
    is_posted(fabric.post(link.endpoint, op, Token::UNSIGNALED))
}

/// Whether an operation was posted.
///
/// # Panics
///
/// On an error that says that the post itself is wrong, which a bug in this crate would be.
#[inline]
pub(crate) fn is_posted(result: Result<(), PostError>) -> bool {
    match result {
        Ok(()) => true,
        // A completion reports the break.
        Err(PostError::Full | PostError::Broken | PostError::NotConnected) => false,
        Err(error) => panic!("a message of a collective operation could not be posted: {error}"),
    }
}
