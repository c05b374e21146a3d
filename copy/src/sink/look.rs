//! The comparison of what a receiver has with what it is to have, and the removal of what it is not to have.

use std::{
    collections::HashMap,
    fs::File,
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use rustix::{fs::FileType, io::Errno};

use super::{
    super::{
        chunks::{Chunk, Reuse, Stock},
        dress::Keep,
        extent::Ranges,
        manifest::{Entry, EntryKind},
        path::RelPath,
        root::{Found, PlaceError},
    },
    Basis, EntryState, FileWork, Lacking, Sink, SinkError, stem, tops,
};

/// The least size of a file, in bytes, of which another version is compared: smaller ones are sent whole.
const WORTH_COMPARING: u64 = 16 << 10;

impl Sink {
    pub(super) fn make_directories(&mut self) -> Result<(), SinkError> {
        let manifest = Arc::clone(&self.manifest);
        for (entry, Entry { path, kind, .. }) in manifest.entries().iter().enumerate() {
            if *kind != EntryKind::Directory {
                continue;
            }
            let mut made = self.root.make_directory(path);
            let found = self.root.find(path).filter(|found| made.is_err() && found.kind() != FileType::Directory);
            if let Some(found) = found.filter(|_| self.options.delete && self.options.clobber)
                && self.clear(path, &found)?
            {
                made = self.root.make_directory(path);
            }
            self.accept(entry, made)?;
        }
        Ok(())
    }

    /// Compares what has the entries' names with the entries.
    pub(super) fn look(&mut self) -> Result<Lacking, SinkError> {
        let manifest = Arc::clone(&self.manifest);
        let compare_all = self.options.checksum || tops(&manifest).any(|name| self.root.has_unsynced(name));
        let mut lacking = Lacking::default();
        for (index, entry) in manifest.entries().iter().enumerate() {
            let found = self.root.find(&entry.path);
            if entry.kind == EntryKind::Directory {
                let is_other = found.is_some_and(|found| found.kind() != FileType::Directory);
                if self.options.dry_run && is_other && !self.gives_way(&entry.path)? {
                    self.accept(index, Err(PlaceError::name("make the directory", &entry.path)(Errno::NOTDIR)))?;
                }
                continue;
            }
            if self.states[index] == EntryState::Failed {
                continue;
            }
            if found.is_some() && !self.options.clobber {
                self.states[index] = EntryState::Kept;
                self.outcome.kept += 1;
                continue;
            }
            if found.is_some_and(|found| found.kind() == FileType::Directory) && !self.gives_way(&entry.path)? {
                self.accept(index, Err(PlaceError::name("put in place", &entry.path)(Errno::ISDIR)))?;
                continue;
            }
            if !entry.is_file() {
                continue;
            }
            let found = found.filter(|found| found.kind() == FileType::RegularFile);
            let same = found.is_some_and(|found| (found.bytes(), found.mtime()) == (entry.bytes(), entry.mtime));
            let trusted = !compare_all && !found.is_some_and(|found| self.would_empower(&found, entry));
            let worth = if trusted { WORTH_COMPARING } else { 1 };
            let alike = trusted || entry.bytes() == 0 && !found.is_some_and(|found| self.would_empower(&found, entry));
            if same && alike && found.is_some_and(|found| self.claim(&found)) {
                self.unchanged(index);
            } else if entry.bytes() >= worth && found.is_some_and(|found| found.bytes() >= worth)
                || self.staged.contains_key(&stem(&entry.path))
            {
                self.to_compare.insert(index);
                lacking.other.push(index as u32);
            } else {
                lacking.whole.push(index as u32);
            }
        }
        if self.options.dry_run {
            let ways = self.outcome.deleted;
            lacking.doomed = ways + if self.options.delete { self.delete()? } else { 0 };
            lacking.failed.clone_from(&self.outcome.failed);
            lacking.failures = self.outcome.failures;
        }
        Ok(lacking)
    }

    /// Tells whether what has a name, and is of another kind, is removed in the end; a dry run counts what that
    /// would be.
    fn gives_way(&mut self, path: &RelPath) -> Result<bool, SinkError> {
        if !self.options.delete || !self.options.clobber || !self.options.dry_run {
            return Ok(self.options.delete);
        }
        let beside = self.root.find_parent(path);
        beside.map_or(Ok(true), |beside| self.clear(path, &beside))
    }

    /// Lets a file stand for an entry, unless it stands for another by another name.
    fn claim(&mut self, found: &Found) -> bool {
        found.shared().is_none_or(|number| self.claimed.insert(number))
    }

    /// Tells whether a program would get set-id bits or another owner with them: what it has must be the source's then,
    /// whatever its size and time.
    fn would_empower(&self, found: &Found, entry: &Entry) -> bool {
        let Keep { owners, attributes } = self.options.keep;
        let is_other_owner = entry.owner.is_some_and(|owner| owners && owner != found.owner());
        let sets_id = owners && entry.mode & 0o6000 != 0 && (is_other_owner || entry.mode != found.mode());
        // Whether the file has the same capabilities is not looked at: it is compared, if it is another's now.
        sets_id || attributes.others && entry.attributes.has_capability() && is_other_owner
    }

    /// Compares a file's chunks at the source with what is here. Returns the ranges that are missing, in order.
    pub(crate) fn compare(&mut self, entry: usize, chunks: &[Chunk]) -> Vec<Range<u64>> {
        let manifest = Arc::clone(&self.manifest);
        if !self.to_compare.remove(&entry) {
            return Vec::new();
        }
        let about = &manifest.entries()[entry];
        let given_up = Arc::clone(&self.given_up);
        let stopped = || given_up.load(Ordering::Relaxed);
        let (mut stock, mut bases) = (Stock::default(), Vec::new());
        let stem = stem(&about.path);
        let staged = self.staged.get(&stem).into_iter().flatten();
        let staged = staged.map(|number| Basis::Staged(format!("{stem}.{number}")));
        for basis in staged.chain([Basis::Placed]) {
            let added = self
                .open_basis(&basis, &about.path)
                .map_err(io::Error::from)
                .and_then(|file| stock.add(bases.len(), &file, about.bytes(), &stopped));
            match added {
                Ok(()) => bases.push(basis),
                // What can't be read is sent.
                Err(error) => tracing::debug!(path = %about.path, ?basis, %error, "can't be compared"),
            }
        }
        let (reuses, missing) = stock.compare(about.contents(), chunks);
        let in_place = |reuse: &Reuse| bases[reuse.from] == Basis::Placed && reuse.from_at == reuse.at;
        let is_whole = |found: Found| found.kind() == FileType::RegularFile && found.bytes() == about.bytes();
        let is_dense = about.contents().map(|range| range.end - range.start).sum::<u64>() == about.bytes();
        if missing.is_empty()
            && reuses.iter().all(in_place)
            && is_dense
            // Whoever can write to the file now must not do so between the comparison and the change of its owner.
            && self.root.find(&about.path).is_some_and(|found| {
                is_whole(found) && !self.would_empower(&found, about) && self.claim(&found)
            })
        {
            self.unchanged(entry);
            return Vec::new();
        }
        let work = FileWork { missing: Ranges::new(missing.iter().cloned()), reuses, bases, ..FileWork::default() };
        self.work.insert(entry, work);
        missing
    }

    pub(super) fn open_basis(&self, basis: &Basis, path: &RelPath) -> Result<File, Errno> {
        match basis {
            Basis::Staged(name) => self.staging.as_ref().ok_or(Errno::NOENT)?.open(name, false),
            Basis::Placed => self.root.open_file(path),
        }
    }

    /// Removes what is in the source's directories here and not there; in a dry run, only counts it. Names that are
    /// left out stay, and what they lie in. Returns the number of names.
    pub(super) fn delete(&mut self) -> Result<u64, SinkError> {
        let manifest = Arc::clone(&self.manifest);
        let mut known: HashMap<&[u8], Vec<&[u8]>> = HashMap::new();
        for entry in manifest.entries() {
            if let (Some(parent), name) = entry.path.split() {
                known.entry(parent.as_encoded_bytes()).or_default().push(name.as_encoded_bytes());
            }
        }
        let before = self.outcome.deleted;
        for (index, entry) in manifest.entries().iter().enumerate() {
            let Some(here) = self.root.find(&entry.path) else { continue };
            if entry.kind != EntryKind::Directory || self.states[index] == EntryState::Failed {
                continue;
            }
            let mut names = known.remove(entry.path.as_bytes()).unwrap_or_default();
            names.sort_unstable();
            for name in self.root.names(&entry.path).unwrap_or_default() {
                let name = name.as_encoded_bytes();
                if names.binary_search(&name).is_err()
                    && let Ok(path) = RelPath::new([entry.path.as_bytes(), name].join(&b'/'))
                {
                    self.clear(&path, &here)?;
                }
            }
        }
        Ok(std::mem::replace(&mut self.outcome.deleted, before) - before)
    }

    /// Removes what has a name, a directory with its contents, unless it is left out. `beside` is on the filesystem
    /// that is not to be left. Returns whether it is gone; in a dry run, whether it would be. What can't be removed
    /// is a failure.
    pub(super) fn clear(&mut self, path: &RelPath, beside: &Found) -> Result<bool, SinkError> {
        let Some(found) = self.root.find(path) else { return Ok(true) };
        let is_directory = found.kind() == FileType::Directory;
        if self.filter.leaves_out(path.as_bytes(), is_directory) || self.spared.contains(path.as_bytes()) {
            return Ok(false);
        }
        if is_directory && !found.is_beside(beside) {
            return self.not_cleared(PlaceError::name("remove", path)(Errno::XDEV));
        }
        let mut is_empty = true;
        for name in if is_directory { self.root.names(path).unwrap_or_default() } else { Vec::new() } {
            match RelPath::new([path.as_bytes(), name.as_encoded_bytes()].join(&b'/')) {
                Ok(inner) => is_empty &= self.clear(&inner, beside)?,
                Err(_) => is_empty = false,
            }
        }
        if !is_empty {
            return Ok(false);
        }
        let removed = if self.options.dry_run { Ok(()) } else { self.root.remove(path, is_directory) };
        match removed {
            Ok(()) => {
                self.outcome.deleted += 1;
                Ok(true)
            }
            Err(error) => self.not_cleared(error),
        }
    }

    fn not_cleared(&mut self, error: PlaceError) -> Result<bool, SinkError> {
        match error {
            PlaceError::Name { .. } => {
                self.note(error.to_string());
                Ok(false)
            }
            PlaceError::Disk { .. } => Err(error.into()),
        }
    }
}
