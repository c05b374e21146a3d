//! The acknowledged mark: up to which version messages are on all members' disks, as far as this log was told.
//!
//! It lies in each record, in each segment's first block and in the manifest, and the highest that is found counts. So a log whose
//! end is damaged knows that there was more: it is never taken for a complete one that is shorter.

use std::{cell::Cell, fmt, io, path::PathBuf};

use super::{
    Damage, Log, Storage, WriteError,
    manifest::{Manifest, NAME, Word},
    scan::Scanner,
    segment::{RECORDS_AT, name},
};

/// Records that were acknowledged, and that the log's end lacks: what held them is damaged, or was taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The segment's file.
    pub path: PathBuf,
    /// The place where they should begin in it, in bytes.
    pub offset: u64,
    /// The version of the first.
    pub from: u64,
    /// The version up to which they were acknowledged.
    pub to: u64,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Missing { path, offset, from, to } = self;
        write!(f, "{}, offset {offset}: versions {from} to {to} were acknowledged, and are missing", path.display())
    }
}

impl<S: Storage> Log<S> {
    /// The acknowledged mark: messages up to this version are on all members' disks. 0 if that was never said of any.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Notes that all members have the messages up to `version` on disk. It never goes down by that, nor beyond where this log
    /// ends. Nothing is written: it goes to disk with what is written next.
    pub fn set_acknowledged(&mut self, version: u64) {
        self.acknowledged = self.acknowledged.max(version.min(self.end.version));
    }

    /// Writes the mark, durably, if the manifest has a lower one: for a log to which nothing is appended for a while. Returns
    /// whether it did. That there is no space for it is no harm.
    pub fn save_acknowledged(&mut self) -> Result<bool, WriteError> {
        self.check_health()?;
        if !self.has_unsaved_mark() {
            return Ok(false);
        }
        let manifest = Manifest { acknowledged: self.acknowledged, ..self.manifest };
        let written = manifest.write(&self.storage);
        written.map_err(|source| self.poison_unless_full("replacing it", NAME, source))?;
        self.manifest = manifest;
        Ok(true)
    }

    /// What is damaged at the log's end, and was not torn by a crash, until it is cut there: there is no knowing what else the log had.
    pub fn end_damage(&self) -> Option<&Damage> {
        self.open_damage.as_ref()
    }

    /// Whether the log ends where an operator has accepted the loss of what it had behind.
    pub fn is_trusted(&self) -> bool {
        self.manifest.word == Some(Word::Trusted(self.end)) && self.missing().is_none()
    }

    /// Whether an operator has taken away what the log had behind its end, and nothing was appended since: another member may have it.
    pub fn is_doubtful(&self) -> bool {
        self.manifest.word == Some(Word::Doubtful)
    }

    /// Whether the manifest has a lower mark.
    pub fn has_unsaved_mark(&self) -> bool {
        self.acknowledged > self.manifest.acknowledged
    }

    /// The records that are missing at the log's end, until it is cut there or goes on without them. None if all that is known to
    /// be acknowledged lies before.
    pub fn missing(&self) -> Option<Missing> {
        if self.acknowledged <= self.end.version {
            return None;
        }
        let (mut index, mut offset) = (self.manifest.first, RECORDS_AT);
        if let Some(last) = &self.last {
            (index, offset) = (last.header.index, last.at);
            // Full, or cut: they were in the next one.
            if last.at == last.bytes && index + 1 < self.manifest.next {
                (index, offset) = (index + 1, RECORDS_AT);
            }
        }
        let path = self.storage.path(&name(index));
        Some(Missing { path, offset, from: self.end.version + 1, to: self.acknowledged })
    }

    /// Takes the log's end for where the log ended, if records are missing behind it: the mark goes down, durably. What lies behind
    /// in the file is never looked at again, nor written over.
    pub(crate) fn accept_end(&mut self) -> Result<(), WriteError> {
        if self.acknowledged <= self.end.version {
            return Ok(());
        }
        self.acknowledged = self.end.version;
        self.seal_last(None)
    }
}

/// The highest mark in headers at or behind `from` that are right, whatever became of their records.
pub(crate) fn highest_behind<S: Storage>(scanner: &mut Scanner<S::File>, storage: &S, from: u64) -> io::Result<u64> {
    let highest = Cell::new(0);
    scanner.find(storage, from, |header| {
        highest.set(highest.get().max(header.acknowledged));
        false
    })?;
    Ok(highest.get())
}
