//! A walk over a log's records across its segments, past damaged ones.

use std::{io, path::PathBuf};

use super::{
    End, Hlc, Position, Storage,
    index::RecordStart,
    record::{HEADER_BYTES, RecordHeader},
    scan::{Bad, ScanFinding, Scanner},
    segment::{self, Begun, RECORDS_AT, name, read_header},
};

/// Records that were on disk once, and whose bytes have changed.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display(
    "{}, offset {from} to {}: record {record} of the segment, behind {after}, is damaged",
    path.display(), to.map_or("the end".into(), |to| to.to_string())
)]
pub struct Damage {
    /// The segment's file.
    pub path: PathBuf,
    /// The segment's number.
    pub segment: u64,
    /// The offset at which the damage begins in the file, in bytes.
    pub from: u64,
    /// The offset of the next good record, or of the end of the segment's records. None if it can't be known: then no
    /// good record follows, and this is the last segment.
    pub to: Option<u64>,
    /// The number in the segment of the damaged record, or of the first of several; the first is 1. Each damage before
    /// it counts as one.
    pub record: u64,
    /// The log's end before it.
    pub after: Position,
    /// The furthest place to which the missing records may take the log: that of the next good record, or of the log's
    /// end in the segment. None where `to` is None.
    pub before: Option<Position>,
}

/// The reasons for which a log can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Records are damaged. The records behind them can be read.
    #[error("{0}: replace it from another member's log, or cut the log there and fetch the rest")]
    Damaged(Box<Damage>),
    /// The records that were asked for are not in the log any more, or never were.
    #[error("the log begins at {begin}, so {asked} can't be read: take a snapshot, or another member's log")]
    Trimmed {
        /// The place that was asked for.
        asked: Position,
        /// The log's beginning.
        begin: Position,
    },
    /// The log begins later than the time that was asked for.
    #[error(
        "the log begins at {begin}, so the state at {asked} is not in it: take an older snapshot, or another member's log"
    )]
    NotYet {
        /// The time that was asked for.
        asked: Hlc,
        /// The time of the last record before the log.
        begin: Hlc,
    },
    /// The log begins behind the version that was asked for.
    #[error(
        "the log begins behind version {begin}, so version {asked} is not in it: take an older snapshot, or another member's log"
    )]
    OldVersion {
        /// The version that was asked for.
        asked: u64,
        /// The version of the last message before the log.
        begin: u64,
    },
    /// A segment was trimmed, or cut off, while it was to be read.
    #[error("{} is gone: the log was trimmed or cut meanwhile, begin anew", path.display())]
    Gone {
        /// The segment's file.
        path: PathBuf,
    },
    /// Records do not follow the last one that this member has signed.
    #[error("{}: its records do not follow version {version}, up to which this member signed the log: it was changed since. Get it \
             from another member; or remove all files of signatures, to sign what is there", path.display())]
    NotSigned {
        /// The segment's file.
        path: PathBuf,
        /// The version of the last message that was signed.
        version: u64,
    },
    /// A record was written by a later version.
    #[error("{}, offset {offset}: a record of kind {kind} with flags {flags:#x}, which this version of squall does not \
             know: use the one that wrote it", path.display())]
    Newer {
        /// The segment's file.
        path: PathBuf,
        /// The record's offset, in bytes.
        offset: u64,
        /// The record's kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// A segment's first block has changed since the log was opened.
    #[error("{}: its first block is damaged, in both copies: remove the log, and the node gets it from another member", path.display())]
    Block {
        /// The segment's file.
        path: PathBuf,
    },
    /// The file system failed.
    #[error("{} can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The segments of a log, and the ends of the last one and of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The last segment, the end of its records in its file, and the log's end.
    pub(crate) last: u64,
    pub(crate) last_end: u64,
    pub(crate) end: End,
}

/// Opens a segment that has begun, and reads its first block.
pub(crate) fn open_segment<S: Storage>(
    storage: &S,
    index: u64,
) -> Result<(S::File, segment::SegmentHeader), ReadError> {
    let path = || storage.path(&name(index));
    let file = match storage.open(&name(index)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(ReadError::Gone { path: path() }),
        file => file.map_err(|source| ReadError::Io { path: path(), source })?,
    };
    match read_header(storage, &file).map_err(|source| ReadError::Io { path: path(), source })? {
        Begun::Yes(header, _) if header.index == index => Ok((file, header)),
        _ => Err(ReadError::Block { path: path() }),
    }
}

/// The next part of a log.
#[derive(Debug)]
pub(crate) enum WalkStep {
    /// A record, and its place. Its [payload](Walk::payload) is at hand.
    Record {
        header: RecordHeader,
        place: RecordStart,
    },
    Damage(Damage),
}

/// A walk over a log's records. It holds one segment open, and in memory 256 KiB of it, or the largest record.
#[derive(Debug)]
pub(crate) struct Walk<S: Storage> {
    extent: Extent,
    segment: u64,
    scanner: Option<Scanner<S::File>>,
    /// The log's end at the end of the segment.
    segment_end: End,
    start: RecordStart,
    end: End,
    record: u64,
    /// Whether the last version and time are unknown, since a damage was passed.
    lost: bool,
    /// The bytes of records behind which it stands.
    passed: u64,
}

impl<S: Storage> Walk<S> {
    /// Begins at a place.
    pub(crate) fn new(extent: Extent, start: RecordStart) -> Walk<S> {
        Walk {
            extent,
            segment: start.segment,
            scanner: None,
            segment_end: start.end,
            start,
            end: start.end,
            record: start.record,
            lost: false,
            passed: 0,
        }
    }

    /// Returns the log's end before the next part.
    pub(crate) fn end(&self) -> End {
        self.end
    }

    /// Returns the place of the next part.
    pub(crate) fn place(&self) -> RecordStart {
        let offset = self.scanner.as_ref().map_or(self.start.offset, Scanner::at);
        RecordStart { segment: self.segment, offset, end: self.end, record: self.record }
    }

    /// Returns the number of bytes of segments that it has passed.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// Returns the payload of the record that was found last.
    pub(crate) fn payload(&self) -> &[u8] {
        self.scanner.as_ref().map_or(&[], Scanner::payload)
    }

    /// Goes on in the log as it is now, with this extent, and with `last_id` as the last segment's id.
    pub(crate) fn extend(&mut self, storage: &S, extent: Extent, last_id: u64) -> Result<(), ReadError> {
        self.extent = extent;
        let Some(scanner) = &mut self.scanner else { return Ok(()) };
        let (id, end, segment_end) = if self.segment == extent.last {
            (last_id, extent.last_end, extent.end)
        } else {
            let (_, next) = open_segment(storage, self.segment + 1)?;
            (next.previous_id, next.previous_end, next.begin)
        };
        if id != scanner.segment() || end < scanner.at() || segment_end.position < self.end.position {
            return Err(ReadError::Gone { path: storage.path(&name(self.segment)) });
        }
        scanner.end_at(end);
        self.segment_end = segment_end;
        Ok(())
    }

    fn enter(&mut self, storage: &S) -> Result<(), ReadError> {
        let (file, header) = open_segment(storage, self.segment)?;
        storage.read_through(&file);
        let end = if self.segment == self.extent.last {
            self.segment_end = self.extent.end;
            self.extent.last_end
        } else {
            let (_, next) = open_segment(storage, self.segment + 1)?;
            self.segment_end = next.begin;
            next.previous_end
        };
        let at = if self.segment == self.start.segment { self.start.offset } else { RECORDS_AT };
        self.record = self.start.record;
        if self.segment != self.start.segment {
            (self.end, self.record, self.lost) = (header.begin, 0, false);
        }
        match &mut self.scanner {
            Some(scanner) => scanner.restart(file, header.id, at, end),
            None => self.scanner = Some(Scanner::new(file, header.id, at, end)),
        }
        Ok(())
    }

    /// Returns the next part, if there is one.
    pub(crate) fn next(&mut self, storage: &S) -> Result<Option<WalkStep>, ReadError> {
        if self.scanner.is_none() {
            self.enter(storage)?;
        }
        while self.scanner.as_ref().is_some_and(|scanner| scanner.at() >= scanner.end()) {
            if self.segment >= self.extent.last {
                return Ok(None);
            }
            self.segment += 1;
            self.enter(storage)?;
        }
        let (segment, before) = (self.segment, self.place());
        let failed = |source| ReadError::Io { path: storage.path(&name(segment)), source };
        let (end, lost) = (self.end, self.lost);
        let scanner = self.scanner.as_mut().expect("a segment was entered");
        let found = scanner.next(storage).map_err(failed)?;
        let (offset, why) = match found {
            ScanFinding::Record { header, .. } if header.may_follow(end) || lost && header.is_behind(end) => {
                (self.end, self.lost) = (header.reached(), false);
                self.record += 1;
                self.passed += header.record_bytes() as u64;
                return Ok(Some(WalkStep::Record { header, place: before }));
            }
            ScanFinding::Record { offset, header } => (offset, Bad::Order(header)),
            ScanFinding::Bad { offset, why } => (offset, why),
            ScanFinding::End => return Ok(None),
        };
        if let Bad::Unknown { kind, flags } = why {
            return Err(ReadError::Newer { path: storage.path(&name(segment)), offset, kind, flags });
        }
        let (to, before) = match next_good(scanner, storage, offset, why, end).map_err(failed)? {
            Some(next) => next,
            None => (scanner.end(), self.segment_end.position),
        };
        scanner.jump(to);
        self.record += 1;
        self.lost = true;
        self.passed += scanner.at() - offset;
        let (path, record) = (storage.path(&name(segment)), self.record);
        Ok(Some(WalkStep::Damage(Damage {
            path,
            segment,
            from: offset,
            to: Some(to),
            record,
            after: end.position,
            before: Some(before),
        })))
    }
}

/// Returns the offset of the first good record behind a bad one, and the latest position that the log's end before it
/// may have.
pub(crate) fn next_good<S: Storage>(
    scanner: &mut Scanner<S::File>,
    storage: &S,
    offset: u64,
    why: Bad,
    end: End,
) -> io::Result<Option<(u64, Position)>> {
    // A right header gives its record's end, even if the rest is wrong. The bytes of its payload may look like a
    // header.
    let mut from = match why {
        Bad::Payload(header) | Bad::Order(header) => offset + header.record_bytes() as u64,
        Bad::Header | Bad::Unknown { .. } => offset + HEADER_BYTES as u64,
    };
    while let Some((offset, header)) = scanner.find(storage, from, |header| header.is_behind(end))? {
        scanner.jump(offset);
        if let ScanFinding::Record { .. } = scanner.next(storage)? {
            return Ok(Some((offset, header.latest_before())));
        }
        from = offset + HEADER_BYTES as u64;
    }
    Ok(None)
}
