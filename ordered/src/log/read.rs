//! Reading: records from one position to another, the state's place at a time, and the check of everything.

use super::{
    Damage, End, Hlc, Log, Position, ReadError, Record, Storage,
    index::Place,
    record::Header,
    walk::{Step, Walk},
};

/// The most damages that a check lists.
const MAX_DAMAGES: usize = 1000;

/// Reads records in order, each checked before it is shown.
///
/// It sees the log as it was when the reader was made, whatever is appended meanwhile, on whichever thread it is. It holds
/// 256 KiB of the log in memory, or the largest record.
#[derive(Debug)]
pub struct Reader<S: Storage> {
    storage: S,
    walk: Option<Walk<S>>,
    from: Position,
    to: Position,
}

impl<S: Storage> Reader<S> {
    /// The next record, if there is one.
    ///
    /// A damaged record is an error once: the next call goes on behind it.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        Ok(self.next_stored()?.map(|(header, payload)| header.record(payload)))
    }

    /// The next record's header and payload.
    pub(crate) fn next_stored(&mut self) -> Result<Option<(Header, &[u8])>, ReadError> {
        let Some(walk) = &mut self.walk else { return Ok(None) };
        let header = loop {
            match walk.next(&self.storage)? {
                Some(Step::Record { header, .. }) if header.end() <= self.from => {}
                Some(Step::Record { header, .. }) if header.end() <= self.to => break header,
                Some(Step::Damage(damage)) if damage.before.is_some_and(|before| before <= self.from) => {}
                Some(Step::Damage(damage)) if damage.after < self.to => {
                    return Err(ReadError::Damaged(Box::new(damage)));
                }
                _ => {
                    self.walk = None;
                    return Ok(None);
                }
            }
        };
        let payload = self.walk.as_ref().map_or(&[][..], Walk::payload);
        Ok(Some((header, payload)))
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// How many records are good.
    pub records: u64,
    /// How many bytes were read.
    pub bytes: u64,
    /// What is damaged, in the order of the log: the first thousand.
    pub damage: Vec<Damage>,
}

impl<S: Storage> Log<S> {
    /// Reads the records that take a log which ends at `from` to `to`: messages from `from` up to, but not including, `to`, and the
    /// views between. So `read(persisted, MAX)` is what a shorter log lacks, whatever it ends with.
    pub fn read(&self, from: Position, to: Position) -> Result<Reader<S>, ReadError>
    where
        S: Clone,
    {
        if from < self.begin.position {
            return Err(ReadError::Trimmed { asked: from, begin: self.begin.position });
        }
        let start = self.index.at_position(from);
        let walk = self.extent().zip(start).map(|(extent, start)| Walk::new(extent, start));
        Ok(Reader { storage: self.storage.clone(), walk, from, to })
    }

    /// The log's end when its last record was no later than `time`: where the state at that time is.
    ///
    /// The search reads about a mebibyte, or so much more as the log is longer than 32 GiB. Damage in there is an error, since the
    /// answer may lie in it.
    pub fn at_time(&self, time: Hlc) -> Result<End, ReadError> {
        if time < self.begin.time {
            return Err(ReadError::NotYet { asked: time, begin: self.begin.time });
        }
        self.last_end(self.index.at_time(time), |end| end.time <= time)
    }

    /// The log's end when its last message had this version, or a lower one where it never came so far; with the views behind it.
    /// As [`at_time`](Log::at_time) otherwise.
    pub fn at_version(&self, version: u64) -> Result<End, ReadError> {
        if version < self.begin.version {
            return Err(ReadError::OldVersion { asked: version, begin: self.begin.version });
        }
        self.last_end(self.index.at_version(version), |end| end.version <= version)
    }

    /// The last end for which `fits` holds, as it does for that at `start` and for no other behind the first for which it does not.
    fn last_end(&self, start: Option<Place>, fits: impl Fn(&End) -> bool) -> Result<End, ReadError> {
        let Some((extent, start)) = self.extent().zip(start) else { return Ok(self.end) };
        let mut walk = Walk::new(extent, start);
        loop {
            let before = walk.end();
            match walk.next(&self.storage)? {
                Some(Step::Record { header, .. }) if fits(&header.reached()) => {}
                Some(Step::Damage(damage)) => return Err(ReadError::Damaged(Box::new(damage))),
                Some(Step::Record { .. }) | None => return Ok(before),
            }
        }
    }

    /// Checks every record. `progress` is told now and then how many bytes were read.
    pub fn verify(&self, mut progress: impl FnMut(u64)) -> Result<Verified, ReadError> {
        let mut found = Verified::default();
        let Some((extent, start)) = self.extent().zip(self.index.at_position(self.begin.position)) else {
            return Ok(found);
        };
        let mut walk = Walk::new(extent, start);
        let mut segment = start.segment;
        while let Some(step) = walk.next(&self.storage)? {
            match step {
                Step::Record { .. } => found.records += 1,
                Step::Damage(damage) if found.damage.len() < MAX_DAMAGES => found.damage.push(damage),
                Step::Damage(_) => {}
            }
            found.bytes = walk.passed();
            if walk.place().segment != segment {
                segment = walk.place().segment;
                progress(found.bytes);
            }
        }
        found.damage.extend(self.open_damage.clone());
        progress(found.bytes);
        Ok(found)
    }
}
