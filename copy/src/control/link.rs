//! One conversation, for a thread that must not wait: another thread reads, and writes have a time limit.

use std::{
    fs::File,
    io::{BufReader, Write},
    os::fd::AsFd,
    thread,
    time::Duration,
};

use crossbeam::channel::Sender;
use serde::{Serialize, de::DeserializeOwned};
use squall_fabric::Waker;
use squall_services::{ControlStream, DescriptorReader, HangUp, StreamWriter};

use super::{
    ToSource,
    frame::{self, FrameError},
    message::Message,
};

/// The time after which a peer that reads nothing is given up: a peer's reading thread never waits for anything else.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// A message and its sender. `peer` is the caller's number for the conversation; an error is its end.
#[derive(Debug)]
pub(crate) struct Heard<T> {
    pub(crate) peer: usize,
    pub(crate) message: Result<T, FrameError>,
    /// The open files that came along.
    pub(crate) files: Vec<File>,
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
    pub(crate) fn start<T: DeserializeOwned + Message + Send + 'static>(
        stream: ControlStream,
        peer: usize,
        heard: Sender<Heard<T>>,
        waker: Waker,
    ) -> Result<ControlLink, FrameError> {
        let ControlStream { reader, writer, .. } = stream;
        writer.set_timeout(Some(WRITE_LIMIT))?;
        let mut link = ControlLink { hang_up: writer.hang_up(), to: writer };
        let mut from = BufReader::new(DescriptorReader::new(reader));
        let read = move || {
            let mut greeted = frame::expect_greeting(&mut from);
            loop {
                let read = std::mem::replace(&mut greeted, Ok(())).and_then(|()| read_message(&mut from));
                let ended = read.is_err();
                let (message, files) =
                    read.map_or_else(|error| (Err(error), Vec::new()), |(read, files)| (Ok(read), files));
                if heard.send(Heard { peer, message, files }).is_err() {
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

    /// Sends a message, and open files along with it.
    pub(crate) fn send_files(&mut self, message: &impl Serialize, files: &[File]) -> Result<(), FrameError> {
        let mut bytes = Vec::new();
        frame::write(&mut bytes, message)?;
        let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let sent = self.to.write_with(&bytes, &descriptors)?;
        Ok(self.to.write_all(&bytes[sent..])?)
    }
}

/// Receives a message, with the open files that came along.
fn read_message<T: DeserializeOwned + Message>(
    from: &mut BufReader<DescriptorReader>,
) -> Result<(T, Vec<File>), FrameError> {
    let message: T = frame::read(from)?;
    let lost = || FrameError::Malformed("open files that it announces did not come along".to_owned());
    let files = from.get_mut().take(message.files()).ok_or_else(lost)?;
    Ok((message, files.into_iter().map(File::from).collect()))
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
