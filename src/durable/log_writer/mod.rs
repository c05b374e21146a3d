//! The writer of a durable shard's log, shared by its node's threads.
//!
//! - The delivering thread appends what it delivers, in memory, and goes on.
//! - The writing thread takes all that was appended as one batch. It writes and syncs the batch while the next one
//!   fills, and publishes how far the log persists. Between two batches it does jobs for others: reading, trimming,
//!   cutting.
//! - The node's engine thread checks whether the disk has failed.

mod appending;
mod jobs;
mod writing;

use std::{
    collections::VecDeque,
    io,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
};

use event_listener::Event;
use squall_fabric::{Waker, sync::Lock};
use squall_membership::{ClusterId, EndReason, Epoch};
use squall_ordered::{
    Persisted,
    log::{Appender, Batch, End, Log, Position, Skips, Storage, Tip, ViewRecord, WriteError},
};

use self::jobs::Job;
use crate::{
    capture::state::LogPlace,
    durable::{
        anew,
        disk::Disk,
        status::{AsideStatus, ScrubReport},
    },
};

/// A shard's log on a node's disk.
pub(crate) type DiskLog = Log<Disk>;

/// The state that a node's threads share of one shard's log. The [`DiskLog`] itself belongs to the writing thread.
pub(crate) struct LogWriter {
    /// A panic while it is held leaves the log as it was.
    buffer: Lock<WriteBuffer>,
    /// Whether there are appended records or jobs that the writing thread has not seen.
    due: AtomicBool,
    jobs: Lock<VecDeque<Job>>,
    /// Wakes the writing thread.
    thread: Waker,
    failure: OnceLock<String>,
    /// The reason for which what was appended waits, while the disk has no room for it.
    no_room: Lock<Option<String>>,
    /// Whether no job waits for room any more, since the node ends.
    closes: AtomicBool,
    /// The last version of this log that all members have on disk.
    globally_persisted: AtomicU64,
    /// Notified when `globally_persisted` has grown, and when nothing more is written.
    pub(crate) grown: Event,
    /// The number of times that the end was [changed](LogWriter::change_end).
    changes: AtomicU64,
    /// The number of bytes written since the start at which `on_due` is called.
    due_at: AtomicU64,
    on_due: OnceLock<Box<dyn Fn() + Send + Sync>>,
    counts: Counts,
    /// Whether the replica is not the state at the log's end: it must be rebuilt before any thread uses it.
    stale: AtomicBool,
    /// Whether the log was begun anew, and its node has not been complete since.
    anew: AtomicBool,
    /// Whether the group is of a life that an operator forced, and with it accepted the loss of messages.
    forced: AtomicBool,
    /// The damage that was found while the node runs.
    pub(crate) scrubbed: Lock<ScrubReport>,
    /// The records that cuts and new beginnings have taken away, as of the last look.
    pub(crate) asides: Lock<Vec<AsideStatus>>,
    /// The reason for which the log is not taken back to the group's end, in a sentence.
    went_back: OnceLock<String>,
    /// The reason for which this node can take no part with its log.
    ends: OnceLock<EndReason>,
    pub(crate) directory: PathBuf,
    /// Does the work of the writing thread, where there is none.
    pump: OnceLock<Pump>,
}

type Pump = Box<dyn Fn() + Send + Sync>;

/// The reasons for which a node has to end because of its logs. With each comes whether the group has gone back, so
/// that it lacks what a log has.
pub(crate) fn end_reasons<'a>(
    mut log_writers: impl Iterator<Item = &'a Arc<LogWriter>> + Clone,
) -> impl Iterator<Item = (EndReason, bool)> {
    let storage = |why: &str| EndReason::Storage(why.to_owned());
    let went_back = log_writers.clone().find_map(|log_writer| log_writer.went_back.get());
    let ends = log_writers.clone().find_map(|log_writer| log_writer.ends.get().cloned());
    let failed = log_writers.find_map(|log_writer| log_writer.failure()).map(storage);
    let others = ends.into_iter().chain(failed).map(|reason| (reason, false));
    went_back.map(|why| (storage(why), true)).into_iter().chain(others)
}

/// The life of the group to which a log's last view belongs.
pub(crate) fn life_of(view: &Option<(Epoch, ViewRecord)>) -> ClusterId {
    view.as_ref().map_or(ClusterId::default(), |(_, view)| view.life)
}

/// The buffer for records that are not on their way to the disk yet, and the state that changes with it.
struct WriteBuffer {
    appender: Appender,
    /// The batch that is to be written next: all that was appended before it was taken.
    ready: Option<Batch>,
    /// The last view of which the log has a record, or that of the state from which the log was begun.
    view: Option<(Epoch, ViewRecord)>,
    /// The handle on which the log's end on disk is published, in the view at hand. The position is the one from which
    /// it is published, since records of views have no version.
    persisted: Option<(Persisted, Position)>,
    /// The log's end on disk.
    on_disk: End,
    /// The same end, for readers.
    tip: Tip,
    /// The commands that no member applies.
    skips: Skips,
    /// The place at which the log begins.
    begin: End,
    /// The bytes of its segments when that place last changed, and the bytes written since the start by then.
    held: (u64, u64),
}

/// The counts of written records, bytes and syncs since the start.
#[derive(Debug, Default)]
struct Counts {
    records: AtomicU64,
    bytes: AtomicU64,
    syncs: AtomicU64,
}

/// The counts of a node's writes to a group's log since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCounts {
    /// Records: messages, and few views.
    pub records: u64,
    /// Their size on disk, in bytes.
    pub bytes: u64,
    /// The number of times that the disk was asked to make them durable, each time for a batch of records.
    pub syncs: u64,
}

impl LogWriter {
    /// The writer of a log whose writing thread `thread` wakes. `view` is the last view of which the log has a record,
    /// if it has any.
    pub(crate) fn new(log: &DiskLog, view: Option<(Epoch, ViewRecord)>, thread: Waker) -> LogWriter {
        let buffer = WriteBuffer {
            appender: log.appender(),
            ready: None,
            view,
            persisted: None,
            on_disk: log.persisted(),
            tip: log.tip(),
            skips: log.skips().clone(),
            begin: log.begin(),
            held: (log.bytes_behind(Position::START).unwrap_or_default(), 0),
        };
        LogWriter {
            buffer: Lock::new(buffer),
            due: AtomicBool::new(false),
            jobs: Lock::default(),
            thread,
            failure: OnceLock::new(),
            no_room: Lock::new(None),
            closes: AtomicBool::new(false),
            globally_persisted: AtomicU64::new(0),
            grown: Event::new(),
            changes: AtomicU64::new(0),
            due_at: AtomicU64::new(u64::MAX),
            on_due: OnceLock::new(),
            counts: Counts::default(),
            stale: AtomicBool::new(false),
            anew: AtomicBool::new(false),
            forced: AtomicBool::new(false),
            scrubbed: Lock::default(),
            asides: Lock::default(),
            went_back: OnceLock::new(),
            ends: OnceLock::new(),
            directory: log.storage().path(""),
            pump: OnceLock::new(),
        }
    }

    /// Sets a pump, for a log without a writing thread: each caller that waits calls it, and it writes all that is due.
    #[cfg(feature = "sim")]
    pub(crate) fn pump(&self, pump: Pump) {
        // It is set once.
        let _ = self.pump.set(pump);
    }

    /// Whether the log has no writing thread.
    pub(crate) fn is_pumped(&self) -> bool {
        self.pump.get().is_some()
    }

    /// Waits for the answer to the job that was [asked for](LogWriter::ask) last. None if the log has failed, or no
    /// thread writes it any more.
    pub(crate) fn wait<T>(&self, answers: &mpsc::Receiver<T>) -> Option<T> {
        if let Some(pump) = self.pump.get() {
            pump();
            let answer = answers.try_recv();
            if matches!(answer, Err(mpsc::TryRecvError::Empty)) {
                // Without a writing thread the caller can't wait until the disk has room. It gives the job up, so it
                // must not be done later.
                self.jobs.lock().pop_back();
            }
            return answer.ok();
        }
        answers.recv().ok()
    }

    /// Waits until a record of any size fits. False if the log has failed, or its disk
    /// [has no room](LogWriter::no_room).
    pub(crate) fn wait_for_room(&self) -> bool {
        while self.failure().is_none() {
            if self.append().has_room() {
                return true;
            }
            // It is answered behind a batch.
            if self.run_at_once(|_| ()).is_none() || self.no_room().is_some() {
                break;
            }
        }
        false
    }

    /// Whether the replica is not the state at the log's end, so that it must be rebuilt before any thread uses it.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale.load(Ordering::Acquire)
    }

    /// Sets whether the replica is stale. For the holder of the replica, or before any thread has it.
    pub(crate) fn set_stale(&self, stale: bool) {
        self.stale.store(stale, Ordering::Release);
    }

    /// Whether the log was [begun anew](anew), and its node has not been complete since.
    pub(crate) fn is_anew(&self) -> bool {
        self.anew.load(Ordering::Acquire)
    }

    /// Sets whether the log was begun anew. To be called before any thread has the log.
    pub(crate) fn set_anew(&self, anew: bool) {
        self.anew.store(anew, Ordering::Release);
    }

    /// Marks the log: it is to be begun anew, or goes on at a place before which it is damaged. Called by the thread
    /// that has the log.
    pub(crate) fn begin_anew(&self, log: &DiskLog) -> Result<(), WriteError> {
        self.set_anew(true);
        marked(log, anew::mark(log.storage()))
    }

    /// Removes the mark: the log has a shard's whole state again. Called by the thread that has the log.
    pub(crate) fn end_anew(&self, log: &DiskLog) -> Result<(), WriteError> {
        marked(log, anew::clear(log.storage()))?;
        self.set_anew(false);
        Ok(())
    }

    /// Whether the group is of a life that an operator forced.
    pub(crate) fn is_forced(&self) -> bool {
        self.forced.load(Ordering::Acquire)
    }

    /// Sets whether the life was forced. The engine calls it when a view is installed.
    pub(crate) fn set_forced(&self, forced: bool) {
        self.forced.store(forced, Ordering::Release);
    }

    /// Notes that the group has gone back: the node is to end with this sentence.
    pub(crate) fn set_went_back(&self, why: String) {
        // The first sentence names the place.
        let _ = self.went_back.set(why);
    }

    /// Sets the last view of which the log has a record, once that was found out again.
    pub(crate) fn set_view(&self, view: Option<(Epoch, ViewRecord)>) {
        self.buffer.lock().view = view;
    }

    /// The reason for which nothing more is written, if that is so.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The reason for which what was appended waits, while the disk has no room for it. The writing thread tries again
    /// by itself.
    pub(crate) fn no_room(&self) -> Option<String> {
        self.no_room.lock().clone()
    }

    /// Lets no thread wait any longer until the disk has room: the node ends.
    pub(crate) fn close(&self) {
        self.closes.store(true, Ordering::Release);
        self.wake();
    }

    /// Marks the log as unusable.
    pub(crate) fn fail(&self, why: String) {
        let _ = self.failure.set(why);
        // A caller that waits for a job learns that it will not be done.
        self.jobs.lock().clear();
        self.grown.notify(usize::MAX);
    }

    /// Notes that this node can take no part with its log, for this reason.
    pub(crate) fn end_node(&self, reason: EndReason) {
        let _ = self.ends.set(reason);
    }

    /// The commands that no member applies.
    pub(crate) fn skips(&self) -> Skips {
        self.buffer.lock().skips.clone()
    }

    /// Replaces the list of commands that no member applies, durably, and waits for that. None if the log has failed.
    ///
    /// Called by the holder of the replica, which is to apply some of them.
    pub(crate) fn set_skips(&self, skips: Skips) -> Option<()> {
        let own = skips.clone();
        self.wait(&self.push(move |log| log.set_skips(own)))?;
        self.buffer.lock().skips = skips;
        Some(())
    }

    /// The end of the log, with all that was appended and may not be on disk yet.
    pub(crate) fn end(&self) -> End {
        self.buffer.lock().appender.end()
    }

    /// The last view of which the log has a record, with all that was appended; or that of the state from which the log
    /// was begun.
    pub(crate) fn view(&self) -> Option<(Epoch, ViewRecord)> {
        self.buffer.lock().view.clone()
    }

    /// The life of the group to which that view belongs. Without a view, so for an empty log, it is 0.
    pub(crate) fn life(&self) -> ClusterId {
        life_of(&self.buffer.lock().view)
    }

    /// The log's end, with all that was appended, and the view and the skips of a state there.
    pub(crate) fn place(&self) -> LogPlace {
        let buffer = self.buffer.lock();
        LogPlace { end: buffer.appender.end(), view: buffer.view.clone(), skips: buffer.skips.clone() }
    }

    pub(crate) fn on_disk(&self) -> End {
        self.buffer.lock().on_disk
    }

    /// The log's end on disk, for readers that follow it.
    pub(crate) fn tip(&self) -> Tip {
        self.buffer.lock().tip
    }

    /// The place at which the log begins.
    pub(crate) fn begin(&self) -> End {
        self.buffer.lock().begin
    }

    /// The approximate size of its segments' contents, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        let (bytes, then) = self.buffer.lock().held;
        bytes + self.counts().bytes.saturating_sub(then)
    }

    /// The number of times that its end was [changed](LogWriter::change_end): places before and after a change need not
    /// be the same log's.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Sets the function that the writing thread calls when it is [time](LogWriter::call_at). Set once.
    pub(crate) fn on_due(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_due.set(Box::new(call));
    }

    /// Has that function called, once, when so many bytes are [written](LogWriter::counts).
    pub(crate) fn call_at(&self, bytes: u64) {
        self.due_at.store(bytes, Ordering::Relaxed);
    }

    fn call_if_due(&self) {
        let due = self.counts.bytes.load(Ordering::Relaxed) >= self.due_at.load(Ordering::Relaxed);
        if let Some(call) = self.on_due.get().filter(|_| due) {
            self.due_at.store(u64::MAX, Ordering::Relaxed);
            call();
        }
    }

    /// The last version that all members have on disk, as far as this node knows: 0 until it is a member.
    pub(crate) fn globally_persisted(&self) -> u64 {
        self.globally_persisted.load(Ordering::Acquire)
    }

    /// Sets the last version that is globally persisted. The delivering thread calls it.
    pub(crate) fn set_globally_persisted(&self, version: u64) {
        if version > self.globally_persisted.load(Ordering::Relaxed) {
            self.globally_persisted.store(version, Ordering::Release);
            self.grown.notify(usize::MAX);
        }
    }

    /// Takes back that any version is globally persisted. This is another log, or its members are not the ones of whose
    /// disks that was said.
    ///
    /// Called by the delivering thread, or by the thread that has the log meanwhile.
    pub(crate) fn forget_globally_persisted(&self) {
        self.globally_persisted.store(0, Ordering::Release);
    }

    pub(crate) fn counts(&self) -> LogCounts {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let Counts { records, bytes, syncs } = &self.counts;
        LogCounts { records: get(records), bytes: get(bytes), syncs: get(syncs) }
    }
}

/// The result of setting or removing a log's mark.
fn marked(log: &DiskLog, marked: io::Result<()>) -> Result<(), WriteError> {
    marked.map_err(|source| WriteError::Io { action: "its mark", path: log.storage().path(anew::NAME), source })
}
