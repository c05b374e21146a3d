//! The greeting, and the [frames](squall_services::frame) behind it.

use std::io::{self, Read, Write};

use serde::{Serialize, de::DeserializeOwned};
use squall_services::frame;

use super::super::manifest::MANIFEST_BYTES;

/// The version of the messages.
const VERSION: u32 = 6;

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
    NotCopy,
    #[error("the other side speaks version {0} of the protocol, this one {VERSION}: run the same version at both ends")]
    Version(u32),
    #[error("a message of {0} bytes is longer than {FRAME_BYTES}, the limit: copy fewer files at once")]
    TooLong(usize),
    #[error("a message is malformed: {0}")]
    Malformed(String),
}

impl From<frame::FrameError> for FrameError {
    fn from(error: frame::FrameError) -> FrameError {
        match error {
            frame::FrameError::Closed => FrameError::Closed,
            frame::FrameError::System(cause) => FrameError::System(cause),
            frame::FrameError::TooLong { bytes, .. } => FrameError::TooLong(bytes),
            frame::FrameError::Malformed(why) => FrameError::Malformed(why),
        }
    }
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
    frame::read_exact(from, &mut magic)?;
    if magic != MAGIC {
        return Err(FrameError::NotCopy);
    }
    frame::read_exact(from, &mut version)?;
    match u32::from_le_bytes(version) {
        VERSION => Ok(()),
        other => Err(FrameError::Version(other)),
    }
}

/// Sends a message.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    Ok(frame::write(to, message, FRAME_BYTES)?)
}

/// Receives a message.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, FrameError> {
    Ok(frame::read(from, FRAME_BYTES)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::{
            super::{
                extent::PlanPart,
                manifest::{RawEntry, tests::directory},
                plan::Holding,
                sink::{Outcome, Verdict},
            },
            Address, HandedFile, MAX_FILES, MAX_VERDICTS, Over, ToReceiver, ToSource,
        },
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
        for version in [1, VERSION - 1, VERSION + 1] {
            let told = greeting(&[&b"squallcp"[..], &version.to_le_bytes()].concat());
            assert!(told.contains(&format!("version {version} of")), "{told}");
            assert!(told.contains("run the same version at both ends"), "{told}");
        }
    }

    #[test]
    fn a_length_beyond_the_limit_is_refused_before_anything_is_read() {
        let bytes = u32::MAX.to_le_bytes();
        assert!(matches!(read::<ToReceiver>(&mut &bytes[..]), Err(FrameError::TooLong(_))));
    }

    #[test]
    fn an_entry_without_a_name_is_not_much_larger_in_memory_than_in_a_frame() {
        let mut bytes = Vec::new();
        write(&mut bytes, &directory("")).unwrap();
        assert!(size_of::<RawEntry>() <= 8 * (bytes.len() - 4), "{} bytes", bytes.len());
    }

    #[test]
    fn sequences_whose_elements_grow_in_memory_have_a_limit() {
        fn is_read<T: Serialize + DeserializeOwned>(message: &T) -> bool {
            let mut bytes = Vec::new();
            write(&mut bytes, message).unwrap();
            let read = read::<T>(&mut &bytes[..]);
            assert!(matches!(read, Ok(_) | Err(FrameError::Malformed(_))));
            read.is_ok()
        }
        let verdicts = |count| ToReceiver::Verdicts(vec![(0, Verdict::Damaged(String::new())); count]);
        let receivers = |count| {
            let receivers = vec![Address { node: 0, at: String::new() }; count];
            ToReceiver::Plan { receivers, parts: Vec::new() }
        };
        let part = PlanPart { receivers: Vec::new(), extents: Vec::new() };
        let parts = |count| ToReceiver::Plan { receivers: Vec::new(), parts: vec![part.clone(); count] };
        let failed = |count| Outcome { failed: vec![String::new(); count], ..Outcome::default() };
        let files = |count| ToReceiver::Files(vec![HandedFile { entry: 0, verdict: None }; count]);
        assert_eq!([MAX_FILES, MAX_FILES + 1].map(|count| is_read(&files(count))), [true, false]);
        assert_eq!([MAX_VERDICTS, MAX_VERDICTS + 1].map(|count| is_read(&verdicts(count))), [true, false]);
        let holding = |count| {
            let holding = Holding { partial: vec![0; count], ..Holding::default() };
            ToSource::Over(Over { instance: 0, holding, failure: None })
        };
        assert_eq!([64, 65].map(|count| is_read(&parts(count))), [true, false]);
        assert_eq!([1 << 16, (1 << 16) + 1].map(|count| is_read(&receivers(count))), [true, false]);
        assert_eq!([1 << 16, (1 << 16) + 1].map(|count| is_read(&holding(count))), [true, false]);
        assert_eq!([100, 101].map(|count| is_read(&failed(count))), [true, false]);
    }

    proptest! {
        #[test]
        fn garbled_messages_are_errors_not_panics(
            at in any::<proptest::sample::Index>(), with in any::<u8>(), cut in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            let holding = Holding { segments: 7, partial: vec![8, 9] };
            write(&mut bytes, &ToSource::Over(Over { instance: 3, holding, failure: None })).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = with;
            bytes.truncate(4.max(cut.index(2 * bytes.len()).min(bytes.len())));
            let _ = read::<ToSource>(&mut &bytes[..]);
            let _ = read::<ToReceiver>(&mut &bytes[..]);
        }
    }
}
