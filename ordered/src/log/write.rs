//! The log on the side of the thread that writes it: batches go to disk, segment after segment.

use std::{io, path::PathBuf};

use squall_membership::{ClusterId, ShardId};

use super::{
    Appender, Batch, Damage, End, Position, ReadError, SchemaText, Skips, Storage, aside,
    index::{Index, RecordStart},
    manifest::Manifest,
    record::{HEADER_BYTES, RecordHeader},
    segment::{self, RECORDS_AT, name},
    signing::Signing,
    walk::Extent,
};

/// A log's owner, and its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The cluster.
    pub cluster: ClusterId,
    /// The shard.
    pub shard: ShardId,
    /// The least [generation](Log::raise_generation) that the log must have. 0 if it is not known.
    pub generation: u64,
    /// A segment's size in bytes: a multiple of 4096, from 8 KiB to 1 GiB. A larger record has a segment of its own.
    pub segment_bytes: u64,
    /// The number of bytes that are appended while the batch before is written; a larger record makes a batch of its
    /// own. Memory for two batches is kept.
    pub batch_bytes: usize,
}

impl Options {
    /// Returns options that suit most disks: segments of 64 MiB, batches of 4 MiB.
    pub fn new(cluster: ClusterId, shard: ShardId) -> Options {
        Options { cluster, shard, generation: 0, segment_bytes: 64 << 20, batch_bytes: 4 << 20 }
    }

    /// Returns the number of bytes that segments leave free on the disk: the other files of a node need them, and a
    /// node whose view log or manifest can't be written ends.
    pub fn kept_free(&self) -> u64 {
        self.segment_bytes / 4
    }
}

/// The distance by which zeros are written ahead of a segment's records, in bytes; larger batches go without. In a part
/// of a file that has its space and was never written, each batch would also cost an entry in the file system's
/// journal.
const AHEAD_BYTES: u64 = 256 << 10;

/// The zeros that are written ahead.
static ZEROS: [u8; AHEAD_BYTES as usize] = [0; AHEAD_BYTES as usize];

/// The name of a segment that is being made.
pub(crate) const NEW: &str = "segment.new";

/// The reasons for which a log did not take a change.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The file system failed. The log takes nothing more: the effect of a failed write or sync on the disk shows only
    /// when the log is opened again. The exception is a file that could not be made for want of space, ahead of time or
    /// for an aside.
    #[error("{} can't be written: {action}: {source}", path.display())]
    Io {
        /// The action that was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// An earlier change failed.
    #[error(
        "this log takes nothing more, since an earlier change failed ({0}): see to the disk, and start the node again"
    )]
    Poisoned(String),
    /// The log was opened [to be looked at](Log::look).
    #[error("this log was opened to be looked at, so it can't be changed: open it")]
    LookedAt,
    /// The batch is not the next: the log was cut, or another batch failed.
    #[error("a batch that follows {begin} can't be written to a log that ends at {end}: take a new appender")]
    NotNext {
        /// The position that the batch follows.
        begin: Position,
        /// The log's end.
        end: Position,
    },
    /// The log's last records are damaged, and their end is not known.
    #[error("{0}, so nothing can be appended: cut the log there, and get the rest from another member")]
    Damaged(Box<Damage>),
    /// The log begins later.
    #[error("the log begins at {begin} and can't be cut to {to}: begin it anew, from another member's state")]
    BeforeBegin {
        /// The position to which it was to be cut.
        to: Position,
        /// The log's beginning.
        begin: Position,
    },
    /// The records that should replace damaged ones are not the missing ones.
    #[error("{damage}, and what came to replace it is not what is missing: {why}. Get it from another member")]
    NoReplacement {
        /// The damage.
        damage: Box<Damage>,
        /// The reason.
        why: String,
    },
    /// There is no room for the segment that comes next. The log is as it was, and takes the same again once there is.
    #[error(
        "{bytes} bytes and an inode are wanted for the log's next segment in {}, and {free} bytes are free, of which {kept} stay free \
         for the rest of the node: make room there, and it goes on by itself",
        path.display()
    )]
    NoRoom {
        /// The log's directory.
        path: PathBuf,
        /// The size of the segment, in bytes.
        bytes: u64,
        /// The number of bytes that are free.
        free: u64,
        /// The number of bytes that stay free.
        kept: u64,
    },
    /// Records that have to be read first can't be.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// The last segment that has begun.
#[derive(Debug)]
pub(crate) struct Last<F> {
    pub(crate) file: F,
    pub(crate) header: segment::SegmentHeader,
    /// The end of its records.
    pub(crate) at: u64,
    /// The bytes that it has room for: if it was cut, no more than it holds.
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    /// The end of the part that is known to be written: records, or zeros ahead of them.
    pub(crate) written: u64,
}

/// The terms on which a log is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogAccess {
    /// Whether a node may be writing to it.
    pub(crate) is_live: bool,
}

/// A shard's log.
#[derive(Debug)]
pub struct Log<S: Storage> {
    pub(crate) storage: S,
    pub(crate) options: Options,
    pub(crate) rng: fastrand::Rng,
    pub(crate) manifest: Manifest,
    pub(crate) last: Option<Last<S::File>>,
    /// The segment after the last, which has its space and nothing else; and its size in bytes.
    pub(crate) spare: Option<(S::File, u64)>,
    pub(crate) index: Index,
    pub(crate) begin: End,
    pub(crate) end: End,
    /// The acknowledged mark. Above the log's end only if records are [missing](Log::missing) there.
    pub(crate) acknowledged: u64,
    pub(crate) poisoned: Option<String>,
    /// A damage behind which no good record follows.
    pub(crate) open_damage: Option<Damage>,
    pub(crate) signing: Option<Signing<S::File>>,
    /// The access by which the log may only be looked at; None if it may be changed.
    pub(crate) look: Option<LogAccess>,
    /// The commands that no member applies.
    pub(crate) skips: Skips,
}

impl<S: Storage> Log<S> {
    /// Returns the directory in which it is kept.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// Returns the options with which it was opened.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the number of bytes from `position` to the end of the log, with whole segment files, to within a
    /// mebibyte or so. Asks for each file's size.
    pub fn bytes_behind(&self, position: Position) -> Result<u64, ReadError> {
        let Some((last, place)) = self.last.as_ref().zip(self.index.at_position(position)) else { return Ok(0) };
        let mut bytes = 0;
        for index in place.segment..last.header.index {
            let path = name(index);
            let size = self.storage.open(&path).and_then(|file| self.storage.size(&file));
            bytes += size.map_err(|source| ReadError::Io { path: self.storage.path(&path), source })?;
        }
        Ok((bytes + last.at).saturating_sub(place.offset))
    }

    /// Returns the log's beginning: records before it were trimmed, or never there.
    pub fn begin(&self) -> End {
        self.begin
    }

    /// Returns the log's end: all records before it are durable.
    pub fn persisted(&self) -> End {
        self.end
    }

    /// Returns the number that tells this state of the directory from older ones.
    pub fn generation(&self) -> u64 {
        self.manifest.generation
    }

    /// Makes the log one of a higher generation, durably. A node that then remembers the number elsewhere, and asks for
    /// it when it opens the log again, can't be given an old copy of the directory.
    ///
    /// Fails if the log may not be changed any more, or if the file system fails.
    pub fn raise_generation(&mut self, generation: u64) -> Result<(), WriteError> {
        self.check_health()?;
        if generation > self.manifest.generation {
            self.put(Manifest { generation, ..self.manifest })?;
        }
        Ok(())
    }

    /// Returns the schema of the log's payloads, as it was [set](Log::set_schema).
    pub fn schema(&self) -> SchemaText {
        self.manifest.schema
    }

    /// Sets the schema of the log's payloads, durably.
    ///
    /// Fails if the log may not be changed any more, or if the file system fails.
    pub fn set_schema(&mut self, schema: SchemaText) -> Result<(), WriteError> {
        self.check_health()?;
        if schema != self.manifest.schema {
            self.put(Manifest { schema, ..self.manifest })?;
        }
        Ok(())
    }

    /// Returns an appender at the log's present end. Only one may be in use: after a cut, or when another appender's
    /// batch was committed, an older one's batches are refused.
    pub fn appender(&self) -> Appender {
        Appender::new(self.end, self.options.batch_bytes)
    }

    /// Writes a batch, and syncs it. Returns the log's end: all records before it are durable.
    ///
    /// After [`WriteError::NoRoom`] the same batch may be committed again: the part that had room is durable, and the
    /// rest follows. After any other error the log takes nothing more. A sync that failed must not be tried again: the
    /// kernel may have dropped the bytes that it should have written, and says so only once. The batch was then not
    /// acknowledged; opening the log again shows whether it is there.
    pub fn commit(&mut self, batch: &mut Batch) -> Result<End, WriteError> {
        self.check_health()?;
        if let Some(damage) = &self.open_damage {
            return Err(WriteError::Damaged(Box::new(damage.clone())));
        }
        if batch.is_empty() {
            return Ok(self.end);
        }
        if batch.begin() != self.end {
            return Err(WriteError::NotNext { begin: batch.begin().position, end: self.end.position });
        }
        self.accept_end()?;
        let before = self.end;
        let written = self.write(batch);
        // A part of a batch ends what an operator has said about the log's end, as all of it does.
        if self.manifest.word.is_some() && self.end != before && self.poisoned.is_none() {
            self.put(Manifest { word: None, ..self.manifest })?;
        }
        written
    }

    /// Writes a batch that comes next, and syncs it.
    pub(crate) fn write(&mut self, batch: &mut Batch) -> Result<End, WriteError> {
        let end = batch.end();
        if self.signing.as_ref().is_some_and(|signing| signing.chain().is_none()) {
            self.catch_up()?;
        }
        while let records @ [_, ..] = batch.rest_mut() {
            let size = stored(records).record_bytes() as u64;
            let has_room = |last: &Last<S::File>| last.at + size <= last.bytes;
            if !self.last.as_ref().is_some_and(has_room) {
                self.roll(size)?;
            }
            let bytes = self.write_run(records)?;
            batch.advance(bytes, self.end);
        }
        debug_assert_eq!(self.end, end, "what was appended and what was written");
        Ok(self.end)
    }

    /// Writes and syncs as many records as the last segment has room for, and returns the number of their bytes.
    fn write_run(&mut self, records: &mut [u8]) -> Result<usize, WriteError> {
        let last = self.last.as_mut().expect("a segment was begun");
        let batch = last.at;
        self.index.push(RecordStart { segment: last.header.index, offset: batch, end: self.end, record: last.records });
        let (mut run, mut count) = (0, 0);
        let mut end = self.end;
        let mut chain = self.signing.as_ref().and_then(Signing::chain);
        while run < records.len() {
            let mut header = stored(&records[run..]);
            let (offset, next) = (batch + run as u64, run + header.record_bytes());
            if offset + header.record_bytes() as u64 > last.bytes {
                break;
            }
            header.batch = batch;
            header.acknowledged = self.acknowledged;
            header.payload_checksum = crc32c::crc32c(&records[run + HEADER_BYTES..next]);
            records[run..run + HEADER_BYTES].copy_from_slice(&header.encode(last.header.id, offset));
            let payload = run + HEADER_BYTES..run + HEADER_BYTES + header.payload_bytes as usize;
            chain = chain.map(|chain| chain.behind(&header, &records[payload]));
            end = header.reached();
            count += 1;
            run = next;
        }
        let written = &records[..run];
        let result = self.storage.write_at(&last.file, batch, written).map_err(|source| ("writing records", source));
        let result = result.and_then(|()| write_ahead(&self.storage, last, batch + run as u64));
        let result = result.and_then(|()| self.storage.sync(&last.file).map_err(|source| ("syncing records", source)));
        if let Err((action, source)) = result {
            let path = name(last.header.index);
            return Err(self.poison(action, &path, source));
        }
        last.at += run as u64;
        last.records += count;
        self.end = end;
        if let Some(chain) = chain {
            self.sign_run(chain)?;
        }
        Ok(run)
    }

    /// Makes the next segment ahead of time, if the last one is half full. To be called between commits, so that no
    /// commit has to wait for it. After [`WriteError::NoRoom`] a later call tries again.
    pub fn prepare(&mut self) -> Result<(), WriteError> {
        self.check_health()?;
        let half_full = |last: &Last<S::File>| last.at > last.bytes / 2;
        if self.spare.is_none() && self.last.as_ref().is_none_or(half_full) {
            self.make_spare(self.options.segment_bytes)?;
        }
        Ok(())
    }

    /// Fails with [`WriteError::NoRoom`] unless a further segment has room, however much the last one has left: a log
    /// that begins anew, or takes a state, needs one.
    pub fn find_room(&self) -> Result<(), WriteError> {
        self.check_health()?;
        self.with_room(self.options.segment_bytes, |_| Ok(()))
    }

    /// Returns the number of the segment that follows the last.
    pub(crate) fn next_index(&self) -> u64 {
        self.last.as_ref().map_or(self.manifest.first, |last| last.header.index + 1)
    }

    /// Calls `make` once a segment of so many bytes has room.
    fn with_room<T>(&self, bytes: u64, make: impl Fn(&S) -> io::Result<T>) -> Result<T, WriteError> {
        let path = name(self.next_index());
        let failed = |source| WriteError::Io { action: "making a segment", path: self.storage.path(&path), source };
        let kept = self.options.kept_free();
        loop {
            let free = self.storage.free().map_err(failed)?;
            let made = match free < bytes.saturating_add(kept) {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => make(&self.storage),
            };
            match made {
                Err(error) if is_full(&error) => {
                    // Asides must not keep the log from going on.
                    if !aside::make_room(&self.storage).map_err(failed)? {
                        return Err(WriteError::NoRoom { path: self.storage.path(""), bytes, free, kept });
                    }
                }
                made => return made.map_err(failed),
            }
        }
    }

    /// Makes the file of the next segment. One that was made before and has not begun is replaced.
    fn make_spare(&mut self, bytes: u64) -> Result<(), WriteError> {
        let index = self.next_index();
        let path = name(index);
        self.spare = None;
        // The file is made under another name first, so that a file that it replaces stays whole until it is complete.
        let file = self.with_room(bytes, |storage| storage.create(NEW, bytes))?;
        let made = self.storage.sync(&file).and_then(|()| self.storage.rename(NEW, &path));
        let made = made.and_then(|()| self.storage.sync_directory());
        made.map_err(|source| self.poison("making it durable", &path, source))?;
        // With the manifest naming the segment, its absence would be noticed.
        if self.manifest.next == index {
            self.put(Manifest { next: index + 1, ..self.manifest })?;
        }
        self.spare = Some((file, bytes));
        Ok(())
    }

    /// Begins the next segment, with room for a record. Its first block becomes durable with its first records.
    fn roll(&mut self, record_bytes: u64) -> Result<(), WriteError> {
        let needed = RECORDS_AT + record_bytes;
        if self.spare.as_ref().is_none_or(|(_, bytes)| *bytes < needed) {
            let bytes = self.options.segment_bytes.max(needed.next_multiple_of(RECORDS_AT));
            let made = self.make_spare(bytes);
            if let Err(error) = made {
                // A batch waits for the segment, so a failure that no room mends poisons the log.
                if !matches!(error, WriteError::NoRoom { .. }) {
                    self.poisoned.get_or_insert_with(|| error.to_string());
                }
                return Err(error);
            }
        }
        let Some((file, bytes)) = self.spare.take() else { unreachable!("it was just made") };
        let header = segment::SegmentHeader {
            cluster: self.options.cluster,
            shard: self.options.shard,
            index: self.next_index(),
            id: self.rng.u64(..),
            begin: self.end,
            previous_id: self.last.as_ref().map_or(0, |last| last.header.id),
            previous_end: self.last.as_ref().map_or(0, |last| last.at),
            acknowledged: self.acknowledged.min(self.end.version),
        };
        self.sync_signatures()?;
        let written = self.storage.write_at(&file, 0, &header.encode());
        written.map_err(|source| self.poison("beginning a segment", &name(header.index), source))?;
        self.begin_signatures(&header)?;
        self.last = Some(Last { file, header, at: RECORDS_AT, bytes, records: 0, written: RECORDS_AT });
        Ok(())
    }

    /// Returns whether another process may be writing to the log.
    pub(crate) fn is_live(&self) -> bool {
        self.look.is_some_and(|look| look.is_live)
    }

    /// Puts a manifest into force, with the mark as it is.
    pub(crate) fn put(&mut self, manifest: Manifest) -> Result<(), WriteError> {
        let manifest = Manifest { acknowledged: self.acknowledged, ..manifest };
        let written = manifest.write(&self.storage);
        written.map_err(|source| self.poison("replacing it", super::manifest::NAME, source))?;
        self.manifest = manifest;
        Ok(())
    }

    pub(crate) fn check_health(&self) -> Result<(), WriteError> {
        if self.look.is_some() {
            return Err(WriteError::LookedAt);
        }
        self.poisoned.clone().map_or(Ok(()), |why| Err(WriteError::Poisoned(why)))
    }

    pub(crate) fn poison(&mut self, action: &'static str, file: &str, source: io::Error) -> WriteError {
        let error = WriteError::Io { action, path: self.storage.path(file), source };
        self.poisoned = Some(error.to_string());
        error
    }

    /// Poisons as [`poison`](Log::poison) does, unless a file could not be made for want of space.
    pub(crate) fn poison_unless_full(&mut self, action: &'static str, file: &str, source: io::Error) -> WriteError {
        match is_full(&source) {
            true => WriteError::Io { action, path: self.storage.path(file), source },
            false => self.poison(action, file, source),
        }
    }

    /// Returns the part of the log that a reader may see.
    pub(crate) fn extent(&self) -> Option<Extent> {
        self.last.as_ref().map(|last| Extent { last: last.header.index, last_end: last.at, end: self.end })
    }
}

/// Writes zeros behind records that end at `end`, unless there are zeros already.
fn write_ahead<S: Storage>(storage: &S, last: &mut Last<S::File>, end: u64) -> Result<(), (&'static str, io::Error)> {
    if end <= last.written {
        return Ok(());
    }
    let to = match end - last.at < AHEAD_BYTES {
        true => end.next_multiple_of(AHEAD_BYTES).min(last.bytes),
        false => end,
    };
    last.written = to;
    let zeros = &ZEROS[..(to - end) as usize];
    let written = if zeros.is_empty() { Ok(()) } else { storage.write_at(&last.file, end, zeros) };
    written.map_err(|source| ("writing zeros ahead of records", source))
}

/// Returns the header of a record in a batch.
fn stored(record: &[u8]) -> RecordHeader {
    RecordHeader::decode(record, 0, 0).expect("an appender wrote it")
}

/// Whether the file system refused to store more, for want of space or since the user has a quota.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
