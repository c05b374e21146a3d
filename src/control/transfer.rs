//! A shard's state, from a member that holds it to one that joins.
//!
//! ```text
//!  joins                                   source
//!   Ask { shard, want } ───────────────▶   captures the state between two messages
//!   ◀────────── Begun { gift, bytes }      (or Refused, and why)
//!   ◀──────────────────── chunk, chunk …   as the application writes it out, or from the log
//!   ◀─────────────────────── empty chunk   the end; or one of length u32::MAX: given up
//!
//!  0        4                 36
//! ┌────────┬─────────────────┬──────────────┐
//! │ length │     digest      │    bytes     │   a chunk: u32 LE, at most CHUNK_BYTES
//! └────────┴─────────────────┴──────────────┘
//! ```
//!
//! The digest is the BLAKE3 of all bytes so far, those of the chunk included: a chunk that is damaged, missing or out of its
//! place is found before any of its bytes is used, and the last digest is that of the whole. Both sides hold one chunk.
//!
//! States of two sources are alike but for their places in the order, and their bytes need not be: who loses a source begins
//! anew with another.
//!
//! In a durable group who joins says what its log has, and gets what is behind that, if the source has it and it is not much more
//! than a state; or only certain records, in place of damaged ones.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use squall_membership::{ClusterId, End, Epoch, Seq, ShardId};
use squall_ordered::log;

use super::{
    Caller, Contact, ControlError, ControlStream, HangUp, Service, StreamReader, StreamWriter,
    frame::{self, FrameError},
};

/// How many bytes of state go at once.
const CHUNK_BYTES: usize = 256 << 10;

/// In place of a chunk's length: the source gives up.
const GIVEN_UP: u32 = u32::MAX;

/// How long a source may take to answer a call.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// How long a source may take to capture the state, or to write the next chunk; and who fetches, to take one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest question and answer, in bytes.
const WORDS: usize = 4 << 10;

/// What who joins asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ask {
    /// Whose state.
    pub(crate) shard: ShardId,
    /// What of it.
    pub(crate) want: Want,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Want {
    /// The state as of some place in the order of this epoch; or, if that is less, what takes a log there that ends at `have`.
    State { epoch: Epoch, have: Option<LogEnd> },
    /// The log's records that take it from one place to another.
    Records { from: End, to: End },
}

/// Where a log ends, and the life of the group that its last view is of: places of two lives have nothing in common from where
/// an operator forced the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogEnd {
    /// The life. That of an empty log is 0.
    pub(crate) life: ClusterId,
    /// The place.
    pub(crate) end: End,
}

impl LogEnd {
    pub(crate) fn new(life: ClusterId, end: log::End) -> LogEnd {
        let log::Position { epoch, seq } = end.position;
        LogEnd { life, end: End { epoch, seq } }
    }
}

/// What a source gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Gift {
    /// A state of this epoch. It has what the first `seq` places of the epoch's order did, and no more. `chain` is what a log goes on
    /// with that is begun behind it, if it is signed.
    State { epoch: Epoch, seq: Seq, chain: Option<[u8; 32]> },
    /// Records behind this place of the log that was asked for.
    Suffix(Cut),
    /// The records that were asked for.
    Records,
}

/// Where two logs part, and how to know that they are alike before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cut {
    /// What lies behind it in the shorter log is void.
    pub(crate) at: End,
    /// The last message's number there.
    pub(crate) version: u64,
    /// The last record's time there, in nanoseconds.
    pub(crate) time: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Begun { gift: Gift, bytes: Option<u64> },
    Refused(String),
}

/// Writes a state out, on the stream's thread.
pub(crate) type WriteOut = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// What a source has ready.
pub(crate) struct Captured {
    /// What it is.
    pub(crate) gift: Gift,
    /// How long it will be, if that is known.
    pub(crate) bytes: Option<u64>,
    /// Writes it out.
    pub(crate) write: WriteOut,
}

/// Where a source's states come from. Asked on the stream's thread, which may wait for some seconds.
pub(crate) trait StateSource: Send + Sync {
    /// Captures the state, or says why not, in a sentence: this node does not hold it, or is not in that epoch.
    fn capture(&self, ask: Ask) -> Result<Captured, String>;
}

/// Why a state was not received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum TransferError {
    #[error(transparent)]
    Dial(#[from] ControlError),
    #[error("the source does not give its state: {0}")]
    Refused(String),
    #[error("the source gave up after {after} bytes: {why}")]
    GivenUp { after: u64, why: String },
    #[error("the transfer was cut after {after} bytes: {cause}")]
    Cut { after: u64, cause: FrameError },
    #[error("what came after {after} bytes is damaged: its digest is another")]
    Damaged { after: u64 },
}

/// Answers a call of [`Service::State`].
pub(crate) fn serve(stream: ControlStream, source: &dyn StateSource) {
    let node = stream.peer;
    if let Err(error) = give(stream, source) {
        tracing::warn!(%node, %error, "a node that joins did not get a state");
    }
}

fn give(stream: ControlStream, source: &dyn StateSource) -> Result<(), FrameError> {
    stream.set_timeout(Some(PATIENCE))?;
    let ControlStream { mut reader, mut writer, .. } = stream;
    let captured = match source.capture(frame::read(&mut reader, WORDS)?) {
        Ok(captured) => captured,
        Err(why) => return frame::write(&mut writer, &Answer::Refused(cut_short(why)), WORDS),
    };
    let Captured { gift, bytes, write } = captured;
    frame::write(&mut writer, &Answer::Begun { gift, bytes }, WORDS)?;
    let mut chunks = ChunkWriter { to: writer, hasher: blake3::Hasher::new(), chunk: Vec::new(), failed: false };
    match write(&mut chunks).and_then(|()| chunks.end()) {
        Err(error) if !chunks.failed => {
            // The application's failure: the stream stands, and who waits shall know.
            chunks.to.write_all(&GIVEN_UP.to_le_bytes())?;
            frame::write(&mut chunks.to, &cut_short(error.to_string()), WORDS)?;
            Err(error.into())
        }
        result => Ok(result?),
    }
}

fn cut_short(mut sentence: String) -> String {
    sentence.truncate(sentence.floor_char_boundary(WORDS / 2));
    sentence
}

struct ChunkWriter {
    to: StreamWriter,
    hasher: blake3::Hasher,
    chunk: Vec<u8>,
    /// The stream has.
    failed: bool,
}

impl ChunkWriter {
    fn send(&mut self) -> io::Result<()> {
        self.hasher.update(&self.chunk);
        let mut head = (self.chunk.len() as u32).to_le_bytes().to_vec();
        head.extend_from_slice(self.hasher.finalize().as_bytes());
        let sent = self.to.write_all(&head).and_then(|()| self.to.write_all(&self.chunk));
        self.failed = sent.is_err();
        self.chunk.clear();
        sent
    }

    fn end(&mut self) -> io::Result<()> {
        if !self.chunk.is_empty() {
            self.send()?;
        }
        self.send()
    }
}

impl Write for ChunkWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.failed {
            return Err(io::Error::new(ErrorKind::BrokenPipe, "an earlier chunk could not be sent"));
        }
        let len = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..len]);
        if self.chunk.len() == CHUNK_BYTES {
            self.send()?;
        }
        Ok(len)
    }

    /// Chunks go when they are full.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A state on its way. To be read to its end: all that is read has been checked, and an error, which is an [`io::Error`] around
/// a [`TransferError`], says that it ends too early.
pub(crate) struct Fetch {
    /// What it is.
    pub(crate) gift: Gift,
    from: StreamReader,
    hang_up: HangUp,
    hasher: blake3::Hasher,
    chunk: Vec<u8>,
    /// So many bytes of the chunk are taken.
    at: usize,
    received: u64,
    bytes: Option<u64>,
    ended: bool,
    progress: Box<dyn FnMut(Progress) + Send>,
    /// Keeps this side open.
    _to: StreamWriter,
}

/// How far a state has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes so far.
    pub(crate) received: u64,
    /// Of how many, if the source knows.
    pub(crate) bytes: Option<u64>,
}

impl Fetch {
    /// Asks a member for a shard's state, and waits until it begins. `progress` is called after each chunk.
    pub(crate) fn begin(
        caller: &Caller,
        source: &Contact,
        ask: Ask,
        progress: impl FnMut(Progress) + Send + 'static,
    ) -> Result<Fetch, TransferError> {
        let stream = caller.dial(source, Service::State, DIAL_TIMEOUT)?;
        let cut = |cause: FrameError| TransferError::Cut { after: 0, cause };
        let hang_up = stream.hang_up().map_err(|error| cut(error.into()))?;
        stream.set_timeout(Some(PATIENCE)).map_err(|error| cut(error.into()))?;
        let ControlStream { mut reader, mut writer, .. } = stream;
        frame::write(&mut writer, &ask, WORDS).map_err(cut)?;
        match frame::read(&mut reader, WORDS).map_err(cut)? {
            Answer::Begun { gift, bytes } => Ok(Fetch {
                gift,
                from: reader,
                hang_up,
                hasher: blake3::Hasher::new(),
                chunk: Vec::new(),
                at: 0,
                received: 0,
                bytes,
                ended: false,
                progress: Box::new(progress),
                _to: writer,
            }),
            Answer::Refused(why) => Err(TransferError::Refused(why)),
        }
    }

    /// What ends the transfer from another thread: whoever reads gets an error.
    pub(crate) fn hang_up(&self) -> HangUp {
        self.hang_up.clone()
    }

    /// The next chunk in place of the last.
    fn next_chunk(&mut self) -> Result<(), TransferError> {
        let after = self.received;
        let cut = |cause: io::Error| TransferError::Cut { after, cause: cause.into() };
        let mut number = [0; 4];
        self.from.read_exact(&mut number).map_err(cut)?;
        let len = match u32::from_le_bytes(number) {
            GIVEN_UP => {
                let why = frame::read(&mut self.from, WORDS);
                return Err(TransferError::GivenUp { after, why: why.unwrap_or_else(|_| "it did not say why".into()) });
            }
            len if len as usize > CHUNK_BYTES => return Err(TransferError::Damaged { after }),
            len => len as usize,
        };
        let mut digest = [0; blake3::OUT_LEN];
        self.from.read_exact(&mut digest).map_err(cut)?;
        self.chunk.resize(len, 0);
        self.at = len;
        self.from.read_exact(&mut self.chunk).map_err(cut)?;
        self.hasher.update(&self.chunk);
        if self.hasher.finalize() != blake3::Hash::from_bytes(digest) {
            return Err(TransferError::Damaged { after });
        }
        self.at = 0;
        self.received += len as u64;
        self.ended = len == 0;
        (self.progress)(Progress { received: self.received, bytes: self.bytes });
        Ok(())
    }
}

impl Read for Fetch {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() && !self.ended && !buffer.is_empty() {
            if let Err(error) = self.next_chunk() {
                // Nothing of it is to be used, and nothing after it.
                self.hang_up.now();
                return Err(io::Error::other(error));
            }
        }
        let len = (&self.chunk[self.at..]).read(buffer)?;
        self.at += len;
        Ok(len)
    }
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fetch { gift, received, bytes, .. } = self;
        f.debug_struct("Fetch").field("gift", gift).field("received", received).field("bytes", bytes).finish()
    }
}
