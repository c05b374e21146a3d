//! The follower of a log as it grows.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use event_listener::{Listener, listener};

use super::{Entry, HistoryError, LogReader, ended};
use squall_runtime::blocking;

/// A reader of a durable group's log as it grows; see [`Group::follow`](crate::Group::follow).
///
/// It shows a command as soon as it is globally persisted. A follower that reads more slowly than the log grows loses
/// nothing, unless its next records are trimmed ([`HistoryError::Trimmed`]).
#[derive(Debug)]
pub struct LogFollower(LogReader);

/// The result of waiting for a log's next entry for a limited time.
#[derive(Debug)]
pub enum Next<'a> {
    /// An entry.
    Entry(Entry<'a>),
    /// The end of the time, in which no entry came.
    Late,
}

impl LogFollower {
    pub(crate) fn new(reader: LogReader) -> LogFollower {
        LogFollower(reader)
    }

    /// Shows views, too: each before the first message of its epoch, once that message is globally persisted.
    pub fn with_views(self) -> LogFollower {
        LogFollower(self.0.with_views())
    }

    /// Returns the first version that was not shown.
    pub fn next_version(&self) -> u64 {
        self.0.next_version()
    }

    /// Returns the next entry, if it is globally persisted already.
    ///
    /// Damaged records are reported once: the next call continues behind them. The result is [`HistoryError::Ended`]
    /// once the node's part in the group is over, and everything that was globally persisted then is shown.
    pub fn try_next(&mut self) -> Result<Option<Entry<'_>>, HistoryError> {
        Ok(self.advance()?.then(|| self.0.shown()))
    }

    /// Waits for the next entry, on a plain thread, for `limit` at most. Errors are those of
    /// [`try_next`](LogFollower::try_next).
    pub fn wait(&mut self, limit: Duration) -> Result<Next<'_>, HistoryError> {
        // A time beyond the clock's range is no limit.
        let is_there = self.wait_until(Instant::now().checked_add(limit))?;
        Ok(if is_there { Next::Entry(self.0.shown()) } else { Next::Late })
    }

    /// Returns the next entry. Errors are those of [`try_next`](LogFollower::try_next). Nothing is lost if the future
    /// is dropped while it waits.
    pub async fn next(&mut self) -> Result<Entry<'_>, HistoryError> {
        let log_writer = Arc::clone(self.0.log_writer());
        loop {
            // It listens before it looks, so that it misses no entry that comes in between.
            let mut rings = pin!(log_writer.grown.listen());
            if self.advance()? {
                return Ok(self.0.shown());
            }
            rings.as_mut().await;
        }
    }

    fn wait_until(&mut self, until: Option<Instant>) -> Result<bool, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        let log_writer = Arc::clone(self.0.log_writer());
        loop {
            listener!(log_writer.grown => rings);
            if self.advance()? {
                return Ok(true);
            }
            match until {
                None => rings.wait(),
                Some(until) if rings.wait_deadline(until).is_none() => return self.advance(),
                Some(_) => {}
            }
        }
    }

    /// Goes to the next entry, if it is globally persisted.
    fn advance(&mut self) -> Result<bool, HistoryError> {
        let LogFollower(reader) = self;
        let log_writer = reader.log_writer();
        let is_over = log_writer.failure().is_some();
        let globally_persisted = log_writer.globally_persisted().min(log_writer.on_disk().version);
        reader.last = reader.last.max(globally_persisted);
        match reader.advance()? {
            true => Ok(true),
            // The end was checked before, so that the last entries are shown.
            false if is_over => Err(ended(reader.log_writer())),
            false => Ok(false),
        }
    }
}
