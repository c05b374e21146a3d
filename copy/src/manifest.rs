//! The list of a transfer's entries: names, kinds, modes and times, and the sizes of files.

use std::{collections::HashMap, ops::Range};

use serde::{Deserialize, Serialize};
use squall_services::frame::fixed;

use super::{
    attributes::Attributes,
    path::{BadPath, PATH_BYTES, RelPath},
};

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

/// The most holes of a file: further ones are copied as zeros.
pub(crate) const MOST_HOLES: usize = 4096;

/// A range of a file without contents, which reads as zeros and takes no space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hole {
    /// The offset at which it begins.
    pub(crate) at: u64,
    /// The number of bytes.
    pub(crate) len: u64,
}

/// The kind of a file that has no contents to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SpecialKind {
    /// A named pipe.
    Pipe,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
}

/// The kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EntryKind {
    /// A file.
    File {
        /// Its size.
        bytes: u64,
        /// Its holes, in order, with contents between them.
        holes: Vec<Hole>,
    },
    /// A further name of the file of an earlier entry.
    HardLink {
        /// The earlier entry.
        to: u32,
    },
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Symlink {
        /// The target.
        target: Vec<u8>,
    },
    /// A pipe, a socket or a device.
    Special {
        /// Its kind.
        kind: SpecialKind,
        /// A device's number.
        device: u64,
    },
}

/// The owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    /// The id of the user.
    #[serde(with = "fixed")]
    pub(crate) user: u32,
    /// The id of the group.
    #[serde(with = "fixed")]
    pub(crate) group: u32,
}

/// A file, directory, link or device to be copied. Its mode and time have a fixed length in a frame, so that a frame of
/// entries without names does not become many times larger in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry<P = RelPath> {
    /// Its path, below the receiver's directory.
    pub(crate) path: P,
    /// Its kind.
    pub(crate) kind: EntryKind,
    /// Its permission bits, with set-id and sticky bits.
    #[serde(with = "fixed")]
    pub(crate) mode: u32,
    /// Its modification time.
    pub(crate) mtime: Mtime,
    /// Its owner, if owners are kept.
    pub(crate) owner: Option<Owner>,
    /// Its extended attributes, access control lists among them.
    pub(crate) attributes: Attributes,
}

/// An entry as it is sent: nothing of it is checked yet, and its path is raw bytes.
pub(crate) type RawEntry = Entry<Vec<u8>>;

impl<P> Entry<P> {
    /// Returns the number of bytes of its contents, holes included.
    pub(crate) fn bytes(&self) -> u64 {
        match self.kind {
            EntryKind::File { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// Returns the ranges of a file that have contents, in order.
    pub(crate) fn contents(&self) -> impl Iterator<Item = Range<u64>> {
        let (bytes, holes): (u64, &[Hole]) = match &self.kind {
            EntryKind::File { bytes, holes } => (*bytes, holes),
            _ => (0, &[]),
        };
        let begins = [0].into_iter().chain(holes.iter().map(|hole| hole.at + hole.len));
        let ends = holes.iter().map(|hole| hole.at).chain([bytes]);
        begins.zip(ends).map(|(begin, end)| begin..end).filter(|range| !range.is_empty())
    }

    /// Returns the number of bytes of its contents, without holes, that come before an offset.
    pub(crate) fn contents_before(&self, at: u64) -> u64 {
        self.contents().map(|range| range.end.min(at).saturating_sub(range.start)).sum()
    }

    /// Tells whether it is a file with contents of its own.
    pub(crate) fn is_file(&self) -> bool {
        matches!(self.kind, EntryKind::File { .. })
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
    /// The target of a link that the system does not take.
    #[error("the link \"{0}\" has a target that can't be one")]
    Target(RelPath),
    /// A hard link to what is no earlier file.
    #[error("\"{0}\" is a further name of no earlier file")]
    HardLink(RelPath),
    /// Holes that overlap, or lie outside the file.
    #[error("\"{0}\" has holes where it can't have any")]
    Holes(RelPath),
    /// An owner that can't be one.
    #[error("\"{0}\" has an owner that can't be one")]
    Owner(RelPath),
    /// Extended attributes that are cut off, or have no names.
    #[error("\"{0}\" has malformed extended attributes")]
    Attributes(RelPath),
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
        let mut entries: Vec<Entry> = Vec::with_capacity(raw.len());
        let mut bytes = 0_u64;
        for RawEntry { path, kind, mode, mtime, owner, attributes } in raw {
            let path = RelPath::new(path.as_slice()).map_err(|why| ManifestError::Path { name: path, why })?;
            if mtime.nanos >= 1_000_000_000 {
                return Err(ManifestError::Time(path));
            }
            // The system takes it for "as it was".
            if owner.is_some_and(|owner| owner.user == u32::MAX || owner.group == u32::MAX) {
                return Err(ManifestError::Owner(path));
            }
            if !attributes.is_well_formed() {
                return Err(ManifestError::Attributes(path));
            }
            let entry = Entry { path, kind, mode: mode & 0o7777, mtime, owner, attributes };
            check_kind(&entry, &entries)?;
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

    /// Returns the sum of the sizes of all files, holes included.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the number of files, without directories and links.
    pub(crate) fn files(&self) -> usize {
        self.entries.iter().filter(|entry| entry.is_file()).count()
    }

    /// Returns the id of transfers of these names, whatever their contents: that of the directory in which a receiver
    /// keeps what is not whole.
    pub(crate) fn id(&self) -> TransferId {
        let mut hasher = blake3::Hasher::new_derive_key("squall cp 2 transfer id");
        for entry in self.entries.iter().filter(|entry| entry.path.split().0.is_none()) {
            hasher.update(&(entry.path.as_bytes().len() as u64).to_le_bytes());
            hasher.update(entry.path.as_bytes());
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
            owner: entry.owner,
            attributes: entry.attributes.clone(),
        };
        self.entries.iter().map(raw).collect()
    }
}

/// Checks what is particular to an entry's kind, given the entries before it.
fn check_kind(entry: &Entry, before: &[Entry]) -> Result<(), ManifestError> {
    let path = || entry.path.clone();
    match &entry.kind {
        EntryKind::File { bytes, holes } => {
            let mut end = 0;
            if holes.len() > MOST_HOLES {
                return Err(ManifestError::Holes(path()));
            }
            for Hole { at, len } in holes {
                let next = at.checked_add(*len).filter(|next| *at >= end && *len > 0 && next <= bytes);
                end = next.ok_or_else(|| ManifestError::Holes(path()))?;
            }
            Ok(())
        }
        EntryKind::HardLink { to } => {
            let is_file = before
                .get(*to as usize)
                .is_some_and(|first| !matches!(first.kind, EntryKind::Directory | EntryKind::HardLink { .. }));
            if is_file { Ok(()) } else { Err(ManifestError::HardLink(path())) }
        }
        EntryKind::Symlink { target } => {
            let is_one = !target.is_empty() && !target.contains(&0) && target.len() <= PATH_BYTES;
            if is_one { Ok(()) } else { Err(ManifestError::Target(path())) }
        }
        EntryKind::Directory | EntryKind::Special { .. } => Ok(()),
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
        RawEntry { kind: EntryKind::File { bytes, holes: Vec::new() }, ..directory(path) }
    }

    pub(crate) fn directory(path: &str) -> RawEntry {
        let mtime = Mtime { seconds: 1_000_000_000, nanos: 5 };
        RawEntry {
            path: path.as_bytes().to_vec(),
            kind: EntryKind::Directory,
            mode: 0o755,
            mtime,
            owner: None,
            attributes: Attributes::default(),
        }
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
    fn names_that_lead_out_are_refused_by_name() {
        let error = Manifest::new(vec![file("../x", 1)]).unwrap_err();
        assert_eq!(error.to_string(), "the name \"../x\" is refused: it has a component `.` or `..`");
    }

    #[test]
    fn what_a_kind_can_t_have_is_refused() {
        let path = || RelPath::new(*b"x").unwrap();
        let holed = |holes: &[(u64, u64)]| {
            let holes = holes.iter().map(|&(at, len)| Hole { at, len }).collect();
            vec![RawEntry { kind: EntryKind::File { bytes: 10, holes }, ..file("x", 0) }]
        };
        for holes in [&[(0, 11)][..], &[(3, 0)], &[(3, 3), (5, 2)], &[(4, 2), (0, 2)], &[(1, u64::MAX)]] {
            assert_eq!(Manifest::new(holed(holes)), Err(ManifestError::Holes(path())), "{holes:?}");
        }
        let manifest = Manifest::new(holed(&[(0, 2), (4, 1), (5, 2)])).unwrap();
        assert_eq!(manifest.entries()[0].contents().collect::<Vec<_>>(), [2..4, 7..10]);
        for target in ["", "a\0b", &"n".repeat(4096)] {
            assert_eq!(Manifest::new(vec![link("x", target)]), Err(ManifestError::Target(path())));
        }
        assert!(Manifest::new(vec![link("x", "/etc/passwd"), link("y", "../../z")]).is_ok(), "links are data");
        let hard = |to| RawEntry { kind: EntryKind::HardLink { to }, ..file("x", 0) };
        for before in [vec![], vec![directory("d")], vec![link("l", "d"), hard(7)]] {
            let count = before.len() as u32;
            for to in 0..=count {
                let entries: Vec<RawEntry> = before.iter().cloned().chain([hard(to)]).collect();
                assert!(
                    to < count && before[to as usize].kind != EntryKind::Directory || Manifest::new(entries).is_err()
                );
            }
        }
        assert!(Manifest::new(vec![file("a", 1), hard(0)]).is_ok());
        let attributes = Attributes::from_bytes(vec![9]);
        let entry = RawEntry { attributes, ..file("x", 0) };
        assert_eq!(Manifest::new(vec![entry]), Err(ManifestError::Attributes(path())));
    }

    #[test]
    fn the_id_of_a_transfer_is_that_of_its_names() {
        let id = |entries| Manifest::new(entries).unwrap().id();
        let before = id(vec![directory("d"), file("d/a", 1)]);
        assert_eq!(before, id(vec![directory("d"), file("d/b", 2)]));
        assert_ne!(before, id(vec![directory("d"), file("e", 1)]));
    }
}
