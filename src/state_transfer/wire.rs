//! A shard's state, from a member that holds it to one that joins.
//!
//! ```text
//!  joins                                   source
//!   TransferRequest { shard, part } ────▶   captures the state between two messages
//!   ◀─────────── Begun { offer, bytes }     (or Refused, and why)
//!   ◀───────────────────── chunk, chunk …   as the application writes it out, or from the log
//!   ◀──────────────────────── empty chunk   the end; or one of length u32::MAX: given up
//!
//!  0        4                 36
//! ┌────────┬─────────────────┬──────────────┐
//! │ length │     digest      │    bytes     │   a chunk: u32 LE, at most CHUNK_BYTES
//! └────────┴─────────────────┴──────────────┘
//! ```
//!
//! The digest is the BLAKE3 of all bytes so far, those of the chunk included. A chunk that is damaged, missing or out
//! of its place is found before any of its bytes is used, and the last digest is that of the whole. Both sides hold one
//! chunk.
//!
//! States of two sources are alike except for their places in the order, and their bytes need not be equal. A joiner
//! that loses a source begins anew with another.
//!
//! In a durable group the joiner says what its log has. It gets what is behind that, if the source has it and it is not
//! much more than a state. It may also request certain records only, in place of damaged ones.

use std::{
    io::{self, ErrorKind, Read, Write},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use squall_membership::{ClusterId, Epoch, OrderEnd, Seq, ShardId};
use squall_ordered::log;
use squall_services::{
    Caller, ControlError, ControlStream, DialTarget, HangUp, Service, StreamWriter,
    frame::{self, FrameError},
};

use crate::{durable::recovery, replica::snapshot::WriteOut};

/// The number of bytes of state in a full chunk.
const CHUNK_BYTES: usize = 256 << 10;

/// The number in place of a chunk's length with which the source gives up.
const GIVEN_UP: u32 = u32::MAX;

/// The time that a source has to answer a call.
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that a source has to capture the state, or to write the next chunk; and a receiver, to take one.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest request and answer, in bytes.
const WORDS: usize = 4 << 10;

/// The request of a member that lacks something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TransferRequest {
    pub(crate) shard: ShardId,
    pub(crate) part: RequestedPart,
}

/// The requested data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RequestedPart {
    /// The state at a place of this epoch's order, which the source chooses. `have` is the end of the requester's
    /// log. The source may send its log's records from that end to the place instead, if it takes them for cheaper.
    /// With no `have`, it sends a state.
    State { epoch: Epoch, have: Option<LogEnd> },
    /// The log's records that take it from one place to another.
    Records { from: OrderEnd, to: OrderEnd },
}

impl RequestedPart {
    pub(crate) fn records(from: log::Position, to: log::Position) -> RequestedPart {
        RequestedPart::Records { from: recovery::place(from), to: recovery::place(to) }
    }
}

/// The end of a log, and the life of the group that its last view is of. Places of two lives have nothing in common
/// from the place on at which an operator forced the later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogEnd {
    /// The life; 0 for an empty log.
    pub(crate) life: ClusterId,
    /// The end's place.
    pub(crate) end: OrderEnd,
}

impl LogEnd {
    pub(crate) fn new(life: ClusterId, end: log::End) -> LogEnd {
        LogEnd { life, end: recovery::place(end.position) }
    }
}

/// The kind of data that a source offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum OfferKind {
    /// A state of this epoch. It contains the effect of the first `seq` places of the epoch's order, and no more.
    /// `chain` is the value with which a log that is begun behind it continues, if the log is signed.
    State { epoch: Epoch, seq: Seq, chain: Option<[u8; 32]> },
    /// Records behind this place of the requester's log.
    Suffix(Divergence),
    /// The requested records.
    Records,
}

/// The place where two logs diverge, and the values that show that they are alike before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Divergence {
    /// The place. Records behind it in the shorter log are void.
    pub(crate) at: OrderEnd,
    /// The last message's number there.
    pub(crate) version: u64,
    /// The last record's time there, in nanoseconds.
    pub(crate) time: u64,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum TransferReply {
    Begun { offer: OfferKind, bytes: Option<u64> },
    Refused(String),
}

/// An offer that a source has ready, with its data.
pub(crate) struct PreparedOffer {
    pub(crate) offer: OfferKind,
    /// Its length in bytes, if that is known.
    pub(crate) bytes: Option<u64>,
    /// The function that writes it, on the stream's thread.
    pub(crate) write: WriteOut,
}

/// A function that prepares what is requested, or returns the reason, in a sentence, for which it can't. It is called
/// on the stream's thread, which may wait for some seconds.
pub(crate) type Capture<'a> = &'a dyn Fn(TransferRequest) -> Result<PreparedOffer, String>;

/// A reason for which a state was not received.
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
pub(crate) fn serve(stream: ControlStream, capture: Capture<'_>) {
    let node = stream.peer;
    if let Err(error) = give(stream, capture) {
        tracing::warn!(%node, %error, "a node that joins did not get a state");
    }
}

fn give(stream: ControlStream, capture: Capture<'_>) -> Result<(), FrameError> {
    stream.set_timeout(Some(PATIENCE))?;
    let ControlStream { mut reader, mut writer, .. } = stream;
    let captured = match capture(frame::read(&mut reader, WORDS)?) {
        Ok(captured) => captured,
        Err(why) => return frame::write(&mut writer, &TransferReply::Refused(cut_short(why)), WORDS),
    };
    let PreparedOffer { offer, bytes, write } = captured;
    frame::write(&mut writer, &TransferReply::Begun { offer, bytes }, WORDS)?;
    let mut chunks = ChunkWriter { to: writer, hasher: blake3::Hasher::new(), chunk: Vec::new(), failed: false };
    match write(&mut chunks).and_then(|()| chunks.end()) {
        Err(error) if !chunks.failed => {
            // The application failed: the stream works, and the receiver must be told.
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
    /// Whether the stream has failed.
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

    /// Does nothing: chunks are sent when they are full.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A state on its way. It must be read to its end. All bytes that were read have been checked; an error, which is an
/// [`io::Error`] around a [`TransferError`], says that the state ends too early.
pub(crate) struct Fetch {
    pub(crate) offer: OfferKind,
    stream: ControlStream,
    hasher: blake3::Hasher,
    chunk: Vec<u8>,
    /// The number of bytes of the chunk that were taken.
    at: usize,
    received: u64,
    bytes: Option<u64>,
    ended: bool,
    progress: Box<dyn FnMut(TransferProgress) + Send>,
}

/// The progress of a state's transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransferProgress {
    /// The number of bytes so far.
    pub(crate) received: u64,
    /// The total number of bytes, if the source knows it.
    pub(crate) bytes: Option<u64>,
}

impl Fetch {
    /// Asks a member for a shard's state, and waits until it begins. `progress` is called after each chunk.
    pub(crate) fn begin(
        caller: &Caller,
        source: &DialTarget,
        request: TransferRequest,
        progress: impl FnMut(TransferProgress) + Send + 'static,
    ) -> Result<Fetch, TransferError> {
        let mut stream = caller.dial(source, Service::State, DIAL_TIMEOUT)?;
        let cut = |cause: FrameError| TransferError::Cut { after: 0, cause };
        stream.set_timeout(Some(PATIENCE)).map_err(|error| cut(error.into()))?;
        frame::write(&mut stream.writer, &request, WORDS).map_err(cut)?;
        match frame::read(&mut stream.reader, WORDS).map_err(cut)? {
            TransferReply::Begun { offer, bytes } => Ok(Fetch {
                offer,
                stream,
                hasher: blake3::Hasher::new(),
                chunk: Vec::new(),
                at: 0,
                received: 0,
                bytes,
                ended: false,
                progress: Box::new(progress),
            }),
            TransferReply::Refused(why) => Err(TransferError::Refused(why)),
        }
    }

    /// Returns a handle that ends the transfer from another thread: the reader gets an error.
    pub(crate) fn hang_up(&self) -> HangUp {
        self.stream.hang_up()
    }

    /// Reads the next chunk in place of the last.
    fn next_chunk(&mut self) -> Result<(), TransferError> {
        let after = self.received;
        let cut = |cause: io::Error| TransferError::Cut { after, cause: cause.into() };
        let mut number = [0; 4];
        self.stream.reader.read_exact(&mut number).map_err(cut)?;
        let len = match u32::from_le_bytes(number) {
            GIVEN_UP => {
                let why = frame::read(&mut self.stream.reader, WORDS);
                return Err(TransferError::GivenUp { after, why: why.unwrap_or_else(|_| "it did not say why".into()) });
            }
            len if len as usize > CHUNK_BYTES => return Err(TransferError::Damaged { after }),
            len => len as usize,
        };
        let mut digest = [0; blake3::OUT_LEN];
        self.stream.reader.read_exact(&mut digest).map_err(cut)?;
        self.chunk.resize(len, 0);
        self.at = len;
        self.stream.reader.read_exact(&mut self.chunk).map_err(cut)?;
        self.hasher.update(&self.chunk);
        if self.hasher.finalize() != blake3::Hash::from_bytes(digest) {
            return Err(TransferError::Damaged { after });
        }
        self.at = 0;
        self.received += len as u64;
        self.ended = len == 0;
        (self.progress)(TransferProgress { received: self.received, bytes: self.bytes });
        Ok(())
    }
}

impl Read for Fetch {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.chunk.len() && !self.ended && !buffer.is_empty() {
            if let Err(error) = self.next_chunk() {
                // No byte of the chunk may be used, nor any after it.
                self.stream.hang_up().now();
                return Err(io::Error::other(error));
            }
        }
        let len = (&self.chunk[self.at..]).read(buffer)?;
        self.at += len;
        Ok(len)
    }
}
