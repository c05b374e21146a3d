//! The past of a durable group, as its handle shows it.

use std::ops::{Bound, RangeBounds};

use squall_ordered::log::Hlc;

use super::handle::Group;
use crate::{
    durable::{
        history::{HistoryError, LogFollower, LogReader, Moment, Past, end_at, look_at_past},
        log_writer::LogCounts,
    },
    replica::{replicated::Logged, service::Service},
};

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
    ///
    /// Fails if the group is not durable, if its node was not started or its log has ended, if a record can't be read,
    /// and inside `apply` or a read's closure.
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
    /// whatever view, until the node's part in the group ends. `from` may lie beyond the end of the log. Fails as
    /// `log` does.
    pub fn follow(&self, from: u64) -> Result<LogFollower, HistoryError> {
        let log_writer = self.history().log_writer()?;
        LogReader::new(self.name(), log_writer, R::command_of, from, 0).map(LogFollower::new)
    }

    /// Returns the last command that is globally persisted and not later than `time`; version 0 if all are later. The
    /// answer is final once a later command is globally persisted. Fails as [`log`](Group::log) does, and with
    /// [`HistoryError::Before`] if the last command before `time` was trimmed.
    pub fn version_at(&self, time: impl Into<Hlc>) -> Result<Logged, HistoryError> {
        end_at(self.name(), self.history().log_writer()?, time.into())
    }

    /// Returns the counts of what this node has written to the group's log since it started. Fails if the group is not
    /// durable, or if its node was not started.
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
        look_at_past(self.name(), self.history(), Moment::Version(version), blank, look)
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
        look_at_past(self.name(), self.history(), Moment::Time(time.into()), blank, look)
    }

    /// Takes a snapshot of this node's replica, on its disk, and removes what the configuration does not want
    /// [retained](crate::config::GroupConfig::retain). Returns the place of the snapshot's state, once that is globally
    /// persisted and the snapshot is complete. Blocks this thread until then; delivery continues.
    ///
    /// Fails if the group is not durable, if its node was not started or still joins, if the state can't be written,
    /// and inside `apply` or a read's closure.
    pub fn snapshot_now(&self) -> Result<Logged, HistoryError> {
        self.history().snapshot()
    }

    /// Removes commands on this node's disk that only states before `version` need, whatever the configuration wants
    /// retained. Returns the first version that can still be read.
    ///
    /// At least the two newest snapshots, and the log from the older one on, are kept. To remove more, call
    /// [`snapshot_now`](Group::snapshot_now) first.
    ///
    /// Fails if the group is not durable, if its node was not started or its log has ended, if a snapshot can't be
    /// read, and inside `apply` or a read's closure.
    pub fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        self.history().trim(version)
    }
}
