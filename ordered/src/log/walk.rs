//! Walks a log's records across its segments, past what is damaged.

use std::{fmt, io, path::PathBuf};

use super::{
    End, Hlc, Position, Storage,
    index::Place,
    record::{HEADER_BYTES, Header},
    scan::{Bad, Found, Scanner},
    segment::{self, Begun, RECORDS_AT, name, read_header},
};

/// Records that were on disk once, and are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The segment's file.
    pub path: PathBuf,
    /// The segment's number.
    pub segment: u64,
    /// Where it begins in the file, in bytes.
    pub from: u64,
    /// Where the next good record begins, or the segment's records end. None if that can't be known: then nothing good follows,
    /// and this is the last segment.
    pub to: Option<u64>,
    /// Which record of the segment it is, or the first of several; the first is 1. Each damage before it counts as one.
    pub record: u64,
    /// Where the log ends before it.
    pub after: Position,
    /// How far the missing records may take the log: to the next good one, or to where the log is at the segment's end. None
    /// where `to` is.
    pub before: Option<Position>,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, offset {}", self.path.display(), self.from)?;
        match self.to {
            Some(to) => write!(f, " to {to}")?,
            None => write!(f, " to the end")?,
        }
        write!(f, ": record {} of the segment, behind {}, is damaged", self.record, self.after)
    }
}

/// Why a log can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Records are damaged. What follows them can be read.
    #[error("{0}: replace it from another member's log, or cut the log there and fetch the rest")]
    Damaged(Box<Damage>),
    /// What was asked for is not in the log any more, or never was.
    #[error("the log begins at {begin}, so {asked} can't be read: take a snapshot, or another member's log")]
    Trimmed {
        /// What was asked for.
        asked: Position,
        /// Where the log begins.
        begin: Position,
    },
    /// The log begins later.
    #[error(
        "the log begins at {begin}, so the state at {asked} is not in it: take an older snapshot, or another member's log"
    )]
    NotYet {
        /// What was asked for.
        asked: Hlc,
        /// The time of the last record before the log.
        begin: Hlc,
    },
    /// The log begins behind it.
    #[error(
        "the log begins behind version {begin}, so version {asked} is not in it: take an older snapshot, or another member's log"
    )]
    OldVersion {
        /// What was asked for.
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
    /// Records do not follow the last that this member has signed.
    #[error("{}: its records do not follow version {version}, up to which this member signed the log: it was changed since. Get it \
             from another member; or remove all files of signatures, to sign what is there", path.display())]
    NotSigned {
        /// The segment's file.
        path: PathBuf,
        /// The version of the last message that was signed.
        version: u64,
    },
    /// It was written by a later version.
    #[error("{}, offset {offset}: a record of kind {kind} with flags {flags:#x}, which this version of squall does not \
             know: use the one that wrote it", path.display())]
    Newer {
        /// The segment's file.
        path: PathBuf,
        /// Where, in bytes.
        offset: u64,
        /// The record's kind.
        kind: u8,
        /// Its flags.
        flags: u8,
    },
    /// A segment's first block is not what it was when the log was opened.
    #[error("{}: its first block is damaged, in both copies: remove the log, and the node gets it from another member", path.display())]
    Block {
        /// The segment's file.
        path: PathBuf,
    },
    /// The system says no.
    #[error("{} can't be read: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The segments of a log, and where they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The last segment, where its records end, and the log with them.
    pub(crate) last: u64,
    pub(crate) last_end: u64,
    pub(crate) end: End,
}

/// Opens a segment that has begun, and reads its first block.
pub(crate) fn open_segment<S: Storage>(storage: &S, index: u64) -> Result<(S::File, segment::Header), ReadError> {
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

/// What stands next in a log.
#[derive(Debug)]
pub(crate) enum Step {
    /// A record, and where it lies. Its [payload](Walk::payload) is at hand.
    Record {
        header: Header,
        place: Place,
    },
    Damage(Damage),
}

/// Walks a log's records. It holds one segment open, and of that 256 KiB, or the largest record, in memory.
#[derive(Debug)]
pub(crate) struct Walk<S: Storage> {
    extent: Extent,
    segment: u64,
    scanner: Option<Scanner<S::File>>,
    /// Where the log is at the end of the segment.
    segment_end: End,
    start: Place,
    end: End,
    record: u64,
    /// Behind a damage nobody knows what came last.
    lost: bool,
    /// The bytes of records behind which it stands.
    passed: u64,
}

impl<S: Storage> Walk<S> {
    /// Begins at a place.
    pub(crate) fn new(extent: Extent, start: Place) -> Walk<S> {
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

    /// Where the log ends before what comes next.
    pub(crate) fn end(&self) -> End {
        self.end
    }

    /// The place of what comes next.
    pub(crate) fn place(&self) -> Place {
        let offset = self.scanner.as_ref().map_or(self.start.offset, Scanner::at);
        Place { segment: self.segment, offset, end: self.end, record: self.record }
    }

    /// How many bytes of segments it has passed.
    pub(crate) fn passed(&self) -> u64 {
        self.passed
    }

    /// The payload of the record that was found last.
    pub(crate) fn payload(&self) -> &[u8] {
        self.scanner.as_ref().map_or(&[], Scanner::payload)
    }

    /// Goes on in what the log has become, of which the last segment has this id.
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

    /// What comes next, if anything does.
    pub(crate) fn next(&mut self, storage: &S) -> Result<Option<Step>, ReadError> {
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
            Found::Record { header, .. } if header.may_follow(end) || lost && header.is_behind(end) => {
                (self.end, self.lost) = (header.reached(), false);
                self.record += 1;
                self.passed += header.record_bytes() as u64;
                return Ok(Some(Step::Record { header, place: before }));
            }
            Found::Record { offset, header } => (offset, Bad::Order(header)),
            Found::Bad { offset, why } => (offset, why),
            Found::End => return Ok(None),
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
        Ok(Some(Step::Damage(Damage {
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

/// Where the first good record behind a bad one begins, and where the log may end before it.
pub(crate) fn next_good<S: Storage>(
    scanner: &mut Scanner<S::File>,
    storage: &S,
    offset: u64,
    why: Bad,
    end: End,
) -> io::Result<Option<(u64, Position)>> {
    // A header that is right says where its record ends, even if the rest is wrong; its payload may look like anything.
    let mut from = match why {
        Bad::Payload(header) | Bad::Order(header) => offset + header.record_bytes() as u64,
        Bad::Header | Bad::Unknown { .. } => offset + HEADER_BYTES as u64,
    };
    while let Some((offset, header)) = scanner.find(storage, from, |header| header.is_behind(end))? {
        scanner.jump(offset);
        if let Found::Record { .. } = scanner.next(storage)? {
            return Ok(Some((offset, header.latest_before())));
        }
        from = offset + HEADER_BYTES as u64;
    }
    Ok(None)
}
