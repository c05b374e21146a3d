//! A durable group's log that another thread writes, for a thread that changes its end or rebuilds its replica.

use std::sync::{Arc, mpsc};

use squall_ordered::log::{End, WriteError};

use crate::{
    capture::state::LastView,
    durable::{
        log_writer::{DiskLog, LogWriter},
        recovery::rebuild::{RebuildError, Source},
        snapshot_store::SnapshotStore,
    },
};

/// A log that another thread writes.
pub(super) struct RemoteLog<'a> {
    log_writer: &'a Arc<LogWriter>,
    pub(super) store: SnapshotStore,
}

impl RemoteLog<'_> {
    pub(super) fn of(log_writer: &Arc<LogWriter>) -> Result<RemoteLog<'_>, RebuildError> {
        let store = log_writer.run_at_once(|log| SnapshotStore::of(log)).ok_or(RebuildError::LogEnded)?;
        Ok(RemoteLog { log_writer, store })
    }

    /// Changes the log's end. The replica must be marked as stale before.
    pub(super) fn change_end(
        &self,
        change: impl FnOnce(&mut DiskLog) -> Result<LastView, WriteError> + Send + 'static,
    ) -> Result<End, RebuildError> {
        self.changed(&self.log_writer.change_end(change))
    }

    /// Gives up what was appended and waits for room. The replica must be marked as stale before.
    pub(super) fn give_up_waiting(&self) -> Result<End, RebuildError> {
        self.changed(&self.log_writer.end_on_disk())
    }

    fn changed(&self, ends: &mpsc::Receiver<End>) -> Result<End, RebuildError> {
        let end = self.log_writer.wait(ends).ok_or(RebuildError::LogEnded)?;
        let begin = ask(self.log_writer, |log| log.begin())?;
        self.store.remove_outside(begin.position, end.position)?;
        Ok(end)
    }
}

pub(super) fn ask<T: Send + 'static>(
    log_writer: &Arc<LogWriter>,
    job: impl FnOnce(&mut DiskLog) -> T + Send + 'static,
) -> Result<T, RebuildError> {
    log_writer.run(job).ok_or(RebuildError::LogEnded)
}

impl Source for RemoteLog<'_> {
    fn store(&self) -> &SnapshotStore {
        &self.store
    }

    fn ask<T: Send + 'static>(&self, job: impl FnOnce(&DiskLog) -> T + Send + 'static) -> Result<T, RebuildError> {
        ask(self.log_writer, |log| job(log))
    }
}
