//! The directory that a receiver writes into, and never out of.
//!
//! Names are resolved by the kernel with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`. Where it has no `openat2` (before
//! Linux 5.6, and in some sandboxes), they are resolved component by component without following links. The last
//! component of a path to make, rename or remove is never followed.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FlockOperation, Mode, OFlags, RenameFlags, ResolveFlags, Timespec, Timestamps, fchmod, flock, fstat,
        futimens, mkdirat, openat, openat2, renameat, renameat_with, statat, symlinkat, syncfs, unlinkat,
    },
    io::Errno,
};

use super::{
    manifest::{Mtime, TransferId},
    path::{RelPath, STAGING},
};

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
        Errno::NOSPC => ": free some space there, and push again with --resume",
        Errno::DQUOT => ": the quota is used up; free some space there, and push again with --resume",
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
    staging: OwnedFd,
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
    #[error("{} can't be served: {STAGING} can't be used in it: {cause}", path.display())]
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
        let probe = openat2(&directory, ".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), ResolveFlags::BENEATH);
        Ok(Root { path: owned(), directory, staging, has_openat2: probe.is_ok() })
    }

    /// Returns the path as the user named it.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the staging directory of a transfer, and makes it if it does not exist.
    pub(crate) fn staging(&self, id: TransferId) -> Result<Staging, PlaceError> {
        let name = id.to_string();
        let directory = make_directory(&self.staging, OsStr::new(&name))
            .map_err(PlaceError::disk("make the staging directory", self.path.join(STAGING).join(&name).display()))?;
        Ok(Staging { directory, name })
    }

    /// Removes a transfer's staging directory and its contents.
    pub(crate) fn discard(&self, staging: &Staging) -> Result<(), PlaceError> {
        staging.clear()?;
        unlinkat(&self.staging, &staging.name, AtFlags::REMOVEDIR).map_err(PlaceError::disk("remove", &staging.name))
    }

    /// Returns the transfers that are not complete, by the names of their staging directories.
    pub(crate) fn partial(&self) -> Vec<String> {
        names(&self.staging).unwrap_or_default().iter().map(|name| name.to_string_lossy().into_owned()).collect()
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
    fn parent<'p>(&self, path: &'p RelPath) -> Result<(OwnedFd, &'p OsStr), Errno> {
        let (parent, name) = path.split();
        let parent = parent.unwrap_or(OsStr::new("."));
        Ok((self.beneath(parent, DIRECTORY | OFlags::PATH)?, name))
    }

    /// Makes a directory that only this user can use for now. A directory that exists stays, but this user can write to
    /// it until it is [finished](Root::finish_directory).
    pub(crate) fn make_directory(&self, path: &RelPath) -> Result<(), PlaceError> {
        let make = || {
            let (parent, name) = self.parent(path)?;
            let directory = make_directory(&parent, name)?;
            let mode = Mode::from_raw_mode(fstat(&directory)?.st_mode);
            if mode.contains(Mode::RWXU) { Ok(()) } else { fchmod(&directory, mode | Mode::RWXU) }
        };
        make().map_err(PlaceError::name("make the directory", path))
    }

    /// Gives a directory its mode and time.
    pub(crate) fn finish_directory(&self, path: &RelPath, mode: u32, mtime: Mtime) -> Result<(), PlaceError> {
        let set = || {
            let directory = self.beneath(path.as_os_str(), DIRECTORY | OFlags::RDONLY)?;
            futimens(&directory, &timestamps(mtime))?;
            fchmod(&directory, Mode::from_raw_mode(mode))
        };
        set().map_err(PlaceError::name("set mode and time of the directory", path))
    }

    /// Renames a file or link out of a staging directory to its own name. Returns `Ok(false)` if the name exists
    /// already, and `clobber` is false.
    pub(crate) fn place(&self, staging: &Staging, from: &str, to: &RelPath, clobber: bool) -> Result<bool, PlaceError> {
        let (parent, name) = self.parent(to).map_err(PlaceError::name("open the directory of", to))?;
        let renamed = if clobber {
            renameat(&staging.directory, from, &parent, name)
        } else {
            renameat_with(&staging.directory, from, &parent, name, RenameFlags::NOREPLACE)
        };
        match renamed {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) if !clobber => Ok(false),
            Err(cause) => Err(PlaceError::name("put in place", to)(cause)),
        }
    }

    /// Tells whether anything has a name.
    pub(crate) fn has(&self, path: &RelPath) -> bool {
        self.parent(path).is_ok_and(|(parent, name)| statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok())
    }

    /// Returns the size and modification time of a file; None if there is no such file.
    pub(crate) fn file(&self, path: &RelPath) -> Option<(u64, Mtime)> {
        let (parent, name) = self.parent(path).ok()?;
        let stat = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
        is_file.then_some((stat.st_size as u64, Mtime { seconds: stat.st_mtime, nanos: stat.st_mtime_nsec as u32 }))
    }

    /// Writes everything to the disk.
    pub(crate) fn sync(&self) -> Result<(), PlaceError> {
        syncfs(&self.directory).map_err(PlaceError::disk("sync", self.path.display()))
    }
}

/// The staging directory in which one transfer's files grow.
#[derive(Debug)]
pub(crate) struct Staging {
    directory: OwnedFd,
    name: String,
}

impl Staging {
    /// Opens a file in it; `create` makes it new.
    pub(crate) fn open(&self, name: &str, create: bool) -> Result<std::fs::File, Errno> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        if create {
            // A file that was about to be put in place may be read-only by now.
            self.remove(name)?;
        }
        let flags = if create { flags | OFlags::CREATE | OFlags::EXCL } else { flags };
        openat(&self.directory, name, flags, Mode::RUSR | Mode::WUSR).map(std::fs::File::from)
    }

    /// Makes a symbolic link in it.
    pub(crate) fn link(&self, name: &str, target: &[u8], mtime: Mtime) -> Result<(), Errno> {
        self.remove(name)?;
        symlinkat(OsStr::from_bytes(target), &self.directory, name)?;
        rustix::fs::utimensat(&self.directory, name, &timestamps(mtime), AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Removes a file, if it is there.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Errno> {
        match unlinkat(&self.directory, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            removed => removed,
        }
    }

    /// Renames one of its files over another.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        renameat(&self.directory, from, &self.directory, to)
    }

    /// Removes all files in it.
    pub(crate) fn clear(&self) -> Result<(), PlaceError> {
        let failed = || PlaceError::disk("clear the staging directory", &self.name);
        for name in names(&self.directory).map_err(failed())? {
            unlinkat(&self.directory, &name, AtFlags::empty()).map_err(failed())?;
        }
        Ok(())
    }

    /// Writes everything on its filesystem to the disk.
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        syncfs(&self.directory)
    }
}

pub(crate) fn timestamps(mtime: Mtime) -> Timestamps {
    let mtime = Timespec { tv_sec: mtime.seconds, tv_nsec: mtime.nanos.into() };
    Timestamps { last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }, last_modification: mtime }
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

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    use tempfile::TempDir;

    use super::*;

    fn path(name: &str) -> RelPath {
        RelPath::new(name.as_bytes()).unwrap()
    }

    /// Makes a root with and one without `openat2`, each with `out`, a link to a directory outside.
    fn roots() -> Vec<(TempDir, Root)> {
        let root = |has_openat2| {
            let base = tempfile::tempdir().unwrap();
            fs::create_dir(base.path().join("inside")).unwrap();
            fs::create_dir(base.path().join("outside")).unwrap();
            symlink("../outside", base.path().join("inside/out")).unwrap();
            let mut root = Root::open(&base.path().join("inside")).unwrap();
            root.has_openat2 &= has_openat2;
            (base, root)
        };
        vec![root(true), root(false)]
    }

    #[test]
    fn a_file_is_put_in_place_with_its_directory() {
        for (base, root) in roots() {
            let staging = root.staging(TransferId([7; 16])).unwrap();
            root.make_directory(&path("a")).unwrap();
            root.make_directory(&path("a/b")).unwrap();
            staging.open("f0", true).unwrap();
            assert!(root.place(&staging, "f0", &path("a/b/file"), true).unwrap());
            assert!(base.path().join("inside/a/b/file").exists());
            let mtime = Mtime { seconds: 12345, nanos: 6 };
            root.finish_directory(&path("a/b"), 0o750, mtime).unwrap();
            let meta = fs::metadata(base.path().join("inside/a/b")).unwrap();
            assert_eq!((meta.permissions().mode() & 0o7777, meta.mtime(), meta.mtime_nsec()), (0o750, 12345, 6));
        }
    }

    #[test]
    fn a_link_that_leads_out_is_not_followed() {
        for (base, root) in roots() {
            let staging = root.staging(TransferId([7; 16])).unwrap();
            staging.open("f0", true).unwrap();
            let error = root.place(&staging, "f0", &path("out/file"), true).unwrap_err();
            assert!(error.to_string().contains("\"out/file\""), "{error}");
            root.make_directory(&path("out")).unwrap_err();
            root.make_directory(&path("out/x")).unwrap_err();
            root.finish_directory(&path("out"), 0o700, Mtime { seconds: 0, nanos: 0 }).unwrap_err();
            assert_eq!(root.file(&path("out/file")), None);
            assert_eq!(fs::read_dir(base.path().join("outside")).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_link_in_the_place_of_a_file_is_replaced_not_written_through() {
        for (base, root) in roots() {
            let secret = base.path().join("outside/secret");
            fs::write(&secret, "secret").unwrap();
            symlink(&secret, base.path().join("inside/file")).unwrap();
            let staging = root.staging(TransferId([7; 16])).unwrap();
            staging.open("f0", true).unwrap();
            assert!(root.place(&staging, "f0", &path("file"), true).unwrap());
            assert_eq!(fs::read(&secret).unwrap(), b"secret");
            assert!(fs::symlink_metadata(base.path().join("inside/file")).unwrap().is_file());
        }
    }

    #[test]
    fn without_clobber_what_is_there_stays() {
        for (base, root) in roots() {
            fs::write(base.path().join("inside/file"), "old").unwrap();
            let staging = root.staging(TransferId([7; 16])).unwrap();
            staging.open("f0", true).unwrap();
            assert!(!root.place(&staging, "f0", &path("file"), false).unwrap());
            assert_eq!(fs::read(base.path().join("inside/file")).unwrap(), b"old");
        }
    }

    #[test]
    fn a_directory_is_served_once() {
        let (base, _root) = roots().remove(0);
        let error = Root::open(&base.path().join("inside")).unwrap_err();
        assert!(matches!(error, RootError::Served { .. }), "{error}");
    }

    #[test]
    fn a_file_where_a_directory_must_be_is_named() {
        for (base, root) in roots() {
            fs::write(base.path().join("inside/d"), "").unwrap();
            let error = root.make_directory(&path("d")).unwrap_err().to_string();
            assert!(error.contains("\"d\"") && error.contains("not a directory is in the way"), "{error}");
        }
    }
}
