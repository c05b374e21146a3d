//! A real directory.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate, fstatvfs};

use super::Storage;

/// The file whose lock says that a process uses the directory.
const LOCK: &str = "lock";

/// The reasons for which a directory can't be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A log has it already.
    #[error("the log in {} is in use by another process: stop that one, or give this node a directory of its own", .0.display())]
    InUse(PathBuf),
    /// A directory that can't be read.
    #[error("the log's directory {} can't be read: {source}", path.display())]
    Read {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A directory that can't be made, read or locked.
    #[error("the log's directory {} can't be used: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// A directory of a file system, for the one process that holds the lock on its file `lock`.
///
/// Clones are handles of the same directory; the lock is held until the last is gone.
#[derive(Clone, Debug)]
pub struct Files(Arc<Directory>);

#[derive(Debug)]
struct Directory {
    path: PathBuf,
    handle: File,
    /// The lock; None if the directory may only be read.
    lock: Option<File>,
}

impl Files {
    /// Locks a directory, which is made if it does not exist.
    pub fn open(path: impl Into<PathBuf>) -> Result<Files, DirectoryError> {
        let path = path.into();
        let failed = |source| DirectoryError::Io { path: path.clone(), source };
        std::fs::create_dir_all(&path).map_err(failed)?;
        let lock = OpenOptions::new().write(true).create(true).truncate(false).open(path.join(LOCK)).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DirectoryError::InUse(path)),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let handle = File::open(&path).map_err(failed)?;
        // Makes the directory's own name durable, in its parent.
        if let Some(parent) = path.canonicalize().map_err(failed)?.parent() {
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed)?;
        }
        Ok(Files(Arc::new(Directory { path, handle, lock: Some(lock) })))
    }

    /// Opens a directory only to read it, even if a process uses it. Returns it, and whether a process has it locked
    /// now.
    pub fn look(path: impl Into<PathBuf>) -> Result<(Files, bool), DirectoryError> {
        let path = path.into();
        let failed = |source| DirectoryError::Read { path: path.clone(), source };
        let handle = File::open(&path).map_err(failed)?;
        if !handle.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        // A copy of a directory may have no lock file.
        let is_live = match File::open(path.join(LOCK)).map(|lock| lock.try_lock_shared()) {
            Ok(Err(TryLockError::WouldBlock)) => true,
            Ok(Err(TryLockError::Error(source))) => return Err(failed(source)),
            Ok(Ok(())) | Err(_) => false,
        };
        Ok((Files(Arc::new(Directory { path, handle, lock: None })), is_live))
    }

    fn may_write(&self) -> io::Result<()> {
        if self.0.lock.is_some() { Ok(()) } else { Err(io::ErrorKind::ReadOnlyFilesystem.into()) }
    }

    /// Returns the directory's path.
    pub fn directory(&self) -> &Path {
        &self.0.path
    }
}

impl Storage for Files {
    type File = File;

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.0.path)? {
            // A name that is not valid UTF-8 is not one of a log's files.
            names.extend(entry?.file_name().into_string().ok().filter(|name| name != LOCK));
        }
        Ok(names)
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<File> {
        self.may_write()?;
        let path = self.path(name);
        // A new file is made, since one of the same name may be open elsewhere, and its blocks may hold old bytes.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        if bytes > 0
            && let Err(e) = fallocate(&file, FallocateFlags::empty(), 0, bytes)
        {
            drop(file);
            // The space that was reserved so far is of no use. The first error is the one to return.
            let _ = std::fs::remove_file(&path);
            return Err(e.into());
        }
        Ok(file)
    }

    fn open(&self, name: &str) -> io::Result<File> {
        OpenOptions::new().read(true).write(self.0.lock.is_some()).open(self.path(name))
    }

    fn size(&self, file: &File) -> io::Result<u64> {
        Ok(file.metadata()?.len())
    }

    fn read_at(&self, file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
        file.read_exact_at(into, offset)
    }

    fn read_through(&self, file: &File) {
        // Not `WillNeed` for each part: the kernel fetches that into single pages, which take thrice as long to copy
        // from. A part that is not fetched ahead is read when it is needed.
        let _ = fadvise(file, 0, None, Advice::Sequential);
    }

    fn write_at(&self, file: &File, offset: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn reload(&self, file: &File) -> io::Result<()> {
        file.sync_data()?;
        // After a failed sync the kernel takes pages for clean that never reached the disk.
        Ok(fadvise(file, 0, None, Advice::DontNeed)?)
    }

    fn sync_directory(&self) -> io::Result<()> {
        self.0.handle.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.may_write()?;
        std::fs::rename(self.path(from), self.path(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.may_write()?;
        std::fs::remove_file(self.path(name))
    }

    fn free(&self) -> io::Result<u64> {
        let found = fstatvfs(&self.0.handle)?;
        Ok(found.f_bavail.saturating_mul(found.f_frsize))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path.join(name)
    }
}
