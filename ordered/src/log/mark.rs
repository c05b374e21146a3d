//! The acknowledged mark: the version up to which messages are on all members' disks, as far as this log was told.
//!
//! It lies in each record, in each segment's first block and in the manifest, and the highest that is found counts. So
//! a log whose end is damaged knows that there was more: it is never taken for a complete one that is shorter.

use std::{cell::Cell, io, path::PathBuf};

use super::{
    Damage, Log, Storage, WriteError,
    manifest::{Manifest, NAME, OperatorVerdict},
    scan::Scanner,
    segment::{RECORDS_AT, name},
};

/// Records that were acknowledged, and that the log's end lacks: their bytes are damaged, or were taken away.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}, offset {offset}: versions {from} to {to} were acknowledged, and are missing", path.display())]
pub struct Missing {
    /// The segment's file.
    pub path: PathBuf,
    /// The place where they should begin in it, in bytes.
    pub offset: u64,
    /// The version of the first missing record.
    pub from: u64,
    /// The version up to which they were acknowledged.
    pub to: u64,
}

impl<S: Storage> Log<S> {
    /// Returns the acknowledged mark: messages up to this version are on all members' disks. 0 if no message was
    /// acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Notes that all members have the messages up to `version` on disk. The mark never goes down by that, nor beyond
    /// the log's end. Nothing is written now: the next write takes the mark to disk.
    pub fn set_acknowledged(&mut self, version: u64) {
        self.acknowledged = self.acknowledged.max(version.min(self.end.version));
    }

    /// Writes the mark, durably, if the manifest has a lower one: for a log to which nothing is appended for a while.
    /// Returns whether it wrote. A lack of space does not poison the log.
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

    /// Returns the damage at the log's end that was not torn by a crash, until the log is cut there. The records that
    /// the log had behind it are not known.
    pub fn end_damage(&self) -> Option<&Damage> {
        self.open_damage.as_ref()
    }

    /// Returns whether the log ends where an operator has accepted the loss of the records behind.
    pub fn is_trusted(&self) -> bool {
        self.manifest.word == Some(OperatorVerdict::Trusted(self.end)) && self.missing().is_none()
    }

    /// Returns whether an operator has taken away records behind the log's end, and nothing was appended since. Another
    /// member may have them.
    pub fn is_doubtful(&self) -> bool {
        self.manifest.word == Some(OperatorVerdict::Doubtful)
    }

    /// Returns whether the manifest has a lower mark.
    pub fn has_unsaved_mark(&self) -> bool {
        self.acknowledged > self.manifest.acknowledged
    }

    /// Returns the records that are missing at the log's end, until it is cut there or goes on without them. None if
    /// all records known to be acknowledged lie before.
    pub fn missing(&self) -> Option<Missing> {
        if self.acknowledged <= self.end.version {
            return None;
        }
        let (mut index, mut offset) = (self.manifest.first, RECORDS_AT);
        if let Some(last) = &self.last {
            (index, offset) = (last.header.index, last.at);
            // The segment is full, or was cut: the missing records were in the next one.
            if last.at == last.bytes && index + 1 < self.manifest.next {
                (index, offset) = (index + 1, RECORDS_AT);
            }
        }
        let path = self.storage.path(&name(index));
        Some(Missing { path, offset, from: self.end.version + 1, to: self.acknowledged })
    }

    /// Accepts the log's end as it is, if records are missing behind it: the mark goes down, durably. The bytes behind
    /// it in the file are never read again, nor overwritten.
    pub(crate) fn accept_end(&mut self) -> Result<(), WriteError> {
        if self.acknowledged <= self.end.version {
            return Ok(());
        }
        self.acknowledged = self.end.version;
        self.seal_last(None)
    }
}

/// Returns the highest mark in headers at or behind `from` that are right, even if their records are damaged.
pub(crate) fn highest_behind<S: Storage>(scanner: &mut Scanner<S::File>, storage: &S, from: u64) -> io::Result<u64> {
    let highest = Cell::new(0);
    scanner.find(storage, from, |header| {
        highest.set(highest.get().max(header.acknowledged));
        false
    })?;
    Ok(highest.get())
}
