//! The past of a durable group, for applications: its commands by version, earlier states, and snapshots that permit
//! the removal of old records.
//!
//! - A [`LogReader`] and a [`LogFollower`] show commands as they are on this node's disk. They never show anything
//!   beyond the *globally persisted* version, up to which all members have the log on disk, so that no crash undoes it.
//! - A [`Past`] is a look at the state at a version or a time. The state is built from the newest *snapshot* before it,
//!   and the commands up to it.
//! - The keeper takes snapshots of the state, on disk, and trims the log before those that are kept.
//!
//! None of it delays the threads that deliver and write, with two exceptions: the application's own `snapshot`, between
//! two commands, and the removal of files, between two batches.

mod entry;
mod error;
mod follower;
mod keeper;
mod past;
mod reader;
mod snapshots;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::sync::{Arc, OnceLock};

use squall_fabric::{Waker, sync::Lock};
use squall_ordered::log::End;
use squall_runtime::blocking;

use self::{keeper::KeeperState, past::RebuildPool};
use crate::{
    capture::exchange::StateExchange,
    durable::{
        log_writer::{DiskLog, LogWriter},
        status::{LogStatus, ScrubReport},
    },
    replica::replicated::Logged,
};

pub use self::{
    entry::{CommandError, Entry, EntryBody},
    error::HistoryError,
    follower::{LogFollower, Next},
    past::Past,
    reader::LogReader,
};
pub(crate) use self::{
    keeper::Policy,
    past::{Moment, end_at, look as look_at_past},
};

/// The access to a durable group's past that its handles and its node share.
pub(crate) struct History {
    group: String,
    policy: Policy,
    /// The sources of the history. None if the group is not durable; empty before the node has started.
    sources: Option<OnceLock<Sources>>,
    past: Arc<RebuildPool>,
    keeper: Lock<KeeperState>,
    /// Held by the thread that takes a snapshot, which may wait for long until its version is globally persisted.
    taking: Lock<()>,
    /// Held by the thread that works out what is needed, and removes the rest.
    settling: Lock<()>,
}

struct Sources {
    log_writer: Arc<LogWriter>,
    exchange: Arc<StateExchange>,
    /// Wakes the delivery thread.
    waker: Waker,
}

impl History {
    /// Makes the history of a group, which is durable if there is a policy for it.
    pub(crate) fn new(group: &str, policy: Option<Policy>) -> Arc<History> {
        Arc::new(History {
            group: group.to_owned(),
            sources: policy.as_ref().map(|_| OnceLock::new()),
            policy: policy.unwrap_or_default(),
            past: Arc::default(),
            keeper: Lock::default(),
            taking: Lock::default(),
            settling: Lock::default(),
        })
    }

    /// Returns the bytes of the log before the newest snapshot that are to be kept.
    pub(crate) fn retains(&self) -> u64 {
        self.policy.retain.unwrap_or(u64::MAX)
    }

    /// Starts the history with the group's node. Snapshots are taken from now on, as the policy says.
    pub(crate) fn start(self: &Arc<History>, log_writer: Arc<LogWriter>, exchange: Arc<StateExchange>, waker: Waker) {
        let Some(sources) = &self.sources else { return };
        if sources.set(Sources { log_writer, exchange, waker }).is_ok() {
            self.keep();
        }
    }

    pub(crate) fn status(&self) -> Option<LogStatus> {
        let log_writer = self.log_writer().ok()?;
        let (begin, end, counts) = (log_writer.begin(), log_writer.on_disk(), log_writer.counts());
        let keeper = self.keeper.lock();
        let ScrubReport { damaged, repaired, scrub } = log_writer.scrubbed.lock().clone();
        Some(LogStatus {
            first: begin.version + 1,
            begins_at_ns: begin.time.0,
            last: end.version,
            ends_at_ns: end.time.0,
            globally_persisted: log_writer.globally_persisted(),
            bytes: log_writer.bytes(),
            snapshot: keeper.newest.map(|newest| newest.version),
            snapshots_bytes: keeper.bytes,
            snapshot_late: keeper.is_late,
            records: counts.records,
            written_bytes: counts.bytes,
            syncs: counts.syncs,
            failure: log_writer.failure().map(str::to_owned),
            no_room: log_writer.no_room(),
            damaged,
            repaired,
            scrub,
            asides: log_writer.asides.lock().clone(),
        })
    }

    fn sources(&self) -> Result<&Sources, HistoryError> {
        let sources = self.sources.as_ref().ok_or_else(|| HistoryError::NotDurable { group: self.group.clone() })?;
        sources.get().ok_or(HistoryError::NotStarted)
    }

    pub(crate) fn log_writer(&self) -> Result<&Arc<LogWriter>, HistoryError> {
        self.sources().map(|sources| &sources.log_writer)
    }
}

/// Runs a job on the thread that writes, and waits for its result. What is shown or removed is on disk.
fn ask<T: Send + 'static>(
    log_writer: &LogWriter,
    job: impl FnOnce(&mut DiskLog) -> T + Send + 'static,
) -> Result<T, HistoryError> {
    if blocking::is_applying() {
        return Err(HistoryError::InsideApply);
    }
    log_writer.run_at_once(job).ok_or_else(|| ended(log_writer))
}

/// Returns the error that the log has ended, with its cause.
fn ended(log_writer: &LogWriter) -> HistoryError {
    HistoryError::Ended { why: log_writer.failure().unwrap_or("the node has ended").to_owned() }
}

/// Converts a log's end to a place in the history.
pub(crate) fn logged(end: End) -> Logged {
    Logged { version: end.version, time: end.time }
}
