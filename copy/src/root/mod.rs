//! The directory that a receiver writes into, and never out of.
//!
//! Names are resolved by the kernel with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`. Where it has no `openat2` (before
//! Linux 5.6, and in some sandboxes), they are resolved component by component without following links. The last
//! component of a path to make, rename or remove is never followed.

mod staging;
#[cfg(test)]
mod tests;

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Stat, fchmod, flock, fstat, fsync,
        linkat, mkdirat, openat, openat2, readlinkat, renameat, renameat_with, statat, syncfs, unlinkat,
    },
    io::Errno,
};
use squall_fabric::sync::Lock;

pub(crate) use self::staging::Staging;
use super::{
    manifest::{Mtime, Owner, TransferId},
    path::{RelPath, STAGING},
};

/// The beginning of the names of the notes in `.squall-cp` that say in which boot of the host files of one name were
/// put in place without having been synced.
const UNSYNCED: &str = "unsynced.";

fn unsynced(name: &[u8]) -> String {
    format!("{UNSYNCED}{}", &blake3::hash(name).to_hex()[..32])
}

/// A reason for which a name could not be put in place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PlaceError {
    /// The failure is this file's: others may succeed.
    #[error("could not {attempt} \"{path}\": {cause}{}", hint(*cause))]
    Name { attempt: &'static str, path: RelPath, cause: Errno },
    /// A failure of the disk: nothing can be written any more.
    #[error("could not {attempt} \"{path}\": {cause}{}", hint(*cause))]
    Disk { attempt: &'static str, path: String, cause: Errno },
}

impl PlaceError {
    pub(crate) fn disk(attempt: &'static str, path: impl ToString) -> impl FnOnce(Errno) -> PlaceError {
        move |cause| PlaceError::Disk { attempt, path: path.to_string(), cause }
    }

    /// Tells whether a directory has the name of what is no directory.
    pub(crate) fn is_in_the_way(&self) -> bool {
        matches!(self, PlaceError::Name { cause: Errno::ISDIR | Errno::NOTEMPTY | Errno::EXIST, .. })
    }

    /// Returns a conversion of errors about a name that the source chose.
    pub(crate) fn name(attempt: &'static str, path: &RelPath) -> impl FnOnce(Errno) -> PlaceError {
        move |cause| match cause {
            Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS => {
                PlaceError::Disk { attempt, path: path.to_string(), cause }
            }
            _ => PlaceError::Name { attempt, path: path.clone(), cause },
        }
    }
}

/// Returns advice to the user on an error.
pub(crate) fn hint(cause: Errno) -> &'static str {
    match cause {
        Errno::NOSPC => ": free some space there, and push again",
        Errno::DQUOT => ": the quota is used up; free some space there, and push again",
        Errno::LOOP => ": a symbolic link is in the way, and is not followed; remove it",
        Errno::NOTDIR => ": what is not a directory is in the way; remove it",
        Errno::ISDIR | Errno::NOTEMPTY => ": a directory is in the way; remove it",
        Errno::XDEV => ": another filesystem is mounted there; serve that directory by itself",
        Errno::ACCESS | Errno::PERM => ": the user of the serving process may not write there",
        Errno::MFILE => ": too many open files; raise `ulimit -n`",
        _ => "",
    }
}

/// A directory, open, and locked against other receivers.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    directory: OwnedFd,
    /// `.squall-cp` in the directory; the lock is released when it is closed.
    staging: Lock<Arc<OwnedFd>>,
    /// The directory that was used last. Names come sorted, so the next lies in it mostly.
    last_parent: Lock<Option<(OsString, Arc<OwnedFd>)>>,
    has_openat2: bool,
}

/// A reason for which a directory can't be served.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// The directory can't be opened.
    #[error("{} can't be served: {cause}; name a directory that exists", path.display())]
    Open {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Its staging directory can't be made.
    #[error("{} can't be served: {STAGING} can't be used in it, which must belong to this user, and be closed to others: {cause}", path.display())]
    Staging {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// Another receiver serves the directory.
    #[error("{} is served by another process already: stop that, or serve another directory", path.display())]
    Served {
        /// The directory.
        path: PathBuf,
    },
}

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

impl Root {
    pub(crate) fn open(path: &Path) -> Result<Root, RootError> {
        let owned = || path.to_owned();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|cause| RootError::Open { path: owned(), cause: cause.into() })?;
        let staging = make_directory(&directory, OsStr::new(STAGING))
            .map_err(|cause| RootError::Staging { path: owned(), cause: cause.into() })?;
        match flock(&staging, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(RootError::Served { path: owned() }),
            Err(cause) => return Err(RootError::Staging { path: owned(), cause: cause.into() }),
        }
        check_own(&staging).map_err(|cause| RootError::Staging { path: owned(), cause: cause.into() })?;
        let probe = openat2(&directory, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH);
        let (staging, last_parent) = (Lock::new(Arc::new(staging)), Lock::new(None));
        Ok(Root { path: owned(), directory, staging, last_parent, has_openat2: probe.is_ok() })
    }

    /// Returns the path as the user named it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the staging directory of a transfer, and makes it if it does not exist.
    pub(crate) fn staging(&self, id: TransferId) -> Result<Staging, PlaceError> {
        let name = id.to_string();
        let path = self.path.join(STAGING).join(&name);
        let failed = || PlaceError::disk("make the staging directory", path.display());
        let staging = match make_directory(&self.own_directory(), OsStr::new(&name)) {
            // Somebody has removed `.squall-cp`.
            Err(Errno::NOENT) => {
                self.renew_staging().map_err(failed())?;
                make_directory(&self.own_directory(), OsStr::new(&name))
            }
            made => made,
        };
        let directory = staging.map_err(failed())?;
        check_own(&directory).map_err(failed())?;
        Ok(Staging { directory, name })
    }

    /// Opens the staging directory of a transfer, if there is one.
    pub(crate) fn staging_if_any(&self, id: TransferId) -> Option<Staging> {
        let name = id.to_string();
        let directory = openat(self.own_directory(), &name, DIRECTORY | OFlags::RDONLY, Mode::empty()).ok()?;
        check_own(&directory).ok()?;
        Some(Staging { directory, name })
    }

    /// Forgets the directory that was used last: others may have changed something since.
    pub(crate) fn look_again(&self) {
        *self.last_parent.lock() = None;
    }

    fn own_directory(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.staging.lock())
    }

    /// Makes `.squall-cp` anew, and locks it.
    fn renew_staging(&self) -> Result<(), Errno> {
        let staging = make_directory(&self.directory, OsStr::new(STAGING))?;
        check_own(&staging)?;
        flock(&staging, FlockOperation::NonBlockingLockExclusive)?;
        *self.staging.lock() = Arc::new(staging);
        Ok(())
    }

    /// Removes a transfer's staging directory and its contents.
    pub(crate) fn discard(&self, staging: &Staging) -> Result<(), PlaceError> {
        for name in staging.names()? {
            staging.remove(&name).map_err(PlaceError::disk("remove", &name))?;
        }
        match unlinkat(self.own_directory(), &staging.name, AtFlags::REMOVEDIR) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(PlaceError::disk("remove", &staging.name)),
        }
    }

    /// Returns the transfers that are not complete, by the names of their staging directories.
    pub(crate) fn partial(&self) -> Vec<String> {
        let names = names(&self.own_directory()).unwrap_or_default();
        names
            .iter()
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| !name.starts_with(UNSYNCED))
            .collect()
    }

    /// Notes that files of this name are put in place in this boot of the host that are not synced. A note of before
    /// stays, unless it is to be replaced.
    pub(crate) fn note_unsynced(&self, name: &[u8], replace: bool) -> Result<(), PlaceError> {
        let directory = self.own_directory();
        let note = || {
            match self.unsynced_in(name) {
                // A sync would wait for all that was copied.
                Ok(Some(before)) if !replace || before == boot() => return Ok(()),
                _ => {}
            }
            let new = format!("{UNSYNCED}new");
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = openat(&*directory, &new, flags, Mode::RUSR | Mode::WUSR)?;
            rustix::io::write(&file, boot().as_bytes())?;
            // Without the note on the disk, files that a crash damages would look whole.
            fsync(&file)?;
            renameat(&*directory, &new, &*directory, unsynced(name))?;
            fsync(&*directory)?;
            fsync(&self.directory)
        };
        note().map_err(PlaceError::disk("write", self.path.join(STAGING).join(unsynced(name)).display()))
    }

    /// Tells whether files of this name were put in place before a crash of this host without having been synced: their
    /// sizes and times say nothing then.
    pub(crate) fn has_unsynced(&self, name: &[u8]) -> bool {
        self.unsynced_in(name).map_or(true, |noted| noted.is_some_and(|noted| noted != boot()))
    }

    /// Returns the boot that the note on a name tells, if there is one.
    fn unsynced_in(&self, name: &[u8]) -> Result<Option<String>, Errno> {
        let mut text = [0; 64];
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let read = openat(self.own_directory(), unsynced(name), flags, Mode::empty())
            .and_then(|file| rustix::io::read(&file, &mut text));
        match read {
            Ok(len) => Ok(Some(String::from_utf8_lossy(&text[..len]).into_owned())),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Forgets that files of this name may not be synced.
    pub(crate) fn forget_unsynced(&self, name: &[u8]) -> Result<(), PlaceError> {
        match unlinkat(self.own_directory(), unsynced(name), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed.map_err(PlaceError::disk("remove", unsynced(name))),
        }
    }

    /// Opens a directory beneath the root, with no link on the way.
    fn beneath(&self, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
        if self.has_openat2 {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            return openat2(&self.directory, path, flags, Mode::empty(), resolve);
        }
        walk(&self.directory, path, flags)
    }

    /// Opens the directory that a path lies in, and returns it with the last component.
    fn parent<'p>(&self, path: &'p RelPath) -> Result<(Arc<OwnedFd>, &'p OsStr), Errno> {
        let (parent, name) = path.split();
        let parent = parent.unwrap_or(OsStr::new("."));
        let mut last = self.last_parent.lock();
        if let Some((known, directory)) = &*last
            && known == parent
        {
            return Ok((Arc::clone(directory), name));
        }
        let directory = Arc::new(self.beneath(parent, DIRECTORY | OFlags::PATH)?);
        *last = Some((parent.to_owned(), Arc::clone(&directory)));
        Ok((directory, name))
    }

    /// Makes a directory that only this user can use for now. A directory that exists stays, but this user can write to
    /// it until it is [finished](Root::handle).
    pub(crate) fn make_directory(&self, path: &RelPath) -> Result<(), PlaceError> {
        *self.last_parent.lock() = None;
        let make = || {
            let (parent, name) = self.parent(path)?;
            let directory = make_directory(&parent, name)?;
            let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
            if mode.contains(Mode::RWXU) { Ok(()) } else { fchmod(&directory, mode | Mode::RWXU) }
        };
        make().map_err(PlaceError::name("make the directory", path))
    }

    /// Opens what has a name, a link itself, for its owner, mode, times and attributes only.
    pub(crate) fn handle(&self, path: &RelPath) -> Result<OwnedFd, Errno> {
        let (parent, name) = self.parent(path)?;
        openat(&parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    /// Opens a file to read it.
    pub(crate) fn open_file(&self, path: &RelPath) -> Result<File, Errno> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        openat(&parent, name, flags, Mode::empty()).map(File::from)
    }

    /// Renames a file or link out of a staging directory to its own name. Returns `Ok(false)` if the name exists
    /// already, and `clobber` is false.
    pub(crate) fn place(&self, staging: &Staging, from: &str, to: &RelPath, clobber: bool) -> Result<bool, PlaceError> {
        let (parent, name) = self.parent(to).map_err(PlaceError::name("open the directory of", to))?;
        let renamed = if clobber {
            renameat(&staging.directory, from, &parent, name)
        } else {
            match renameat_with(&staging.directory, from, &parent, name, RenameFlags::NOREPLACE) {
                // Not on this filesystem.
                Err(Errno::INVAL | Errno::NOSYS) => linkat(&staging.directory, from, &parent, name, AtFlags::empty())
                    .and_then(|()| unlinkat(&staging.directory, from, AtFlags::empty())),
                renamed => renamed,
            }
        };
        match renamed {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) if !clobber => Ok(false),
            Err(cause) => Err(PlaceError::name("put in place", to)(cause)),
        }
    }

    /// Makes, in a staging directory, a further name of a file that is in place.
    pub(crate) fn link(&self, of: &RelPath, staging: &Staging, name: &str) -> Result<(), Errno> {
        staging.remove(name)?;
        let (parent, first) = self.parent(of)?;
        linkat(&parent, first, &staging.directory, name, AtFlags::empty())
    }

    /// Returns what has a name.
    pub(crate) fn find(&self, path: &RelPath) -> Option<Found> {
        let (parent, name) = self.parent(path).ok()?;
        statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok().map(Found)
    }

    /// Returns the directory that a path lies in.
    pub(crate) fn find_parent(&self, path: &RelPath) -> Option<Found> {
        let (parent, _) = self.parent(path).ok()?;
        fstat(&*parent).ok().map(Found)
    }

    /// Returns the target of a link.
    pub(crate) fn target(&self, path: &RelPath) -> Option<Vec<u8>> {
        let (parent, name) = self.parent(path).ok()?;
        readlinkat(&parent, name, Vec::new()).ok().map(|target| target.into_bytes())
    }

    /// Returns the names in a directory.
    pub(crate) fn names(&self, path: &RelPath) -> Result<Vec<OsString>, Errno> {
        names(&self.beneath(path.as_os_str(), DIRECTORY | OFlags::RDONLY)?)
    }

    /// Removes what has a name: a directory, which must be empty, or anything else, a link itself.
    pub(crate) fn remove(&self, path: &RelPath, is_directory: bool) -> Result<(), PlaceError> {
        let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
        self.look_again();
        let removed = self.parent(path).and_then(|(parent, name)| unlinkat(&parent, name, flags));
        removed.map_err(PlaceError::name("remove", path))
    }

    /// Writes everything to the disk.
    pub(crate) fn sync(&self) -> Result<(), PlaceError> {
        syncfs(&self.directory).map_err(PlaceError::disk("sync", self.path.display()))
    }
}

/// The file, link or directory that has a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found(Stat);

impl Found {
    pub(crate) fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.0.st_mode)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0.st_size as u64
    }

    pub(crate) fn mtime(&self) -> Mtime {
        Mtime { seconds: self.0.st_mtime, nanos: self.0.st_mtime_nsec as u32 }
    }

    /// Returns the number of a device.
    pub(crate) fn device(&self) -> u64 {
        self.0.st_rdev
    }

    /// Returns the mode, with set-id and sticky bits.
    pub(crate) fn mode(&self) -> u32 {
        self.0.st_mode & 0o7777
    }

    pub(crate) fn owner(&self) -> Owner {
        Owner { user: self.0.st_uid, group: self.0.st_gid }
    }

    /// Returns the filesystem and the number of a file that has several names.
    pub(crate) fn shared(&self) -> Option<(u64, u64)> {
        (self.0.st_nlink > 1).then_some((self.0.st_dev, self.0.st_ino))
    }

    /// Tells whether both are on one filesystem.
    pub(crate) fn is_beside(&self, other: &Found) -> bool {
        self.0.st_dev == other.0.st_dev
    }

    /// Tells whether it is the same file under another name.
    pub(crate) fn is(&self, other: &Found) -> bool {
        (self.0.st_dev, self.0.st_ino) == (other.0.st_dev, other.0.st_ino)
    }
}

fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    match mkdirat(parent, name, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => openat(parent, name, DIRECTORY | OFlags::RDONLY, Mode::empty()),
        Err(error) => Err(error),
    }
}

fn names(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Checks that a directory belongs to this user, and no other user may write to it: who could, could exchange a file
/// between its verification and its placing.
fn check_own(directory: &OwnedFd) -> Result<(), Errno> {
    let stat = fstat(directory)?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o022 == 0;
    if is_own { Ok(()) } else { Err(Errno::PERM) }
}

/// Returns an id of this boot of the host. A boot without an id is like no other.
fn boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_or_else(|_| format!("unknown-{:016x}", fastrand::u64(..)), |id| id.trim().to_owned())
}

/// Does by hand what `openat2` does: the path consists of normal components, and none of them may be a link.
fn walk(directory: &OwnedFd, path: &OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut at = openat(directory, ".", DIRECTORY | OFlags::PATH, Mode::empty())?;
    let names: Vec<&[u8]> = path.as_bytes().split(|&byte| byte == b'/').collect();
    for (i, name) in names.iter().enumerate() {
        let flags = if i + 1 == names.len() { flags } else { DIRECTORY | OFlags::PATH };
        at = openat(&at, OsStr::from_bytes(name), flags, Mode::empty())?;
    }
    Ok(at)
}
