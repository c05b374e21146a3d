//! The source's files, read as one stream: segments in any order, each file hashed once on the way.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::OFlags;

use super::{
    layout::{Piece, StreamLayout},
    manifest::{EntryKind, Manifest, Mtime},
    path::RelPath,
    sink::Verdict,
};

/// The number of bytes that are read at once where they are only hashed.
const SCRATCH_BYTES: usize = 1 << 20;

/// The origins of a manifest's entries: the first components of their paths, each with the file or directory that it
/// stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(pub(crate) HashMap<Vec<u8>, PathBuf>);

impl Sources {
    /// Returns the file that a path stands for.
    pub(crate) fn file(&self, path: &RelPath) -> PathBuf {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let bytes = path.as_bytes();
        let (top, rest) = match bytes.iter().position(|&byte| byte == b'/') {
            Some(slash) => (&bytes[..slash], Some(&bytes[slash + 1..])),
            None => (bytes, None),
        };
        let top = self.0.get(top).cloned().unwrap_or_default();
        rest.map_or(top.clone(), |rest| top.join(OsStr::from_bytes(rest)))
    }
}

/// The reader of a transfer's files, which also hashes them.
pub(crate) struct Feed {
    sources: Sources,
    manifest: Arc<Manifest>,
    layout: StreamLayout,
    /// The file that is being hashed, if it was opened.
    current: Option<HashedFile>,
    /// The entry up to which all entries are hashed, or need not be.
    entry: usize,
    /// The number of its bytes that are hashed.
    hashed: u64,
    given_up: Arc<AtomicBool>,
}

struct HashedFile {
    entry: usize,
    file: Result<File, String>,
    hasher: blake3::Hasher,
    /// The difference from the manifest, if the file is no longer what that says.
    damage: Option<String>,
}

/// The verdicts on files, by entry.
pub(crate) type Verdicts = Vec<(u32, Verdict)>;

impl Feed {
    /// Makes a reader. Entries before `first` are not hashed: all receivers have them.
    pub(crate) fn new(sources: Sources, manifest: Arc<Manifest>, segment_bytes: usize, first: usize) -> Feed {
        let layout = StreamLayout::new(&manifest, segment_bytes);
        Feed { sources, manifest, layout, current: None, entry: first, hashed: 0, given_up: Arc::default() }
    }

    /// Returns a flag that ends the work: the bytes read from then on are not needed.
    pub(crate) fn given_up(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.given_up)
    }

    /// Fills `bytes` with a segment. If a file can't be read, its bytes are zero, and its verdict says so.
    pub(crate) fn read(&mut self, segment: u64, bytes: &mut [u8], out: &mut Verdicts) {
        let pieces: Vec<Piece> = self.layout.pieces(segment).collect();
        for Piece { entry, at, offset, len } in pieces {
            let bytes = &mut bytes[offset..][..len];
            if (entry, at) >= (self.entry, self.hashed) {
                self.hash_up_to(entry, at, out);
                self.read_next(bytes);
            } else {
                self.read_again(entry, at, bytes);
            }
        }
        let ended = self.layout.ended(segment + 1);
        if self.entry < ended {
            self.hash_up_to(ended, 0, out);
        }
    }

    /// Hashes the bytes that no segment has asked for.
    pub(crate) fn finish(&mut self, out: &mut Verdicts) {
        self.hash_up_to(self.manifest.entries().len(), 0, out);
    }

    /// Reads and hashes until the next byte is that of `entry` at `at`.
    fn hash_up_to(&mut self, entry: usize, at: u64, out: &mut Verdicts) {
        let mut scratch = Vec::new();
        while (self.entry, self.hashed) < (entry, at) {
            let end = if self.entry == entry { at } else { self.manifest.entries()[self.entry].bytes() };
            while self.hashed < end {
                if self.given_up.load(Ordering::Relaxed) {
                    return;
                }
                scratch.resize(SCRATCH_BYTES, 0);
                let len = (end - self.hashed).min(SCRATCH_BYTES as u64) as usize;
                self.read_next(&mut scratch[..len]);
            }
            if self.entry < entry {
                self.end(out);
            }
        }
    }

    /// Reads and hashes the next bytes of the current file.
    fn read_next(&mut self, bytes: &mut [u8]) {
        let at = self.hashed;
        let current = self.open();
        if current.damage.is_none() {
            let read = match &current.file {
                Ok(file) => file.read_exact_at(bytes, at).map_err(|error| match error.kind() {
                    io::ErrorKind::UnexpectedEof => "it shrank while it was read".to_owned(),
                    _ => format!("the source could not read it: {error}"),
                }),
                Err(reason) => Err(reason.clone()),
            };
            match read {
                Ok(()) => _ = current.hasher.update(bytes),
                Err(reason) => current.damage = Some(reason),
            }
        }
        if current.damage.is_some() {
            bytes.fill(0);
        }
        self.hashed += bytes.len() as u64;
    }

    /// Reads bytes that were hashed before. If they changed since, receivers notice it.
    fn read_again(&self, entry: usize, at: u64, bytes: &mut [u8]) {
        let read = match &self.current {
            Some(HashedFile { entry: open, file: Ok(file), .. }) if *open == entry => file.read_exact_at(bytes, at),
            _ => self.open_file(entry).and_then(|file| file.read_exact_at(bytes, at)),
        };
        if read.is_err() {
            bytes.fill(0);
        }
    }

    fn open_file(&self, entry: usize) -> io::Result<File> {
        // A pipe that took the file's name meanwhile must not block the open.
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let path = self.sources.file(&self.manifest.entries()[entry].path);
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }

    fn open(&mut self) -> &mut HashedFile {
        if self.current.as_ref().is_none_or(|current| current.entry != self.entry) {
            let file = self.open_file(self.entry).map_err(|error| format!("the source could not open it: {error}"));
            let damage = file.as_ref().map_or_else(|error| Some(error.clone()), |file| self.changed(file));
            self.current = Some(HashedFile { entry: self.entry, file, hasher: blake3::Hasher::new(), damage });
        }
        self.current.as_mut().expect("it was just opened")
    }

    /// Returns the difference between the current file and the manifest, if there is one.
    fn changed(&self, file: &File) -> Option<String> {
        let entry = &self.manifest.entries()[self.entry];
        let metadata = match file.metadata() {
            Ok(metadata) => metadata,
            Err(error) => return Some(format!("the source could not look at it: {error}")),
        };
        let mtime = Mtime { seconds: metadata.mtime(), nanos: metadata.mtime_nsec() as u32 };
        if !metadata.is_file() {
            Some("it is no file any more: push again".to_owned())
        } else if metadata.len() != entry.bytes() {
            Some(format!("its size changed from {} to {} bytes: push again", entry.bytes(), metadata.len()))
        } else if mtime != entry.mtime {
            Some("it changed after the transfer had begun: push again".to_owned())
        } else {
            None
        }
    }

    /// Ends the current entry, which is hashed whole.
    fn end(&mut self, out: &mut Verdicts) {
        if matches!(self.manifest.entries()[self.entry].kind, EntryKind::File { .. }) {
            self.open();
            let HashedFile { file, hasher, damage, .. } = self.current.take().expect("it was just opened");
            let damage = damage.or_else(|| file.ok().and_then(|file| self.changed(&file)));
            let verdict = damage.map_or_else(|| Verdict::Intact(hasher.finalize().into()), Verdict::Damaged);
            out.push((self.entry as u32, verdict));
        }
        (self.entry, self.hashed) = (self.entry + 1, 0);
    }
}
