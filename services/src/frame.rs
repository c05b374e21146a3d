//! Frames on a stream: a length, then as many bytes. A typed frame holds a value that serde has written in postcard's
//! format.
//!
//! ```text
//! ┌────────┬──────────────┬────────┬───
//! │ length │    bytes     │ length │ …
//! └────────┴──────────────┴────────┴───
//!   u32 LE   `length` long
//! ```
//!
//! Memory is allocated as bytes arrive, not by the announced length.

use std::{
    fmt,
    io::{self, Read, Write},
    marker::PhantomData,
};

/// Integers of fixed length, for use with serde's `with`: a value of which many fit into a frame then takes about as
/// many bytes there as in memory.
pub use postcard::fixint::le as fixed;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, Error, SeqAccess, Visitor},
};

/// A reason for which a conversation can't continue.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// The other side has ended the stream.
    #[error("the stream is closed")]
    Closed,
    /// The stream failed, or nothing came for too long.
    #[error("the stream failed: {0}")]
    System(#[from] io::Error),
    /// The frame is longer than any that is permitted here.
    #[error("a frame of {bytes} bytes is longer than {limit}, the limit")]
    TooLong {
        /// The frame's length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The frame is no valid message.
    #[error("a frame is malformed: {0}")]
    Malformed(String),
}

impl FrameError {
    /// Tells whether nothing came within the stream's time limit.
    pub fn is_late(&self) -> bool {
        matches!(self, FrameError::System(cause) if is_late(cause))
    }
}

/// Tells whether a stream's time limit has passed.
pub(super) fn is_late(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Appends a frame of bytes.
pub fn append(to: &mut Vec<u8>, bytes: &[u8]) {
    let len = u32::try_from(bytes.len()).expect("messages are far below 4 GiB");
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(bytes);
}

/// Reads as many bytes as there is room for, outside any frame. Fails with [`FrameError::Closed`] if the stream ends
/// before.
pub fn read_exact(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), FrameError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => FrameError::Closed,
        _ => error.into(),
    })
}

/// Reads a frame of bytes. Fails if the frame is longer than `limit` bytes, or if the stream ends within it.
pub fn read_bytes(from: &mut impl Read, limit: usize) -> Result<Vec<u8>, FrameError> {
    let mut len = [0; 4];
    read_exact(from, &mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > limit {
        return Err(FrameError::TooLong { bytes: len, limit });
    }
    let mut bytes = Vec::new();
    from.take(len as u64).read_to_end(&mut bytes)?;
    if bytes.len() < len {
        return Err(FrameError::Closed);
    }
    Ok(bytes)
}

/// Sends a value. Fails if the frame is longer than `limit` bytes, or if the stream fails.
pub fn write<T: Serialize>(to: &mut impl Write, value: &T, limit: usize) -> Result<(), FrameError> {
    let frame = postcard::to_extend(value, vec![0; 4]);
    let mut frame = frame.map_err(|error| FrameError::Malformed(error.to_string()))?;
    let bytes = frame.len() - 4;
    let len = u32::try_from(bytes).ok().filter(|_| bytes <= limit).ok_or(FrameError::TooLong { bytes, limit })?;
    frame[..4].copy_from_slice(&len.to_le_bytes());
    Ok(to.write_all(&frame)?)
}

/// Receives a value: a whole frame, of which no byte may be left over. Fails as [`read_bytes`] does, and if the frame
/// holds no such value.
pub fn read<T: DeserializeOwned>(from: &mut impl Read, limit: usize) -> Result<T, FrameError> {
    let bytes = read_bytes(from, limit)?;
    match postcard::take_from_bytes(&bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(FrameError::Malformed(format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(FrameError::Malformed(error.to_string())),
    }
}

/// Deserializes a sequence of at most `N` elements, for use with serde's `deserialize_with`: elements that are empty
/// take a byte or two in a frame, and far more in memory.
pub fn at_most<'de, const N: usize, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    struct Elements<const N: usize, T>(PhantomData<T>);

    impl<'de, const N: usize, T: Deserialize<'de>> Visitor<'de> for Elements<N, T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {N} elements")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vec<T>, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = from.next_element()? {
                if elements.len() == N {
                    return Err(A::Error::invalid_length(N + 1, &self));
                }
                elements.push(element);
            }
            Ok(elements)
        }
    }

    from.deserialize_seq(Elements::<N, T>(PhantomData))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Value = (u32, String, Option<Vec<u64>>);

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        let value: Value = (7, "seven".into(), Some(vec![1, 2]));
        write(&mut bytes, &value, 100).unwrap();
        let mut from = &bytes[..];
        assert_eq!(read::<Value>(&mut from, 100).unwrap(), value);
        assert!(matches!(read::<Value>(&mut from, 100), Err(FrameError::Closed)));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        assert!(matches!(read_bytes(&mut &u32::MAX.to_le_bytes()[..], 1 << 20), Err(FrameError::TooLong { .. })));
        assert!(matches!(write(&mut Vec::new(), &"x".repeat(100), 10), Err(FrameError::TooLong { .. })));
    }

    #[test]
    fn what_is_cut_is_closed() {
        let mut bytes = Vec::new();
        append(&mut bytes, b"whole");
        for end in 0..bytes.len() {
            assert!(matches!(read_bytes(&mut &bytes[..end], 100), Err(FrameError::Closed)), "after {end} bytes");
        }
    }

    proptest! {
        #[test]
        fn garbled_values_are_errors_not_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut frame = Vec::new();
            append(&mut frame, &bytes);
            let _ = read::<Value>(&mut &frame[..], 100);
            let _ = read::<Value>(&mut &bytes[..], 100);
        }
    }
}
