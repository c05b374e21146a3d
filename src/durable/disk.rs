//! The storage of logs: a directory, or a simulated disk.

use std::{fs::File, io, path::PathBuf};

use squall_ordered::log::{Files, SimFile, SimStorage, Storage};

/// A directory that one shard's log owns.
#[derive(Clone, Debug)]
pub(crate) enum Disk {
    Real(Files),
    Simulated(SimStorage),
}

/// An open file of a [`Disk`].
#[derive(Debug)]
pub(crate) enum DiskFile {
    Real(File),
    Simulated(SimFile),
}

/// Calls the same function of the real or the simulated disk, which must be the file's.
macro_rules! on {
    ($disk:expr, $file:expr, $storage:ident, $of:ident => $call:expr) => {
        match ($disk, $file) {
            (Disk::Real($storage), DiskFile::Real($of)) => $call,
            (Disk::Simulated($storage), DiskFile::Simulated($of)) => $call,
            _ => Err(io::Error::other("a file of another disk")),
        }
    };
}

impl Storage for Disk {
    type File = DiskFile;

    fn list(&self) -> io::Result<Vec<String>> {
        match self {
            Disk::Real(files) => files.list(),
            Disk::Simulated(disk) => disk.list(),
        }
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<DiskFile> {
        match self {
            Disk::Real(files) => files.create(name, bytes).map(DiskFile::Real),
            Disk::Simulated(disk) => disk.create(name, bytes).map(DiskFile::Simulated),
        }
    }

    fn open(&self, name: &str) -> io::Result<DiskFile> {
        match self {
            Disk::Real(files) => files.open(name).map(DiskFile::Real),
            Disk::Simulated(disk) => disk.open(name).map(DiskFile::Simulated),
        }
    }

    fn size(&self, file: &DiskFile) -> io::Result<u64> {
        on!(self, file, disk, of => disk.size(of))
    }

    fn read_at(&self, file: &DiskFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        on!(self, file, disk, of => disk.read_at(of, offset, into))
    }

    fn read_through(&self, file: &DiskFile) {
        if let (Disk::Real(files), DiskFile::Real(file)) = (self, file) {
            files.read_through(file);
        }
    }

    fn write_at(&self, file: &DiskFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        on!(self, file, disk, of => disk.write_at(of, offset, bytes))
    }

    fn sync(&self, file: &DiskFile) -> io::Result<()> {
        #[cfg(all(test, not(squall_loom)))]
        if let Disk::Real(files) = self {
            faults::check(files.directory())?;
        }
        on!(self, file, disk, of => disk.sync(of))
    }

    fn reload(&self, file: &DiskFile) -> io::Result<()> {
        on!(self, file, disk, of => disk.reload(of))
    }

    fn sync_directory(&self) -> io::Result<()> {
        match self {
            Disk::Real(files) => files.sync_directory(),
            Disk::Simulated(disk) => disk.sync_directory(),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        match self {
            Disk::Real(files) => files.rename(from, to),
            Disk::Simulated(disk) => disk.rename(from, to),
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match self {
            Disk::Real(files) => files.remove(name),
            Disk::Simulated(disk) => disk.remove(name),
        }
    }

    fn free(&self) -> io::Result<u64> {
        match self {
            Disk::Real(files) => files.free(),
            Disk::Simulated(disk) => disk.free(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        match self {
            Disk::Real(files) => files.path(name),
            Disk::Simulated(disk) => disk.path(name),
        }
    }
}

/// Real directories whose syncs tests make fail.
#[cfg(all(test, not(squall_loom)))]
pub(crate) mod faults {
    use std::{
        collections::BTreeSet,
        io,
        path::{Path, PathBuf},
        sync::{Mutex, PoisonError},
    };

    static FAILING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

    fn with<T>(f: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
        f(&mut FAILING.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Makes each sync of a file below this directory fail from now on.
    pub(crate) fn fail_syncs(below: &Path) {
        with(|failing| failing.insert(below.to_owned()));
    }

    /// Lets these syncs succeed again.
    pub(crate) fn heal(below: &Path) {
        with(|failing| failing.remove(below));
    }

    pub(super) fn check(directory: &Path) -> io::Result<()> {
        match with(|failing| failing.iter().any(|below| directory.starts_with(below))) {
            true => Err(io::Error::other("a test makes this sync fail")),
            false => Ok(()),
        }
    }
}
