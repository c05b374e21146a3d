//! A group's log, as readers from outside see it.

use squall_ordered::log::Hlc;

use crate::{
    calls::read::Read,
    durable::history::{HistoryError, LogFollower, LogReader},
    group::handle::Group,
    replica::{replicated::Logged, service::Service},
};

/// The log of a group, whatever its commands are.
pub(crate) trait LogSource: Send + Sync {
    /// Reads a range, as [`Group::log`].
    fn log(&self, from: u64, to: u64) -> Result<LogReader, HistoryError>;

    /// Follows the log, as [`Group::follow`].
    fn follow(&self, from: u64) -> Result<LogFollower, HistoryError>;

    /// Finds the last version at a time, as [`Group::version_at`].
    fn version_at(&self, time: Hlc) -> Result<Logged, HistoryError>;

    /// Resolves once everything is globally persisted here that any caller was told of before this call.
    fn catch_up(&self) -> Read<()>;
}

impl<S: Service> LogSource for Group<S> {
    fn log(&self, from: u64, to: u64) -> Result<LogReader, HistoryError> {
        Group::log(self, from..=to)
    }

    fn follow(&self, from: u64) -> Result<LogFollower, HistoryError> {
        Group::follow(self, from)
    }

    fn version_at(&self, time: Hlc) -> Result<Logged, HistoryError> {
        Group::version_at(self, time)
    }

    fn catch_up(&self) -> Read<()> {
        // A linearizable read, whose answer is held until everything that it shows is globally persisted.
        self.read(|_| ())
    }
}
