//! The contents of a receiver's files, as they grow in the staging directory.

use std::{fs::File, io, os::unix::fs::FileExt};

use rustix::io::Errno;
use squall_rdmc::BlockSet;

use super::{
    super::{
        chunks::Reuse,
        extent::{PlanPart, Ranges},
        layout::{Piece, StreamLayout},
    },
    Basis, EntryState, FileWork, Sink, SinkError,
    ranges::{CopyRangeError, copy_range, hash_contents},
    stem,
};

/// The number of bytes of another version that are copied at once.
const REUSE_BYTES: u64 = 64 << 20;

impl Sink {
    /// Takes a plan, which is [checked](super::plan::check). Segments are counted from its beginning.
    pub(crate) fn plan(&mut self, plan: &[PlanPart], segment_bytes: usize) -> Result<(), SinkError> {
        self.layout = StreamLayout::new(plan, segment_bytes);
        self.segments = 0;
        for entry in 0..self.states.len() {
            let about = &self.manifest.entries()[entry];
            if self.states[entry] != EntryState::Open || !about.is_file() {
                continue;
            }
            let lacks_nothing = match self.work.get(&entry) {
                Some(work) => work.missing.is_empty(),
                None => about.contents().next().is_none(),
            };
            if lacks_nothing {
                self.work.entry(entry).or_default();
                self.begin(entry)?;
                if self.states[entry] == EntryState::Open {
                    self.end(entry)?;
                }
            }
        }
        self.commit()
    }

    /// Writes the next segment that is for this receiver.
    pub(crate) fn write(&mut self, segment: u64, bytes: &[u8]) -> Result<(), SinkError> {
        if segment != self.layout.next_for(self.me, self.segments) || bytes.len() != self.layout.len(segment) {
            return Err(SinkError::Order { came: segment, written: self.segments });
        }
        let pieces: Vec<Piece> = self.layout.pieces(segment).collect();
        for Piece { entry, at, offset, len } in pieces {
            self.write_piece(entry, at, &bytes[offset..][..len])?;
        }
        self.segments = segment + 1;
        self.commit()
    }

    /// Writes the blocks of a segment that have come, so that they need not come again.
    pub(crate) fn salvage(
        &mut self,
        segment: u64,
        held: &BlockSet,
        block_bytes: usize,
        bytes: &[u8],
    ) -> Result<(), SinkError> {
        let pieces: Vec<Piece> = self.layout.pieces(segment).collect();
        for Piece { entry, at, offset, len } in pieces {
            // Copying what other versions have would take long, and there is no hurry any more.
            if self.work.get(&entry).is_some_and(|work| work.name.is_none() && !work.reuses.is_empty()) {
                continue;
            }
            let mut from = offset;
            while from < offset + len {
                let block = from / block_bytes;
                let to = ((block + 1) * block_bytes).min(offset + len);
                if held.contains(block as u32)
                    && let Some(part) = bytes.get(from..to)
                {
                    self.write_piece(entry, at + (from - offset) as u64, part)?;
                }
                from = to;
            }
        }
        Ok(())
    }

    fn write_piece(&mut self, entry: usize, at: u64, bytes: &[u8]) -> Result<(), SinkError> {
        if self.states[entry] != EntryState::Open {
            return Ok(());
        }
        let about = &self.manifest.entries()[entry];
        let work = self.work.entry(entry).or_insert_with(|| FileWork {
            missing: Ranges::new(about.contents()),
            hashed: Some(Box::default()),
            ..FileWork::default()
        });
        let taken = work.missing.take(at..at + bytes.len() as u64);
        if taken.is_empty() {
            return Ok(());
        }
        self.begin(entry)?;
        if self.states[entry] != EntryState::Open {
            return Ok(());
        }
        for range in taken {
            let part = &bytes[(range.start - at) as usize..(range.end - at) as usize];
            let Some((_, file)) = &self.current else { return Ok(()) };
            file.write_all_at(part, range.start).map_err(self.contents("write", entry))?;
            self.written += part.len() as u64;
            let before = self.manifest.entries()[entry].contents_before(range.start);
            let Some(work) = self.work.get_mut(&entry) else { return Ok(()) };
            work.hashed = work.hashed.take().filter(|hashed| hashed.1 == before).map(|mut hashed| {
                hashed.0.update(part);
                hashed.1 += part.len() as u64;
                hashed
            });
        }
        if self.work.get(&entry).is_some_and(|work| work.missing.is_empty()) { self.end(entry) } else { Ok(()) }
    }

    /// Opens a file in the staging directory, and makes it if it is not there, with what can be reused.
    pub(super) fn begin(&mut self, entry: usize) -> Result<(), SinkError> {
        if self.current.as_ref().is_some_and(|current| current.0 == entry) {
            return Ok(());
        }
        let about = &self.manifest.entries()[entry];
        let Some(work) = self.work.get_mut(&entry) else { return Ok(()) };
        if let Some(name) = &work.name {
            let file = self.staging.as_ref().ok_or(Errno::NOENT).and_then(|staging| staging.open(name, false));
            self.current = Some((entry, file.map_err(|cause| self.contents("open", entry)(cause.into()))?));
            return Ok(());
        }
        let stem = stem(&about.path);
        let numbers = self.staged.entry(stem.clone()).or_default();
        let newest = numbers.first().copied();
        // Where all that is reused lies where it belongs, nothing is copied.
        let in_place = newest.map(|number| format!("{stem}.{number}")).filter(|name| {
            let newest = work.bases.iter().position(|basis| *basis == Basis::Staged(name.clone()));
            let fits = |reuse: &Reuse| match work.bases[reuse.from] {
                Basis::Placed => true,
                Basis::Staged(_) => Some(reuse.from) == newest && reuse.from_at == reuse.at,
            };
            newest.is_some() && about.contents_before(u64::MAX) == about.bytes() && work.reuses.iter().all(fits)
        });
        let is_new = in_place.is_none();
        let name = in_place.unwrap_or_else(|| {
            let number = newest.map_or(0, |number| number + 1);
            numbers.insert(0, number);
            format!("{stem}.{number}")
        });
        work.name = Some(name.clone());
        let reuses = std::mem::take(&mut work.reuses);
        let bases = std::mem::take(&mut work.bases);
        if !reuses.is_empty() {
            work.hashed = None;
        }
        let is_sized = is_new && reuses.is_empty() && about.contents_before(u64::MAX) == about.bytes();
        let made = (|| {
            let file = self.staging.as_ref().ok_or(Errno::NOENT)?.open(&name, is_new)?;
            if !is_sized {
                file.set_len(about.bytes())?;
            }
            Ok(file)
        })();
        let file = made.map_err(self.contents("create", entry))?;
        match self.reuse(entry, &name, &reuses, &bases, &file) {
            Ok(()) => {}
            Err(CopyRangeError::Write(error)) => return Err(self.contents("copy from another version", entry)(error)),
            Err(CopyRangeError::Read(error)) => {
                self.fail(entry, format!("what was here of it has changed meanwhile ({error}): push again"));
                self.work.remove(&entry);
                return Ok(());
            }
        }
        self.current = Some((entry, file));
        // The new file has all that the older ones had of it.
        for number in self.staged.get_mut(&stem).map(|numbers| numbers.split_off(1)).unwrap_or_default() {
            let removed = self.staging()?.remove(&format!("{stem}.{number}"));
            removed.map_err(|cause| self.contents("remove", entry)(cause.into()))?;
        }
        Ok(())
    }

    /// Copies what other versions have of a file.
    fn reuse(
        &self,
        entry: usize,
        name: &str,
        reuses: &[Reuse],
        bases: &[Basis],
        file: &File,
    ) -> Result<(), CopyRangeError> {
        let path = &self.manifest.entries()[entry].path;
        let mut open: Option<(usize, File)> = None;
        for Reuse { at, from, from_at, len } in reuses {
            if bases[*from] == Basis::Staged(name.to_owned()) {
                continue;
            }
            if open.as_ref().is_none_or(|open| open.0 != *from) {
                let basis = self.open_basis(&bases[*from], path);
                open = Some((*from, basis.map_err(|cause| CopyRangeError::Read(cause.into()))?));
            }
            let Some((_, basis)) = &open else { continue };
            for begin in (0..*len).step_by(REUSE_BYTES as usize) {
                if self.is_given_up() {
                    return Err(CopyRangeError::Read(io::ErrorKind::Interrupted.into()));
                }
                copy_range(basis, from_at + begin, file, at + begin, (len - begin).min(REUSE_BYTES))?;
            }
        }
        Ok(())
    }

    /// Ends a file of which all bytes are written, and which is open.
    fn end(&mut self, entry: usize) -> Result<(), SinkError> {
        let Some((_, file)) = self.current.take() else { return Ok(()) };
        let hashed = self.work.get_mut(&entry).and_then(|work| work.hashed.take());
        let hash = match hashed {
            Some(hashed) => hashed.0.finalize().into(),
            None => {
                let hash = hash_contents(&file, self.manifest.entries()[entry].contents());
                hash.map_err(self.contents("read again", entry))?
            }
        };
        self.states[entry] = EntryState::Whole(hash);
        self.verdicts.remove(&entry).map_or(Ok(()), |verdict| self.judge(entry, hash, verdict))
    }
}
