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

use std::{
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
};

use squall_fabric::Waker;
use squall_ordered::log::{End, Hlc};
use squall_runtime::blocking;

use self::{keeper::Keeping, past::RebuildPool};
use crate::{
    durable::{
        log_writer::{DiskLog, LogCounts, LogWriter},
        scrub::ScrubReport,
    },
    group::{handle::Group, replicated::Logged, service::Service},
    node::status::LogStatus,
    state_transfer::exchange::StateExchange,
};

pub(crate) use self::keeper::Policy;
pub use self::{
    entry::{CommandError, Entry, EntryBody},
    error::HistoryError,
    follower::{LogFollower, Next},
    past::Past,
    reader::LogReader,
};

/// The access to a durable group's past that its handles and its node share.
pub(crate) struct History {
    group: String,
    policy: Policy,
    /// None if the group is not durable; empty before the node has started.
    sources: Option<OnceLock<Sources>>,
    past: Arc<RebuildPool>,
    keeping: Mutex<Keeping>,
    /// Held by the thread that takes a snapshot, which may wait for long until its version is globally persisted.
    taking: Mutex<()>,
    /// Held by the thread that works out what is needed, and removes the rest.
    settling: Mutex<()>,
}

/// The sources of the past.
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
            keeping: Mutex::default(),
            taking: Mutex::default(),
            settling: Mutex::default(),
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

    /// Returns the status of the log, if there is one.
    pub(crate) fn status(&self) -> Option<LogStatus> {
        let log_writer = self.log_writer().ok()?;
        let (begin, end, counts) = (log_writer.begin(), log_writer.on_disk(), log_writer.counts());
        let keeping = self.keeping();
        let ScrubReport { damaged, repaired } = log_writer.scrubbed();
        Some(LogStatus {
            first: begin.version + 1,
            begins_at_ns: begin.time.0,
            last: end.version,
            ends_at_ns: end.time.0,
            safe: log_writer.globally_persisted(),
            bytes: log_writer.bytes(),
            image: keeping.newest.map(|newest| newest.version),
            image_bytes: keeping.bytes,
            image_late: keeping.is_late,
            records: counts.records,
            written_bytes: counts.bytes,
            syncs: counts.syncs,
            failure: log_writer.failure().map(str::to_owned),
            damaged,
            repaired,
            asides: log_writer.asides(),
        })
    }

    fn sources(&self) -> Result<&Sources, HistoryError> {
        let sources = self.sources.as_ref().ok_or_else(|| HistoryError::NotDurable { group: self.group.clone() })?;
        sources.get().ok_or(HistoryError::NotStarted)
    }

    fn log_writer(&self) -> Result<&Arc<LogWriter>, HistoryError> {
        self.sources().map(|sources| &sources.log_writer)
    }

    fn keeping(&self) -> MutexGuard<'_, Keeping> {
        // The lock can't be poisoned: no code panics while it holds it.
        self.keeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a job on the thread that writes, and waits for its result.
fn ask<T: Send + 'static>(
    log_writer: &LogWriter,
    job: impl FnOnce(&mut DiskLog) -> T + Send + 'static,
) -> Result<T, HistoryError> {
    if blocking::is_applying() {
        return Err(HistoryError::InsideApply);
    }
    answer(log_writer, &log_writer.ask(job))
}

fn answer<T>(log_writer: &LogWriter, answers: &mpsc::Receiver<T>) -> Result<T, HistoryError> {
    log_writer.wait(answers).ok_or_else(|| ended(log_writer))
}

/// Returns the error that the log has ended, with its cause.
fn ended(log_writer: &LogWriter) -> HistoryError {
    HistoryError::Ended { why: log_writer.failure().unwrap_or("the node has ended").to_owned() }
}

/// Converts a log's end to a place in the history.
pub(crate) fn logged(end: End) -> Logged {
    Logged { version: end.version, time: end.time }
}

/// The methods that are the same for every kind of group.
impl<R: Service> Group<R> {
    /// Reads a durable group's commands, by version, from this node's disk: those of `range` that are globally
    /// persisted by now, so that no crash undoes them. Versions count from 1; a range that begins in the trimmed part
    /// is an error.
    ///
    /// Memory is bounded, whatever the range. Appending continues meanwhile, and so does trimming: a reader that
    /// trimming overtakes gets [`HistoryError::Trimmed`].
    ///
    /// This call waits for the thread that writes, which answers between two batches.
    pub fn log(&self, range: impl RangeBounds<u64>) -> Result<LogReader, HistoryError> {
        let first = match range.start_bound() {
            Bound::Included(&version) => version,
            Bound::Excluded(&version) => version.saturating_add(1),
            Bound::Unbounded => 1,
        };
        let last = match range.end_bound() {
            Bound::Included(&version) => version,
            Bound::Excluded(&version) => version.saturating_sub(1),
            Bound::Unbounded => u64::MAX,
        };
        let log_writer = self.history().log_writer()?;
        let globally_persisted = log_writer.globally_persisted().min(log_writer.on_disk().version);
        LogReader::new(self.name(), log_writer, R::command_of, first, last.min(globally_persisted))
    }

    /// Reads as [`log`](Group::log), from a version on and without an end. The follower waits for commands to come, in
    /// whatever view, until the node's part in the group ends. `from` may lie beyond the end of the log.
    pub fn follow(&self, from: u64) -> Result<LogFollower, HistoryError> {
        let log_writer = self.history().log_writer()?;
        LogReader::new(self.name(), log_writer, R::command_of, from, 0).map(LogFollower::new)
    }

    /// Returns the last command that is globally persisted and not later than `time`; version 0 if all are later. The
    /// answer is final once a later command is globally persisted.
    pub fn version_at(&self, time: impl Into<Hlc>) -> Result<Logged, HistoryError> {
        let (log_writer, time) = (self.history().log_writer()?, time.into());
        let found = past::end_at(self.name(), log_writer, time)?;
        Ok(found)
    }

    /// Returns the counts of what this node has written to the group's log since it started.
    pub fn log_counts(&self) -> Result<LogCounts, HistoryError> {
        self.history().log_writer().map(|log_writer| log_writer.counts())
    }

    /// Calls `look` with the state behind the command of a version, 0 for the state at the beginning, and with the
    /// exact place of that state. `blank` is a service as it is before it has any state.
    ///
    /// The newest snapshot before that version is restored into `blank`, and the commands behind it are applied, on a
    /// thread of its own. At most two states of a group are built at a time; others wait for their turn. The live
    /// replica is not touched.
    ///
    /// The result is [`HistoryError::NotYet`] if the version is not globally persisted yet.
    pub fn at_version<T: Send + 'static>(
        &self,
        version: u64,
        blank: R,
        look: impl FnOnce(&R, Logged) -> T + Send + 'static,
    ) -> Past<T> {
        past::look(self.name(), self.history(), past::Moment::Version(version), blank, look)
    }

    /// Looks, as [`at_version`](Group::at_version) does, at the state behind the last command that is globally
    /// persisted and not later than `time`. The state is final once a later command is globally persisted; before, a
    /// command that was submitted earlier may still come.
    pub fn at_time<T: Send + 'static>(
        &self,
        time: impl Into<Hlc>,
        blank: R,
        look: impl FnOnce(&R, Logged) -> T + Send + 'static,
    ) -> Past<T> {
        past::look(self.name(), self.history(), past::Moment::Time(time.into()), blank, look)
    }

    /// Takes a snapshot of this node's replica, on its disk, and removes what the configuration does not want
    /// [retained](crate::config::GroupConfig::retain). Returns the place of the snapshot's state, once that is globally
    /// persisted and the snapshot is complete. Blocks this thread until then; delivery continues.
    pub fn snapshot_now(&self) -> Result<Logged, HistoryError> {
        self.history().snapshot()
    }

    /// Removes commands on this node's disk that only states before `version` need, whatever the configuration wants
    /// retained. Returns the first version that can still be read.
    ///
    /// At least the two newest snapshots, and the log from the older one on, are kept. To remove more, call
    /// [`snapshot_now`](Group::snapshot_now) first.
    pub fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        self.history().trim(version)
    }
}
