//! A replica's state on its way from one simulated node to another, one chunk after the other.
//!
//! Both ends are functions that run to their end: one writes out, one reads. Each has a thread of its own, which runs
//! only while the simulated cluster waits for it. So a run with the same seed does the same.

use std::{
    io::{self, ErrorKind, Read, Write},
    panic,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    capture::state::RestoreError,
    group::control::GroupControl,
    replica::snapshot::WriteOut,
    state_transfer::wire::{OfferKind, PreparedOffer},
};

/// The time after which a thread that has done nothing is taken to wait for something that does not come.
const STUCK: Duration = Duration::from_secs(60);

/// The message of a thread, each time that it stops.
enum FlowReport<T> {
    /// The thread goes on when it is told to. The bytes are what it hands over.
    Stopped(Vec<u8>),
    Ended(T),
}

/// A function on a thread of its own, which stops now and then. When this is dropped, the function ends with an error.
struct Stepped<T> {
    /// Lets the thread go on, with these bytes.
    go_on: Option<Sender<Vec<u8>>>,
    says: Receiver<FlowReport<T>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Stepped<T> {
    fn start(body: impl FnOnce(Pipe<T>) -> T + Send + 'static) -> io::Result<Stepped<T>> {
        let ((go_on, goes_on), (say, says)) = (channel(), channel());
        let thread = thread::Builder::new().name("sim-transfer".to_owned()).spawn(move || {
            let pipe = Pipe { goes_on, say: say.clone() };
            let ended = body(pipe);
            // Nothing listens if the function was given up.
            let _ = say.send(FlowReport::Ended(ended));
        })?;
        Ok(Stepped { go_on: Some(go_on), says, thread: Some(thread) })
    }

    fn go_on(&mut self, with: Vec<u8>) -> FlowReport<T> {
        if let Some(go_on) = &self.go_on {
            // On an error the thread has ended, and has said so.
            let _ = go_on.send(with);
        }
        self.listen()
    }

    fn listen(&mut self) -> FlowReport<T> {
        match self.says.recv_timeout(STUCK) {
            Ok(said) => said,
            Err(RecvTimeoutError::Timeout) => panic!("a transfer does nothing for {STUCK:?}"),
            Err(RecvTimeoutError::Disconnected) => match self.thread.take().map(JoinHandle::join) {
                Some(Err(panicked)) => panic::resume_unwind(panicked),
                _ => panic!("a transfer ended without a word"),
            },
        }
    }
}

impl<T> Drop for Stepped<T> {
    fn drop(&mut self) {
        self.go_on = None;
        if let Some(thread) = self.thread.take() {
            // A panic after the function was given up is not seen.
            let _ = thread.join();
        }
    }
}

/// The thread's side of a function that is stepped.
struct Pipe<T> {
    goes_on: Receiver<Vec<u8>>,
    say: Sender<FlowReport<T>>,
}

impl<T> Pipe<T> {
    fn stop(&self, with: Vec<u8>) -> io::Result<Vec<u8>> {
        let gone = || io::Error::new(ErrorKind::ConnectionReset, "the other node is gone");
        self.say.send(FlowReport::Stopped(with)).map_err(|_| gone())?;
        self.goes_on.recv().map_err(|_| gone())
    }
}

/// The divisor of a chunk's growth: each chunk is longer than the one before by an eighth. So the largest state comes
/// through in a hundred chunks.
const GROWS: usize = 8;

/// A writer that stops behind each chunk.
struct Writing {
    pipe: Pipe<io::Result<()>>,
    chunk: Vec<u8>,
    chunk_bytes: usize,
}

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = bytes.len().min(self.chunk_bytes - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..len]);
        if self.chunk.len() == self.chunk_bytes {
            self.pipe.stop(std::mem::take(&mut self.chunk))?;
            self.chunk_bytes += self.chunk_bytes / GROWS;
        }
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A reader that stops before each chunk. An empty chunk is the end.
struct Reading {
    pipe: Pipe<Result<(), RestoreError>>,
    chunk: Vec<u8>,
    at: usize,
    ended: bool,
}

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.chunk.len() && !self.ended && !buffer.is_empty() {
            (self.chunk, self.at) = (self.pipe.stop(Vec::new())?, 0);
            self.ended = self.chunk.is_empty();
        }
        let len = (&self.chunk[self.at..]).read(buffer)?;
        self.at += len;
        Ok(len)
    }
}

/// A transfer that has begun. When it is dropped, it breaks off.
pub(super) struct Flow {
    source: Stepped<io::Result<()>>,
    sink: Stepped<Result<(), RestoreError>>,
    /// Whether the source has written all.
    is_written: bool,
}

impl Flow {
    /// Begins a transfer from what a source has captured to a node's replica. The first chunk has `chunk_bytes` bytes.
    pub(super) fn begin(captured: PreparedOffer, to: Arc<dyn GroupControl>, chunk_bytes: usize) -> io::Result<Flow> {
        let PreparedOffer { offer, write, .. } = captured;
        let mut flow = Flow {
            source: Stepped::start(move |pipe| write_out(pipe, write, chunk_bytes))?,
            sink: Stepped::start(move |pipe| take(pipe, &*to, offer))?,
            is_written: false,
        };
        // Each stops at once, before it touches anything.
        flow.source.listen();
        flow.sink.listen();
        Ok(flow)
    }

    /// Moves the next chunk. Returns None until the transfer is over, then its result: None within if the source can't
    /// write the state out.
    pub(super) fn step(&mut self) -> Option<Option<Result<(), RestoreError>>> {
        let chunk = match self.is_written {
            true => Vec::new(),
            false => match self.source.go_on(Vec::new()) {
                FlowReport::Stopped(chunk) => chunk,
                FlowReport::Ended(Ok(())) => {
                    self.is_written = true;
                    return None;
                }
                FlowReport::Ended(Err(_)) => return Some(None),
            },
        };
        match self.sink.go_on(chunk) {
            FlowReport::Stopped(_) => None,
            FlowReport::Ended(restored) => Some(Some(restored)),
        }
    }
}

fn write_out(pipe: Pipe<io::Result<()>>, write: WriteOut, chunk_bytes: usize) -> io::Result<()> {
    pipe.stop(Vec::new())?;
    let mut writing = Writing { pipe, chunk: Vec::new(), chunk_bytes };
    write(&mut writing)?;
    match writing.chunk.is_empty() {
        true => Ok(()),
        false => writing.pipe.stop(writing.chunk).map(drop),
    }
}

fn take(pipe: Pipe<Result<(), RestoreError>>, to: &dyn GroupControl, offer: OfferKind) -> Result<(), RestoreError> {
    let first = pipe.stop(Vec::new())?;
    let ended = first.is_empty();
    to.restore(offer, &mut Reading { pipe, chunk: first, at: 0, ended })
}
