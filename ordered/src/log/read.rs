//! Readers of records from one position to another, and searches for the place that a log had at a time.

use super::{
    Damage, End, Hlc, Log, Position, ReadError, Record, Storage,
    index::RecordStart,
    record::{RecordHeader, RecordKind},
    walk::{Extent, Walk, WalkStep},
};

/// A reader of records in order, each checked before it is shown.
///
/// It sees the log as it was when the reader was made, whatever is appended meanwhile, on any thread. It holds 256 KiB
/// of the log in memory, or the largest record.
#[derive(Debug)]
pub struct Reader<S: Storage> {
    storage: S,
    walk: Option<Walk<S>>,
    from: Position,
    to: Position,
    /// Messages up to this version are passed over, and views before it.
    behind: u64,
    /// Whether it has come to `to`.
    is_over: bool,
}

/// The end of a log and of its segments; see [`Log::tip`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tip(Option<Reached>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reached {
    extent: Extent,
    /// The last segment's id.
    last_id: u64,
    /// The log's beginning.
    first: RecordStart,
}

impl<S: Storage> Reader<S> {
    /// Goes on with the records that the log has got since, on any thread. Returns [`ReadError::Gone`] if the log was
    /// cut before the reader's place, or begun anew.
    pub fn extend(&mut self, tip: Tip) -> Result<(), ReadError> {
        let Some(Reached { extent, last_id, first }) = tip.0 else { return Ok(()) };
        match &mut self.walk {
            Some(walk) => walk.extend(&self.storage, extent, last_id),
            // The log was empty.
            None => {
                self.walk = Some(Walk::new(extent, first));
                Ok(())
            }
        }
    }

    /// Returns the next record, if there is one.
    ///
    /// A damaged record is an error once: the next call goes on behind it.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        Ok(self.next_stored()?.map(|(header, payload)| header.record(payload)))
    }

    /// Returns the next record's header and payload.
    pub(crate) fn next_stored(&mut self) -> Result<Option<(RecordHeader, &[u8])>, ReadError> {
        let Some(walk) = self.walk.as_mut().filter(|_| !self.is_over) else { return Ok(None) };
        let is_before = |header: &RecordHeader| match header.kind {
            RecordKind::Message => header.version <= self.behind,
            RecordKind::View => header.version < self.behind,
        };
        let header = loop {
            match walk.next(&self.storage)? {
                Some(WalkStep::Record { header, .. }) if header.end() <= self.from || is_before(&header) => {}
                Some(WalkStep::Record { header, .. }) if header.end() <= self.to => break header,
                Some(WalkStep::Damage(damage)) if damage.before.is_some_and(|before| before <= self.from) => {}
                Some(WalkStep::Damage(damage)) if damage.after < self.to => {
                    return Err(ReadError::Damaged(Box::new(damage)));
                }
                // The reader may go on there, once there is more.
                None => return Ok(None),
                Some(_) => {
                    self.is_over = true;
                    return Ok(None);
                }
            }
        };
        let payload = self.walk.as_ref().map_or(&[][..], Walk::payload);
        Ok(Some((header, payload)))
    }
}

impl<S: Storage> Log<S> {
    /// Reads the records that take a log which ends at `from` to `to`: messages from `from` up to, but not including,
    /// `to`, and the views between. So `read(persisted, MAX)` reads the records that a shorter log lacks, whatever
    /// record it ends with.
    ///
    /// Fails if the log begins behind `from`. The reader reports damaged records.
    pub fn read(&self, from: Position, to: Position) -> Result<Reader<S>, ReadError>
    where
        S: Clone,
    {
        if from < self.begin.position {
            return Err(ReadError::Trimmed { asked: from, begin: self.begin.position });
        }
        let start = self.index.at_position(from);
        let walk = self.extent().zip(start).map(|(extent, start)| Walk::new(extent, start));
        Ok(Reader { storage: self.storage.clone(), walk, from, to, behind: 0, is_over: false })
    }

    /// Reads the messages behind a version, up to the log's end, and the views behind the message that has it. The
    /// reader goes on with the search: about a mebibyte may lie before its first record, and damage in there is an
    /// error as any other.
    pub fn read_behind(&self, version: u64) -> Result<Reader<S>, ReadError>
    where
        S: Clone,
    {
        if version < self.begin.version {
            return Err(ReadError::OldVersion { asked: version, begin: self.begin.version });
        }
        let before = version.checked_sub(1).map(|before| self.index.at_version(before));
        let start = before.unwrap_or_else(|| self.index.at_position(Position::START));
        let walk = self.extent().zip(start).map(|(extent, start)| Walk::new(extent, start));
        let (from, to) = (self.begin.position, Position::MAX);
        Ok(Reader { storage: self.storage.clone(), walk, from, to, behind: version, is_over: false })
    }

    /// Returns the log's tip now, for readers that [go on](Reader::extend).
    pub fn tip(&self) -> Tip {
        let parts = self.extent().zip(self.last.as_ref()).zip(self.index.at_position(Position::START));
        Tip(parts.map(|((extent, last), first)| Reached { extent, last_id: last.header.id, first }))
    }

    /// Returns the log's end when its last record was no later than `time`: the place of the state at that time.
    ///
    /// The search reads about a mebibyte; from 32 GiB on, in proportion to the log's length. Damage in there is an
    /// error, since the answer may lie in it.
    pub fn at_time(&self, time: Hlc) -> Result<End, ReadError> {
        if time < self.begin.time {
            return Err(ReadError::NotYet { asked: time, begin: self.begin.time });
        }
        self.last_end(self.index.at_time(time), |end| end.time <= time)
    }

    /// Returns the log's end when its last message had this version, with the views behind it. If the log never came so
    /// far, it returns the end at a lower version. As [`at_time`](Log::at_time) otherwise.
    ///
    /// Fails if the log begins behind that version, or if records that must be read are damaged.
    pub fn at_version(&self, version: u64) -> Result<End, ReadError> {
        if version < self.begin.version {
            return Err(ReadError::OldVersion { asked: version, begin: self.begin.version });
        }
        self.last_end(self.index.at_version(version), |end| end.version <= version)
    }

    /// Returns the log's end when it had nothing behind `position`. As [`at_time`](Log::at_time) otherwise.
    ///
    /// Fails if the log begins behind that position, or if records that must be read are damaged.
    pub fn at_position(&self, position: Position) -> Result<End, ReadError> {
        if position < self.begin.position {
            return Err(ReadError::Trimmed { asked: position, begin: self.begin.position });
        }
        match self.last_end(self.index.at_position(position), |end| end.position <= position) {
            // The damage begins at or behind `position`.
            Err(ReadError::Damaged(damage)) if damage.after >= position => self.end_before(&damage),
            end => end,
        }
    }

    /// Returns the log's end before a damage.
    fn end_before(&self, damage: &Damage) -> Result<End, ReadError> {
        let Some((extent, start)) = self.extent().zip(self.index.at_position(damage.after)) else {
            return Ok(self.end);
        };
        let mut walk = Walk::new(extent, start);
        loop {
            let before = walk.end();
            match walk.next(&self.storage)? {
                Some(WalkStep::Record { header, .. }) if header.end() <= damage.after => {}
                _ => return Ok(before),
            }
        }
    }

    /// Returns the last end for which `fits` holds. It must hold at `start`, and for no end behind the first for which
    /// it does not.
    pub(crate) fn last_end(&self, start: Option<RecordStart>, fits: impl Fn(&End) -> bool) -> Result<End, ReadError> {
        let Some((extent, start)) = self.extent().zip(start) else { return Ok(self.end) };
        let mut walk = Walk::new(extent, start);
        loop {
            let before = walk.end();
            match walk.next(&self.storage)? {
                Some(WalkStep::Record { header, .. }) if fits(&header.reached()) => {}
                Some(WalkStep::Damage(damage)) => return Err(ReadError::Damaged(Box::new(damage))),
                Some(WalkStep::Record { .. }) | None => return Ok(before),
            }
        }
    }
}
