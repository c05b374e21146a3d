//! The repair of a whole log from copies of it: for each damaged record, any good copy will do.

use std::collections::BTreeMap;

use super::{
    Appender, Body, Damage, End, Log, Missing, Position, ReadError, Record, Skip, Storage, WriteError,
    manifest::{Manifest, OperatorVerdict},
    record::RecordHeader,
    repair::put,
    scan::{ScanFinding, Scanner},
    walk::{Walk, WalkStep, open_segment},
};
use crate::Payload;

/// The most bytes that are appended at once.
const BATCH_BYTES: usize = 256 << 10;

/// The outcome of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The number of damages that were replaced.
    pub replaced: u64,
    /// The number of records that were appended at the log's end, which was damaged, or where records were missing.
    pub appended: u64,
    /// The damages for which no copy is good, or fits: the first thousand.
    pub left: Vec<Damage>,
    /// The records that are still missing at the end.
    pub missing: Option<Missing>,
    /// Whether the log may have had more behind its end, which no copy has shown.
    pub doubtful: bool,
}

/// Records by the log's end behind them.
type Copies = BTreeMap<Position, (RecordHeader, Vec<u8>)>;

impl<S: Storage + Clone> Log<S> {
    /// Replaces damaged records, from the log's beginning on, by those of other copies of this log. If its end is
    /// damaged, appends all records that the copies have behind it. Durable.
    ///
    /// Only records that fit are taken: a record must follow the one before it and be followed by the one behind it,
    /// with their versions and times. A crash leaves the rest damaged or missing.
    pub fn repair_from<T: Storage + Clone>(&mut self, others: &[Log<T>]) -> Result<Repaired, WriteError> {
        self.check_health()?;
        let mut repaired = Repaired::default();
        for damage in self.verify(|_| {})?.damage {
            if damage.to.is_some() && self.replace_from(&damage, others)? {
                repaired.replaced += 1;
            }
        }
        if self.open_damage.is_some() || self.missing().is_some() || self.is_doubtful() {
            repaired.appended = self.append_from(others)?;
        }
        repaired.left = self.verify(|_| {})?.damage;
        repaired.missing = self.missing();
        repaired.doubtful = self.open_damage.is_some() || self.is_doubtful();
        Ok(repaired)
    }

    /// Replaces one damage. Returns whether there were records to replace it by.
    fn replace_from<T: Storage + Clone>(&mut self, damage: &Damage, others: &[Log<T>]) -> Result<bool, WriteError> {
        let Some((to, before)) = damage.to.zip(damage.before) else { return Ok(false) };
        let Some(start) = self.end_before_damage(damage)? else { return Ok(false) };
        let behind = self.behind(damage.segment, to)?;
        let others = others.iter().filter(|other| is_alike(other, start, &behind));
        let copies: Vec<Copies> = others.map(|other| copies(other, damage.after, before)).collect();
        // The records of several copies together, where none alone has them all.
        let all = copies.iter().rev().flatten().map(|(&end, record)| (end, record.clone())).collect();
        for records in copies.iter().chain([&all]) {
            let (mut bytes, mut end, mut fits) = (Vec::new(), start, true);
            for (header, payload) in records.values() {
                fits &= header.may_follow(end);
                end = header.reached();
                put(&mut bytes, *header, payload);
            }
            if !fits || bytes.len() as u64 != to - damage.from || !behind.follows(end) {
                continue;
            }
            match self.replace_damaged(damage, &bytes) {
                Err(WriteError::NoReplacement { .. }) => {}
                replaced => return replaced.map(|()| true),
            }
        }
        Ok(false)
    }

    /// Returns the log's end before a damage, even if records before that are damaged. None if the damage is no more.
    pub(crate) fn end_before_damage(&self, damage: &Damage) -> Result<Option<End>, ReadError> {
        let Some((extent, start)) = self.extent().zip(self.index.at_position(damage.after)) else { return Ok(None) };
        let mut walk = Walk::new(extent, start);
        loop {
            let end = walk.end();
            match walk.next(&self.storage)? {
                Some(WalkStep::Damage(found)) if (found.segment, found.from) == (damage.segment, damage.from) => {
                    return Ok(Some(end));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Returns what the log has at an offset of a segment, behind a damage.
    pub(crate) fn behind(&self, segment: u64, at: u64) -> Result<Behind, ReadError> {
        let Some(extent) = self.extent() else { return Ok(Behind::Unknown) };
        let (file, header) = open_segment(&self.storage, segment)?;
        let (segment_end, then) = if segment == extent.last {
            (extent.last_end, extent.end)
        } else {
            let (_, next) = open_segment(&self.storage, segment + 1)?;
            (next.previous_end, next.begin)
        };
        let path = || self.storage.path(&super::segment::name(segment));
        let mut scanner = Scanner::new(file, header.id, at, segment_end);
        match scanner.next(&self.storage).map_err(|source| ReadError::Io { path: path(), source })? {
            ScanFinding::Record { header, .. } => Ok(Behind::Record(header)),
            ScanFinding::End => Ok(Behind::End(then)),
            ScanFinding::Bad { .. } => Ok(Behind::Unknown),
        }
    }

    /// Appends the records that copies have behind the end, and notes their acknowledged marks. The log stays
    /// [doubtful](Log::is_doubtful) until a copy has shown the records behind that place up to a sound end.
    fn append_from<T: Storage + Clone>(&mut self, others: &[Log<T>]) -> Result<u64, WriteError> {
        let (mut appended, mut is_sure) = (0, false);
        for other in others {
            // Else the copy is of another order, or ends before.
            if !other.at_position(self.end.position).is_ok_and(|end| end == self.end) {
                continue;
            }
            let Ok(mut reader) = other.read(self.end.position, Position::MAX) else { continue };
            if self.open_damage.is_some() || !self.is_doubtful() {
                self.open_damage = None;
                self.manifest.word = Some(OperatorVerdict::Doubtful);
                self.seal_last(None)?;
            }
            self.acknowledged = self.acknowledged.max(other.acknowledged);
            // A node that applies the new records must know which of them no member applies.
            let is_behind = |skip: &&Skip| skip.position >= self.end.position;
            let behind: Vec<Skip> = other.skips().iter().filter(is_behind).cloned().collect();
            let own = self.skips.before(self.end.position);
            self.set_skips(behind.into_iter().fold(own, |all, skip| all.with(skip).unwrap_or(all)))?;
            let (was, mut appender) = (self.end, Appender::new(self.end, BATCH_BYTES));
            while let Ok(Some(record)) = reader.next_record() {
                if !appender.has_room() {
                    self.write_appended(&mut appender)?;
                }
                let Some(end) = append(&mut appender, &record) else { break };
                debug_assert_eq!(end.version, record.version, "records that follow each other");
                appended += 1;
            }
            self.write_appended(&mut appender)?;
            let is_sound = other.open_damage.is_none() && other.missing().is_none() && !other.is_doubtful();
            is_sure |= is_sound && self.end != was && self.end == other.end;
        }
        if is_sure && self.missing().is_none() {
            self.put(Manifest { word: None, ..self.manifest })?;
        }
        Ok(appended)
    }

    fn write_appended(&mut self, appender: &mut Appender) -> Result<(), WriteError> {
        let Some(mut batch) = appender.take_batch() else { return Ok(()) };
        self.write(&mut batch)?;
        appender.give_back(batch);
        Ok(())
    }
}

/// The part of a log behind a damage.
#[derive(Clone, Debug)]
pub(crate) enum Behind {
    Record(RecordHeader),
    /// The segment's end, with the log's end there.
    End(End),
    /// Another damage.
    Unknown,
}

impl Behind {
    pub(crate) fn follows(&self, end: End) -> bool {
        match self {
            Behind::Record(header) => header.may_follow(end),
            Behind::End(then) => *then == end,
            Behind::Unknown => false,
        }
    }
}

/// Returns whether a log has the same records before and behind a damage of another, where it is not damaged itself. A
/// log of another life of its group may have other records at the same places.
fn is_alike<T: Storage + Clone>(log: &Log<T>, before: End, behind: &Behind) -> bool {
    if log.at_position(before.position).is_ok_and(|end| end != before) {
        return false;
    }
    let Behind::Record(header) = behind else { return true };
    let Ok(mut reader) = log.read(header.latest_before().max(log.begin().position), header.end()) else { return true };
    match reader.next_stored() {
        Ok(Some((found, _))) => found.shared() == header.shared(),
        _ => true,
    }
}

/// Appends a record, if it comes next.
fn append(appender: &mut Appender, record: &Record<'_>) -> Option<End> {
    let (end, at) = (appender.end(), record.position);
    let comes_next = record.version - u64::from(matches!(record.body, Body::Message { .. })) == end.version;
    let appended = match &record.body {
        _ if !comes_next => return None,
        Body::Message { sender, payload } => appender.append(at, record.time, *sender, Payload::kept(payload)),
        Body::View(view) => appender.append_view(at.epoch, record.time, view),
    };
    appended.ok()
}

/// Returns the good records of a log that take it from one place to another.
fn copies<T: Storage + Clone>(log: &Log<T>, from: Position, to: Position) -> Copies {
    let mut found = Copies::new();
    let Ok(mut reader) = log.read(from.max(log.begin().position), to) else { return found };
    loop {
        match reader.next_stored() {
            Ok(Some((header, payload))) => found.insert(header.end(), (header, payload.to_vec())),
            Err(ReadError::Damaged(_)) => continue,
            // The rest that can't be read is no copy.
            Ok(None) | Err(_) => return found,
        };
    }
}
