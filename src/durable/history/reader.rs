//! The reader of a log's commands, by version.

use std::sync::Arc;

use rkyv::util::AlignedVec;
use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::log::{Body, Hlc, Position, ReadError, Reader, Skips};

use super::{Entry, EntryBody, HistoryError, ask};
use crate::{
    durable::{disk::Disk, log_writer::LogWriter},
    replica::view_change::ViewChange,
};

/// A function that returns the part of a message that is the application's command, if it has one.
pub(super) type CommandOf = fn(&[u8]) -> Option<&[u8]>;

/// A reader of a range of a durable group's log; see [`Group::log`](crate::Group::log).
///
/// ```no_run
/// # fn example(
/// #     group: &squall::Group<impl squall::Replicated<Command = String>>,
/// # ) -> Result<(), Box<dyn std::error::Error>> {
/// let mut log = group.log(1000..2000)?;
/// while let Some(entry) = log.next_entry()? {
///     if let Some(command) = entry.command::<String>()? {
///         println!("{} {}: {command}", entry.version, entry.time);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(derive_more::Debug)]
#[debug("LogReader {{ group: {group:?}, next: {next}, last: {last} }}")]
pub struct LogReader {
    group: String,
    log_writer: Arc<LogWriter>,
    command_of: CommandOf,
    reader: Reader<Disk>,
    /// The first version that was not shown.
    next: u64,
    /// The last version that may be shown.
    pub(super) last: u64,
    shows_views: bool,
    skips: Skips,
    shown: Shown,
}

/// The entry that was read last.
struct Shown {
    version: u64,
    time: Hlc,
    epoch: Epoch,
    seq: Seq,
    sender: NodeId,
    /// A message's bytes, aligned.
    bytes: AlignedVec,
    is_skipped: bool,
    /// The view; None for a message.
    view: Option<ViewChange>,
}

impl LogReader {
    pub(crate) fn new(
        group: &str,
        log_writer: &Arc<LogWriter>,
        command_of: CommandOf,
        first: u64,
        last: u64,
    ) -> Result<LogReader, HistoryError> {
        let next = first.max(1);
        let shown = Shown {
            version: 0,
            time: Hlc(0),
            epoch: Epoch(0),
            seq: Seq(0),
            sender: NodeId(0),
            bytes: AlignedVec::new(),
            is_skipped: false,
            view: None,
        };
        Ok(LogReader {
            group: group.to_owned(),
            log_writer: Arc::clone(log_writer),
            command_of,
            reader: read_behind(group, log_writer, next)?,
            next,
            last,
            shows_views: false,
            skips: log_writer.skips(),
            shown,
        })
    }

    /// Shows views, too: each before the first message of its epoch.
    pub fn with_views(self) -> LogReader {
        LogReader { shows_views: true, ..self }
    }

    /// Returns the next entry; None at the end of the range, or of what was globally persisted when reading began.
    ///
    /// Damaged records are reported once: the next call continues behind them.
    ///
    /// Fails if trimming has overtaken the reader, if records are damaged, or if the log can't be read.
    pub fn next_entry(&mut self) -> Result<Option<Entry<'_>>, HistoryError> {
        Ok(self.advance()?.then(|| self.shown()))
    }

    /// Returns the first version that was not shown.
    pub fn next_version(&self) -> u64 {
        self.next
    }

    /// Returns the whole message that was shown last.
    pub(crate) fn message(&self) -> &[u8] {
        &self.shown.bytes
    }

    /// Goes to the next entry, if there is one, and returns whether there was.
    pub(super) fn advance(&mut self) -> Result<bool, HistoryError> {
        while self.next <= self.last {
            match self.step() {
                Ok(Some(is_shown)) if is_shown => return Ok(true),
                Ok(Some(_)) => {}
                Ok(None) => {
                    // Everything that is globally persisted is on disk.
                    match self.reader.extend(self.log_writer.tip()) {
                        Ok(()) => {}
                        Err(error) => self.reopen(error)?,
                    }
                    match self.step() {
                        Ok(Some(true)) => return Ok(true),
                        Ok(Some(false)) => {}
                        Ok(None) => return Ok(false),
                        Err(error) => self.reopen(error)?,
                    }
                }
                Err(error) => self.reopen(error)?,
            }
        }
        Ok(false)
    }

    /// Reads a record, if there is one. Returns whether it is one to show.
    fn step(&mut self) -> Result<Option<bool>, ReadError> {
        let Some(record) = self.reader.next_record()? else { return Ok(None) };
        let (Position { epoch, seq }, shown) = (record.position, &mut self.shown);
        shown.is_skipped = self.skips.has(&record);
        match &record.body {
            Body::Message { sender, payload } => {
                shown.bytes.clear();
                shown.bytes.extend_from_slice(payload);
                (shown.sender, shown.view) = (*sender, None);
                self.next = record.version + 1;
            }
            Body::View(_) if !self.shows_views => return Ok(Some(false)),
            Body::View(view) => shown.view = Some(ViewChange::of_record(epoch, view)),
        }
        (shown.version, shown.time, shown.epoch, shown.seq) = (record.version, record.time, epoch, seq);
        Ok(Some(true))
    }

    /// Begins anew at the same version, if the log was trimmed meanwhile and still has that version.
    fn reopen(&mut self, error: ReadError) -> Result<(), HistoryError> {
        if !matches!(error, ReadError::Gone { .. }) {
            return Err(HistoryError::reading(&self.group, self.next, error));
        }
        self.reader = read_behind(&self.group, &self.log_writer, self.next)?;
        Ok(())
    }

    /// Returns the entry that was read last.
    pub(super) fn shown(&self) -> Entry<'_> {
        let Shown { version, time, epoch, seq, sender, ref bytes, is_skipped, ref view } = self.shown;
        let body = match view {
            Some(view) => EntryBody::View(view),
            None => match (self.command_of)(bytes) {
                Some(bytes) => EntryBody::Command { sender, bytes },
                None => EntryBody::Other { sender },
            },
        };
        Entry { version, time, epoch, seq, is_skipped, body }
    }

    pub(super) fn log_writer(&self) -> &Arc<LogWriter> {
        &self.log_writer
    }
}

pub(super) fn read_behind(group: &str, log_writer: &LogWriter, version: u64) -> Result<Reader<Disk>, HistoryError> {
    let reader = ask(log_writer, move |log| log.read_behind(version.saturating_sub(1)))?;
    reader.map_err(|error| HistoryError::reading(group, version, error))
}
