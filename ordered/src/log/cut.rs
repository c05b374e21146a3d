//! Taking away: what lies behind a position, before one, or all.

use std::{io, ops::Range};

use super::{
    ChainValue, End, Log, Position, ReadError, Storage, WriteError,
    index::{Index, Place},
    manifest::Manifest,
    segment::{self, RECORDS_AT, name},
    signatures,
    walk::{Step, Walk, open_segment},
    write::{Last, NEW},
};

impl<S: Storage> Log<S> {
    /// Cuts the log, durably: messages at and behind `to` go, and views that begin behind it. Returns where the log ends now: at
    /// `to`, or before, where it has nothing nearer.
    ///
    /// A crash leaves either log. Where nothing lies behind `to`, this only ends what is unclear about the log's end: see
    /// [`WriteError::Damaged`].
    pub fn cut_to(&mut self, to: Position) -> Result<End, WriteError> {
        self.check_health()?;
        if to < self.begin.position {
            return Err(WriteError::BeforeBegin { to, begin: self.begin.position });
        }
        if to < self.end.position
            && let Some(place) = self.place_of_cut(to)?
        {
            let (file, header) = open_segment(&self.storage, place.segment)?;
            // First, so that none is about what is not there any more.
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
        } else if self.open_damage.is_none() && self.missing().is_none() {
            return Ok(self.end);
        }
        // Until the manifest says so, nothing may be appended.
        self.open_damage = None;
        self.acknowledged = self.acknowledged.min(self.end.version);
        self.seal_last()?;
        match self.catch_up() {
            // What is damaged before is to be replaced: then the next commit signs.
            Ok(_) | Err(WriteError::Read(ReadError::Damaged(_))) => Ok(self.end),
            Err(error) => Err(error),
        }
    }

    /// The place of the first record that a cut takes away, if there is one.
    fn place_of_cut(&self, to: Position) -> Result<Option<Place>, ReadError> {
        let Some((extent, start)) = self.extent().zip(self.index.at_position(to)) else { return Ok(None) };
        let mut walk = Walk::new(extent, start);
        loop {
            let before = walk.place();
            let place = match walk.next(&self.storage)? {
                Some(Step::Record { header, .. }) if header.end() <= to => continue,
                Some(Step::Record { place, .. }) => place,

                Some(Step::Damage(damage)) if damage.before.is_some_and(|before| before <= to) => continue,
                // Nobody knows what of it would stay.
                Some(Step::Damage(damage)) if damage.after < to => return Err(ReadError::Damaged(Box::new(damage))),
                Some(Step::Damage(damage)) => Place { segment: damage.segment, offset: damage.from, ..before },
                None => return Ok(None),
            };
            return Ok(Some(place));
        }
    }

    /// Removes the segments of which nothing at or behind `position` is needed, durably. Returns where the log begins now: at
    /// `position`, or before. The last segment stays.
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
        // They say what the chain is where the log begins from now on.
        self.sync_signatures()?;
        self.put(Manifest { first, ..self.manifest })?;
        self.begin = header.begin;
        self.index.trim(Place { segment: first, offset: RECORDS_AT, end: header.begin, record: 0 });
        self.remove_segments(was..first)?;
        Ok(self.begin)
    }

    /// Removes everything, and begins anew behind a state that came from elsewhere. Durable; a crash leaves either log.
    ///
    /// If it is signed, its chain begins anew, too: see [`begin_anew_with`](Log::begin_anew_with).
    pub fn begin_anew(&mut self, at: End) -> Result<(), WriteError> {
        self.begin_anew_with(at, None)
    }

    /// As [`begin_anew`](Log::begin_anew), but a log that is signed goes on with the chain that another member's has
    /// [there](Log::chain_at), so that it is the same in both.
    pub fn begin_anew_with(&mut self, at: End, chain: Option<ChainValue>) -> Result<(), WriteError> {
        self.check_health()?;
        let Manifest { first, next, .. } = self.manifest;
        let path = name(next);
        let header = segment::Header {
            cluster: self.options.cluster,
            shard: self.options.shard,
            index: next,
            id: self.rng.u64(..),
            begin: at,
            previous_id: 0,
            previous_end: 0,
            acknowledged: self.acknowledged.min(at.version),
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
        self.put(Manifest { first: next, next: next + 1, cut: None, ..self.manifest })?;
        self.spare = None;
        self.open_damage = None;
        self.last = Some(Last { file, header, at: RECORDS_AT, bytes, records: 0, written: RECORDS_AT });
        (self.begin, self.end) = (at, at);
        self.index = Index::new();
        self.index.push(Place { segment: next, offset: RECORDS_AT, end: at, record: 0 });
        self.remove_segments(first..next)
    }

    /// Removes segments that the manifest does not list any more. Need not be durable: leftovers go when the log is opened.
    pub(crate) fn remove_segments(&mut self, segments: Range<u64>) -> Result<(), WriteError> {
        for index in segments {
            let removed = signatures::remove(&self.storage, index);
            removed.map_err(|source| self.poison("removing it", &signatures::name(index), source))?;
            match self.storage.remove(&name(index)) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(self.poison("removing a segment", &name(index), e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}
