//! The writing thread's side of a log: batches, and jobs between them.

use std::{io, sync::atomic::Ordering};

use squall_ordered::log::{Position, WriteError};

use super::{Counts, DiskLog, LogWriter, WriteBuffer};

impl LogWriter {
    /// Does all work that is due, on the writing thread: the jobs, and one batch. Returns whether there was any; the
    /// node's engine thread is to be woken then.
    pub(crate) fn write(&self, log: &mut DiskLog) -> bool {
        // Work that comes from here on sets it again.
        self.due.store(false, Ordering::Release);
        let jobs = std::mem::take(&mut *self.jobs.lock());
        let mut any = !jobs.is_empty();
        any |= self.write_batch(log);
        if !jobs.is_empty() {
            // Records that were appended while the first batch was on its way, but before the jobs were asked for.
            self.write_batch(log);
        }
        if self.failure().is_none() {
            self.say_persisted(log);
        }
        for job in jobs {
            if self.failure().is_some() {
                return any;
            }
            match job(log) {
                Ok(tell) => {
                    self.note_begin(log);
                    tell();
                }
                Err(error) => self.fail(error.to_string()),
            }
        }
        self.call_if_due();
        // A lack of space for the next segment does no harm yet.
        if self.failure().is_none()
            && any
            && let Err(error) = log.prepare()
        {
            tracing::debug!(%error, "the next segment of a log is not there yet");
        }
        any
    }

    /// Saves in the log how far it is acknowledged, while nothing is written to it. Returns whether there will be more
    /// to save.
    pub(crate) fn save_acknowledged(&self, log: &mut DiskLog) -> bool {
        if self.failure().is_some() {
            return false;
        }
        log.set_acknowledged(self.globally_persisted());
        match log.save_acknowledged() {
            Err(WriteError::Io { source, .. }) if source.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => self.fail(error.to_string()),
            Ok(_) => {}
        }
        log.acknowledged() < log.persisted().version
    }

    fn note_begin(&self, log: &mut DiskLog) {
        if log.begin() != self.begin() {
            let held = (log.bytes_behind(Position::START).unwrap_or_default(), self.counts().bytes);
            let mut buffer = self.buffer.lock();
            (buffer.begin, buffer.held) = (log.begin(), held);
        }
    }

    /// Writes a batch, if there is one, and publishes the new end.
    fn write_batch(&self, log: &mut DiskLog) -> bool {
        if self.failure().is_some() {
            return false;
        }
        let mut buffer = self.buffer.lock();
        let ready = buffer.ready.take();
        let Some(mut batch) = ready.or_else(|| buffer.appender.take_batch()) else { return false };
        drop(buffer);
        log.set_acknowledged(self.globally_persisted());
        let end = match log.commit(&mut batch) {
            Ok(end) => end,
            Err(error) => {
                self.fail(error.to_string());
                return true;
            }
        };
        let Counts { records, bytes, syncs } = &self.counts;
        records.fetch_add(batch.records(), Ordering::Relaxed);
        bytes.fetch_add(batch.bytes() as u64, Ordering::Relaxed);
        syncs.fetch_add(1, Ordering::Relaxed);
        let mut buffer = self.buffer.lock();
        (buffer.on_disk, buffer.tip) = (end, log.tip());
        buffer.appender.give_back(batch);
        // Taken at once, so that the thread that is told next finds the room.
        buffer.ready = buffer.appender.take_batch();
        if buffer.ready.is_some() {
            self.due.store(true, Ordering::Release);
        }
        drop(buffer);
        self.say_persisted(log);
        true
    }

    /// Publishes how far the log persists. A log that was begun anew first loses its mark, since others rely on what
    /// the node then says.
    fn say_persisted(&self, log: &DiskLog) {
        let reaches = |buffer: &WriteBuffer| {
            let told = buffer.persisted.as_ref();
            told.filter(|(_, from)| buffer.on_disk.position >= *from).map(|(persisted, _)| persisted.clone())
        };
        if self.is_anew()
            && reaches(&self.buffer.lock()).is_some()
            && let Err(error) = self.end_anew(log)
        {
            return self.fail(error.to_string());
        }
        let buffer = self.buffer.lock();
        if let Some(persisted) = reaches(&buffer) {
            persisted.set(buffer.on_disk.version);
        }
    }
}
