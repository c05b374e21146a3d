//! Appending: records are copied into a batch, while the batch before is written and synced elsewhere.

use std::mem;

use squall_fabric::NodeId;
use squall_membership::{Epoch, MAX_MEMBERS, Seq};

use super::{
    End, Hlc, Position, ViewRecord,
    record::{HEADER_BYTES, MAX_PAYLOAD_BYTES, RecordHeader, RecordKind, record_bytes},
};
use crate::Payload;

/// The reasons for which a record was not appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The batch is [full](Appender::has_room): try again once it was [taken](Appender::take_batch).
    #[error(
        "the batch that is being filled is full, so it does not take {bytes} bytes more: commit the one before it first"
    )]
    Full {
        /// The record's size, in bytes.
        bytes: usize,
    },
    /// A payload that is too long.
    #[error("a message of {bytes} bytes can't be logged: {MAX_PAYLOAD_BYTES} is the most, divide it")]
    TooLong {
        /// The payload's length, in bytes.
        bytes: usize,
    },
    /// A view has more members than there can be.
    #[error("a view of {0} members can't be logged: {MAX_MEMBERS} is the most")]
    TooManyMembers(usize),
    /// The record does not come next.
    #[error("{position} at {time} can't be logged behind {end}: records come in order, a view before its messages")]
    Order {
        /// Its place.
        position: Position,
        /// Its time.
        time: Hlc,
        /// The log's end.
        end: End,
    },
}

/// The part of the log that takes records in, in the order of delivery.
///
/// It belongs to the thread that delivers. [Batches](Batch) go from it to the [`Log`](super::Log), on the thread that
/// writes, and come back.
#[derive(Debug)]
pub struct Appender {
    filling: Batch,
    /// The other batch, when it is not being written.
    spare: Option<Batch>,
    limit: usize,
}

/// Records that are written together.
#[derive(Debug)]
pub struct Batch {
    /// Records as they will lie in a segment, save for the fields that depend on their place there. Never shrinks from
    /// one use to the next, unless it had to grow for one large record, so that bytes are set but once.
    bytes: Vec<u8>,
    used: usize,
    /// The bytes that are on disk already: all, or those before a segment for which there was no room.
    written: usize,
    begin: End,
    end: End,
    records: u64,
}

impl Batch {
    fn new(limit: usize) -> Batch {
        Batch { bytes: vec![0; limit], used: 0, written: 0, begin: End::START, end: End::START, records: 0 }
    }

    /// Returns the number of records.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the size of the records on disk, in bytes.
    pub fn bytes(&self) -> usize {
        self.used
    }

    /// Returns whether the batch has no records.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Returns the log's end once the batch is written.
    pub fn end(&self) -> End {
        self.end
    }

    /// Returns the end that the log must have before the batch.
    pub(crate) fn begin(&self) -> End {
        self.begin
    }

    /// Returns the records that are still to be written.
    pub(crate) fn rest_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.written..self.used]
    }

    /// Notes that the first of the [rest](Batch::rest_mut) are written, and that the log ends behind them.
    pub(crate) fn advance(&mut self, bytes: usize, end: End) {
        self.written += bytes;
        self.begin = end;
    }

    fn restart(&mut self, begin: End, limit: usize) {
        if self.bytes.len() > limit {
            self.bytes = vec![0; limit];
        }
        (self.used, self.written, self.records) = (0, 0, 0);
        (self.begin, self.end) = (begin, begin);
    }

    fn append(&mut self, header: RecordHeader, payload: Payload<'_>) {
        let size = header.record_bytes();
        let end = self.used + size;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let record = &mut self.bytes[self.used..end];
        let (head, rest) = record.split_at_mut(HEADER_BYTES);
        // Checksums follow when the record's place is known.
        head.copy_from_slice(&header.encode(0, 0));
        let (bytes, fill) = rest.split_at_mut(payload.len());
        payload.read(bytes);
        fill.fill(0);
        self.used = end;
        self.end = header.reached();
        self.records += 1;
    }
}

impl Appender {
    pub(crate) fn new(end: End, limit: usize) -> Appender {
        let mut filling = Batch::new(limit);
        filling.restart(end, limit);
        Appender { filling, spare: Some(Batch::new(limit)), limit }
    }

    /// Appends a message. Returns the log's end behind it: the message is durable once a commit has returned that end,
    /// or a later one.
    ///
    /// The view of its epoch must have been appended before. Its place must be behind all others', and its time later
    /// than theirs.
    ///
    /// Fails if the batch is full, if the payload is too long, or if the record does not come next.
    pub fn append(
        &mut self,
        position: Position,
        time: Hlc,
        sender: NodeId,
        payload: Payload<'_>,
    ) -> Result<End, AppendError> {
        self.take(RecordKind::Message, position, time, sender, payload)
    }

    /// Appends a view, as the first record of its epoch. Its time may be that of the record before. Returns as
    /// [`append`](Appender::append) does.
    ///
    /// Fails as [`append`](Appender::append) does, and if the view has too many members.
    pub fn append_view(&mut self, epoch: Epoch, time: Hlc, view: &ViewRecord) -> Result<End, AppendError> {
        if view.longest_list() > MAX_MEMBERS {
            return Err(AppendError::TooManyMembers(view.longest_list()));
        }
        let position = Position { epoch, seq: Seq(0) };
        self.take(RecordKind::View, position, time, NodeId(0), Payload::kept(&view.encode()))
    }

    fn take(
        &mut self,
        kind: RecordKind,
        position: Position,
        time: Hlc,
        sender: NodeId,
        payload: Payload<'_>,
    ) -> Result<End, AppendError> {
        let bytes = payload.len();
        if bytes > MAX_PAYLOAD_BYTES {
            return Err(AppendError::TooLong { bytes });
        }
        let end = self.filling.end;
        let version = match kind {
            RecordKind::Message => end.version.saturating_add(1),
            RecordKind::View => end.version,
        };
        let header = RecordHeader {
            kind,
            payload_bytes: bytes as u32,
            position,
            time,
            version,
            sender,
            batch: 0,
            acknowledged: 0,
            payload_checksum: 0,
        };
        if !header.may_follow(end) {
            return Err(AppendError::Order { position, time, end });
        }
        // No caller waits for room for a view.
        if kind == RecordKind::Message && !self.has_room() {
            return Err(AppendError::Full { bytes: record_bytes(bytes) });
        }
        self.filling.append(header, payload);
        Ok(self.filling.end)
    }

    /// Returns the log's end behind all records that were appended.
    pub fn end(&self) -> End {
        self.filling.end
    }

    /// Returns whether the next message is taken, however large it is. A view always is.
    pub fn has_room(&self) -> bool {
        let Batch { used, begin, end, .. } = &self.filling;
        // The commit of a batch of views alone raises no version, so a caller that waits for room until the version
        // rises would wait forever.
        *used < self.limit || begin.version == end.version
    }

    /// Returns the records that were appended since the last batch, to be [committed](super::Log::commit). None while
    /// there are none, or the last batch was not [given back](Appender::give_back).
    pub fn take_batch(&mut self) -> Option<Batch> {
        if self.filling.is_empty() {
            return None;
        }
        let mut next = self.spare.take()?;
        next.restart(self.filling.end, self.limit);
        Some(mem::replace(&mut self.filling, next))
    }

    /// Takes back a batch that was committed, to be filled again.
    pub fn give_back(&mut self, batch: Batch) {
        self.spare = Some(batch);
    }
}
