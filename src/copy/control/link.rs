//! One conversation, for a thread that must not wait: another thread reads, and writes have a limit of time.

use std::{
    io::{BufReader, BufWriter, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    thread,
    time::Duration,
};

use crossbeam::channel::Sender;
use rkyv::{
    Archive, Deserialize, Serialize,
    api::high::{HighDeserializer, HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor,
    ser::allocator::ArenaHandle,
    util::AlignedVec,
};
use squall_fabric::Waker;

use super::{
    ToSource,
    frame::{self, FrameError},
};

/// A peer that reads nothing for so long is given up: its thread that reads never waits for anything else.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// What came from whom. `peer` is the caller's number for the conversation; an error is its end.
#[derive(Debug)]
pub(crate) struct Heard<T> {
    pub(crate) peer: usize,
    pub(crate) message: Result<T, FrameError>,
}

/// The writing half of a conversation. Dropping it ends both halves.
#[derive(Debug)]
pub(crate) struct Link {
    stream: BufWriter<UnixStream>,
}

impl Link {
    /// Greets, and starts a thread that reads messages of type `T` until the end, hands them on, and wakes who waits.
    pub(crate) fn start<T>(
        stream: UnixStream,
        peer: usize,
        heard: Sender<Heard<T>>,
        waker: Waker,
    ) -> Result<Link, FrameError>
    where
        T: Archive + Send + 'static,
        T::Archived:
            for<'a> CheckBytes<HighValidator<'a, rancor::Error>> + Deserialize<T, HighDeserializer<rancor::Error>>,
    {
        stream.set_write_timeout(Some(WRITE_LIMIT))?;
        let mut from = BufReader::new(stream.try_clone()?);
        let read = move || {
            let mut greeted = frame::expect_greeting(&mut from);
            loop {
                let message = std::mem::replace(&mut greeted, Ok(())).and_then(|()| frame::read(&mut from));
                let ended = message.is_err();
                if heard.send(Heard { peer, message }).is_err() {
                    return;
                }
                waker.wake();
                if ended {
                    return;
                }
            }
        };
        thread::Builder::new().name("squall-cp-link".to_owned()).spawn(read)?;
        let mut stream = BufWriter::new(stream);
        frame::greet(&mut stream)?;
        Ok(Link { stream })
    }

    /// Sends a message.
    pub(crate) fn send<T>(&mut self, message: &T) -> Result<(), FrameError>
    where
        T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>,
    {
        frame::write(&mut self.stream, message)?;
        Ok(self.stream.flush()?)
    }
}

/// Says one thing to somebody, and hangs up. A peer that does not listen is not waited for.
pub(crate) fn refuse(mut stream: UnixStream, message: &ToSource) {
    let said = stream
        .set_nonblocking(true)
        .map_err(FrameError::from)
        .and_then(|()| frame::greet(&mut stream))
        .and_then(|()| frame::write(&mut stream, message));
    if let Err(error) = said {
        tracing::debug!(%error, "a caller that was refused did not listen");
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The other half may be closed already.
        let _ = self.stream.get_ref().shutdown(Shutdown::Both);
    }
}
