//! Work that can be posted to an endpoint.

use crate::region::{Region, RegionKey};

/// The most bytes that [`Source::Inline`] takes on every backend. (A device whose own limit is lower gets a copy.)
pub const INLINE_BYTES: usize = 256;

/// A range of local registered memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Slice<'a> {
    /// The memory.
    pub region: &'a Region,
    /// The range's beginning, in bytes from the region's start.
    pub offset: usize,
    /// The range's length, in bytes.
    pub len: usize,
}

/// The origin of the bytes of a write or send.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Registered memory, fetched at any time until the local completion: it must not change until then, or the peer
    /// may get any mixture (of whole words, between polled regions).
    Region(Slice<'a>),
    /// Bytes, at most [`INLINE_BYTES`], captured by the post.
    Inline(&'a [u8]),
}

impl Source<'_> {
    /// The number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Source::Region(slice) => slice.len,
            Source::Inline(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A place in a region of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The key that came with [`Completion::Connected`](crate::Completion::Connected).
    pub region: RegionKey,
    /// The offset, in bytes from the region's start.
    pub offset: usize,
}

/// One piece of work.
///
/// In polled regions, at either end, offsets and lengths are whole words (multiples of 8 bytes): see
/// [`PostError::Misaligned`](crate::PostError::Misaligned).
#[derive(Clone, Copy, Debug)]
pub enum Op<'a> {
    /// Writes into the peer's memory, without the peer's doing.
    Write {
        /// The bytes.
        source: Source<'a>,
        /// The bytes' destination.
        target: Target,
    },
    /// Writes, then consumes a receive that the peer posted, and completes it with `imm` (no bytes go into its buffer).
    WriteWithImm {
        /// The bytes; may be none.
        source: Source<'a>,
        /// The bytes' destination.
        target: Target,
        /// The immediate of the peer's receive completion.
        imm: u32,
    },
    /// Writes, then stores a word that announces the bytes: a reader that sees the word sees them all.
    WriteThenWord {
        /// The bytes.
        source: Source<'a>,
        /// The bytes' destination.
        target: Target,
        /// The announcement, captured by the post.
        word: u64,
        /// The word's destination: an aligned place in a polled region. (In a region of another kind, it breaks the
        /// endpoint as a place does that the endpoint may not reach: G7.)
        word_target: Target,
    },
    /// Fetches from the peer's memory.
    Read {
        /// The bytes' origin.
        from: Target,
        /// The bytes' destination.
        into: Slice<'a>,
    },
    /// Sends a message into the receive that the peer posted first.
    Send {
        /// The bytes; at most the length of that receive.
        source: Source<'a>,
        /// The immediate of the peer's receive completion, if any.
        imm: Option<u32>,
    },
    /// Posts a buffer for one send or write with immediate of the peer. Buffers are used in the order of their posts.
    Recv {
        /// The buffer.
        into: Slice<'a>,
    },
}
