//! Removal of records from a log: those behind a position, those before one, or all.

use std::{io, ops::Range};

use super::{
    ChainValue, End, Log, Position, ReadError, Skips, Storage, WriteError,
    aside::{self, SetAside},
    index::{Index, RecordStart},
    manifest::{self, Manifest, OperatorVerdict},
    segment::{self, RECORDS_AT, name},
    signatures,
    walk::{Walk, WalkStep, open_segment},
    write::{Last, NEW},
};

/// The outcome of a cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutOutcome {
    /// The log's end now: the place that was asked for, or an earlier one if the log has none nearer.
    pub end: End,
    /// The name under which the records that went are [kept](super::Aside). None if no good record went.
    pub aside: Option<String>,
}

/// The authority on whose word a log is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CutBy {
    /// The group's decision: the mark goes down.
    Group,
    /// An operator's word. The mark stays, so records that were acknowledged behind the cut are missing from then on.
    /// Since the mark lags, the log is [doubtful](Log::is_doubtful).
    Operator,
    /// The word of an operator that accepts the loss: the mark goes down, and the log is [trusted](Log::is_trusted).
    Trust,
}

impl<S: Storage + Clone> Log<S> {
    /// Cuts the log, durably: messages at and behind `to` go, and views that begin behind it. The acknowledged mark
    /// goes down with it. The records that go are set aside.
    ///
    /// A crash leaves either log. Where nothing lies behind `to`, this only settles an unclear end of the log: see
    /// [`WriteError::Damaged`].
    ///
    /// Fails if the log begins behind `to`, if its end is damaged and not known, if it may not be changed any more, or
    /// if the file system fails.
    pub fn cut_to(&mut self, to: Position) -> Result<CutOutcome, WriteError> {
        self.cut_by(to, CutBy::Group)
    }

    /// Cuts as [`cut_to`](Log::cut_to) does, on the word of the group or of an operator.
    pub(crate) fn cut_by(&mut self, to: Position, by: CutBy) -> Result<CutOutcome, WriteError> {
        self.check_health()?;
        if to < self.begin.position {
            return Err(WriteError::BeforeBegin { to, begin: self.begin.position });
        }
        let mut aside = None;
        if to < self.end.position
            && let Some((place, has_records)) = self.place_of_cut(to)?
        {
            if has_records {
                aside = self.prepare_aside(Some(place))?;
            }
            let (file, header) = open_segment(&self.storage, place.segment)?;
            // Signatures are cut first, so that none is about records that are not there any more.
            let cut = signatures::cut(&self.storage, place.segment, place.end.position);
            cut.map_err(|source| self.poison("cutting it", &signatures::name(place.segment), source))?;
            self.last = Some(Last {
                file,
                header,
                at: place.offset,
                bytes: place.offset,
                records: place.record,
                written: place.offset,
            });
            self.end = place.end;
            self.index.cut(place.segment, place.offset);
        } else if self.open_damage.is_none() && self.missing().is_none() && by == CutBy::Group {
            return Ok(CutOutcome { end: self.end, aside: None });
        }
        // Nothing may be appended until the manifest records the cut.
        self.open_damage = None;
        if by != CutBy::Operator {
            self.acknowledged = self.acknowledged.min(self.end.version);
        }
        self.manifest.word = match by {
            CutBy::Group => None,
            CutBy::Operator => Some(OperatorVerdict::Doubtful),
            CutBy::Trust => Some(OperatorVerdict::Trusted(self.end)),
        };
        self.stage_skips(self.skips.before(self.end.position))?;
        self.seal_last(aside.as_ref())?;
        self.remove_old_skips();
        match self.catch_up() {
            // Damaged records before the cut are to be replaced: then the next commit signs.
            Ok(_) | Err(WriteError::Read(ReadError::Damaged(_))) => {}
            Err(error) => return Err(error),
        }
        let (end, aside) = (self.end, aside.map(|aside| aside.name()));
        Ok(CutOutcome { end, aside })
    }

    /// Returns the place of the first record that a cut takes away, if there is one, and whether any record that goes
    /// is good.
    fn place_of_cut(&self, to: Position) -> Result<Option<(RecordStart, bool)>, ReadError> {
        let Some((extent, start)) = self.extent().zip(self.index.at_position(to)) else { return Ok(None) };
        let mut walk = Walk::new(extent, start);
        loop {
            let before = walk.place();
            let place = match walk.next(&self.storage)? {
                Some(WalkStep::Record { header, .. }) if header.end() <= to => continue,
                Some(WalkStep::Record { place, .. }) => return Ok(Some((place, true))),
                Some(WalkStep::Damage(damage)) if damage.before.is_some_and(|before| before <= to) => continue,
                // The damaged records are not known, so neither is the part of them that would stay.
                Some(WalkStep::Damage(damage)) if damage.after < to => {
                    return Err(ReadError::Damaged(Box::new(damage)));
                }
                Some(WalkStep::Damage(damage)) => {
                    RecordStart { segment: damage.segment, offset: damage.from, ..before }
                }
                None => return Ok(None),
            };
            while let Some(step) = walk.next(&self.storage)? {
                if let WalkStep::Record { .. } = step {
                    return Ok(Some((place, true)));
                }
            }
            return Ok(Some((place, false)));
        }
    }

    /// Removes the segments of which no record at or behind `position` is needed, durably. Returns the log's new
    /// beginning: `position`, or before. The last segment stays.
    ///
    /// Fails if the log may not be changed any more, or if the file system fails.
    pub fn trim_before(&mut self, position: Position) -> Result<End, WriteError> {
        self.check_health()?;
        let Some(last) = self.last.as_ref().map(|last| last.header.index) else { return Ok(self.begin) };
        let was = self.manifest.first;
        let (mut first, mut begin) = (was, None);
        while first < last {
            let (_, next) = open_segment(&self.storage, first + 1)?;
            if next.begin.position > position {
                break;
            }
            first += 1;
            begin = Some(next);
        }
        let Some(header) = begin else { return Ok(self.begin) };
        // The signatures hold the chain's value at the log's new beginning.
        self.sync_signatures()?;
        self.put(Manifest { first, ..self.manifest })?;
        self.begin = header.begin;
        self.index.trim(RecordStart { segment: first, offset: RECORDS_AT, end: header.begin, record: 0 });
        self.remove_segments(was..first, None)?;
        Ok(self.begin)
    }

    /// Sets all records aside, and begins anew behind a state that came from elsewhere. Durable; a crash leaves either
    /// log. Returns the name under which the records are [kept](super::Aside), if there were any.
    ///
    /// If the log is signed, its chain begins anew, too: see [`begin_anew_with`](Log::begin_anew_with).
    ///
    /// Fails if the log may not be changed any more, or if the file system fails.
    pub fn begin_anew(&mut self, at: End) -> Result<Option<String>, WriteError> {
        self.begin_anew_with(at, None)
    }

    /// Begins as [`begin_anew`](Log::begin_anew) does, but a log that is signed continues the chain of another member's
    /// log [at this place](Log::chain_at), so that it is the same in both.
    pub fn begin_anew_with(&mut self, at: End, chain: Option<ChainValue>) -> Result<Option<String>, WriteError> {
        self.begin_anew_skipping(at, chain, self.skips.before(at.position))
    }

    /// Begins as [`begin_anew_with`](Log::begin_anew_with) does, with the list of commands that no member applies to
    /// the state.
    pub fn begin_anew_skipping(
        &mut self,
        at: End,
        chain: Option<ChainValue>,
        skips: Skips,
    ) -> Result<Option<String>, WriteError> {
        self.check_health()?;
        let aside = if self.end == self.begin { None } else { self.prepare_aside(None)? };
        let Manifest { first, next, .. } = self.manifest;
        let path = name(next);
        let header = segment::SegmentHeader {
            cluster: self.options.cluster,
            shard: self.options.shard,
            index: next,
            id: self.rng.u64(..),
            begin: at,
            previous_id: 0,
            previous_end: 0,
            // The records that the log had before may be of another order.
            acknowledged: 0,
        };
        self.sign_beginning(&header, chain)?;
        let bytes = self.options.segment_bytes;
        let made = self.storage.create(NEW, bytes).and_then(|file| {
            self.storage.write_at(&file, 0, &header.encode())?;
            self.storage.sync(&file)?;
            self.storage.rename(NEW, &path)?;
            self.storage.sync_directory()?;
            Ok(file)
        });
        let file = made.map_err(|source| self.poison("making a segment", &path, source))?;
        self.acknowledged = header.acknowledged;
        self.manifest.asides += u64::from(aside.is_some());
        self.stage_skips(skips)?;
        self.put(Manifest { first: next, next: next + 1, cut: None, word: None, ..self.manifest })?;
        self.remove_old_skips();
        self.spare = None;
        self.open_damage = None;
        self.last = Some(Last { file, header, at: RECORDS_AT, bytes, records: 0, written: RECORDS_AT });
        (self.begin, self.end) = (at, at);
        self.index = Index::new();
        self.index.push(RecordStart { segment: next, offset: RECORDS_AT, end: at, record: 0 });
        self.remove_segments(first..next, aside.as_ref())?;
        Ok(aside.map(|aside| aside.name()))
    }
}

impl<S: Storage> Log<S> {
    /// Makes the last segment end at the end of its records, durably. The rest of the file is no part of the log, nor
    /// is any later segment.
    pub(crate) fn seal_last(&mut self, aside: Option<&SetAside>) -> Result<(), WriteError> {
        let Some(last) = &mut self.last else { return self.put(self.manifest) };
        last.bytes = last.at;
        let index = last.header.index;
        let cut = Some(manifest::SegmentCut { index, end: last.at, at: self.end });
        let was = self.manifest.next;
        self.spare = None;
        self.manifest.asides += u64::from(aside.is_some());
        self.put(Manifest { next: index + 1, cut, ..self.manifest })?;
        self.remove_segments(index + 1..was, aside)?;
        // Synced so that the numbers can be given again.
        self.storage.sync_directory().map_err(|source| self.poison("syncing the directory", "", source))
    }

    /// Removes segments that the manifest does not list any more, or sets them aside. Need not be durable: opening the
    /// log finishes it.
    fn remove_segments(&mut self, segments: Range<u64>, aside: Option<&SetAside>) -> Result<(), WriteError> {
        for index in segments {
            let removed = signatures::remove(&self.storage, index);
            removed.map_err(|source| self.poison("removing it", &signatures::name(index), source))?;
            let gone = match aside.filter(|aside| aside.takes(index)) {
                Some(aside) => aside.take(&self.storage, index),
                None => self.storage.remove(&name(index)),
            };
            match gone {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(self.poison("removing a segment", &name(index), e));
                }
                _ => {}
            }
        }
        let Some(aside) = aside else { return Ok(()) };
        let bounded = aside::remove_oldest(&self.storage, aside);
        bounded.map_err(|source| self.poison("removing what was set aside", &aside.name(), source))
    }
}
