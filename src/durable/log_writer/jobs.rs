//! Jobs for the thread that writes a log.

use std::sync::{Arc, atomic::Ordering, mpsc};

use squall_membership::Epoch;
use squall_ordered::log::{End, ViewRecord, WriteError};

use super::{DiskLog, LogWriter};

/// Work on a log between two batches.
pub(super) struct Job {
    /// Does the work. Its result is sent once all published state of the log is up to date.
    pub(super) work: Box<Work>,
    /// Whether it is done only once all that was appended before is on disk.
    pub(super) is_behind: bool,
}

type Work = dyn FnOnce(&mut DiskLog) -> Result<Tell, WriteError> + Send;

type Tell = Box<dyn FnOnce()>;

impl LogWriter {
    /// Whether the writing thread has work.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    pub(super) fn wake(&self) {
        if !self.due.swap(true, Ordering::AcqRel) {
            self.thread.wake();
        }
    }

    /// Asks the writing thread to run a job on the log, behind all that was appended before, as soon as the batch on
    /// its way is written. The result comes over the channel. Nothing comes if the log has failed, or its thread has
    /// ended.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut DiskLog) -> T + Send + 'static,
    ) -> mpsc::Receiver<T> {
        self.push(|log| Ok(job(log)))
    }

    /// Asks as [`ask`](LogWriter::ask) does, for a job whose error is one of the log: nothing more is written.
    pub(super) fn push<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut DiskLog) -> Result<T, WriteError> + Send + 'static,
    ) -> mpsc::Receiver<T> {
        self.enqueue(job, true)
    }

    fn enqueue<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut DiskLog) -> Result<T, WriteError> + Send + 'static,
        is_behind: bool,
    ) -> mpsc::Receiver<T> {
        let (answer, answers) = mpsc::channel();
        let work = move |log: &mut DiskLog| {
            let done = job(log)?;
            // The caller that asked may have gone.
            let tell = move || _ = answer.send(done);
            Ok(Box::new(tell) as Tell)
        };
        let mut jobs = self.jobs.lock();
        // `failure` is set before the waiting jobs are dropped.
        if self.failure().is_none() {
            jobs.push_back(Job { work: Box::new(work), is_behind });
        }
        drop(jobs);
        self.wake();
        answers
    }

    /// Runs a job on the log, as [`ask`](LogWriter::ask) does, and waits for its result.
    pub(crate) fn run<T: Send + 'static>(&self, job: impl FnOnce(&mut DiskLog) -> T + Send + 'static) -> Option<T> {
        self.wait(&self.ask(job))
    }

    /// Runs a job on the log as it is on disk, and waits for its result. A disk without room for what was appended does
    /// not hold it up: it may be the one that makes room.
    pub(crate) fn run_at_once<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut DiskLog) -> T + Send + 'static,
    ) -> Option<T> {
        self.wait(&self.enqueue(|log| Ok(job(log)), false))
    }

    /// Asks as [`ask`](LogWriter::ask) does, for a job that changes the log's end: [`cut_to`](Log::cut_to) and
    /// [`begin_anew`](Log::begin_anew).
    ///
    /// Appending goes on behind that end, and behind the view that `job` returns; no thread may append meanwhile.
    pub(crate) fn change_end(
        self: &Arc<LogWriter>,
        job: impl FnOnce(&mut DiskLog) -> Result<Option<(Epoch, ViewRecord)>, WriteError> + Send + 'static,
    ) -> mpsc::Receiver<End> {
        self.enqueue(self.changed(job), true)
    }

    /// Asks for the end that the log has on disk: what was appended and waits for room is given up. Jobs that wait for
    /// it as well follow. No thread may append meanwhile.
    pub(crate) fn end_on_disk(self: &Arc<LogWriter>) -> mpsc::Receiver<End> {
        let view = self.view();
        let job = |log: &mut DiskLog| {
            let end = log.persisted().position;
            Ok(view.filter(|(epoch, _)| *epoch <= end.epoch))
        };
        self.enqueue(self.changed(job), false)
    }

    /// Returns the work that changes the log's end by a job.
    fn changed(
        self: &Arc<LogWriter>,
        job: impl FnOnce(&mut DiskLog) -> Result<Option<(Epoch, ViewRecord)>, WriteError> + Send + 'static,
    ) -> impl FnOnce(&mut DiskLog) -> Result<End, WriteError> + Send + 'static {
        let log_writer = Arc::clone(self);
        move |log| {
            // Before any thread can see the log's new contents.
            log_writer.forget_globally_persisted();
            let view = job(log)?;
            let mut buffer = log_writer.buffer.lock();
            log_writer.changes.fetch_add(1, Ordering::AcqRel);
            (buffer.appender, buffer.ready, buffer.view) = (log.appender(), None, view);
            (buffer.on_disk, buffer.tip, buffer.skips) = (log.persisted(), log.tip(), log.skips().clone());
            let end = buffer.on_disk;
            drop(buffer);
            if log_writer.no_room.lock().take().is_some() {
                // Jobs may have waited for what was given up.
                log_writer.wake();
            }
            log_writer.grown.notify(usize::MAX);
            Ok(end)
        }
    }
}
