//! The storage of logs: a directory, or a simulated disk.

use std::{fs::File, io, path::PathBuf};

use squall_ordered::log::{Files, Storage};
#[cfg(feature = "sim")]
use squall_ordered::log::{SimFile, SimStorage};

/// A directory that one shard's log owns.
#[derive(Clone, Debug)]
pub(crate) enum Disk {
    Real(Files),
    #[cfg(feature = "sim")]
    Simulated(SimStorage),
}

/// An open file of a [`Disk`].
#[derive(Debug)]
pub(crate) enum DiskFile {
    Real(File),
    #[cfg(feature = "sim")]
    Simulated(SimFile),
}

/// Calls the same function of the real or the simulated disk.
macro_rules! on_disk {
    ($disk:expr, $storage:ident => $call:expr) => {
        match $disk {
            Disk::Real($storage) => $call,
            #[cfg(feature = "sim")]
            Disk::Simulated($storage) => $call,
        }
    };
}

/// Calls the same function of the real or the simulated disk, which must be the file's.
macro_rules! on_file {
    ($disk:expr, $file:expr, $storage:ident, $of:ident => $call:expr) => {
        match ($disk, $file) {
            (Disk::Real($storage), DiskFile::Real($of)) => $call,
            #[cfg(feature = "sim")]
            (Disk::Simulated($storage), DiskFile::Simulated($of)) => $call,
            #[cfg(feature = "sim")]
            _ => Err(io::Error::other("a file of another disk")),
        }
    };
}

impl Storage for Disk {
    type File = DiskFile;

    fn list(&self) -> io::Result<Vec<String>> {
        on_disk!(self, disk => disk.list())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<DiskFile> {
        match self {
            Disk::Real(files) => files.create(name, bytes).map(DiskFile::Real),
            #[cfg(feature = "sim")]
            Disk::Simulated(disk) => disk.create(name, bytes).map(DiskFile::Simulated),
        }
    }

    fn open(&self, name: &str) -> io::Result<DiskFile> {
        match self {
            Disk::Real(files) => files.open(name).map(DiskFile::Real),
            #[cfg(feature = "sim")]
            Disk::Simulated(disk) => disk.open(name).map(DiskFile::Simulated),
        }
    }

    fn size(&self, file: &DiskFile) -> io::Result<u64> {
        on_file!(self, file, disk, of => disk.size(of))
    }

    fn read_at(&self, file: &DiskFile, offset: u64, into: &mut [u8]) -> io::Result<()> {
        on_file!(self, file, disk, of => disk.read_at(of, offset, into))
    }

    fn read_through(&self, file: &DiskFile) {
        match (self, file) {
            (Disk::Real(files), DiskFile::Real(file)) => files.read_through(file),
            #[cfg(feature = "sim")]
            _ => {}
        }
    }

    fn write_at(&self, file: &DiskFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
        on_file!(self, file, disk, of => disk.write_at(of, offset, bytes))
    }

    fn sync(&self, file: &DiskFile) -> io::Result<()> {
        #[cfg(all(test, not(squall_loom)))]
        match self {
            Disk::Real(files) => faults::check(files.directory())?,
            #[cfg(feature = "sim")]
            Disk::Simulated(_) => {}
        }
        on_file!(self, file, disk, of => disk.sync(of))
    }

    fn reload(&self, file: &DiskFile) -> io::Result<()> {
        on_file!(self, file, disk, of => disk.reload(of))
    }

    fn sync_directory(&self) -> io::Result<()> {
        on_disk!(self, disk => disk.sync_directory())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        on_disk!(self, disk => disk.rename(from, to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        on_disk!(self, disk => disk.remove(name))
    }

    fn free(&self) -> io::Result<u64> {
        on_disk!(self, disk => disk.free())
    }

    fn path(&self, name: &str) -> PathBuf {
        on_disk!(self, disk => disk.path(name))
    }
}

/// Real directories whose syncs tests make fail.
#[cfg(all(test, not(squall_loom)))]
pub(crate) mod faults {
    use std::{
        collections::BTreeSet,
        io,
        path::{Path, PathBuf},
    };

    use squall_fabric::sync::Lock;

    static FAILING: Lock<BTreeSet<PathBuf>> = Lock::new(BTreeSet::new());

    fn with<T>(f: impl FnOnce(&mut BTreeSet<PathBuf>) -> T) -> T {
        f(&mut FAILING.lock())
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
