//! One error type per operation family.

use crate::op::INLINE_BYTES;

/// The reason for which memory could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// A region has at least one byte; a polled region is a multiple of 8 bytes.
    #[error(
        "a region of {bytes} bytes can't be registered: a polled region is a positive multiple of 8 bytes, any other at least 1 byte"
    )]
    Size {
        /// The size that was asked for.
        bytes: usize,
    },
    /// Phantom regions move in the simulator only.
    #[error("this fabric has no phantom regions, which only the simulator moves: register a bulk region")]
    NoPhantoms,
    /// The system refused.
    #[error(
        "registering {bytes} bytes of memory failed: {cause}; free memory, or raise the limit that the cause names"
    )]
    System {
        /// The size that was asked for.
        bytes: usize,
        /// The system's message.
        cause: String,
    },
}

/// The reason for which work was not posted. Nothing of it takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue has as much outstanding work as its depth allows. [`Completion::Room`](crate::Completion::Room)
    /// follows.
    #[error("the endpoint's queue is full: post again after its Room completion")]
    Full,
    /// The endpoint broke, or was closed, or never existed.
    #[error("the endpoint is broken or closed")]
    Broken,
    /// The endpoint is not connected yet; only receives may be posted.
    #[error("the endpoint is not connected yet: only receives may be posted before its Connected completion")]
    NotConnected,
    /// A polled region, at either end, is accessed in whole aligned words.
    #[error("offset {offset} and length {len} must be multiples of 8 bytes in a polled region")]
    Misaligned {
        /// The offset, in bytes.
        offset: usize,
        /// The length, in bytes.
        len: usize,
    },
    /// The local slice lies outside its region.
    #[error("the local slice of {len} bytes at {offset} lies outside its region of {region_bytes} bytes")]
    LocalBounds {
        /// The offset, in bytes.
        offset: usize,
        /// The length, in bytes.
        len: usize,
        /// The region's size, in bytes.
        region_bytes: usize,
    },
    /// The token is one of the fabric's own.
    #[error("work can't be posted with the token {token:#x}: tokens from 2^63 up are the fabric's, take a lower one")]
    ReservedToken {
        /// The token that was given.
        token: u64,
    },
    /// Inline bytes beyond the limit.
    #[error("{len} bytes can't be posted inline: at most {INLINE_BYTES} can; put them into a region")]
    InlineTooLong {
        /// The length that was given, in bytes.
        len: usize,
    },
}
