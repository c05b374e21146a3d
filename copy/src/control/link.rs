//! One conversation, for a thread that must not wait: another thread reads, and writes have a time limit.

use std::{io::BufReader, thread, time::Duration};

use crossbeam::channel::Sender;
use serde::{Serialize, de::DeserializeOwned};
use squall_fabric::Waker;
use squall_services::{ControlStream, HangUp, StreamWriter};

use super::{
    ToSource,
    frame::{self, FrameError},
};

/// The time after which a peer that reads nothing is given up: a peer's reading thread never waits for anything else.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A message and its sender. `peer` is the caller's number for the conversation; an error is its end.
#[derive(Debug)]
pub(crate) struct Heard<T> {
    pub(crate) peer: usize,
    pub(crate) message: Result<T, FrameError>,
}

/// The writing half of a conversation. Dropping it ends both halves.
#[derive(Debug)]
pub(crate) struct ControlLink {
    to: StreamWriter,
    hang_up: HangUp,
}

impl ControlLink {
    /// Greets, and starts a reading thread. That thread hands on messages of type `T` until the end, and wakes the
    /// waiting thread.
    pub(crate) fn start<T: DeserializeOwned + Send + 'static>(
        stream: ControlStream,
        peer: usize,
        heard: Sender<Heard<T>>,
        waker: Waker,
    ) -> Result<ControlLink, FrameError> {
        let ControlStream { reader, writer, .. } = stream;
        writer.set_timeout(Some(WRITE_LIMIT))?;
        let mut link = ControlLink { hang_up: writer.hang_up(), to: writer };
        let mut from = BufReader::new(reader);
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
        frame::greet(&mut link.to)?;
        Ok(link)
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: &impl Serialize) -> Result<(), FrameError> {
        frame::write(&mut self.to, message)
    }
}

/// Sends one message, and hangs up.
pub(crate) fn refuse(mut stream: ControlStream, message: &ToSource) {
    let limited = stream.writer.set_timeout(Some(WRITE_LIMIT)).map_err(FrameError::from);
    let said = limited.and_then(|()| frame::greet(&mut stream.writer));
    if let Err(error) = said.and_then(|()| frame::write(&mut stream.writer, message)) {
        tracing::debug!(%error, "a caller that was refused did not listen");
    }
}

impl Drop for ControlLink {
    fn drop(&mut self) {
        self.hang_up.now();
    }
}
