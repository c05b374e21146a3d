//! The delivering thread's side of a log: the guard with which it appends, and the handle on which the log's end is
//! published.

use std::sync::MutexGuard;

use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::{
    Payload, Persisted,
    log::{AppendError, End, Hlc, Position, ViewRecord},
};

use super::{LogWriter, WriteBuffer};

impl LogWriter {
    /// Returns a guard with which to append for a while. The records go to the disk once the guard is dropped, or when
    /// the batch before is there.
    pub(crate) fn append(&self) -> AppendGuard<'_> {
        AppendGuard { log_writer: self, buffer: self.buffer.lock(), appended: false }
    }

    /// Publishes on `persisted` from now on how far the log persists. That begins once all that was appended so far
    /// persists, and the log reaches `from` and has the view's record.
    ///
    /// A view may begin behind the last record of the one before, since an entry of the order that is no message leaves
    /// none. Only with the view's record does the log reach that place. A node whose log does not reach it has
    /// acknowledged nothing in the view (docs/src/internals/restart.md).
    pub(crate) fn publish(&self, persisted: Persisted, from: Position) {
        let mut buffer = self.buffer.lock();
        let record = Position::new(persisted.epoch(), Seq(0));
        let from = buffer.appender.end().position.max(from).max(record);
        let has_mark = self.is_anew();
        if self.failure().is_none() && buffer.on_disk.position >= from && !has_mark {
            persisted.set(buffer.on_disk.version);
        }
        buffer.persisted = Some((persisted, from));
        drop(buffer);
        if has_mark {
            // The writing thread removes the mark.
            self.wake();
        }
    }

    /// Stops publishing how far the log persists.
    pub(crate) fn stop_publishing(&self) {
        self.buffer.lock().persisted = None;
    }
}

/// A guard to append to a log; see [`LogWriter::append`].
pub(crate) struct AppendGuard<'a> {
    log_writer: &'a LogWriter,
    buffer: MutexGuard<'a, WriteBuffer>,
    appended: bool,
}

impl AppendGuard<'_> {
    /// The end of the log, with all that was appended.
    pub(crate) fn end(&self) -> End {
        self.buffer.appender.end()
    }

    /// Whether a record of any size that a message can have fits.
    pub(crate) fn has_room(&self) -> bool {
        self.buffer.appender.has_room() && self.log_writer.failure().is_none()
    }

    /// Appends a message, at the sender's time or just behind the record before.
    pub(crate) fn message(
        &mut self,
        position: Position,
        sent: Hlc,
        sender: NodeId,
        payload: Payload<'_>,
    ) -> Result<End, AppendError> {
        let time = self.end().time.next(sent);
        self.appended = true;
        self.buffer.appender.append(position, time, sender, payload)
    }

    /// Appends a view, at the time of the record before, so that it is alike in all members' logs.
    pub(crate) fn view(&mut self, epoch: Epoch, view: &ViewRecord) -> Result<End, AppendError> {
        let time = self.end().time;
        self.appended = true;
        let end = self.buffer.appender.append_view(epoch, time, view)?;
        self.buffer.view = Some((epoch, view.clone()));
        Ok(end)
    }
}

impl Drop for AppendGuard<'_> {
    fn drop(&mut self) {
        if self.appended {
            self.log_writer.wake();
        }
    }
}
