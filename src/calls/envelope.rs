//! Commands as bytes, in memory that each thread uses again.

use std::cell::Cell;

use rkyv::{api::high::to_bytes_in, rancor, util::AlignedVec};

use crate::{
    calls::{error::SubmitError, session::Trailer},
    replica::command::Command,
};

/// The largest buffer that a thread keeps between messages, in bytes.
const KEPT_BYTES: usize = 1 << 20;

thread_local! {
    static BUFFER: Cell<AlignedVec> = Cell::default();
}

/// A message's bytes. Its memory goes back to the thread that drops it.
#[derive(Debug)]
pub(crate) struct Envelope(AlignedVec);

impl Envelope {
    pub(crate) fn command(command: &impl Command) -> Result<Envelope, SubmitError> {
        let encoded = to_bytes_in::<_, rancor::Error>(command, buffer());
        encoded.map(Envelope).map_err(|error| SubmitError::Serialize(error.to_string()))
    }

    pub(crate) fn bytes(bytes: &[u8]) -> Envelope {
        let mut buffer = buffer();
        buffer.extend_from_slice(bytes);
        Envelope(buffer)
    }

    pub(crate) fn with_trailer(mut self, trailer: &Trailer) -> Envelope {
        let (bytes, len) = trailer.bytes();
        self.0.extend_from_slice(&bytes[..len]);
        self
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Envelope {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.0);
        if buffer.capacity() <= KEPT_BYTES {
            // A thread that is ending has no more use for the buffer.
            let _ = BUFFER.try_with(|kept| kept.set(buffer));
        }
    }
}

fn buffer() -> AlignedVec {
    let mut buffer = BUFFER.try_with(Cell::take).unwrap_or_default();
    buffer.clear();
    buffer
}
