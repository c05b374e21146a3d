//! The writing thread's side of a log: batches, and jobs between them.

use std::{collections::VecDeque, sync::atomic::Ordering};

use squall_ordered::log::{Position, WriteError, is_full};

use super::{Counts, DiskLog, Job, LogWriter, WriteBuffer};

impl LogWriter {
    /// Does all work that is due, on the writing thread: the jobs, and one batch. Returns whether there was any; the
    /// node's engine thread is to be woken then.
    pub(crate) fn write(&self, log: &mut DiskLog) -> bool {
        // Work that comes from here on sets it again.
        self.due.store(false, Ordering::Release);
        let jobs = std::mem::take(&mut *self.jobs.lock());
        let mut any = self.write_batch(log);
        if !jobs.is_empty() && self.no_room().is_none() {
            // Records that were appended while the first batch was on its way, but before the jobs were asked for. If
            // the first one waits for room, they would only take its place, and jobs that follow both would overtake
            // them.
            any |= self.write_batch(log);
        }
        if self.failure().is_none() {
            self.say_persisted(log);
        }
        for job in self.jobs_to_do(jobs) {
            any = true;
            if self.failure().is_some() {
                return any;
            }
            match (job.work)(log) {
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

    /// The jobs that can be done now. While the disk has no room, those that follow what was appended wait.
    fn jobs_to_do(&self, jobs: VecDeque<Job>) -> VecDeque<Job> {
        if self.no_room().is_none() {
            return jobs;
        }
        let (late, now): (VecDeque<Job>, VecDeque<Job>) = jobs.into_iter().partition(|job| job.is_behind);
        let mut waiting = self.jobs.lock();
        // `failure` is set before the waiting jobs are dropped.
        if self.failure().is_none() && !self.closes.load(Ordering::Acquire) {
            late.into_iter().rev().for_each(|job| waiting.push_front(job));
        }
        now
    }

    /// Saves in the log how far it is acknowledged, while nothing is written to it. Returns whether there will be more
    /// to save.
    pub(crate) fn save_acknowledged(&self, log: &mut DiskLog) -> bool {
        if self.failure().is_some() {
            return false;
        }
        log.set_acknowledged(self.globally_persisted());
        match log.save_acknowledged() {
            Err(WriteError::Io { source, .. }) if is_full(&source) => {}
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
        let Some(mut batch) = ready.or_else(|| buffer.appender.take_batch()) else {
            drop(buffer);
            self.set_no_room(None);
            return false;
        };
        drop(buffer);
        log.set_acknowledged(self.globally_persisted());
        let before = log.persisted();
        let end = match log.commit(&mut batch) {
            Ok(end) => end,
            Err(error @ WriteError::NoRoom { .. }) => {
                let mut buffer = self.buffer.lock();
                // A part of it may be there.
                (buffer.on_disk, buffer.tip, buffer.ready) = (log.persisted(), log.tip(), Some(batch));
                drop(buffer);
                self.set_no_room(Some(error.to_string()));
                return log.persisted() != before;
            }
            Err(error) => {
                self.fail(error.to_string());
                return true;
            }
        };
        self.set_no_room(None);
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

    /// Notes whether what was appended waits for room, and logs when that changes.
    fn set_no_room(&self, why: Option<String>) {
        let mut told = self.no_room.lock();
        match (&*told, &why) {
            (None, Some(why)) => tracing::error!(why, "what the group has delivered can't be written"),
            (Some(_), None) => {
                let directory = self.directory.display();
                tracing::info!(%directory, "there is room for the log again, and what waited is written");
            }
            _ => {}
        }
        *told = why;
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
