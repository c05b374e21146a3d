//! Follows a log as it grows.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use event_listener::{Listener, listener};

use super::{Entry, HistoryError, LogReader, ended};
use crate::blocking;

/// Reads a durable group's log as it grows; see [`Group::follow`](crate::Group::follow).
///
/// It shows a command as soon as it is safe. One that reads more slowly than the group goes on loses nothing, unless what it has not
/// read is trimmed ([`HistoryError::Trimmed`]).
#[derive(Debug)]
pub struct LogFollower(LogReader);

/// What comes next in a log, within a time.
#[derive(Debug)]
pub enum Next<'a> {
    /// An entry.
    Entry(Entry<'a>),
    /// Nothing, within the time.
    Late,
}

impl LogFollower {
    pub(super) fn new(reader: LogReader) -> LogFollower {
        LogFollower(reader)
    }

    /// Shows views, too: each before the first message of its epoch, and not before that.
    pub fn with_views(self) -> LogFollower {
        LogFollower(self.0.with_views())
    }

    /// The first version that was not shown.
    pub fn next_version(&self) -> u64 {
        self.0.next_version()
    }

    /// The next entry, if it is safe already.
    ///
    /// Damaged records are an error once: the next call goes on behind them. [`HistoryError::Ended`] once the node's part in the
    /// group is over, and all that was safe then is shown.
    pub fn try_next(&mut self) -> Result<Option<Entry<'_>>, HistoryError> {
        Ok(self.advance()?.then(|| self.0.shown()))
    }

    /// Waits for the next entry, on a plain thread, for so long at most. Errors are those of [`try_next`](LogFollower::try_next).
    pub fn wait(&mut self, limit: Duration) -> Result<Next<'_>, HistoryError> {
        // A time beyond what the clock can tell is no limit.
        match self.wait_until(Instant::now().checked_add(limit))? {
            true => Ok(Next::Entry(self.0.shown())),
            false => Ok(Next::Late),
        }
    }

    /// The next entry. Errors are those of [`try_next`](LogFollower::try_next). Nothing is lost if it is dropped while it waits.
    pub async fn next(&mut self) -> Result<Entry<'_>, HistoryError> {
        let journal = Arc::clone(self.0.journal());
        loop {
            // Listen first, then look: what comes in between is not missed.
            let mut rings = pin!(journal.grown().listen());
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
        let journal = Arc::clone(self.0.journal());
        loop {
            listener!(journal.grown() => rings);
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

    /// Goes to the next entry, if it is safe.
    fn advance(&mut self) -> Result<bool, HistoryError> {
        let LogFollower(reader) = self;
        let journal = reader.journal();
        let is_over = journal.failure().is_some();
        let safe = journal.safe().min(journal.on_disk().version);
        reader.read_to(safe);
        match reader.advance()? {
            true => Ok(true),
            // Looked at before, so that what came last is shown.
            false if is_over => Err(ended(reader.journal())),
            false => Ok(false),
        }
    }
}
