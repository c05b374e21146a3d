//! Commands as bytes, in memory that each thread uses again.

use std::cell::Cell;

use rkyv::{api::high::to_bytes_in, rancor, util::AlignedVec};
use squall_ordered::log::Hlc;

use crate::{error::SubmitError, replicated::Command, session::Trailer};

/// A thread keeps a buffer of at most this many bytes between messages.
const KEPT_BYTES: usize = 1 << 20;

thread_local! {
    static BUFFER: Cell<AlignedVec> = Cell::default();
}

/// A message's bytes. Its memory goes back to the thread that drops it.
#[derive(Debug)]
pub(crate) struct Encoded(AlignedVec);

impl Encoded {
    pub(crate) fn command(command: &impl Command) -> Result<Encoded, SubmitError> {
        let encoded = to_bytes_in::<_, rancor::Error>(command, buffer());
        encoded.map(Encoded).map_err(|error| SubmitError::Serialize(error.to_string()))
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Encoded {
        let mut buffer = buffer();
        buffer.extend_from_slice(bytes);
        Encoded(buffer)
    }

    /// With a trailer behind it.
    pub(crate) fn with_trailer(mut self, trailer: &Trailer) -> Encoded {
        let (bytes, len) = trailer.bytes();
        self.0.extend_from_slice(&bytes[..len]);
        self
    }

    /// With the time at which it was submitted behind it.
    pub(crate) fn with_time(mut self, time: Hlc) -> Encoded {
        self.0.extend_from_slice(&time.0.to_le_bytes());
        self
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// Parts a message of a durable group into what its log keeps and the time at which it was submitted.
pub(crate) fn split_time(message: &[u8]) -> (&[u8], Hlc) {
    match message.split_last_chunk() {
        // A faulty sender's clock shall leave room for the times of those behind it.
        Some((kept, time)) => (kept, Hlc(u64::from_le_bytes(*time).min(LATEST))),
        None => (message, Hlc(0)),
    }
}

/// What a message of a durable group has behind what its log keeps.
pub(crate) const TIME_BYTES: usize = size_of::<u64>();

/// In the year 2262.
const LATEST: u64 = u64::MAX / 2;

impl Drop for Encoded {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        if buffer.capacity() <= KEPT_BYTES {
            // A thread that is ending has no more use for it.
            let _ = BUFFER.try_with(|kept| kept.set(buffer));
        }
    }
}

fn buffer() -> AlignedVec {
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    buffer.clear();
    buffer
}
