//! What a durable group's log is to the applications: its commands by version, states of the past, and snapshots that let old
//! records go.
//!
//! - A [`LogReader`] and a [`LogFollower`] show commands as they lie on this node's disk, never beyond what is *safe*: what all
//!   members have on disk, so that no crash undoes it.
//! - A [`Past`] is what somebody saw of the state at a version or a time: the newest *image* before it, with the commands up to it.
//! - The keeper takes images of the state, on disk, and lets go of what lies before those that are kept.
//!
//! None of it holds up who delivers or who writes, but for the application's own `snapshot`, between two commands, and for the
//! removal of files, between two batches.

mod entry;
mod error;
mod follower;
mod images;
mod keeper;
mod past;
mod reader;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::{
    ops::{Bound, RangeBounds},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc},
};

use squall_fabric::Waker;
use squall_ordered::log::{End, Hlc};

use self::{keeper::Keeping, past::Desk};
use crate::{
    blocking,
    group::Group,
    journal::{DiskLog, Journal, LogCounts},
    replicated::Logged,
    scrub::ScrubReport,
    service::Service,
    status::LogStatus,
    transfer::Transfer,
};

pub(crate) use self::keeper::Policy;
pub use self::{
    entry::{CommandError, Entry, EntryBody},
    error::HistoryError,
    follower::{LogFollower, Next},
    past::Past,
    reader::LogReader,
};

/// What a durable group's handles and its node share of its past.
pub(crate) struct History {
    group: String,
    policy: Policy,
    /// None if the group is not durable; empty before the node has started.
    sources: Option<OnceLock<Sources>>,
    past: Arc<Desk>,
    keeping: Mutex<Keeping>,
    /// Who takes an image, which may wait for long for what is safe.
    taking: Mutex<()>,
    /// Who finds out what is needed, and removes the rest.
    settling: Mutex<()>,
}

/// Where all of it comes from.
struct Sources {
    journal: Arc<Journal>,
    transfer: Arc<Transfer>,
    /// Wakes the thread that delivers.
    waker: Waker,
}

impl History {
    /// Of a group that is durable if there is a policy for it.
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

    /// How much of the log before the newest image is to be kept, in bytes.
    pub(crate) fn retains(&self) -> u64 {
        self.policy.retain.unwrap_or(u64::MAX)
    }

    /// The group's node starts. Images are taken from now on, as the policy says.
    pub(crate) fn start(self: &Arc<History>, journal: Arc<Journal>, transfer: Arc<Transfer>, waker: Waker) {
        let Some(sources) = &self.sources else { return };
        if sources.set(Sources { journal, transfer, waker }).is_ok() {
            self.keep();
        }
    }

    /// How the log is, if there is one.
    pub(crate) fn status(&self) -> Option<LogStatus> {
        let journal = self.journal().ok()?;
        let (begin, end, counts) = (journal.begin(), journal.on_disk(), journal.counts());
        let keeping = self.keeping();
        let ScrubReport { damaged, repaired } = journal.scrubbed();
        Some(LogStatus {
            first: begin.version + 1,
            begins_at_ns: begin.time.0,
            last: end.version,
            ends_at_ns: end.time.0,
            safe: journal.safe(),
            bytes: journal.bytes(),
            image: keeping.newest.map(|newest| newest.version),
            image_bytes: keeping.bytes,
            image_late: keeping.is_late,
            records: counts.records,
            written_bytes: counts.bytes,
            syncs: counts.syncs,
            failure: journal.failure().map(str::to_owned),
            damaged,
            repaired,
            asides: journal.asides(),
        })
    }

    fn sources(&self) -> Result<&Sources, HistoryError> {
        let sources = self.sources.as_ref().ok_or_else(|| HistoryError::NotDurable { group: self.group.clone() })?;
        sources.get().ok_or(HistoryError::NotStarted)
    }

    fn journal(&self) -> Result<&Arc<Journal>, HistoryError> {
        self.sources().map(|sources| &sources.journal)
    }

    fn keeping(&self) -> MutexGuard<'_, Keeping> {
        // Nothing panics while holding it.
        self.keeping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the thread that writes do something, and waits for it.
fn ask<T: Send + 'static>(
    journal: &Journal,
    job: impl FnOnce(&mut DiskLog) -> T + Send + 'static,
) -> Result<T, HistoryError> {
    if blocking::is_applying() {
        return Err(HistoryError::InsideApply);
    }
    answer(journal, &journal.ask(job))
}

fn answer<T>(journal: &Journal, answers: &mpsc::Receiver<T>) -> Result<T, HistoryError> {
    journal.wait(answers).ok_or_else(|| ended(journal))
}

/// Why nothing more comes.
fn ended(journal: &Journal) -> HistoryError {
    HistoryError::Ended { why: journal.failure().unwrap_or("the node has ended").to_owned() }
}

/// A place in the history.
pub(crate) fn logged(end: End) -> Logged {
    Logged { version: end.version, time: end.time }
}

/// What is the same for every kind of group.
impl<R: Service> Group<R> {
    /// Reads a durable group's commands, by version, from this node's disk: those of `range` that are safe by now, so that no
    /// crash undoes them. Versions count from 1; a range that begins before what was trimmed is an error.
    ///
    /// Memory is bounded, whatever the range. Appending goes on meanwhile, and trimming too: a reader that it overtakes gets
    /// [`HistoryError::Trimmed`].
    ///
    /// This waits for the thread that writes, which answers between two batches.
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
        let journal = self.history().journal()?;
        let safe = journal.safe().min(journal.on_disk().version);
        LogReader::new(self.name(), journal, R::command_of, first, last.min(safe))
    }

    /// As [`log`](Group::log), from a version on and without an end: it waits for commands to come, whatever views they come in,
    /// until the node's part in the group ends. `from` may lie beyond what is there.
    pub fn follow(&self, from: u64) -> Result<LogFollower, HistoryError> {
        let journal = self.history().journal()?;
        LogReader::new(self.name(), journal, R::command_of, from, 0).map(LogFollower::new)
    }

    /// The last command that is safe and not later than `time`; version 0 if all are later. What it says is final once
    /// a later command is safe.
    pub fn version_at(&self, time: impl Into<Hlc>) -> Result<Logged, HistoryError> {
        let (journal, time) = (self.history().journal()?, time.into());
        let found = past::end_at(self.name(), journal, time)?;
        Ok(found)
    }

    /// What this node has written to the group's log since it started.
    pub fn log_counts(&self) -> Result<LogCounts, HistoryError> {
        self.history().journal().map(|journal| journal.counts())
    }

    /// Has somebody look at the state as it was behind the command of a version, 0 for the state at the beginning, and learns
    /// where exactly that was. `blank` is a service as it is before it has any state.
    ///
    /// The newest image before that version is restored into it, and the commands behind that are applied, on a thread of its
    /// own; two of a group at a time, others wait for their turn. The live replica is not touched.
    ///
    /// [`HistoryError::NotYet`] if the version is not safe yet.
    pub fn at_version<T: Send + 'static>(
        &self,
        version: u64,
        blank: R,
        look: impl FnOnce(&R, Logged) -> T + Send + 'static,
    ) -> Past<T> {
        past::look(self.name(), self.history(), past::Moment::Version(version), blank, look)
    }

    /// As [`at_version`](Group::at_version), behind the last command that is safe and not later than `time`: the state at that
    /// time. It is final once a later command is safe; before, one that was submitted earlier may still come.
    pub fn at_time<T: Send + 'static>(
        &self,
        time: impl Into<Hlc>,
        blank: R,
        look: impl FnOnce(&R, Logged) -> T + Send + 'static,
    ) -> Past<T> {
        past::look(self.name(), self.history(), past::Moment::Time(time.into()), blank, look)
    }

    /// Takes an image of this node's replica, on its disk, and lets go of what the configuration does not want
    /// [retained](crate::config::GroupConfig::retain). Returns what it is the state of, once it is safe and the image is
    /// complete. Blocks this thread until then; delivery goes on.
    pub fn snapshot_now(&self) -> Result<Logged, HistoryError> {
        self.history().snapshot()
    }

    /// Lets go of commands on this node's disk that only states before `version` need, whatever the configuration wants
    /// retained. Returns the first version that can still be read.
    ///
    /// At least the two newest images, and what follows the older one, are kept; so [`snapshot_now`](Group::snapshot_now) goes
    /// first where more shall go.
    pub fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        self.history().trim(version)
    }
}
