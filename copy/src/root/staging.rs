//! The staging directory of a transfer.

use std::{
    ffi::OsStr,
    fs::File,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, chmodat, mknodat, openat, symlinkat, syncfs, unlinkat},
    io::Errno,
};

use super::{PlaceError, names};

/// The staging directory in which one transfer's files grow.
#[derive(Debug)]
pub(crate) struct Staging {
    pub(super) directory: OwnedFd,
    pub(super) name: String,
}

impl Staging {
    /// Opens a file in it; `create` makes it new.
    pub(crate) fn open(&self, name: &str, create: bool) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let flags = if create { flags | OFlags::CREATE | OFlags::EXCL } else { flags };
        let open = || openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        match open() {
            // It was about to be put in place, and has its mode already.
            Err(Errno::ACCESS) if !create => {
                chmodat(&self.directory, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
                open()
            }
            // A file that was about to be put in place may be read-only by now.
            Err(Errno::EXIST) if create => {
                self.remove(name)?;
                open()
            }
            opened => opened,
        }
    }

    /// Opens what has a name, for its owner, mode, times and attributes only.
    pub(crate) fn handle(&self, name: &str) -> Result<OwnedFd, Errno> {
        openat(&self.directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    /// Makes a symbolic link in it.
    pub(crate) fn link(&self, name: &str, target: &[u8]) -> Result<(), Errno> {
        self.remove(name)?;
        symlinkat(OsStr::from_bytes(target), &self.directory, name)
    }

    /// Makes a pipe, a socket or a device in it.
    pub(crate) fn special(&self, name: &str, kind: FileType, device: u64) -> Result<(), Errno> {
        self.remove(name)?;
        mknodat(&self.directory, name, kind, Mode::RUSR | Mode::WUSR, device)
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Errno> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Returns the names in it.
    pub(crate) fn names(&self) -> Result<Vec<String>, PlaceError> {
        let names = names(&self.directory).map_err(PlaceError::disk("read the staging directory", &self.name))?;
        Ok(names.iter().map(|name| name.to_string_lossy().into_owned()).collect())
    }

    /// Writes everything on its filesystem to the disk.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        syncfs(&self.directory)
    }
}
