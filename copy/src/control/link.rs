//! One conversation, for a thread that must not wait: another thread reads, and writes have a time limit.

use std::{
    fmt,
    io::{BufReader, BufWriter, Write},
    thread,
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
    stream::Stream,
};
use squall_services::StreamWriter;

/// A message and its sender. `peer` is the caller's number for the conversation; an error is its end.
#[derive(Debug)]
pub(crate) struct Heard<T> {
    pub(crate) peer: usize,
    pub(crate) message: Result<T, FrameError>,
}

/// The writing half of a conversation. Dropping it ends both halves.
pub(crate) struct ControlLink {
    to: BufWriter<StreamWriter>,
}

impl ControlLink {
    /// Greets, and starts a reading thread. That thread hands on messages of type `T` until the end, and wakes the
    /// waiting thread.
    pub(crate) fn start<T>(
        stream: Stream,
        peer: usize,
        heard: Sender<Heard<T>>,
        waker: Waker,
    ) -> Result<ControlLink, FrameError>
    where
        T: Archive + Send + 'static,
        T::Archived:
            for<'a> CheckBytes<HighValidator<'a, rancor::Error>> + Deserialize<T, HighDeserializer<rancor::Error>>,
    {
        let Stream { from, to } = stream;
        let mut from = BufReader::new(from);
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
        let mut to = BufWriter::new(to);
        frame::greet(&mut to)?;
        Ok(ControlLink { to })
    }

    /// Sends a message.
    pub(crate) fn send<T>(&mut self, message: &T) -> Result<(), FrameError>
    where
        T: for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>,
    {
        frame::write(&mut self.to, message)?;
        Ok(self.to.flush()?)
    }
}

/// Sends one message, and hangs up.
pub(crate) fn refuse(stream: Stream, message: &ToSource) {
    let mut to = BufWriter::new(stream.to);
    let said = frame::greet(&mut to).and_then(|()| frame::write(&mut to, message)).and_then(|()| Ok(to.flush()?));
    if let Err(error) = said {
        tracing::debug!(%error, "a caller that was refused did not listen");
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        self.to.get_ref().hang_up_now();
    }
}

impl fmt::Debug for ControlLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ControlLink")
    }
}
