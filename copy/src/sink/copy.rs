//! The copying of contents from file to file, by the kernel where it can: of the source's open files, on one host, and
//! of what other versions have.

use std::{
    fs::File,
    io,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use rustix::fs::fsync;

use super::{
    super::{
        dress::dress,
        extent::Ranges,
        source_file::{could_not_read, difference},
    },
    EntryState, FileWork, Sink, SinkError, Verdict,
    ranges::{CopyRangeError, copy_range, hash_contents, start_writeback},
};

/// The least number of bytes of a piece that is on its way to the disk as soon as it is copied.
const WRITEBACK_BYTES: u64 = 1 << 20;

/// The most copied files, and the most of their bytes, that are synced and put in place together.
const COMMIT_FILES: usize = 16384;
const COMMIT_BYTES: u64 = 256 << 20;

/// A file that a receiver is to copy.
#[derive(Debug)]
pub(crate) struct FileToCopy {
    pub(crate) entry: u32,
    /// The source's open file, unless it can't be copied.
    pub(crate) file: Option<File>,
    /// The source's verdict, if it has read the file.
    pub(crate) verdict: Option<Verdict>,
}

impl Sink {
    /// Copies what is missing of a file. At its end, the file is what the manifest says, or it is not put in place; if
    /// it was compared before, by its contents. `step` is called after each `piece_bytes`, with the number of bytes.
    pub(crate) fn copy(
        &mut self,
        FileToCopy { entry, file, verdict }: FileToCopy,
        piece_bytes: u64,
        step: &mut dyn FnMut(u64),
    ) -> Result<(), SinkError> {
        let (entry, manifest) = (entry as usize, Arc::clone(&self.manifest));
        let about = match (self.states.get(entry), manifest.entries().get(entry)) {
            (Some(EntryState::Open), Some(about)) if about.is_file() => about,
            _ => return Ok(()),
        };
        let Some(from) = file else { return self.judge(entry, [0; 32], verdict.unwrap_or_else(unopened)) };
        let whole = || FileWork { missing: Ranges::new(about.contents()), ..FileWork::default() };
        let missing = self.work.entry(entry).or_insert_with(whole).missing.clone();
        self.begin(entry)?;
        let Some((_, to)) = self.current.take().filter(|_| self.states[entry] == EntryState::Open) else {
            return Ok(());
        };
        if let Err(error) = self.copy_missing(entry, &from, &to, &missing, piece_bytes, step) {
            return match error {
                CopyRangeError::Read(cause) if self.is_given_up() => {
                    tracing::debug!(%cause, path = %about.path, "the copy was given up");
                    Ok(())
                }
                CopyRangeError::Read(cause) => {
                    let reason = difference(&from, about).unwrap_or_else(|| could_not_read(&cause));
                    self.judge(entry, [0; 32], Verdict::Damaged(reason))
                }
                CopyRangeError::Write(cause) => Err(self.contents("write", entry)(cause)),
            };
        }
        if let Some(reason) = difference(&from, about) {
            return self.judge(entry, [0; 32], Verdict::Damaged(reason));
        }
        let hash = match &verdict {
            Some(Verdict::Intact(_)) => {
                hash_contents(&to, about.contents()).map_err(self.contents("read again", entry))?
            }
            _ => [0; 32],
        };
        self.judge(entry, hash, verdict.unwrap_or(Verdict::Intact(hash)))?;
        if self.states[entry] == EntryState::Verified { self.dress_copied(entry, &to) } else { Ok(()) }
    }

    fn copy_missing(
        &mut self,
        entry: usize,
        from: &File,
        to: &File,
        missing: &Ranges,
        piece_bytes: u64,
        step: &mut dyn FnMut(u64),
    ) -> Result<(), CopyRangeError> {
        for &Range { start, end } in missing.iter() {
            let mut at = start;
            while at < end {
                if self.is_given_up() {
                    return Err(CopyRangeError::Read(io::ErrorKind::Interrupted.into()));
                }
                let len = (end - at).min(piece_bytes);
                copy_range(from, at, to, at, len)?;
                if self.options.sync && len >= WRITEBACK_BYTES {
                    start_writeback(to, at, len);
                }
                if let Some(work) = self.work.get_mut(&entry) {
                    work.missing.take(at..at + len);
                }
                self.written += len;
                self.uncommitted += len;
                at += len;
                step(len);
            }
        }
        Ok(())
    }

    /// Gives a copied file its owner, mode, time and attributes as long as it is open, and syncs it if it is one of
    /// few.
    fn dress_copied(&mut self, entry: usize, file: &File) -> Result<(), SinkError> {
        let about = &self.manifest.entries()[entry];
        let dressed = dress(file, about, self.options.keep, true, &mut self.outcome.losses)
            .and_then(|()| if self.options.sync && self.lacks_few { fsync(file) } else { Ok(()) });
        dressed.map_err(|cause| self.contents("set mode and time of, or sync,", entry)(cause.into()))?;
        if let Some(work) = self.work.get_mut(&entry) {
            work.is_dressed = true;
        }
        Ok(())
    }

    /// Puts the copied files in place, once there are enough of them to sync them together.
    pub(crate) fn commit_copied(&mut self) -> Result<(), SinkError> {
        let waits = self.options.sync && !self.lacks_few;
        if waits && self.verified.len() < COMMIT_FILES && self.uncommitted < COMMIT_BYTES {
            return Ok(());
        }
        self.commit()
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

fn unopened() -> Verdict {
    Verdict::Damaged("the source did not open it".to_owned())
}
