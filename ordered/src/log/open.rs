//! Opening a log: checking that it is the right one and complete, and finding its end.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use squall_membership::{ClusterId, ShardId};

use super::{
    Damage, End, Log, Missing, Options, Position, ReadError, SchemaText, Skips, Storage, WriteError, aside,
    block::{Copies, VERSION},
    index::{Index, RecordStart},
    manifest::{self, Manifest, NoManifest, SegmentCut},
    mark,
    record::HEADER_BYTES,
    scan::{Bad, ScanFinding, Scanner},
    segment::{Begun, RECORDS_AT, index_of, name, read_header},
    signatures, skips,
    walk::{Extent, Walk, WalkStep, next_good},
    write::{Last, LogAccess},
};

/// The reasons for which a log can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is out of range.
    #[error("segments of {0} bytes are not possible: give a multiple of 4096, from 8192 to {max}", max = MAX_SEGMENT_BYTES)]
    SegmentBytes(u64),
    /// A directory with segments and without a manifest that names their owner.
    #[error("{} is missing, though there are segments beside it: put it back, or remove the log, and the node gets it from another \
             member", .0.display())]
    NoManifest(PathBuf),
    /// A file whose first block is damaged in both copies.
    #[error("{}: its first block is damaged, in both copies: cut the log before it, or remove the log; the node gets the rest from another \
             member", .0.display())]
    Block(PathBuf),
    /// The file was written by another version.
    #[error("{} is of format {found}, and this version of squall is for format {version}: use the one that wrote it",
            path.display(), version = VERSION)]
    Version {
        /// The file.
        path: PathBuf,
        /// The format that it names.
        found: u32,
    },
    /// The file belongs to another cluster.
    #[error("{} is of cluster {:016x}, not of {:016x}: give each cluster a directory of its own, or remove the log if that cluster \
             is no more", path.display(), found.0, expected.0)]
    OtherCluster {
        /// The file.
        path: PathBuf,
        /// The cluster that it names.
        found: ClusterId,
        /// The cluster that was asked for.
        expected: ClusterId,
    },
    /// The file belongs to another shard.
    #[error("{} is of {found}, not of {expected}: give each shard its own directory back", path.display())]
    OtherShard {
        /// The file.
        path: PathBuf,
        /// The shard that it names.
        found: ShardId,
        /// The shard that was asked for.
        expected: ShardId,
    },
    /// The log is an old copy.
    #[error("{} is of generation {found}, and this node has seen {expected}: it is an old copy. Put the newer one back, or \
             remove the log, and the node gets it from another member", path.display())]
    Older {
        /// The file.
        path: PathBuf,
        /// The generation that it names.
        found: u64,
        /// The generation that was asked for.
        expected: u64,
    },
    /// A directory without a log.
    #[error("there is no log in {}: give the directory of one shard's log", .0.display())]
    NoLog(PathBuf),
    /// A directory without a log, though there was one.
    #[error("{} is missing, and this node has had a log: put it back; or, to get it from another member, begin one with generation 0",
             .0.display())]
    Lost(PathBuf),
    /// The list of commands that no member applies can't be read.
    #[error("{} is missing or damaged, so it is not known which commands are not to be applied: put it back, or remove the log, \
             and the node gets it from another member", .0.display())]
    Skips(PathBuf),
    /// A segment is missing.
    #[error("{} is missing: put it back, or cut the log before it; the node gets the rest from another member", .0.display())]
    Missing(PathBuf),
    /// A segment does not follow the one before, or is shorter than its records.
    #[error("{} does not fit to the rest of the log, or a segment is shorter than it was: put the right files back, or cut the \
             log before it; the node gets the rest from another member", .0.display())]
    Mixed(PathBuf),
    /// The last segment can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A repair that opening has to make can't be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The file system failed.
    #[error("{} can't be used: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The largest segment, in bytes.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// A log, and the findings of opening it.
#[derive(Debug)]
pub struct Opened<S: Storage> {
    /// The log.
    pub log: Log<S>,
    /// A batch that was being written when the node stopped, and was not acknowledged. Its records that are not whole
    /// were cut off.
    pub torn: Option<Torn>,
    /// The damage in the last segment. Opening does not read the others: [`Log::verify`] does, and so does a reader.
    pub damage: Vec<Damage>,
    /// Records behind the log's end that were acknowledged: see [`Log::missing`].
    pub missing: Option<Missing>,
    /// The files whose first block had one damaged copy, which was restored from the other.
    pub healed: Vec<PathBuf>,
}

/// A write that was not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// The segment's file.
    pub path: PathBuf,
    /// The offset of the first record that is not whole, in bytes.
    pub offset: u64,
    /// The number of that record in the segment; the first is 1.
    pub record: u64,
    /// The log's end before that record.
    pub after: Position,
}

impl<S: Storage + Clone> Log<S> {
    /// Opens the log in a directory, or begins one there. Segments' ids are drawn from `rng`.
    ///
    /// Reads the first block of each segment, and all of the last one. Bytes that were written and not synced are
    /// synced first: records that are there then, [persist](Log::persisted).
    ///
    /// # Torn and damaged records
    ///
    /// A record that is not right was torn by a crash, and was not acknowledged, if both of these hold. Else it is
    /// damaged.
    ///
    /// - No record behind it was written with a later batch. (A batch is written only once the one before was synced.)
    /// - The part of it that lies in one of its sectors is all zeros, as the file was before. (Disks write whole
    ///   sectors. If its header is not right, that part of the header counts.)
    ///
    /// So, of damage in the last batch alone, one kind is taken for a torn write: a changed bit in a payload that holds
    /// zeros over a whole sector.
    pub fn open(storage: S, options: Options, rng: &mut fastrand::Rng) -> Result<Opened<S>, OpenError> {
        let bytes = options.segment_bytes;
        if !bytes.is_multiple_of(RECORDS_AT) || !(2 * RECORDS_AT..=MAX_SEGMENT_BYTES).contains(&bytes) {
            return Err(OpenError::SegmentBytes(bytes));
        }
        let names = storage.list().map_err(|source| OpenError::Io { path: storage.path(""), source })?;
        let manifest = match read_manifest(&storage, &names)? {
            Some(manifest) => check_manifest(&storage, manifest, &options)?,
            None => begin(&storage, &options, &names)?,
        };
        remove_leftovers(&storage, &manifest, &names)?;
        Log::new(storage, options, rng.fork(), manifest, None).take_all_in(&names)
    }

    /// Opens a log to look at it, of any cluster and shard. Nothing is changed or repaired, and calls that would change
    /// the log are refused.
    ///
    /// `is_live` says that a node may be writing to it meanwhile. Then bytes behind the last whole record, or
    /// half-written ones, are no damage. The log shows the records that were there when it was opened.
    pub fn look(storage: S, is_live: bool) -> Result<Opened<S>, OpenError> {
        let names = storage.list().map_err(|source| OpenError::Io { path: storage.path(""), source })?;
        let manifest = read_manifest(&storage, &names)?;
        let manifest = manifest.ok_or_else(|| OpenError::NoLog(storage.path("")))?;
        // Listed again, to include segments that were made meanwhile.
        let names = storage.list().map_err(|source| OpenError::Io { path: storage.path(""), source })?;
        let options = Options::new(manifest.cluster, manifest.shard);
        Log::new(storage, options, fastrand::Rng::with_seed(0), manifest, Some(LogAccess { is_live }))
            .take_all_in(&names)
    }

    fn new(storage: S, options: Options, rng: fastrand::Rng, manifest: Manifest, look: Option<LogAccess>) -> Log<S> {
        Log {
            storage,
            options,
            rng,
            manifest,
            last: None,
            spare: None,
            index: Index::new(),
            begin: End::START,
            end: End::START,
            acknowledged: manifest.acknowledged,
            poisoned: None,
            open_damage: None,
            signing: None,
            look,
            skips: Skips::default(),
        }
    }

    fn take_all_in(mut self, names: &[String]) -> Result<Opened<S>, OpenError> {
        let present: BTreeSet<u64> = names.iter().filter_map(|name| index_of(name)).collect();
        let mut healed = Vec::new();
        for index in self.manifest.first..self.manifest.next {
            if !present.contains(&index) {
                return Err(OpenError::Missing(self.storage.path(&name(index))));
            }
            self.take_in(index, &mut healed)?;
        }
        let (torn, damage) = self.find_end()?;
        let path = || self.storage.path(&skips::name(self.manifest.skips));
        let listed = skips::read(&self.storage, &self.manifest);
        let listed = listed.map_err(|source| OpenError::Io { path: path(), source })?;
        self.skips = listed.ok_or_else(|| OpenError::Skips(path()))?;
        self.prune_skips()?;
        let missing = self.missing();
        Ok(Opened { log: self, torn, damage, missing, healed })
    }

    /// Adds a segment behind the last one, if it has begun.
    fn take_in(&mut self, index: u64, healed: &mut Vec<PathBuf>) -> Result<(), OpenError> {
        let path = self.storage.path(&name(index));
        let failed = |source| OpenError::Io { path: path.clone(), source };
        let file = self.storage.open(&name(index)).map_err(failed)?;
        if index + 2 >= self.manifest.next && self.look.is_none() {
            // The last segment that has begun, and maybe one that has not: all others were synced.
            self.storage.reload(&file).map_err(failed)?;
        }
        let bytes = self.storage.size(&file).map_err(failed)?;
        let is_live = self.is_live();
        let (header, copies) = match read_header(&self.storage, &file).map_err(failed)? {
            // The segment was made ahead of time; or begun by a batch of which no record came to be acknowledged.
            Begun::No if index + 1 == self.manifest.next => return Ok(()),
            // A node is beginning it now.
            Begun::Damaged if index + 1 == self.manifest.next && is_live => return Ok(()),
            Begun::No | Begun::Damaged => return Err(OpenError::Block(path)),
            Begun::Version(found) => return Err(OpenError::Version { path, found }),
            Begun::Yes(header, copies) => (header, copies),
        };
        check_owner(&path, header.cluster, header.shard, &self.options)?;
        let follows = self.last.as_ref().is_none_or(|last| {
            header.previous_id == last.header.id && (RECORDS_AT..=last.bytes).contains(&header.previous_end)
        });
        if !follows || header.index != index || header.begin.position < self.end.position {
            return Err(OpenError::Mixed(path));
        }
        if copies != Copies::Both {
            if self.look.is_none() {
                let result = self.storage.write_at(&file, 0, &header.encode());
                result.and_then(|()| self.storage.sync(&file)).map_err(failed)?;
            }
            healed.extend((copies == Copies::OneDamaged).then_some(path));
        }
        if self.last.is_none() {
            self.begin = header.begin;
        }
        self.end = header.begin;
        self.acknowledged = self.acknowledged.max(header.acknowledged);
        self.index.push(RecordStart { segment: index, offset: RECORDS_AT, end: header.begin, record: 0 });
        self.last = Some(Last { file, header, at: RECORDS_AT, bytes, records: 0, written: RECORDS_AT });
        Ok(())
    }

    /// Finds the end of the last segment's records.
    fn find_end(&mut self) -> Result<(Option<Torn>, Vec<Damage>), OpenError> {
        let is_last = |cut: &SegmentCut| self.last.as_ref().is_some_and(|last| cut.index == last.header.index);
        if let Some(cut) = self.manifest.cut.filter(is_last) {
            return Ok((None, self.read_to_cut(cut)?));
        }
        let (torn, damages) = self.scan_last()?;
        if torn.is_some() && self.look.is_none() {
            // The end is sealed, so that it is never judged again, nor overwritten: some of the records behind it may
            // be whole.
            self.seal_last(None)?;
        }
        Ok((torn, damages))
    }

    /// Reads the last segment's records up to the place where it was cut.
    fn read_to_cut(&mut self, cut: SegmentCut) -> Result<Vec<Damage>, OpenError> {
        let Some(last) = &mut self.last else { return Ok(Vec::new()) };
        if !(RECORDS_AT..=last.bytes).contains(&cut.end) {
            return Err(OpenError::Mixed(self.storage.path(&name(last.header.index))));
        }
        (last.at, last.bytes) = (cut.end, cut.end);
        let begin = RecordStart { segment: cut.index, offset: RECORDS_AT, end: self.end, record: 0 };
        self.end = cut.at;
        let mut walk = Walk::new(Extent { last: cut.index, last_end: cut.end, end: cut.at }, begin);
        let mut damages = Vec::new();
        while let Some(step) = walk.next(&self.storage)? {
            match step {
                WalkStep::Record { header, place } => {
                    self.acknowledged = self.acknowledged.max(header.acknowledged);
                    self.index.push(place);
                }
                WalkStep::Damage(damage) => damages.push(damage),
            }
        }
        Ok(damages)
    }

    /// Scans the last segment for its records, and judges what is none.
    fn scan_last(&mut self) -> Result<(Option<Torn>, Vec<Damage>), OpenError> {
        let is_live = self.is_live();
        let Some(last) = &mut self.last else { return Ok((None, Vec::new())) };
        let segment = last.header.index;
        let path = self.storage.path(&name(segment));
        let failed = |source| ReadError::Io { path: path.clone(), source };
        let file = self.storage.open(&name(segment)).map_err(failed)?;
        self.storage.read_through(&file);
        let mut scanner = Scanner::new(file, last.header.id, RECORDS_AT, last.bytes);
        let (mut damages, mut torn, mut lost) = (Vec::new(), None, false);
        loop {
            last.at = scanner.at();
            let end = self.end;
            let (offset, why) = match scanner.next(&self.storage).map_err(failed)? {
                ScanFinding::End => break,
                ScanFinding::Record { header, .. } if header.may_follow(end) || lost && header.is_behind(end) => {
                    self.index.push(RecordStart { segment, offset: last.at, end, record: last.records });
                    (self.end, lost) = (header.reached(), false);
                    self.acknowledged = self.acknowledged.max(header.acknowledged);
                    last.records += 1;
                    continue;
                }
                ScanFinding::Record { offset, header } => (offset, Bad::Order(header)),
                ScanFinding::Bad { offset, why: Bad::Unknown { kind, flags } } => {
                    return Err(ReadError::Newer { path, offset, kind, flags }.into());
                }
                ScanFinding::Bad { offset, why } => (offset, why),
            };
            if scanner.is_blank(&self.storage, offset).map_err(failed)? {
                break;
            }
            if is_live {
                match is_damaged(&mut scanner, &self.storage, offset, why, end).map_err(failed)? {
                    None => break,
                    Some(false) => continue,
                    Some(true) => {}
                }
            }
            let record = last.records + 1;
            let looks_torn = is_torn(&mut scanner, &self.storage, offset, why).map_err(failed)?;
            let next = next_good(&mut scanner, &self.storage, offset, why, end).map_err(failed)?;
            if looks_torn || next.is_none() {
                let behind = mark::highest_behind(&mut scanner, &self.storage, offset).map_err(failed)?;
                self.acknowledged = self.acknowledged.max(behind);
            }
            // Acknowledged records were not being written, so they were not torn.
            if looks_torn && self.acknowledged <= end.version {
                torn = Some(Torn { path: path.clone(), offset, record, after: end.position });
                break;
            }
            let (to, before) = next.unzip();
            let (path, after) = (path.clone(), end.position);
            let damage = Damage { path, segment, from: offset, to, record, after, before };
            damages.push(damage.clone());
            let Some(to) = to else {
                // A record that looks torn would not keep the log from going on; it is missing.
                self.open_damage = (!looks_torn).then_some(damage);
                break;
            };
            last.records += 1;
            lost = true;
            scanner.jump(to);
        }
        Ok((torn, damages))
    }
}

/// Returns whether a record that is not right was torn.
fn is_torn<S: Storage>(scanner: &mut Scanner<S::File>, storage: &S, offset: u64, why: Bad) -> io::Result<bool> {
    let (bytes, rest) = match why {
        Bad::Payload(header) | Bad::Order(header) => (header.record_bytes() as u64, header.record_bytes() as u64),
        Bad::Header | Bad::Unknown { .. } => (HEADER_BYTES as u64, HEADER_BYTES as u64),
    };
    let was_synced = scanner.find(storage, offset + rest, |header| header.batch > offset)?.is_some();
    Ok(!was_synced && scanner.lacks_a_sector(storage, offset, bytes)?)
}

/// Returns whether a record that was not right when it was read is damaged, though a node may have been writing it just
/// then. None if no record follows, so that this can't be told yet.
fn is_damaged<S: Storage>(
    scanner: &mut Scanner<S::File>,
    storage: &S,
    offset: u64,
    why: Bad,
    end: End,
) -> io::Result<Option<bool>> {
    if next_good(scanner, storage, offset, why, end)?.is_none() {
        return Ok(None);
    }
    // Bytes that were written before the next record are there by now.
    scanner.forget();
    scanner.jump(offset);
    let is_good = matches!(scanner.next(storage)?, ScanFinding::Record { header, .. } if header.may_follow(end));
    scanner.jump(offset);
    Ok(Some(!is_good))
}

/// Returns the manifest, if there is a log.
fn read_manifest<S: Storage>(storage: &S, names: &[String]) -> Result<Option<Manifest>, OpenError> {
    let path = storage.path(manifest::NAME);
    match Manifest::read(storage).map_err(|source| OpenError::Io { path: path.clone(), source })? {
        Ok(found) => Ok(Some(found)),
        Err(NoManifest::Absent) if names.iter().any(|name| index_of(name).is_some()) => {
            Err(OpenError::NoManifest(path))
        }
        Err(NoManifest::Absent) => Ok(None),
        Err(NoManifest::Damaged) => Err(OpenError::Block(path)),
        Err(NoManifest::Version(found)) => Err(OpenError::Version { path, found }),
    }
}

fn check_manifest<S: Storage>(storage: &S, found: Manifest, options: &Options) -> Result<Manifest, OpenError> {
    let path = storage.path(manifest::NAME);
    check_owner(&path, found.cluster, found.shard, options)?;
    if found.generation < options.generation {
        return Err(OpenError::Older { path, found: found.generation, expected: options.generation });
    }
    Ok(found)
}

fn begin<S: Storage>(storage: &S, options: &Options, names: &[String]) -> Result<Manifest, OpenError> {
    let path = storage.path(manifest::NAME);
    if options.generation > 0 {
        return Err(OpenError::Lost(path));
    }
    let Options { cluster, shard, .. } = *options;
    let manifest = Manifest {
        cluster,
        shard,
        generation: 0,
        first: 0,
        next: 0,
        cut: None,
        acknowledged: 0,
        asides: aside::newest(names),
        word: None,
        schema: SchemaText::NONE,
        skips: 0,
    };
    manifest.write(storage).map_err(|source| OpenError::Io { path, source })?;
    Ok(manifest)
}

fn check_owner(path: &Path, cluster: ClusterId, shard: ShardId, options: &Options) -> Result<(), OpenError> {
    let path = path.to_path_buf();
    if cluster != options.cluster {
        return Err(OpenError::OtherCluster { path, found: cluster, expected: options.cluster });
    }
    if shard != options.shard {
        return Err(OpenError::OtherShard { path, found: shard, expected: options.shard });
    }
    Ok(())
}

/// Removes files that are not part of the log any more, or not yet.
fn remove_leftovers<S: Storage + Clone>(storage: &S, manifest: &Manifest, names: &[String]) -> Result<(), OpenError> {
    let sync = || storage.sync_directory().map_err(|source| OpenError::Io { path: storage.path(""), source });
    // An earlier process may have put the manifest there, and ended before it synced its name. So the name is synced
    // before the changes that follow from it.
    sync()?;
    aside::finish(storage, manifest, names)
        .map_err(|source| OpenError::Io { path: storage.path(manifest::NAME), source })?;
    let live = manifest.first..manifest.next;
    let index = |name: &str| index_of(name).or_else(|| signatures::index_of(name));
    for name in names {
        let is_old_list = skips::number_of(name).is_some_and(|number| number != manifest.skips);
        if name.ends_with(".new") || is_old_list || index(name).is_some_and(|index| !live.contains(&index)) {
            match storage.remove(name) {
                // The new manifest has taken the log's name already.
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(OpenError::Io { path: storage.path(name), source });
                }
                _ => {}
            }
        }
    }
    sync()
}
