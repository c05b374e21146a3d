//! Reading a whole log again, little by little, beside the thread that writes it; and the records around a damage,
//! which a replacement must fit.

use super::{
    Damage, End, Log, Position, ReadError, Storage,
    index::RecordStart,
    record::RecordHeader,
    refill::Behind,
    repair::{headers, payload, put},
    segment::{RECORDS_AT, name},
    walk::{Walk, WalkStep},
};

/// A reader of all records of a log up to its end when the reader was made, a part at a time, from the disk and not
/// from memory.
///
/// The damages that it finds may be gone, if the log was cut or trimmed since: [`Log::gap`] tells.
#[derive(Debug)]
pub struct Scrubber<S: Storage> {
    storage: S,
    walk: Option<Walk<S>>,
    last: u64,
    /// The first segment that may still be read from memory.
    cached: u64,
}

/// A part of a log that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// The number of bytes that were read.
    pub bytes: u64,
    /// The damage in it.
    pub damage: Vec<Damage>,
    /// Whether the log's end was reached.
    pub ended: bool,
}

impl<S: Storage> Scrubber<S> {
    /// Reads about `max_bytes` bytes.
    pub fn step(&mut self, max_bytes: u64) -> Result<Scrubbed, ReadError> {
        let mut found = Scrubbed::default();
        let Some(walk) = &mut self.walk else { return Ok(Scrubbed { ended: true, ..found }) };
        let until = walk.passed() + max_bytes;
        while walk.passed() < until {
            // Forgets the memory's copy of the segment at hand, and of the next, which the walk enters by itself. The
            // last one was written only recently.
            while self.cached <= walk.place().segment + 1 && self.cached < self.last {
                let path = name(self.cached);
                let forgotten = self.storage.open(&path).and_then(|file| self.storage.reload(&file));
                forgotten.map_err(|source| match source.kind() {
                    std::io::ErrorKind::NotFound => ReadError::Gone { path: self.storage.path(&path) },
                    _ => ReadError::Io { path: self.storage.path(&path), source },
                })?;
                self.cached += 1;
            }
            let before = walk.passed();
            match walk.next(&self.storage)? {
                Some(WalkStep::Damage(damage)) => found.damage.push(damage),
                Some(WalkStep::Record { .. }) => {}
                None => {
                    found.ended = true;
                    break;
                }
            }
            found.bytes += walk.passed() - before;
        }
        Ok(found)
    }
}

/// A damage, with what the log has before and behind it.
#[derive(Clone, Debug)]
pub struct Gap {
    damage: Damage,
    start: End,
    /// Whether a record comes before it in the log.
    is_behind_record: bool,
    behind: Behind,
}

impl<S: Storage + Clone> Log<S> {
    /// Begins to read the whole log again.
    pub fn scrubber(&self) -> Scrubber<S> {
        let start = RecordStart { segment: self.manifest.first, offset: RECORDS_AT, end: self.begin, record: 0 };
        let extent = self.extent();
        Scrubber {
            storage: self.storage.clone(),
            walk: extent.map(|extent| Walk::new(extent, start)),
            last: extent.map_or(0, |extent| extent.last),
            cached: self.manifest.first,
        }
    }

    /// Looks at a damage that was found before. None if nothing is damaged there any more, or the damage has no end.
    pub fn gap(&self, damage: &Damage) -> Result<Option<Gap>, ReadError> {
        let Some(to) = damage.to else { return Ok(None) };
        let Some(start) = self.end_before_damage(damage)? else { return Ok(None) };
        let behind = self.behind(damage.segment, to)?;
        let is_behind_record = start != self.begin;
        Ok(Some(Gap { damage: damage.clone(), start, is_behind_record, behind }))
    }
}

impl Gap {
    /// Returns the places between which another log has the missing records, and the records beside them, which show
    /// that it is the same log.
    pub fn places(&self) -> (Position, Position) {
        let Position { epoch, seq } = self.start.position;
        let from = match (self.is_behind_record, seq.0) {
            (false, _) => self.start.position,
            (true, 0) => {
                Position::new(squall_membership::Epoch(epoch.0.saturating_sub(1)), squall_membership::Seq(u64::MAX))
            }
            (true, seq) => Position::new(epoch, squall_membership::Seq(seq - 1)),
        };
        let to = match &self.behind {
            Behind::Record(header) => header.end(),
            Behind::End(end) => end.position,
            Behind::Unknown => self.damage.before.unwrap_or(from),
        };
        (from, to)
    }

    /// Takes the records that another log has between these [places](Gap::places), in the parts in which they were
    /// [exported](super::Reader::export). Returns the missing records, as [`Log::replace_damaged`] takes them. An error
    /// says why they do not fit.
    pub fn fill(&self, exported: &[Vec<u8>]) -> Result<Vec<u8>, String> {
        let mut records: Vec<(RecordHeader, &[u8])> = Vec::new();
        for part in exported {
            let found = headers(part).map_err(|error| error.to_string())?;
            records.extend(found.into_iter().map(|(at, header)| (header, payload(part, at, &header))));
        }
        let mut records = records.as_slice();
        if self.is_behind_record {
            match records.split_first() {
                Some(((first, _), rest)) if first.reached() == self.start => records = rest,
                _ => return Err(format!("it has not the same before the damage, at {}", self.start)),
            }
        }
        if let Behind::Record(behind) = &self.behind {
            match records.split_last() {
                Some(((last, _), rest)) if last.shared() == behind.shared() => records = rest,
                _ => return Err(format!("it has not the same behind the damage, at {}", behind.position)),
            }
        }
        let (mut bytes, mut end) = (Vec::new(), self.start);
        for (header, payload) in records {
            if !header.may_follow(end) {
                return Err(format!("its record at {} does not follow {end}", header.position));
            }
            end = header.reached();
            put(&mut bytes, *header, payload);
        }
        let fits = match &self.behind {
            Behind::Unknown => self.damage.before.is_none_or(|before| end.position <= before),
            behind => behind.follows(end),
        };
        if fits { Ok(bytes) } else { Err(format!("its records end at {end}, before what follows here")) }
    }
}
