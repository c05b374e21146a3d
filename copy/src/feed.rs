//! The source's files: they are cut where receivers have other versions of them, read in segments, and hashed on the
//! way.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::OFlags;

use super::{
    chunks::{Chunk, FileChunks, cut},
    layout::{Piece, StreamLayout},
    manifest::Manifest,
    path::RelPath,
    sink::Verdict,
    source_file::{could_not_read, difference},
};

/// The number of bytes that are read at once where they are only hashed.
const SCRATCH_BYTES: usize = 1 << 20;

/// The origins of a manifest's entries: the names under which things are copied, and the links that are followed, each
/// with the file or directory that it stands for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources(pub(crate) HashMap<Vec<u8>, PathBuf>);

impl Sources {
    /// Returns the file that a path stands for.
    pub(crate) fn file(&self, path: &RelPath) -> PathBuf {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt};
        let bytes = path.as_bytes();
        let slashes = (0..bytes.len()).rev().filter(|&at| bytes[at] == b'/');
        // A link that is followed has an origin of its own, within that of what it lies in.
        for end in [bytes.len()].into_iter().chain(slashes) {
            if let Some(origin) = self.0.get(&bytes[..end]) {
                let rest = bytes.get(end + 1..).unwrap_or_default();
                return if rest.is_empty() { origin.clone() } else { origin.join(OsStr::from_bytes(rest)) };
            }
        }
        PathBuf::new()
    }
}

/// The reader of a transfer's files, which also cuts and hashes them.
pub(crate) struct Feed {
    sources: Sources,
    manifest: Arc<Manifest>,
    layout: StreamLayout,
    /// The file that is being hashed.
    current: Option<HashedFile>,
    /// The verdicts on files, by entry, as far as they are known.
    verdicts: Vec<Option<Verdict>>,
    /// The entries on which receivers want verdicts.
    wanted: Vec<bool>,
    given_up: Arc<AtomicBool>,
}

struct HashedFile {
    entry: usize,
    file: Result<File, String>,
    hasher: blake3::Hasher,
    /// The number of bytes that are hashed, without holes.
    hashed: u64,
    /// The difference from the manifest, if the file is no longer what that says.
    damage: Option<String>,
}

/// A file for a receiver that copies it.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    pub(crate) entry: u32,
    /// The file, unless it can't be copied.
    pub(crate) file: Option<File>,
    /// The verdict on it, if it was read.
    pub(crate) verdict: Option<Verdict>,
}

/// The verdicts on files, by entry.
pub(crate) type Verdicts = Vec<(u32, Verdict)>;

impl Feed {
    pub(crate) fn new(sources: Sources, manifest: Arc<Manifest>) -> Feed {
        let entries = manifest.entries().len();
        Feed {
            sources,
            manifest,
            layout: StreamLayout::new(&[], 1),
            current: None,
            verdicts: vec![None; entries],
            wanted: vec![false; entries],
            given_up: Arc::default(),
        }
    }

    /// Returns a flag that ends the work: the bytes read from then on are not needed.
    pub(crate) fn given_up(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.given_up)
    }

    /// Cuts a file. There are no chunks if it can't be read: it is sent, and its verdict says why.
    pub(crate) fn cut(&mut self, entry: usize) -> Vec<Chunk> {
        let about = &self.manifest.entries()[entry];
        let given_up = Arc::clone(&self.given_up);
        let file = self.open_file(entry).ok().filter(|file| self.changed(entry, file).is_none());
        let cut = file.and_then(|file| {
            let cut = cut(&file, about.contents(), about.bytes(), &|| given_up.load(Ordering::Relaxed)).ok()?;
            self.changed(entry, &file).is_none().then_some(cut)
        });
        let Some(FileChunks { chunks, hash }) = cut else { return Vec::new() };
        self.verdicts[entry] = Some(Verdict::Intact(hash));
        chunks
    }

    /// Opens a file for a receiver. That copies it, and then compares it with the manifest.
    pub(crate) fn open_to_copy(&self, entry: u32) -> OpenedFile {
        let opened = self.open_file(entry as usize).map_err(|error| format!("the source could not open it: {error}"));
        match (opened, self.verdicts[entry as usize].clone()) {
            (Err(reason), _) | (_, Some(Verdict::Damaged(reason))) => {
                OpenedFile { entry, file: None, verdict: Some(Verdict::Damaged(reason)) }
            }
            (Ok(file), verdict) => OpenedFile { entry, file: Some(file), verdict },
        }
    }

    /// Takes a plan. `wanted` are the entries on which receivers want verdicts; those that are known are told.
    pub(crate) fn plan(&mut self, layout: StreamLayout, wanted: &[u32], out: &mut Verdicts) {
        self.layout = layout;
        for &entry in wanted {
            self.wanted[entry as usize] = true;
            out.extend(self.verdicts[entry as usize].clone().map(|verdict| (entry, verdict)));
        }
    }

    /// Fills `bytes` with a segment. If a file can't be read, its bytes are zero, and its verdict says so.
    pub(crate) fn read(&mut self, segment: u64, bytes: &mut [u8], out: &mut Verdicts) {
        let pieces: Vec<Piece> = self.layout.pieces(segment).collect();
        for Piece { entry, at, offset, len } in pieces {
            let bytes = &mut bytes[offset..][..len];
            let before = self.manifest.entries()[entry].contents_before(at);
            if before == 0 && self.verdicts[entry].is_none() {
                self.open(entry);
            }
            match &self.current {
                Some(current) if current.entry == entry && current.hashed == before => {
                    self.read_next(at, bytes);
                    if self.current.as_ref().is_some_and(|current| self.is_hashed(current)) {
                        self.end(out);
                    }
                }
                _ => self.read_again(entry, at, bytes),
            }
        }
    }

    /// Hashes the files whose bytes no segment has asked for, or not in order.
    pub(crate) fn finish(&mut self, out: &mut Verdicts) {
        let mut scratch = vec![0; SCRATCH_BYTES];
        for entry in 0..self.wanted.len() {
            if !self.wanted[entry] || self.verdicts[entry].is_some() {
                continue;
            }
            self.open(entry);
            let ranges: Vec<Range<u64>> = self.manifest.entries()[entry].contents().collect();
            for Range { start, end } in ranges {
                for at in (start..end).step_by(SCRATCH_BYTES) {
                    if self.given_up.load(Ordering::Relaxed) {
                        return;
                    }
                    let len = (end - at).min(SCRATCH_BYTES as u64) as usize;
                    self.read_next(at, &mut scratch[..len]);
                }
            }
            self.end(out);
        }
    }

    fn is_hashed(&self, current: &HashedFile) -> bool {
        current.hashed == self.manifest.entries()[current.entry].contents_before(u64::MAX)
    }

    /// Reads and hashes the next bytes of the current file.
    fn read_next(&mut self, at: u64, bytes: &mut [u8]) {
        let Some(current) = &mut self.current else { return };
        if current.damage.is_none() {
            let read = match &current.file {
                Ok(file) => file.read_exact_at(bytes, at).map_err(|error| could_not_read(&error)),
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
        current.hashed += bytes.len() as u64;
    }

    /// Reads bytes that are not hashed now. If they changed since they were, receivers notice it.
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

    /// Begins to hash a file.
    fn open(&mut self, entry: usize) {
        let file = self.open_file(entry).map_err(|error| format!("the source could not open it: {error}"));
        let damage = file.as_ref().map_or_else(|error| Some(error.clone()), |file| self.changed(entry, file));
        self.current = Some(HashedFile { entry, file, hasher: blake3::Hasher::new(), hashed: 0, damage });
    }

    fn changed(&self, entry: usize, file: &File) -> Option<String> {
        difference(file, &self.manifest.entries()[entry])
    }

    /// Ends the current file, which is hashed whole.
    fn end(&mut self, out: &mut Verdicts) {
        let Some(HashedFile { entry, file, hasher, damage, .. }) = self.current.take() else { return };
        let damage = damage.or_else(|| file.ok().and_then(|file| self.changed(entry, &file)));
        let verdict = damage.map_or_else(|| Verdict::Intact(hasher.finalize().into()), Verdict::Damaged);
        self.verdicts[entry] = Some(verdict.clone());
        out.push((entry as u32, verdict));
    }
}
