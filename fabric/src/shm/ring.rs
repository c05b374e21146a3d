//! The descriptor rings, by which one side of an endpoint tells the other of work that the other carries out.
//!
//! Each direction has a ring in a shared file of the sender's. One side writes it, the other reads it.
//!
//! ```text
//! byte    0   tail      u64  slots ever filled                    written by the sender
//!         8   withdrawn u64  not 0: memory that descriptors name may have been used again
//!       128   head      u64  slots ever consumed                  written by the receiver
//!       136   closed    u64  not 0: the receiver takes nothing more
//!       256   slots     64 bytes each; slot n is at 256 + 64 * (n mod slots)
//! ```
//!
//! A descriptor takes one slot, and as many more as its inline bytes need:
//!
//! ```text
//! word 0   kind (byte 0: 1 write, 2 write with immediate, 3 send, 4 share),
//!          flags (byte 1: 1 inline, 2 has an immediate), slots (byte 2), immediate (bytes 4..8)
//!      1   length in bytes
//!      2   key of the target region         (not for sends)
//!      3   offset in the target region      (nor for shares)
//!      4   key of the source region, or share (or inline bytes from here on, through the following slots)
//!      5   offset in the source region
//! ```
//!
//! Numbers are in the host's byte order: both sides are on one host.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::memory::{self, Access, ForeignError, Handle};
use crate::{INLINE_BYTES, RegionKey, mapping::Mapping};

const WITHDRAWN: usize = 1;
const HEAD: usize = 16;
const CLOSED: usize = 17;
const SLOTS: usize = 32;
const SLOT_WORDS: usize = 8;
/// The word of a descriptor where inline bytes begin.
const INLINE_WORD: usize = 4;
const INLINE_WORDS: usize = INLINE_BYTES / 8;
/// The most slots that one descriptor takes.
pub(super) const MAX_SLOTS: u64 = slots_for_inline(INLINE_BYTES);
/// The largest ring that a peer may hand over.
const MAX_RING_SLOTS: u64 = 1 << 20;

const fn slots_for_inline(bytes: usize) -> u64 {
    (INLINE_WORD + bytes.div_ceil(8)).div_ceil(SLOT_WORDS) as u64
}

const fn file_bytes(slots: u64) -> usize {
    8 * (SLOTS + SLOT_WORDS * slots as usize)
}

/// The work that the receiver is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Write {
        to: RegionKey,
        offset: u64,
        imm: Option<u32>,
    },
    Send {
        imm: Option<u32>,
    },
    /// The bytes are those of a share, to be taken as they are.
    Share {
        imm: Option<u32>,
    },
}

/// The source of the bytes for the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Inline,
    Region { key: RegionKey, offset: u64 },
}

/// One piece of work for the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    pub(super) kind: Kind,
    pub(super) from: Origin,
    pub(super) len: u64,
}

impl Descriptor {
    /// The number of slots that it takes.
    pub(super) fn slots(&self) -> u64 {
        match self.from {
            Origin::Inline => slots_for_inline(self.len as usize),
            Origin::Region { .. } => 1,
        }
    }
}

/// An error for contents of a ring that no correct peer writes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("its descriptor ring is corrupt: {0}")]
pub(super) struct Corrupt(&'static str);

#[derive(Debug)]
struct Ring {
    mapping: Mapping,
    slots: u64,
}

impl Ring {
    #[inline]
    fn word(&self, index: usize) -> &AtomicU64 {
        debug_assert!(8 * index < self.mapping.bytes());
        // SAFETY: indices are those of the header, or of slots below `slots`, for which `create` and `map_foreign` made
        // sure that the file is large enough. Both sides access the ring by atomics only.
        unsafe { AtomicU64::from_ptr(self.mapping.base().as_ptr().cast::<u64>().add(index)) }
    }

    /// Word `word` of the descriptor that begins at slot `at`; it may lie in a following slot.
    #[inline]
    fn slot_word(&self, at: u64, word: usize) -> &AtomicU64 {
        let slot = at.wrapping_add((word / SLOT_WORDS) as u64) & (self.slots - 1);
        self.word(SLOTS + SLOT_WORDS * slot as usize + word % SLOT_WORDS)
    }
}

/// The sender's end of a ring.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Ring,
    tail: u64,
    head: u64,
}

impl Sender {
    /// A ring for about `depth` outstanding descriptors, and the handle that lets the peer map it.
    pub(super) fn create(depth: usize) -> Result<(Sender, Handle), rustix::io::Errno> {
        // A deep queue of long inline bytes does not fit: the rest waits on the sender's side.
        let wanted = (depth as u64).saturating_mul(2).min(MAX_RING_SLOTS).next_power_of_two();
        let slots = wanted.clamp(2 * MAX_SLOTS.next_power_of_two(), MAX_RING_SLOTS);
        let (fd, mapping) = memory::create("squall-ring", file_bytes(slots), Access::ReadWrite)?;
        let sender = Sender { ring: Ring { mapping, slots }, tail: 0, head: 0 };
        Ok((sender, Handle::Plain(std::sync::Arc::new(fd))))
    }

    pub(super) fn slots(&self) -> u64 {
        self.ring.slots
    }

    /// The position up to which slots are filled.
    #[inline]
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    /// The position up to which the peer has consumed them; the effects of those descriptors are visible then.
    #[inline]
    pub(super) fn consumed(&mut self) -> u64 {
        let head = self.ring.word(HEAD).load(Ordering::Acquire);
        // A peer that stores anything else harms only itself.
        if (self.head..=self.tail).contains(&head) {
            self.head = head;
        }
        self.head
    }

    /// Whether the peer has carried out all that was pushed.
    #[inline]
    pub(super) fn is_idle(&mut self) -> bool {
        self.head == self.tail || self.consumed() == self.tail
    }

    #[inline]
    pub(super) fn has_room(&mut self, slots: u64) -> bool {
        self.ring.slots - (self.tail - self.head) >= slots || self.ring.slots - (self.tail - self.consumed()) >= slots
    }

    /// Whether the receiver takes nothing more.
    #[inline]
    pub(super) fn is_closed(&self) -> bool {
        self.ring.word(CLOSED).load(Ordering::Acquire) != 0
    }

    /// Whether the receiver had closed by the last read of its node's memory, which may have been used again since.
    #[inline]
    pub(super) fn is_closed_by_now(&self) -> bool {
        fence(Ordering::Acquire);
        self.is_closed()
    }

    /// Hands over a descriptor, and `inline` if its bytes come from there. The caller has made sure of the room.
    pub(super) fn push(&mut self, descriptor: &Descriptor, inline: &[u8]) {
        let slots = descriptor.slots();
        assert!(self.ring.slots - (self.tail - self.head) >= slots, "there was room for {slots} slots");
        let (kind, to, offset, imm) = match descriptor.kind {
            Kind::Write { to, offset, imm: None } => (1, to.0, offset, None),
            Kind::Write { to, offset, imm } => (2, to.0, offset, imm),
            Kind::Send { imm } => (3, 0, 0, imm),
            Kind::Share { imm } => (4, 0, 0, imm),
        };
        let flags = u8::from(descriptor.from == Origin::Inline) | u8::from(imm.is_some()) << 1;
        let imm = imm.unwrap_or(0).to_ne_bytes();
        let first = u64::from_ne_bytes([kind, flags, slots as u8, 0, imm[0], imm[1], imm[2], imm[3]]);
        for (index, word) in [first, descriptor.len, to, offset].into_iter().enumerate() {
            self.put(index, word);
        }
        match descriptor.from {
            Origin::Region { key, offset } => {
                self.put(INLINE_WORD, key.0);
                self.put(INLINE_WORD + 1, offset);
            }
            Origin::Inline => {
                debug_assert_eq!(descriptor.len as usize, inline.len());
                for (index, chunk) in inline.chunks(8).enumerate() {
                    let mut bytes = [0; 8];
                    bytes[..chunk.len()].copy_from_slice(chunk);
                    self.put(INLINE_WORD + index, u64::from_ne_bytes(bytes));
                }
            }
        }
        self.tail += slots;
        self.ring.word(0).store(self.tail, Ordering::Release);
    }

    /// Takes back the memory that descriptors name: from now on it may be written.
    pub(super) fn withdraw(&self) {
        self.ring.word(WITHDRAWN).store(1, Ordering::Relaxed);
        // A reader of memory that is written after this, and that looks then, sees the word.
        fence(Ordering::Release);
    }

    #[inline]
    fn put(&self, index: usize, word: u64) {
        self.ring.slot_word(self.tail, index).store(word, Ordering::Relaxed);
    }
}

/// The receiver's end of a ring.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Ring,
    head: u64,
    published: u64,
}

impl Receiver {
    /// Maps the ring of `slots` slots that a peer handed over.
    pub(super) fn map(fd: std::os::fd::BorrowedFd<'_>, slots: u64) -> Result<Receiver, ForeignError> {
        if !slots.is_power_of_two() || !(MAX_SLOTS..=MAX_RING_SLOTS).contains(&slots) {
            return Err(ForeignError::Size { announced: slots.saturating_mul(64), actual: 0 });
        }
        let mapping = memory::map_foreign(fd, file_bytes(slots) as u64, Access::ReadWrite)?;
        Ok(Receiver { ring: Ring { mapping, slots }, head: 0, published: 0 })
    }

    /// The next descriptor, if there is one. It is copied out before it is looked at, since its sender might change it.
    #[inline]
    pub(super) fn peek(&self) -> Result<Option<Descriptor>, Corrupt> {
        let tail = self.ring.word(0).load(Ordering::Acquire);
        if tail == self.head {
            return Ok(None);
        }
        let filled = tail.wrapping_sub(self.head);
        if filled > self.ring.slots {
            return Err(Corrupt("more slots are filled than it has"));
        }
        let get = |index| self.ring.slot_word(self.head, index).load(Ordering::Relaxed);
        let [kind, flags, slots, _, imm @ ..] = get(0).to_ne_bytes();
        let imm = (flags & 2 != 0).then(|| u32::from_ne_bytes(imm));
        let len = get(1);
        let kind = match (kind, imm) {
            (1, None) => Kind::Write { to: RegionKey(get(2)), offset: get(3), imm },
            (2, Some(_)) => Kind::Write { to: RegionKey(get(2)), offset: get(3), imm },
            (3, _) => Kind::Send { imm },
            (4, _) if flags & 1 == 0 => Kind::Share { imm },
            _ => return Err(Corrupt("a descriptor is of no known kind")),
        };
        let from = match flags & 1 {
            0 => Origin::Region { key: RegionKey(get(INLINE_WORD)), offset: get(INLINE_WORD + 1) },
            _ if len > INLINE_BYTES as u64 => return Err(Corrupt("a descriptor has too many inline bytes")),
            _ => Origin::Inline,
        };
        let descriptor = Descriptor { kind, from, len };
        if u64::from(slots) != descriptor.slots() || descriptor.slots() > filled {
            return Err(Corrupt("a descriptor takes another number of slots than it says"));
        }
        Ok(Some(descriptor))
    }

    /// The inline bytes of the next descriptor, in whole words.
    #[inline]
    pub(super) fn inline(&self, len: usize) -> [u64; INLINE_WORDS] {
        let mut words = [0; INLINE_WORDS];
        for (index, word) in words[..len.div_ceil(8)].iter_mut().enumerate() {
            *word = self.ring.slot_word(self.head, INLINE_WORD + index).load(Ordering::Relaxed);
        }
        words
    }

    /// Whether bytes that were copied by now from memory of the sender may differ from those that it handed over.
    #[inline]
    pub(super) fn is_withdrawn(&self) -> bool {
        fence(Ordering::Acquire);
        self.ring.word(WITHDRAWN).load(Ordering::Relaxed) != 0
    }

    /// Consumes the next descriptor, which was carried out.
    #[inline]
    pub(super) fn advance(&mut self, descriptor: &Descriptor) {
        self.head += descriptor.slots();
    }

    /// Tells the sender this side's position. Returns whether that is news.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let news = self.published != self.head;
        if news {
            self.ring.word(HEAD).store(self.head, Ordering::Release);
            self.published = self.head;
        }
        news
    }

    /// Tells the sender that nothing more is taken. Memory that it reads may be used again after this.
    pub(super) fn close(&self) {
        self.ring.word(CLOSED).store(1, Ordering::Release);
        fence(Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn pair(depth: usize) -> (Sender, Receiver) {
        let (sender, handle) = Sender::create(depth).unwrap();
        let receiver = Receiver::map(handle.as_fd(), sender.slots()).unwrap();
        (sender, receiver)
    }

    #[test]
    fn descriptors_of_all_lengths_come_out_as_they_went_in() {
        let (mut sender, mut receiver) = pair(1);
        let bytes: Vec<u8> = (0..=255).collect();
        for round in 0..40 {
            for len in [0, 1, 8, 31, 32, 33, 100, 255, 256] {
                let imm = (round % 2 == 0).then_some(len as u32);
                let kind = match round % 3 {
                    0 => Kind::Send { imm },
                    _ => Kind::Write { to: RegionKey(7), offset: round, imm },
                };
                let sent = Descriptor { kind, from: Origin::Inline, len: len as u64 };
                assert!(sender.has_room(sent.slots()));
                sender.push(&sent, &bytes[..len]);
                assert!(!sender.is_idle());
                assert_eq!(receiver.peek(), Ok(Some(sent)));
                let words = receiver.inline(len);
                let got: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).take(len).collect();
                assert_eq!(got, bytes[..len]);
                receiver.advance(&sent);
                assert!(receiver.publish());
                assert!(sender.is_idle());
            }
        }
    }

    #[test]
    fn a_full_ring_has_no_room_until_the_receiver_has_consumed() {
        let (mut sender, mut receiver) = pair(1);
        let one = Descriptor { kind: Kind::Send { imm: None }, from: Origin::Inline, len: 0 };
        for _ in 0..sender.slots() {
            assert!(sender.has_room(1));
            sender.push(&one, &[]);
        }
        assert!(!sender.has_room(1));
        assert_eq!(receiver.peek(), Ok(Some(one)));
        receiver.advance(&one);
        receiver.publish();
        assert!(sender.has_room(1));
        assert!(!sender.has_room(2));
    }

    #[test]
    fn any_content_of_a_ring_is_a_descriptor_or_an_error() {
        let mut rng = fastrand::Rng::with_seed(1);
        let (sender, receiver) = pair(1);
        for _ in 0..100_000 {
            for word in 0..8 {
                let value = if rng.bool() { rng.u64(..) } else { rng.u64(..0x0004_0404) };
                sender.ring.slot_word(0, word).store(value, Ordering::Relaxed);
            }
            sender.ring.word(0).store(if rng.bool() { rng.u64(..) } else { rng.u64(..20) }, Ordering::Relaxed);
            if let Ok(Some(descriptor)) = receiver.peek()
                && descriptor.from == Origin::Inline
            {
                receiver.inline(descriptor.len as usize);
            }
        }
    }

    #[test]
    fn a_ring_of_an_impossible_size_is_refused() {
        let (sender, handle) = Sender::create(4).unwrap();
        for slots in [0, 1, 3, sender.slots() + 1, sender.slots() * 64, 1 << 40] {
            assert!(Receiver::map(handle.as_fd(), slots).is_err(), "{slots}");
        }
    }
}
