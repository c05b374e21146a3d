//! Frames on a byte stream: a length, then as many bytes.

use std::io::{self, Read, Write};

use rkyv::{
    Archive, Deserialize, Serialize,
    api::high::{HighDeserializer, HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor,
    ser::allocator::ArenaHandle,
    util::AlignedVec,
};

use super::super::manifest::MANIFEST_BYTES;

/// The version of the messages.
const VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"squallcp";

/// The longest frame, in bytes: a manifest, and what goes with it.
pub(crate) const FRAME_BYTES: usize = MANIFEST_BYTES + (1 << 20);

/// A reason for which a conversation can't continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("the connection is closed")]
    Closed,
    #[error("the connection failed: {0}")]
    System(#[from] io::Error),
    #[error("the other side is no squall cp")]
    Stranger,
    #[error("the other side speaks version {0} of the protocol, this one {VERSION}: run the same version at both ends")]
    Version(u32),
    #[error("a message of {0} bytes is longer than {FRAME_BYTES}, the limit: copy fewer files at once")]
    TooLong(usize),
    #[error("a message is malformed: {0}")]
    Malformed(String),
}

/// Sends this side's greeting.
pub(crate) fn greet(to: &mut impl Write) -> Result<(), FrameError> {
    let mut greeting = MAGIC.to_vec();
    greeting.extend_from_slice(&VERSION.to_le_bytes());
    Ok(to.write_all(&greeting)?)
}

/// Checks the other side's greeting.
pub(crate) fn expect_greeting(from: &mut impl Read) -> Result<(), FrameError> {
    let (mut magic, mut version) = ([0; 8], [0; 4]);
    exactly(from, &mut magic)?;
    if magic != MAGIC {
        return Err(FrameError::Stranger);
    }
    exactly(from, &mut version)?;
    match u32::from_le_bytes(version) {
        VERSION => Ok(()),
        other => Err(FrameError::Version(other)),
    }
}

/// Sends a message.
pub(crate) fn write<T>(to: &mut impl Write, message: &T) -> Result<(), FrameError>
where
    T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>,
{
    let bytes = rkyv::to_bytes(message).map_err(|error: rancor::Error| FrameError::Malformed(error.to_string()))?;
    let len = u32::try_from(bytes.len()).ok().filter(|_| bytes.len() <= FRAME_BYTES);
    let len = len.ok_or(FrameError::TooLong(bytes.len()))?;
    to.write_all(&len.to_le_bytes())?;
    Ok(to.write_all(&bytes)?)
}

/// Receives a message, which is validated.
pub(crate) fn read<T>(from: &mut impl Read) -> Result<T, FrameError>
where
    T: Archive,
    T::Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>> + Deserialize<T, HighDeserializer<rancor::Error>>,
{
    let mut len = [0; 4];
    exactly(from, &mut len)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_BYTES {
        return Err(FrameError::TooLong(len));
    }
    let mut bytes: AlignedVec = AlignedVec::new();
    bytes.extend_from_reader(&mut from.take(len as u64))?;
    if bytes.len() < len {
        return Err(FrameError::Closed);
    }
    rkyv::from_bytes::<T, rancor::Error>(&bytes).map_err(|error| FrameError::Malformed(error.to_string()))
}

fn exactly(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), FrameError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => FrameError::Closed,
        _ => error.into(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{Holding, ToReceiver, ToSource},
        *,
    };

    #[test]
    fn what_is_written_is_read() {
        let mut bytes = Vec::new();
        greet(&mut bytes).unwrap();
        write(&mut bytes, &ToReceiver::Finish).unwrap();
        write(&mut bytes, &ToSource::Refused("busy".to_owned())).unwrap();
        let mut from = &bytes[..];
        expect_greeting(&mut from).unwrap();
        assert_eq!(read::<ToReceiver>(&mut from).unwrap(), ToReceiver::Finish);
        assert_eq!(read::<ToSource>(&mut from).unwrap(), ToSource::Refused("busy".to_owned()));
        assert!(matches!(read::<ToSource>(&mut from), Err(FrameError::Closed)));
    }

    #[test]
    fn strangers_and_other_versions_are_told_apart() {
        let greeting = |bytes: &[u8]| expect_greeting(&mut &bytes[..]).unwrap_err().to_string();
        assert!(greeting(b"GET / HTTP/1.1\r\n").contains("no squall cp"));
        assert!(greeting(b"squallcp\x03\0\0\0").contains("version 3"));
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(matches!(read::<ToReceiver>(&mut &bytes[..]), Err(FrameError::TooLong(_))));
    }

    proptest! {
        #[test]
        fn garbled_messages_are_errors_not_panics(
            at in any::<proptest::sample::Index>(), with in any::<u8>(), cut in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            let holding = Holding { segments: 7, partial: vec![8, 9], first_open: 3 };
            write(&mut bytes, &ToSource::Ready(holding)).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = with;
            bytes.truncate(4.max(cut.index(2 * bytes.len()).min(bytes.len())));
            let _ = read::<ToSource>(&mut &bytes[..]);
            let _ = read::<ToReceiver>(&mut &bytes[..]);
        }
    }
}
