//! The list of a transfer's entries: names, kinds, modes and times, and the sizes of files.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use squall_services::frame::fixed;

use super::path::{BadPath, RelPath};

/// The largest encoded manifest, in bytes: room for several hundred thousand files. Both ends hold it in memory.
pub(crate) const MANIFEST_BYTES: usize = 48 << 20;

/// A file's modification time: seconds since 1970, and nanoseconds below a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Mtime {
    /// Seconds since 1970.
    #[serde(with = "fixed")]
    pub(crate) seconds: i64,
    /// Nanoseconds, below 10⁹.
    #[serde(with = "fixed")]
    pub(crate) nanos: u32,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryKind {
    /// A file of this size.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Symlink {
        /// The target.
        target: Vec<u8>,
    },
}

/// A file, directory or link to be copied. Its mode and time have a fixed length in a frame, so that a frame of
/// entries without names does not become many times larger in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry<P = RelPath> {
    /// Its path, below the receiver's directory.
    pub(crate) path: P,
    /// Its kind.
    pub(crate) kind: EntryKind,
    /// Its permission bits; no set-id bits, since files change their owner.
    #[serde(with = "fixed")]
    pub(crate) mode: u32,
    /// Its modification time.
    pub(crate) mtime: Mtime,
}

/// An entry as it is sent: nothing of it is checked yet, and its path is raw bytes.
pub(crate) type RawEntry = Entry<Vec<u8>>;

impl Entry {
    /// Returns the number of bytes of its contents.
    pub(crate) fn bytes(&self) -> u64 {
        match self.kind {
            EntryKind::File { bytes } => bytes,
            EntryKind::Directory | EntryKind::Symlink { .. } => 0,
        }
    }
}

/// A reason for which a manifest is refused, whatever its origin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    /// A name could lead outside the receiver's directory, or can't be one.
    #[error("the name \"{}\" is refused: {why}", name.escape_ascii())]
    Path {
        /// The name.
        name: Vec<u8>,
        /// The problem.
        why: BadPath,
    },
    /// A link could lead outside the receiver's directory.
    #[error("the link \"{path}\" is refused: its target \"{}\" leads out of the receiver's directory", target.escape_ascii())]
    Link {
        /// The link.
        path: RelPath,
        /// Its target.
        target: Vec<u8>,
    },
    /// Two entries have one name.
    #[error("\"{0}\" comes twice")]
    Twice(RelPath),
    /// An entry's directory is not listed before it.
    #[error("\"{0}\" lies in a directory that does not come before it")]
    NoParent(RelPath),
    /// The sizes of all files together are no 64-bit number, or the files are too many.
    #[error("the transfer is too large: {0}")]
    TooLarge(&'static str),
    /// A time that does not exist.
    #[error("\"{0}\" has a modification time that does not exist")]
    Time(RelPath),
}

/// A checked list of entries: each directory before its contents, no name twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    entries: Vec<Entry>,
    bytes: u64,
}

impl Manifest {
    /// Checks a list that claims to be a manifest.
    pub(crate) fn new(raw: Vec<RawEntry>) -> Result<Manifest, ManifestError> {
        if u32::try_from(raw.len()).is_err() {
            return Err(ManifestError::TooLarge("more than 2³² files"));
        }
        let mut entries = Vec::with_capacity(raw.len());
        let mut bytes = 0_u64;
        for RawEntry { path, kind, mode, mtime } in raw {
            let path = RelPath::new(path.as_slice()).map_err(|why| ManifestError::Path { name: path, why })?;
            if mtime.nanos >= 1_000_000_000 {
                return Err(ManifestError::Time(path));
            }
            if let EntryKind::Symlink { target } = &kind
                && !path.may_link_to(target)
            {
                return Err(ManifestError::Link { path, target: target.clone() });
            }
            let mode = mode & if kind == EntryKind::Directory { 0o1777 } else { 0o777 };
            let entry = Entry { path, kind, mode, mtime };
            bytes = bytes.checked_add(entry.bytes()).ok_or(ManifestError::TooLarge("more than 2⁶⁴ bytes"))?;
            entries.push(entry);
        }
        check_tree(&entries)?;
        Ok(Manifest { entries, bytes })
    }

    /// Returns the entries, in the order in which their bytes are sent.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the sum of the sizes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of files, without directories and links.
    pub(crate) fn files(&self) -> usize {
        self.entries.iter().filter(|entry| matches!(entry.kind, EntryKind::File { .. })).count()
    }

    /// Returns the id of this transfer: another name, size or time makes another transfer. So does another size of
    /// segments, since received contents are counted in them.
    pub(crate) fn id(&self, segment_bytes: usize) -> TransferId {
        let mut hasher = blake3::Hasher::new_derive_key("squall cp 1 transfer id");
        hasher.update(&(segment_bytes as u64).to_le_bytes());
        for entry in &self.entries {
            let (kind, number, target): (u8, u64, &[u8]) = match &entry.kind {
                EntryKind::File { bytes } => (0, *bytes, &[]),
                EntryKind::Directory => (1, 0, &[]),
                EntryKind::Symlink { target } => (2, target.len() as u64, target),
            };
            hasher.update(&(entry.path.as_bytes().len() as u64).to_le_bytes());
            hasher.update(entry.path.as_bytes());
            hasher.update(&[kind]);
            hasher.update(&number.to_le_bytes());
            hasher.update(target);
            hasher.update(&entry.mode.to_le_bytes());
            // Times of directories change with their contents, and do not matter to the contents.
            if kind == 0 {
                hasher.update(&entry.mtime.seconds.to_le_bytes());
                hasher.update(&entry.mtime.nanos.to_le_bytes());
            }
        }
        let mut id = [0; 16];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        TransferId(id)
    }

    /// Returns the entries as they are sent.
    pub(crate) fn to_raw(&self) -> Vec<RawEntry> {
        let raw = |entry: &Entry| RawEntry {
            path: entry.path.as_bytes().to_vec(),
            kind: entry.kind.clone(),
            mode: entry.mode,
            mtime: entry.mtime,
        };
        self.entries.iter().map(raw).collect()
    }
}

fn check_tree(entries: &[Entry]) -> Result<(), ManifestError> {
    let mut seen: HashMap<&[u8], bool> = HashMap::with_capacity(entries.len());
    for entry in entries {
        if let (Some(parent), _) = entry.path.split()
            && seen.get(parent.as_encoded_bytes()) != Some(&true)
        {
            return Err(ManifestError::NoParent(entry.path.clone()));
        }
        if seen.insert(entry.path.as_bytes(), entry.kind == EntryKind::Directory).is_some() {
            return Err(ManifestError::Twice(entry.path.clone()));
        }
    }
    Ok(())
}

/// The id of a transfer, and the name of its staging directory at receivers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug, derive_more::Display)]
#[debug("{self}")]
#[display("{:032x}", u128::from_be_bytes(*_0))]
pub(crate) struct TransferId(pub(crate) [u8; 16]);

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn file(path: &str, bytes: u64) -> RawEntry {
        RawEntry { kind: EntryKind::File { bytes }, ..directory(path) }
    }

    pub(crate) fn directory(path: &str) -> RawEntry {
        let mtime = Mtime { seconds: 1_000_000_000, nanos: 5 };
        RawEntry { path: path.as_bytes().to_vec(), kind: EntryKind::Directory, mode: 0o755, mtime }
    }

    pub(crate) fn link(path: &str, target: &str) -> RawEntry {
        RawEntry { kind: EntryKind::Symlink { target: target.as_bytes().to_vec() }, ..directory(path) }
    }

    #[test]
    fn a_tree_passes_and_keeps_its_order() {
        let manifest = Manifest::new(vec![directory("d"), file("d/a", 3), link("d/l", "a"), file("b", 4)]).unwrap();
        assert_eq!((manifest.bytes(), manifest.files()), (7, 2));
        assert_eq!(Manifest::new(manifest.to_raw()), Ok(manifest));
    }

    #[test]
    fn a_file_is_no_directory_and_a_name_comes_once() {
        let path = |name: &str| RelPath::new(name.as_bytes()).unwrap();
        let cases = [
            (vec![file("d", 1), file("d/a", 1)], ManifestError::NoParent(path("d/a"))),
            (vec![link("d", "e"), file("d/a", 1)], ManifestError::NoParent(path("d/a"))),
            (vec![file("d/a", 1), directory("d")], ManifestError::NoParent(path("d/a"))),
            (vec![file("a", 1), file("a", 1)], ManifestError::Twice(path("a"))),
            (vec![file("a", u64::MAX), file("b", 1)], ManifestError::TooLarge("more than 2⁶⁴ bytes")),
        ];
        for (entries, error) in cases {
            assert_eq!(Manifest::new(entries), Err(error));
        }
    }

    #[test]
    fn names_and_links_that_lead_out_are_refused_by_name() {
        let error = Manifest::new(vec![file("../x", 1)]).unwrap_err();
        assert_eq!(error.to_string(), "the name \"../x\" is refused: it has a component `.` or `..`");
        let error = Manifest::new(vec![link("l", "../secret")]).unwrap_err();
        assert!(error.to_string().contains("\"../secret\" leads out"), "{error}");
    }

    #[test]
    fn a_file_that_changed_makes_another_transfer() {
        let id = |entries| Manifest::new(entries).unwrap().id(1024);
        let before = id(vec![file("a", 1)]);
        assert_eq!(before, id(vec![file("a", 1)]));
        let mut touched = file("a", 1);
        touched.mtime.nanos += 1;
        for changed in [file("a", 2), file("b", 1), touched] {
            assert_ne!(before, id(vec![changed]));
        }
        assert_ne!(before, Manifest::new(vec![file("a", 1)]).unwrap().id(2048));
    }
}
