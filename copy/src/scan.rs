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

use rustix::{
    fs::{Access, access},
    io::Errno,
};

use super::{
    attributes::{AttributeKinds, Attributes},
    chunks::data_ranges,
    dress::{SET_GROUP, SET_USER},
    feed::Sources,
    filter::Filter,
    manifest::{EntryKind, Hole, MOST_HOLES, Manifest, ManifestError, Mtime, Owner, RawEntry, SpecialKind},
    path::{RelPath, shown},
};

/// The treatment of symbolic links that lead out of what is copied, and of absolute ones. Others are always copied as
/// links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkPolicy {
    /// They are copied as links.
    #[default]
    Keep,
    /// They are left out.
    Skip,
    /// The file or directory that they lead to is copied.
    Follow,
}

/// The properties of files that are kept, besides contents, modes and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptAttributes {
    /// Owners, and set-id bits with them: as far as the receivers' users may set them.
    pub owners: bool,
    /// Access control lists.
    pub lists: bool,
    /// Other extended attributes, capabilities among them.
    pub attributes: bool,
    /// Names of one file, as hard links.
    pub hard_links: bool,
    /// Holes of sparse files.
    pub holes: bool,
    /// Devices, pipes and sockets.
    pub devices: bool,
}

impl Default for KeptAttributes {
    fn default() -> KeptAttributes {
        KeptAttributes { owners: true, lists: true, attributes: true, hard_links: true, holes: true, devices: true }
    }
}

/// The entries to copy, and the paths that are not copied.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) manifest: Arc<Manifest>,
    pub(crate) sources: Sources,
    /// Names that were left out as asked, each with the reason.
    pub(crate) skipped: Vec<String>,
    /// The names of what was left out.
    pub(crate) spared: Vec<Vec<u8>>,
    /// Paths that can't be copied.
    pub(crate) refused: Vec<String>,
}

/// The options of a scan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanOptions<'f> {
    pub(crate) keep: KeptAttributes,
    /// The user and group of all files, in place of their own.
    pub(crate) owner: Option<(u32, u32)>,
    pub(crate) links: LinkPolicy,
    pub(crate) filter: &'f Filter,
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
pub(crate) fn scan(paths: &[PathBuf], options: &ScanOptions<'_>) -> Result<Scan, ScanError> {
    let mut walk = Walk {
        options,
        entries: Vec::new(),
        sources: HashMap::new(),
        first_names: HashMap::new(),
        above: Vec::new(),
        skipped: Vec::new(),
        spared: Vec::new(),
        refused: Vec::new(),
    };
    for path in paths {
        let failed = |cause| ScanError::Path { path: path.clone(), cause };
        // A link that is named is followed, as cp -H does.
        let real = path.canonicalize().map_err(failed)?;
        let name = path.file_name().or(real.file_name()).ok_or_else(|| ScanError::NoName { path: path.clone() })?;
        let name = name.as_bytes().to_vec();
        if let Some(first) = walk.sources.insert(name.clone(), real.clone()) {
            return Err(ScanError::SameName { first, second: real, name });
        }
        let metadata = fs::metadata(&real).map_err(failed)?;
        walk.add(&real, &name, &metadata);
    }
    let manifest =
        Manifest::new(walk.entries).map_err(|error: ManifestError| ScanError::TooLarge(error.to_string()))?;
    let Walk { sources, skipped, spared, refused, .. } = walk;
    Ok(Scan { manifest: Arc::new(manifest), sources: Sources(sources), skipped, spared, refused })
}

struct Walk<'s> {
    options: &'s ScanOptions<'s>,
    entries: Vec<RawEntry>,
    sources: HashMap<Vec<u8>, PathBuf>,
    /// The entry of each file that has several names, by its device and number.
    first_names: HashMap<(u64, u64), u32>,
    /// The directories that the walk is in, by their devices and numbers.
    above: Vec<(u64, u64)>,
    skipped: Vec<String>,
    spared: Vec<Vec<u8>>,
    refused: Vec<String>,
}

impl Walk<'_> {
    fn add(&mut self, real: &Path, name: &[u8], metadata: &Metadata) {
        if self.options.filter.leaves_out(name, metadata.is_dir()) {
            return;
        }
        let path = match RelPath::new(name) {
            Ok(path) => path,
            Err(why) => return self.refused.push(format!("{} is not copied: {why}", name_of(real))),
        };
        let number = (metadata.dev(), metadata.ino());
        // A link may be left out at one name, and not at another.
        let may_be = !metadata.is_dir() && (!metadata.is_symlink() || self.options.links == LinkPolicy::Keep);
        let is_one_of_several = may_be && metadata.nlink() > 1 && self.options.keep.hard_links;
        let kind = match self.first_names.get(&number).filter(|_| is_one_of_several) {
            Some(&to) => EntryKind::HardLink { to },
            None => match self.kind(real, &path, metadata) {
                Some(kind) => kind,
                None => return,
            },
        };
        let (mode, attributes) = match self.attributes(real, &kind, metadata) {
            Ok(read) => read,
            Err(error) => return self.unreadable(real, &error.into()),
        };
        if is_one_of_several {
            self.first_names.entry(number).or_insert(self.entries.len() as u32);
        }
        let (user, group) = self.options.owner.unwrap_or((metadata.uid(), metadata.gid()));
        let owner = self.options.keep.owners.then_some(Owner { user, group });
        // A program does not run as another user than the one who made it so.
        let lost =
            if user == metadata.uid() { 0 } else { SET_USER } | if group == metadata.gid() { 0 } else { SET_GROUP };
        let lost = if self.options.keep.owners { lost } else { SET_USER | SET_GROUP };
        let mode = mode & !lost;
        let is_directory = kind == EntryKind::Directory;
        let mtime = Mtime { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 };
        self.entries.push(RawEntry { path: name.to_vec(), kind, mode, mtime, owner, attributes });
        if is_directory {
            self.above.push(number);
            if let Err(error) = self.add_all(real, name) {
                self.unreadable(real, &error);
            }
            self.above.pop();
        }
    }

    /// Returns the kind of what is copied. None if it is not, which is noted, or if what it leads to is.
    fn kind(&mut self, real: &Path, path: &RelPath, metadata: &Metadata) -> Option<EntryKind> {
        let kind = metadata.file_type();
        if kind.is_dir() {
            return Some(EntryKind::Directory);
        }
        if kind.is_symlink() {
            return self.link(real, path);
        }
        if kind.is_file() {
            if let Err(error) = access(real, Access::READ_OK) {
                self.unreadable(real, &error.into());
                return None;
            }
            let holes = if self.options.keep.holes { holes(real, metadata) } else { Vec::new() };
            return Some(EntryKind::File { bytes: metadata.len(), holes });
        }
        let (what, kind) = match () {
            () if kind.is_fifo() => ("a pipe", SpecialKind::Pipe),
            () if kind.is_socket() => ("a socket", SpecialKind::Socket),
            () if kind.is_char_device() => ("a device", SpecialKind::CharacterDevice),
            () => ("a device", SpecialKind::BlockDevice),
        };
        if self.options.keep.devices {
            return Some(EntryKind::Special { kind, device: metadata.rdev() });
        }
        self.skip(path, format!("{} is not copied: it is {what}", name_of(real)));
        None
    }

    fn link(&mut self, real: &Path, path: &RelPath) -> Option<EntryKind> {
        let target = match fs::read_link(real) {
            Ok(target) => target.into_os_string().into_vec(),
            Err(error) => {
                self.unreadable(real, &error);
                return None;
            }
        };
        if self.options.links == LinkPolicy::Keep || path.stays_inside(&target) {
            return Some(EntryKind::Symlink { target });
        }
        if self.options.links == LinkPolicy::Follow {
            self.follow(real, path.as_bytes());
        } else {
            let (link, target) = (name_of(real), shown(&target));
            self.skip(path, format!("{link} is not copied: its target \"{target}\" leads out of what is copied"));
        }
        None
    }

    fn skip(&mut self, path: &RelPath, why: String) {
        self.skipped.push(why);
        self.spared.push(path.as_bytes().to_vec());
    }

    /// Adds what a link leads to, in the link's place.
    fn follow(&mut self, link: &Path, name: &[u8]) {
        let (real, metadata) = match link.canonicalize().and_then(|real| Ok((real.clone(), fs::metadata(real)?))) {
            Ok(found) => found,
            Err(error) => return self.unreadable(link, &error),
        };
        if self.above.contains(&(metadata.dev(), metadata.ino())) {
            let text = format!("{} is not copied: it leads to a directory that it lies in", name_of(link));
            return self.refused.push(text);
        }
        self.sources.insert(name.to_vec(), real.clone());
        self.add(&real, name, &metadata);
    }

    /// Returns the mode and the extended attributes that are sent.
    fn attributes(&self, real: &Path, kind: &EntryKind, metadata: &Metadata) -> Result<(u32, Attributes), Errno> {
        if matches!(kind, EntryKind::Symlink { .. } | EntryKind::HardLink { .. }) {
            return Ok((metadata.mode(), Attributes::default()));
        }
        let KeptAttributes { lists, attributes: others, .. } = self.options.keep;
        let read = |kinds| match Attributes::read(real, kinds) {
            // This filesystem has none.
            Err(Errno::NOTSUP) => Ok(Attributes::default()),
            read => read,
        };
        let attributes = read(AttributeKinds { lists, others })?;
        let mode = match lists {
            true => metadata.mode(),
            false => read(AttributeKinds { lists: true, others: false })?.mode_without_list(metadata.mode()),
        };
        Ok((mode, attributes))
    }

    fn add_all(&mut self, directory: &Path, name: &[u8]) -> io::Result<()> {
        let mut names = fs::read_dir(directory)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        // Sorted, so that the same tree makes the same transfer.
        names.sort_unstable();
        for inner in names {
            let real = directory.join(&inner);
            match fs::symlink_metadata(&real) {
                Ok(metadata) => self.add(&real, &[name, OsStr::as_bytes(&inner)].join(&b'/'), &metadata),
                Err(error) => self.unreadable(&real, &error),
            }
        }
        Ok(())
    }

    fn unreadable(&mut self, real: &Path, error: &io::Error) {
        self.refused.push(format!("{} is not copied: {error}", name_of(real)));
    }
}

fn name_of(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}

/// Returns the holes of a file that takes less space than its size.
fn holes(real: &Path, metadata: &Metadata) -> Vec<Hole> {
    if metadata.blocks().saturating_mul(512) >= metadata.len() {
        return Vec::new();
    }
    let Ok(file) = fs::File::open(real) else { return Vec::new() };
    let mut holes = Vec::new();
    let mut at = 0;
    let end = std::iter::once(metadata.len()..metadata.len());
    for range in data_ranges(&file, metadata.len()).into_iter().chain(end) {
        if at < range.start {
            holes.push(Hole { at, len: range.start - at });
        }
        at = range.end;
    }
    holes.truncate(MOST_HOLES);
    holes
}
