//! The search for the files to copy.

use std::{
    collections::HashMap,
    ffi::OsStr,
    fs::{self, Metadata},
    io,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{Access, access};

use super::{
    feed::Sources,
    manifest::{EntryKind, Manifest, ManifestError, Mtime, RawEntry},
    path::RelPath,
};

/// The entries to copy, and the paths that are not copied.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) sources: Sources,
    /// Pipes, sockets and devices, which have no contents to copy.
    pub(crate) skipped: Vec<String>,
    /// Paths that can't be copied.
    pub(crate) refused: Vec<String>,
}

/// A reason for which there is nothing to send.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// A path that was named can't be looked at.
    #[error("{} can't be copied: {cause}", path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The root of the filesystem has no name to give to the copy.
    #[error("{} has no name that the copy could have: name what is in it", path.display())]
    NoName {
        /// The path.
        path: PathBuf,
    },
    /// Two of the paths would have the same name at the receivers.
    #[error("{} and {} would both be \"{}\" at the receivers: push one after the other, or rename one", first.display(), second.display(), name.escape_ascii())]
    SameName {
        /// The path named first.
        first: PathBuf,
        /// The path named later.
        second: PathBuf,
        /// The name that both would have.
        name: Vec<u8>,
    },
    /// The paths are too many, or too large.
    #[error("this can't be copied at once: {0}; push parts of it one after the other")]
    TooLarge(String),
}

/// Lists what the paths name, directories with all their contents.
pub(crate) fn scan(paths: &[PathBuf]) -> Result<Scan, ScanError> {
    let mut walk = Walk { entries: Vec::new(), skipped: Vec::new(), refused: Vec::new() };
    let mut sources: HashMap<Vec<u8>, PathBuf> = HashMap::new();
    for path in paths {
        let failed = |cause| ScanError::Path { path: path.clone(), cause };
        // A link that is named is followed, as cp -H does.
        let real = path.canonicalize().map_err(failed)?;
        let name = path.file_name().or(real.file_name()).ok_or_else(|| ScanError::NoName { path: path.clone() })?;
        let name = name.as_bytes().to_vec();
        if let Some(first) = sources.insert(name.clone(), real.clone()) {
            return Err(ScanError::SameName { first, second: real, name });
        }
        let metadata = fs::metadata(&real).map_err(failed)?;
        walk.add(&real, name, &metadata);
    }
    let manifest =
        Manifest::new(walk.entries).map_err(|error: ManifestError| ScanError::TooLarge(error.to_string()))?;
    let Walk { skipped, refused, .. } = walk;
    Ok(Scan { manifest: Arc::new(manifest), sources: Sources(sources), skipped, refused })
}

struct Walk {
    entries: Vec<RawEntry>,
    skipped: Vec<String>,
    refused: Vec<String>,
}

impl Walk {
    fn add(&mut self, real: &Path, name: Vec<u8>, metadata: &Metadata) {
        let path = match RelPath::new(name.as_slice()) {
            Ok(path) => path,
            Err(why) => return self.refused.push(format!("{} is not copied: {why}", real.display())),
        };
        let kind = metadata.file_type();
        let kind = if kind.is_dir() {
            EntryKind::Directory
        } else if kind.is_symlink() {
            let target = match fs::read_link(real) {
                Ok(target) => target.into_os_string().into_vec(),
                Err(error) => return self.unreadable(real, &error),
            };
            if !path.may_link_to(&target) {
                let target = target.escape_ascii();
                let text = format!(
                    "{} is not copied: its target \"{target}\" leads out of the receivers' directory",
                    real.display()
                );
                return self.refused.push(text);
            }
            EntryKind::Symlink { target }
        } else if kind.is_file() {
            if let Err(error) = access(real, Access::READ_OK) {
                return self.unreadable(real, &error.into());
            }
            EntryKind::File { bytes: metadata.len() }
        } else {
            let what = match () {
                () if kind.is_fifo() => "a pipe",
                () if kind.is_socket() => "a socket",
                () => "a device",
            };
            return self.skipped.push(format!("{} is not copied: it is {what}", real.display()));
        };
        let is_directory = kind == EntryKind::Directory;
        let mtime = Mtime { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 };
        self.entries.push(RawEntry { path: name.clone(), kind, mode: metadata.mode(), mtime });
        if is_directory && let Err(error) = self.add_all(real, &name) {
            self.unreadable(real, &error);
        }
    }

    fn add_all(&mut self, directory: &Path, name: &[u8]) -> io::Result<()> {
        let mut names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        // Sorted, so that the same tree makes the same transfer.
        names.sort_unstable();
        for inner in names {
            let real = directory.join(&inner);
            match fs::symlink_metadata(&real) {
                Ok(metadata) => self.add(&real, [name, OsStr::as_bytes(&inner)].join(&b'/'), &metadata),
                Err(error) => self.unreadable(&real, &error),
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, real: &Path, error: &io::Error) {
        self.refused.push(format!("{} is not copied: {error}", real.display()));
    }
}
