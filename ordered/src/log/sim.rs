//! A simulated disk: the weakest that the contract of a [`Storage`] permits, and worse where a test asks for it.

use std::{collections::BTreeMap, io, ops::Range, path::PathBuf, sync::Arc};

use fastrand::Rng;
use squall_fabric::sync::Lock;

use super::{SECTOR_BYTES, Storage};

type Sector = [u8; SECTOR_BYTES];

/// A directory on a disk that exists in memory alone. Clones are handles of the same directory.
///
/// Bytes and names that were not synced may be lost in a crash: sector by sector, name by name, in any order. All of
/// its behaviour follows from its seed.
#[derive(Clone, Debug)]
pub struct SimStorage(Arc<Lock<DiskState>>);

/// An open file of a [`SimStorage`].
#[derive(Clone, Copy, Debug)]
pub struct SimFile(usize);

#[derive(Debug)]
struct DiskState {
    rng: Rng,
    files: Vec<FileContents>,
    names: BTreeMap<String, usize>,
    /// The names that a crash leaves.
    durable_names: BTreeMap<String, usize>,
    /// The changes of names since, in order: a name, and the file that has it now, grouped by the steps that belong
    /// together.
    renamings: Vec<Vec<(String, Option<usize>)>>,
    changes: u64,
    syncs: u64,
    crash_at: Option<u64>,
    fail_sync: Option<u64>,
    crashed: bool,
    capacity: u64,
    /// The number of looks at its room, from now on, after which it has no limit any more.
    looks: Option<u64>,
}

#[derive(Debug, Default)]
struct FileContents {
    now: Vec<u8>,
    /// The bytes that a crash leaves.
    durable: Vec<u8>,
    /// The contents that each sector had since it was last synced.
    unsynced: BTreeMap<usize, Vec<Sector>>,
}

impl SimStorage {
    /// Makes an empty disk.
    pub fn new(seed: u64) -> SimStorage {
        SimStorage(Arc::new(Lock::new(DiskState {
            rng: Rng::with_seed(seed),
            files: Vec::new(),
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            renamings: Vec::new(),
            changes: 0,
            syncs: 0,
            crash_at: None,
            fail_sync: None,
            crashed: false,
            capacity: u64::MAX,
            looks: None,
        })))
    }

    /// Returns the number of changes that it was asked for: files made, written, synced, renamed, removed.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Crashes in the midst of the change with this number (that of the next is [`changes`](SimStorage::changes)). That
    /// change fails, and so does every later call, until [`restart`](SimStorage::restart).
    pub fn crash_at(&self, change: u64) {
        self.0.lock().crash_at = Some(change);
    }

    /// Returns whether it has crashed.
    pub fn has_crashed(&self) -> bool {
        self.0.lock().crashed
    }

    /// Loses power, if it has not yet, and comes back with all that was durable, and some of the rest.
    pub fn restart(&self) {
        let mut disk = self.0.lock();
        disk.lose_power();
        disk.crashed = false;
        disk.crash_at = None;
        disk.fail_sync = None;
    }

    /// Goes on after a crash as if the process alone had ended: the bytes that it wrote are there, though they may not
    /// be durable yet.
    pub fn revive(&self) {
        let mut disk = self.0.lock();
        disk.crashed = false;
        disk.crash_at = None;
    }

    /// Fails the `nth` sync of a file from now on (the next is 0). Some of the bytes that it should have written are
    /// lost, though they are still read until the next crash. Later syncs succeed and do not write them either.
    pub fn fail_sync(&self, nth: u64) {
        let mut disk = self.0.lock();
        disk.fail_sync = Some(disk.syncs + nth);
    }

    /// Limits the sum of all files' sizes, in bytes. Files that are there already stay.
    pub fn limit(&self, bytes: u64) {
        let mut disk = self.0.lock();
        (disk.capacity, disk.looks) = (bytes, None);
    }

    /// Limits it as [`limit`](SimStorage::limit) does, for so many looks at its [room](Storage::free).
    pub fn limit_for(&self, bytes: u64, looks: u64) {
        let mut disk = self.0.lock();
        (disk.capacity, disk.looks) = (bytes, Some(looks));
    }

    /// Returns the sum of all files' sizes, in bytes.
    pub fn used(&self) -> u64 {
        self.0.lock().used()
    }

    /// Flips one bit of a file, for good.
    ///
    /// # Panics
    ///
    /// If there is no such file, or it has no such byte.
    pub fn flip(&self, name: &str, offset: u64, bit: u8) {
        let mut disk = self.0.lock();
        let file = disk.names[name];
        let contents = &mut disk.files[file];
        for bytes in [&mut contents.now, &mut contents.durable] {
            if let Some(byte) = bytes.get_mut(offset as usize) {
                *byte ^= 1 << (bit % 8);
            }
        }
    }

    /// Makes a part of a file zero, for good.
    ///
    /// # Panics
    ///
    /// If there is no such file.
    pub fn zero(&self, name: &str, range: Range<u64>) {
        let mut disk = self.0.lock();
        let file = disk.names[name];
        let contents = &mut disk.files[file];
        for bytes in [&mut contents.now, &mut contents.durable] {
            let end = bytes.len().min(range.end as usize);
            bytes[end.min(range.start as usize)..end].fill(0);
        }
    }

    /// Returns a disk image, the contents of all files: for comparing, and for going back.
    pub fn image(&self) -> BTreeMap<String, Vec<u8>> {
        let disk = self.0.lock();
        disk.names.iter().map(|(name, &file)| (name.clone(), disk.files[file].now.clone())).collect()
    }

    /// Makes a disk that holds the files of an [`image`](SimStorage::image), all of them durable.
    pub fn from_image(seed: u64, image: &BTreeMap<String, Vec<u8>>) -> SimStorage {
        let storage = SimStorage::new(seed);
        let mut disk = storage.0.lock();
        for (name, bytes) in image {
            let file = disk.files.len();
            disk.files.push(FileContents { now: bytes.clone(), durable: bytes.clone(), unsynced: BTreeMap::new() });
            disk.names.insert(name.clone(), file);
        }
        disk.durable_names = disk.names.clone();
        drop(disk);
        storage
    }
}

fn not_found(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("there is no file {name}"))
}

impl DiskState {
    fn used(&self) -> u64 {
        self.names.values().map(|&file| self.files[file].now.len() as u64).sum()
    }

    fn is_up(&self) -> io::Result<()> {
        if self.crashed { Err(io::Error::other("the simulated disk has no power")) } else { Ok(()) }
    }

    /// Counts a change. Returns false if the crash falls into it: it may still happen.
    fn change(&mut self) -> io::Result<bool> {
        self.is_up()?;
        let falls = self.crash_at == Some(self.changes);
        self.changes += 1;
        self.crashed = falls;
        Ok(!falls)
    }

    /// Changes as [`change`](DiskState::change) does, for a change that must have happened when it returns.
    fn change_or_fail(&mut self) -> io::Result<()> {
        if self.change()? { Ok(()) } else { self.is_up() }
    }

    fn set_names(&mut self, steps: Vec<(String, Option<usize>)>) {
        for (name, file) in &steps {
            match *file {
                Some(file) => self.names.insert(name.clone(), file),
                None => self.names.remove(name),
            };
        }
        self.renamings.push(steps);
    }

    fn lose_power(&mut self) {
        let DiskState { rng, files, names, durable_names, renamings, .. } = self;
        // Some crashes lose all, some nothing, most a part.
        let keep = [0.0, 1.0, 0.5, 0.9, 0.1][rng.usize(..5)];
        for steps in renamings.drain(..) {
            if rng.f64() < keep {
                for (name, file) in steps {
                    match file {
                        Some(file) => durable_names.insert(name, file),
                        None => durable_names.remove(&name),
                    };
                }
            }
        }
        *names = durable_names.clone();
        for contents in files {
            if contents.durable.len() != contents.now.len() && rng.f64() < keep {
                contents.durable.resize(contents.now.len(), 0);
            }
            for (sector, versions) in std::mem::take(&mut contents.unsynced) {
                if rng.f64() < keep {
                    let at = sector * SECTOR_BYTES;
                    let version = rng.choice(&versions).expect("one that was written");
                    let len = contents.durable.len().saturating_sub(at).min(SECTOR_BYTES);
                    contents.durable.get_mut(at..at + len).unwrap_or_default().copy_from_slice(&version[..len]);
                }
            }
            contents.now.clone_from(&contents.durable);
        }
    }
}

impl Storage for SimStorage {
    type File = SimFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let disk = self.0.lock();
        disk.is_up()?;
        Ok(disk.names.keys().cloned().collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<SimFile> {
        let mut disk = self.0.lock();
        let old = disk.names.get(name).map_or(0, |&file| disk.files[file].now.len() as u64);
        if disk.used() - old + bytes > disk.capacity {
            disk.is_up()?;
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        let happens = disk.change()?;
        let file = disk.files.len();
        disk.files.push(FileContents { now: vec![0; bytes as usize], ..FileContents::default() });
        disk.set_names(vec![(name.to_string(), Some(file))]);
        if happens { Ok(SimFile(file)) } else { Err(disk.is_up().expect_err("it has just crashed")) }
    }

    fn open(&self, name: &str) -> io::Result<SimFile> {
        let disk = self.0.lock();
        disk.is_up()?;
        disk.names.get(name).map(|&file| SimFile(file)).ok_or_else(|| not_found(name))
    }

    fn size(&self, file: &SimFile) -> io::Result<u64> {
        let disk = self.0.lock();
        disk.is_up()?;
        Ok(disk.files[file.0].now.len() as u64)
    }

    fn read_at(&self, file: &SimFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let disk = self.0.lock();
        disk.is_up()?;
        let bytes = &disk.files[file.0].now;
        let from = (offset as usize).min(bytes.len());
        let found = bytes[from..].get(..into.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(found);
        Ok(())
    }

    fn write_at(&self, file: &SimFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.0.lock();
        let end = offset as usize + bytes.len();
        let growth = end.saturating_sub(disk.files[file.0].now.len()) as u64;
        if growth > 0 && disk.used() + growth > disk.capacity {
            disk.is_up()?;
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the simulated disk is full"));
        }
        let happens = disk.change()?;
        let contents = &mut disk.files[file.0];
        if contents.now.len() < end {
            contents.now.resize(end, 0);
        }
        contents.now[offset as usize..end].copy_from_slice(bytes);
        if !bytes.is_empty() {
            for sector in offset as usize / SECTOR_BYTES..=(end - 1) / SECTOR_BYTES {
                let mut version = [0; SECTOR_BYTES];
                let held = &contents.now[sector * SECTOR_BYTES..];
                let len = held.len().min(SECTOR_BYTES);
                version[..len].copy_from_slice(&held[..len]);
                contents.unsynced.entry(sector).or_default().push(version);
            }
        }
        if happens { Ok(()) } else { disk.is_up() }
    }

    fn sync(&self, file: &SimFile) -> io::Result<()> {
        let mut disk = self.0.lock();
        let disk = &mut *disk;
        disk.change_or_fail()?;
        let fails = disk.fail_sync == Some(disk.syncs);
        disk.syncs += 1;
        let contents = &mut disk.files[file.0];
        if fails {
            for (sector, versions) in std::mem::take(&mut contents.unsynced) {
                let at = sector * SECTOR_BYTES;
                let end = (at + SECTOR_BYTES).min(contents.durable.len());
                if disk.rng.bool() && at < end {
                    contents.durable[at..end].copy_from_slice(&versions[versions.len() - 1][..end - at]);
                }
            }
            return Err(io::Error::other("the simulated disk could not write"));
        }
        if contents.durable.len() != contents.now.len() {
            contents.durable.resize(contents.now.len(), 0);
        }
        for sector in std::mem::take(&mut contents.unsynced).into_keys() {
            let at = sector * SECTOR_BYTES;
            let end = (at + SECTOR_BYTES).min(contents.now.len());
            contents.durable[at..end].copy_from_slice(&contents.now[at..end]);
        }
        Ok(())
    }

    fn reload(&self, file: &SimFile) -> io::Result<()> {
        self.sync(file)?;
        let contents = &mut self.0.lock().files[file.0];
        contents.now.clone_from(&contents.durable);
        Ok(())
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut disk = self.0.lock();
        disk.change_or_fail()?;
        disk.renamings.clear();
        disk.durable_names = disk.names.clone();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        let happens = disk.change()?;
        let file = *disk.names.get(from).ok_or_else(|| not_found(from))?;
        disk.set_names(vec![(from.to_string(), None), (to.to_string(), Some(file))]);
        if happens { Ok(()) } else { disk.is_up() }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.0.lock();
        let happens = disk.change()?;
        if !disk.names.contains_key(name) {
            return Err(not_found(name));
        }
        disk.set_names(vec![(name.to_string(), None)]);
        if happens { Ok(()) } else { disk.is_up() }
    }

    fn free(&self) -> io::Result<u64> {
        let mut disk = self.0.lock();
        disk.is_up()?;
        match disk.looks {
            Some(0) => (disk.capacity, disk.looks) = (u64::MAX, None),
            looks => disk.looks = looks.map(|left| left - 1),
        }
        Ok(disk.capacity.saturating_sub(disk.used()))
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }
}
