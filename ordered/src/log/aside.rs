//! Records that a cut or a new beginning took from a log, kept beside it: each time as a log of its own, which an
//! operator can read.

use std::{collections::BTreeMap, io, ops::Range, path::PathBuf};

use super::{
    Log, ReadError, Storage, WriteError,
    index::RecordStart,
    manifest::{self, Manifest, NoManifest, OperatorVerdict},
    scan::{ScanFinding, Scanner},
    segment::{RECORDS_AT, index_of, name},
    walk::open_segment,
};

/// The number of asides that are kept at most.
const MAX_ASIDES: usize = 4;

/// The most that is copied at once, in bytes.
const CHUNK_BYTES: usize = 1 << 20;

/// The directory of a log that was set aside: the files of another directory whose names begin with the aside's name
/// and a dot.
#[derive(Clone, Debug)]
pub struct Aside<S> {
    storage: S,
    prefix: String,
}

impl<S: Storage> Aside<S> {
    /// Returns the aside named `name`, in the directory of the log from which it was taken.
    pub fn new(storage: S, name: &str) -> Aside<S> {
        Aside { storage, prefix: format!("{name}.") }
    }
}

impl<S: Storage> Storage for Aside<S> {
    type File = S::File;

    fn list(&self) -> io::Result<Vec<String>> {
        let names = self.storage.list()?;
        Ok(names.iter().filter_map(|name| name.strip_prefix(&self.prefix)).map(str::to_owned).collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<S::File> {
        self.storage.create(&format!("{}{name}", self.prefix), bytes)
    }

    fn open(&self, name: &str) -> io::Result<S::File> {
        self.storage.open(&format!("{}{name}", self.prefix))
    }

    fn size(&self, file: &S::File) -> io::Result<u64> {
        self.storage.size(file)
    }

    fn read_at(&self, file: &S::File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.storage.read_at(file, offset, into)
    }

    fn read_through(&self, file: &S::File) {
        self.storage.read_through(file);
    }

    fn write_at(&self, file: &S::File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.storage.write_at(file, offset, bytes)
    }

    fn sync(&self, file: &S::File) -> io::Result<()> {
        self.storage.sync(file)
    }

    fn reload(&self, file: &S::File) -> io::Result<()> {
        self.storage.reload(file)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.storage.sync_directory()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.storage.rename(&format!("{}{from}", self.prefix), &format!("{}{to}", self.prefix))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.storage.remove(&format!("{}{name}", self.prefix))
    }

    fn free(&self) -> io::Result<u64> {
        self.storage.free()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.storage.path(&format!("{}{name}", self.prefix))
    }
}

/// Returns the names of the asides in a log's directory, the oldest first. Fails if the directory can't be listed.
pub fn asides<S: Storage>(storage: &S) -> io::Result<Vec<String>> {
    Ok(files_of(&storage.list()?).into_keys().map(aside_name).collect())
}

/// Records that were set aside, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsideSummary {
    /// The name, as `squall log read` takes it.
    pub name: String,
    /// The version of the first message. It may still be in the log, too.
    pub first: u64,
    /// The version of the last message; less than the first if there are only views.
    pub last: u64,
    /// The bytes of the segments.
    pub bytes: u64,
}

/// Returns the summary of an aside that [`asides`] has named: it reads its last segment. None if the aside is gone, or
/// can't be read.
pub fn summary_of<S: Storage + Clone>(storage: &S, name: &str) -> io::Result<Option<AsideSummary>> {
    let aside = Aside::new(storage.clone(), name);
    let Ok(manifest) = Manifest::read(&aside)? else { return Ok(None) };
    let (mut bytes, mut first, mut newest) = (0, None, None);
    for index in manifest.first..manifest.next {
        let Ok((file, header)) = open_segment(&aside, index) else { continue };
        let size = aside.size(&file)?;
        bytes += size;
        first.get_or_insert(header.begin.version + 1);
        let end = manifest.cut.filter(|cut| cut.index == index).map_or(size, |cut| cut.end);
        newest = Some((header.begin.version, Scanner::new(file, header.id, RECORDS_AT, end)));
    }
    let Some((mut last, mut scanner)) = newest else { return Ok(None) };
    while let ScanFinding::Record { header, .. } = scanner.next(&aside)? {
        last = header.version;
    }
    Ok(first.map(|first| AsideSummary { name: name.to_owned(), first, last, bytes }))
}

fn aside_name(number: u64) -> String {
    format!("aside-{number}")
}

fn full_name(number: u64, file: &str) -> String {
    format!("{}.{file}", aside_name(number))
}

/// Returns, for each aside's number, the names of its files without their prefix.
fn files_of(names: &[String]) -> BTreeMap<u64, Vec<&str>> {
    let mut files: BTreeMap<u64, Vec<&str>> = BTreeMap::new();
    for name in names {
        let parts = name.strip_prefix("aside-").and_then(|rest| rest.split_once('.'));
        if let Some((number, file)) = parts.and_then(|(number, file)| number.parse().ok().zip(Some(file))) {
            files.entry(number).or_default().push(file);
        }
    }
    files
}

/// Returns the highest number that a file in the directory has.
pub(crate) fn newest(names: &[String]) -> u64 {
    files_of(names).into_keys().next_back().unwrap_or(0)
}

/// Records that are about to be set aside.
#[derive(Debug)]
pub(crate) struct SetAside {
    number: u64,
    /// The segments that get other names instead of being removed, once the log's manifest has the number.
    segments: Range<u64>,
    /// The log's size when it was whole, in bytes.
    log_bytes: u64,
}

impl SetAside {
    pub(crate) fn name(&self) -> String {
        aside_name(self.number)
    }

    /// Returns whether a segment that the log does not list any more is to be kept.
    pub(crate) fn takes(&self, segment: u64) -> bool {
        self.segments.contains(&segment)
    }

    /// Gives a segment its new name.
    pub(crate) fn take<S: Storage>(&self, storage: &S, segment: u64) -> io::Result<()> {
        storage.rename(&name(segment), &full_name(self.number, &name(segment)))
    }
}

impl<S: Storage + Clone> Log<S> {
    /// Prepares, durably, to set aside the records that a cut at `place` takes away, or all segments. The segment that
    /// is cut is copied, and a manifest for the aside is written. The rest follows once the log's own manifest has the
    /// number. None if no segment has begun.
    pub(crate) fn prepare_aside(&mut self, place: Option<RecordStart>) -> Result<Option<SetAside>, WriteError> {
        let Some(last) = self.last.as_ref().map(|last| last.header.index) else { return Ok(None) };
        let number = self.manifest.asides + 1;
        let aside = Aside::new(self.storage.clone(), &aside_name(number));
        let first = place.map_or(self.manifest.first, |place| place.segment);
        let mut log_bytes = 0;
        for index in self.manifest.first..=last {
            let (file, _) = open_segment(&self.storage, index)?;
            let size = self.storage.size(&file);
            log_bytes += size.map_err(|source| ReadError::Io { path: self.storage.path(&name(index)), source })?;
        }
        let copied = match place {
            Some(place) => self.copy_segment(&aside, place.segment),
            None => Ok(()),
        };
        let manifest = Manifest {
            first,
            next: last + 1,
            cut: self.manifest.cut.filter(|cut| cut.index == last),
            acknowledged: self.acknowledged,
            asides: 0,
            word: None,
            skips: 0,
            ..self.manifest
        };
        let prepared = copied.and_then(|()| manifest.write(&aside));
        if let Err(source) = prepared {
            // A copy that can't be removed now is removed when the log is opened.
            let _ = place.map(|place| aside.remove(&name(place.segment)));
            return Err(self.poison_unless_full("setting aside what goes", &full_name(number, manifest::NAME), source));
        }
        let segments = first + u64::from(place.is_some())..last + 1;
        Ok(Some(SetAside { number, segments, log_bytes }))
    }

    /// Copies a segment up to the end of its records, synced.
    fn copy_segment(&self, aside: &Aside<S>, index: u64) -> io::Result<()> {
        let (file, _) = open_segment(&self.storage, index).map_err(io::Error::other)?;
        let end = match &self.last {
            Some(last) if last.header.index == index => last.at,
            _ => open_segment(&self.storage, index + 1).map_err(io::Error::other)?.1.previous_end,
        };
        let copy = aside.create(&name(index), end)?;
        let (mut at, mut chunk) = (0, vec![0; CHUNK_BYTES.min(end as usize)]);
        while at < end {
            let part = &mut chunk[..CHUNK_BYTES.min((end - at) as usize)];
            self.storage.read_at(&file, at, part)?;
            aside.write_at(&copy, at, part)?;
            at += part.len() as u64;
        }
        aside.sync(&copy)
    }
}

/// Removes the oldest asides while there are more than four, or while they take more bytes together than the log from
/// which the newest was taken.
pub(crate) fn remove_oldest<S: Storage>(storage: &S, newest: &SetAside) -> io::Result<()> {
    let names = storage.list()?;
    let (mut kept, mut bytes) = (0, 0);
    for (number, files) in files_of(&names).into_iter().rev() {
        for file in files.iter().filter(|file| index_of(file).is_some()) {
            bytes += storage.size(&storage.open(&full_name(number, file))?)?;
        }
        kept += 1;
        if kept > MAX_ASIDES || kept > 1 && bytes > newest.log_bytes {
            remove(storage, number, &files)?;
        }
    }
    Ok(())
}

/// Removes the oldest aside, if there is one, to make space. Returns whether there was one.
pub(crate) fn make_room<S: Storage>(storage: &S) -> io::Result<bool> {
    let names = storage.list()?;
    let Some((number, files)) = files_of(&names).into_iter().next() else { return Ok(false) };
    remove(storage, number, &files)?;
    Ok(true)
}

/// Removes an aside: first, durably, the manifest that says that it is there.
fn remove<S: Storage>(storage: &S, number: u64, files: &[&str]) -> io::Result<()> {
    if files.contains(&manifest::NAME) {
        storage.remove(&full_name(number, manifest::NAME))?;
        storage.sync_directory()?;
    }
    let mut others = files.iter().filter(|file| **file != manifest::NAME);
    others.try_for_each(|file| storage.remove(&full_name(number, file)))
}

/// Sets aside, durably, the segments from `from` on that keep a log from being opened: each run of segments that are
/// there becomes one aside. The log's manifest does not list them any more; opening the log gives them their new names.
pub(crate) fn set_aside_from<S: Storage + Clone>(storage: &S, log: Manifest, from: u64) -> io::Result<()> {
    let names = storage.list()?;
    let (mut asides, mut next) = (log.asides, from);
    while next < log.next {
        let first = next;
        while next < log.next && names.contains(&name(next)) {
            next += 1;
        }
        if next > first {
            asides += 1;
            let aside = Aside::new(storage.clone(), &aside_name(asides));
            let cut = log.cut.filter(|cut| cut.index + 1 == next);
            Manifest { first, next, cut, asides: 0, word: None, skips: 0, ..log }.write(&aside)?;
        } else {
            next += 1;
        }
    }
    // The records of the segments that went are not known.
    let word = Some(OperatorVerdict::Doubtful);
    Manifest { next: from, cut: log.cut.filter(|cut| cut.index < from), asides, word, ..log }.write(storage)
}

/// Finishes, when a log is opened, the work that a crash left half done. Asides that the log's manifest does not know
/// are removed, and segments that were to get another name get it.
pub(crate) fn finish<S: Storage + Clone>(storage: &S, log: &Manifest, names: &[String]) -> io::Result<()> {
    for (number, files) in files_of(names) {
        let aside = Aside::new(storage.clone(), &aside_name(number));
        let manifest = match Manifest::read(&aside)? {
            Ok(manifest) if number <= log.asides => manifest,
            Ok(_) | Err(NoManifest::Absent) => {
                remove(storage, number, &files)?;
                continue;
            }
            Err(_) => continue,
        };
        let is_there = |index: u64| files.contains(&name(index).as_str());
        let is_left = |index: u64| !(log.first..log.next).contains(&index) && names.contains(&name(index));
        let missing: Vec<u64> = (manifest.first..manifest.next).filter(|&index| !is_there(index)).collect();
        if missing.iter().all(|&index| is_left(index)) {
            let to = |index| full_name(number, &name(index));
            missing.into_iter().try_for_each(|index| storage.rename(&name(index), &to(index)))?;
        } else {
            // A crash interrupted its removal.
            remove(storage, number, &files)?;
        }
    }
    Ok(())
}
