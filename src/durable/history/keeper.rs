//! The keeper: it takes images of the state, and trims the log before those that are kept.
//!
//! An image is captured between two commands, and written on another thread once its version is safe: after a crash of
//! all members the log may end before a version that is not safe. A crash in between leaves the images and the log of
//! before. A crash during the removal leaves images or segments that are not needed, and the next start or the next
//! image removes them.

use std::{
    fmt,
    io::{self, Write},
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, PoisonError, mpsc},
    thread,
};

use event_listener::{Listener, listener};
use squall_ordered::log::{End, Position, Snapshot as Stored, Storage, remove_snapshot, snapshots};

use super::{
    History, HistoryError, Sources, ask, ended,
    images::{Held, Keep, plan},
    logged,
};
use crate::{
    config::GroupConfig,
    durable::{
        disk::Disk,
        log_writer::{DiskLog, Journal},
        snapshot_store::Shelf,
    },
    group::replicated::Logged,
    runtime::blocking,
    state_transfer::{
        exchange::Wanted,
        state::{CaptureError, Captured, LogPlace, Snapshot},
    },
};

/// The rules for keeping a group's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The bytes of log after which the next image is taken.
    pub(crate) snapshot_bytes: u64,
    /// The bytes of the log before the newest image that are kept; None for all.
    pub(crate) retain: Option<u64>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { snapshot_bytes: u64::MAX, retain: None }
    }
}

impl Policy {
    pub(crate) fn of(options: &GroupConfig) -> Policy {
        Policy { snapshot_bytes: options.snapshot_bytes, retain: options.retain }
    }

    fn keep(self) -> Keep {
        self.retain.map_or(Keep::All, Keep::Bytes)
    }
}

/// The keeper's state.
#[derive(Default)]
pub(super) struct Keeping {
    /// The newest image, and the size of all images, in bytes.
    pub(super) newest: Option<Logged>,
    pub(super) bytes: u64,
    /// Whether a thread is about to take an image.
    is_busy: bool,
    /// Whether another image came due while that one was being taken.
    pub(super) is_late: bool,
    /// The image that is taken step by step, where there are no threads.
    taking: Option<Taking>,
}

/// The divisor of the distance between two images, after which the next attempt follows one that failed.
const AGAIN_AFTER: u64 = 4;

/// The bytes that are written between two looks at the disk's free space.
const LOOK_EVERY: u64 = 16 << 20;

impl History {
    /// Takes images when they are due, from now on.
    pub(super) fn keep(self: &Arc<History>) {
        let Ok(journal) = self.journal() else { return };
        let history = Arc::downgrade(self);
        journal.on_due(move || {
            if let Some(history) = history.upgrade() {
                history.begin_image();
            }
        });
        let history = Arc::downgrade(self);
        // The job is queued before any later request for a state or an image.
        drop(journal.ask(move |log| {
            let Some(history) = history.upgrade() else { return };
            let images = held(log).unwrap_or_default();
            history.note(&images);
            let since = images.last().map_or(u64::MAX, |newest| newest.behind);
            if let Ok(journal) = history.journal() {
                journal.call_at(journal.counts().bytes + history.policy.snapshot_bytes.saturating_sub(since));
            }
        }));
    }

    /// Begins an image that is due. It runs on the thread that writes, which must not wait.
    fn begin_image(self: &Arc<History>) {
        let (was_busy, was_late) = {
            let mut keeping = self.keeping();
            let was_busy = std::mem::replace(&mut keeping.is_busy, true);
            (was_busy, std::mem::replace(&mut keeping.is_late, was_busy))
        };
        // If the image is done by then, that has set the time of the next one.
        self.schedule(self.policy.snapshot_bytes);
        if was_busy && !was_late {
            let why = "an image of the state is due, and the one before is still being taken: if its writer or its disk hangs, no \
                       log is trimmed until that goes on";
            tracing::warn!(group = self.group, "{why}");
        }
        if was_busy {
            return;
        }
        if self.journal().is_ok_and(|journal| journal.is_pumped()) {
            self.keeping().taking = Some(Taking::Due);
            return;
        }
        let history = Arc::clone(self);
        let body = move || history.image_taken(history.snapshot());
        if let Err(error) = thread::Builder::new().name("squall-image".to_owned()).spawn(body) {
            tracing::warn!(group = self.group, %error, "there is no thread to take an image of the state");
            self.is_done();
            self.schedule(self.policy.snapshot_bytes / AGAIN_AFTER);
        }
    }

    /// Notes the outcome of an image that was due.
    fn image_taken(&self, taken: Result<Logged, HistoryError>) {
        match taken {
            Ok(at) => {
                tracing::info!(group = self.group, version = at.version, "an image of the state was taken");
            }
            // The node has ended.
            Err(HistoryError::Ended { .. }) => {}
            Err(error) => {
                // An image is due as soon as a node starts with a long log and no image; such a node must join the
                // group first.
                if !matches!(error, HistoryError::Joining) {
                    tracing::warn!(group = self.group, %error, "no image of the state was taken, so no log is trimmed");
                }
                self.schedule(self.policy.snapshot_bytes / AGAIN_AFTER);
            }
        }
        self.is_done();
    }

    /// Tells whether an image is due or under way that no thread takes: the caller must call
    /// [`step_image`](History::step_image).
    pub(crate) fn wants_step(&self) -> bool {
        self.keeping().taking.is_some()
    }

    /// Continues that image, as far as it goes without waiting.
    pub(crate) fn step_image(&self) {
        let Some(taking) = self.keeping().taking.take() else { return };
        match taking.go_on(self) {
            Ok(ControlFlow::Continue(taking)) => self.keeping().taking = Some(taking),
            Ok(ControlFlow::Break(at)) => self.image_taken(Ok(at)),
            Err(error) => self.image_taken(Err(error)),
        }
    }

    fn is_done(&self) {
        let mut keeping = self.keeping();
        (keeping.is_busy, keeping.is_late) = (false, false);
    }

    fn schedule(&self, bytes: u64) {
        if let Ok(journal) = self.journal() {
            journal.call_at(journal.counts().bytes.saturating_add(bytes.max(1)));
        }
    }

    fn note(&self, images: &[Held]) {
        let mut keeping = self.keeping();
        keeping.newest = images.last().map(|image| logged(image.at));
        keeping.bytes = images.iter().map(|image| image.bytes).sum();
    }

    /// Takes an image: see [`Group::snapshot_now`](crate::Group::snapshot_now).
    pub(super) fn snapshot(&self) -> Result<Logged, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        let journal = self.journal()?;
        let _alone = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taking = Taking::Due;
        loop {
            listener!(journal.grown() => rings);
            match taking.go_on(self)? {
                ControlFlow::Continue(goes_on) => taking = goes_on,
                ControlFlow::Break(at) => return Ok(at),
            }
            rings.wait();
        }
    }

    /// Trims the log: see [`Group::trim`](crate::Group::trim).
    pub(super) fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        self.settle(Keep::From(version), None).map(|begin| begin.version + 1)
    }

    /// Asks the delivery thread for the replica's state.
    fn capture(&self) -> Result<mpsc::Receiver<Result<Captured, CaptureError>>, HistoryError> {
        let Sources { journal, transfer, waker } = self.sources()?;
        let (to, answers) = mpsc::channel();
        let reply = Reply { to: Some(to), journal: Arc::clone(journal) };
        transfer.ask(Wanted::State, Box::new(move |captured| reply.send(captured)));
        waker.wake();
        Ok(answers)
    }

    /// Removes the images that are not needed, and trims the log. Returns the log's beginning.
    fn settle(&self, keep: Keep, taken: Option<Taken>) -> Result<End, HistoryError> {
        let journal = self.journal()?;
        let _alone = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        let (shelf, mut images) = ask(journal, |log| Ok::<_, HistoryError>((Shelf::of(log), held(log)?)))??;
        let mut damaged = Vec::new();
        let mut plan = plan(&images, keep);
        // Removed data can't be had again, so the images that stay are read first.
        while plan.trim.is_some() || !plan.remove.is_empty() {
            let from = plan.trim.unwrap_or(Position::START);
            let newest = images.len() - 1;
            let needed =
                images.iter().enumerate().filter(|(nth, image)| image.at.position == from || nth + 1 >= newest);
            let Some((bad, error)) =
                needed.map(|(_, image)| image.at.position).find_map(|at| shelf.open(at).err().map(|error| (at, error)))
            else {
                break;
            };
            tracing::warn!(group = self.group, %error, "an image of the state is of no use, and is removed");
            damaged.push(bad);
            images.retain(|image| image.at.position != bad);
            plan = super::images::plan(&images, keep);
        }
        plan.remove.extend(damaged);
        images.retain(|image| !plan.remove.contains(&image.at.position));
        let of_job = Arc::clone(journal);
        let begin = ask(journal, move |log| {
            let remove = |at| remove_snapshot(&shelf.disk, at).map_err(HistoryError::image);
            if let Some(taken) = taken.filter(|taken| of_job.changes() != taken.changes) {
                remove(taken.at)?;
                return Err(HistoryError::Overtaken);
            }
            // Images go first: a log without the images is whole, and images without their log are of no use.
            plan.remove.into_iter().try_for_each(remove)?;
            let trimmed = plan.trim.map_or(Ok(log.begin()), |at| log.trim_before(at));
            trimmed.map_err(|error| HistoryError::Ended { why: error.to_string() })
        })??;
        self.note(&images);
        Ok(begin)
    }
}

/// An image on its way to the disk. It continues when [`Journal::grown`] signals.
pub(super) enum Taking {
    Due,
    /// The delivery thread was asked for the state. `changes` is the count of changes of the log's end before that.
    Asked {
        answers: mpsc::Receiver<Result<Captured, CaptureError>>,
        changes: u64,
    },
    /// The delivery thread has given the state of a place. `counted` is the count of bytes written at that time.
    Given {
        state: Snapshot,
        place: Box<LogPlace>,
        changes: u64,
        counted: u64,
    },
}

impl Taking {
    /// Continues as far as it goes without waiting for other threads: [`ControlFlow::Break`] once the image is
    /// complete.
    fn go_on(self, history: &History) -> Result<ControlFlow<Logged, Taking>, HistoryError> {
        let journal = history.journal()?;
        match self {
            Taking::Due => {
                let changes = journal.changes();
                Taking::Asked { answers: history.capture()?, changes }.go_on(history)
            }
            Taking::Asked { answers, changes } => {
                let captured = match answers.try_recv() {
                    Err(mpsc::TryRecvError::Empty) => {
                        return Ok(ControlFlow::Continue(Taking::Asked { answers, changes }));
                    }
                    Err(mpsc::TryRecvError::Disconnected) => return Err(ended(journal)),
                    Ok(captured) => captured.map_err(|error| match error {
                        CaptureError::NotComplete => HistoryError::Joining,
                        error => HistoryError::Capture(error.to_string()),
                    })?,
                };
                let counted = journal.counts().bytes;
                let (Some(place), state) = captured.into_image() else {
                    return Err(HistoryError::NotDurable { group: history.group.clone() });
                };
                Taking::Given { state, place: Box::new(place), changes, counted }.go_on(history)
            }
            Taking::Given { changes, .. } if journal.changes() != changes => Err(HistoryError::Overtaken),
            Taking::Given { .. } if journal.failure().is_some() => Err(ended(journal)),
            Taking::Given { ref place, .. } if journal.safe() < place.end.version => Ok(ControlFlow::Continue(self)),
            Taking::Given { state, place, changes, counted } => {
                let LogPlace { end: at, view, .. } = *place;
                // The request is queued behind everything that the state has.
                let (shelf, kept) = ask(journal, |log| (Shelf::of(log), 2 * log.options().segment_bytes))?;
                if shelf.open(at.position).is_err() {
                    let state = guarded(state, shelf.disk.clone(), kept);
                    shelf.write(at, view.as_ref(), state).map_err(HistoryError::image)?;
                }
                history.settle(history.policy.keep(), Some(Taken { at: at.position, changes }))?;
                journal.call_at(counted.saturating_add(history.policy.snapshot_bytes));
                Ok(ControlFlow::Break(logged(at)))
            }
        }
    }
}

/// A captured state on its way to the waiting thread, which is woken also if none comes.
struct Reply {
    to: Option<mpsc::Sender<Result<Captured, CaptureError>>>,
    journal: Arc<Journal>,
}

impl Reply {
    fn send(mut self, captured: Result<Captured, CaptureError>) {
        if let Some(to) = self.to.take() {
            // The thread that asked may have ended.
            let _ = to.send(captured);
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.to = None;
        self.journal.grown().notify(usize::MAX);
    }
}

/// An image that was just written, and the count of changes of the log's end before it.
#[derive(Clone, Copy, Debug)]
struct Taken {
    at: Position,
    changes: u64,
}

/// Returns the images that belong to a log, oldest first.
fn held(log: &mut DiskLog) -> Result<Vec<Held>, HistoryError> {
    let Shelf { disk, cluster, shard, .. } = Shelf::of(log);
    let (begin, end) = (log.begin().position, log.persisted().position);
    let mut images = Vec::new();
    for position in snapshots(&disk).map_err(HistoryError::image)? {
        if position < begin || position > end {
            continue;
        }
        match Stored::glance(disk.clone(), cluster, shard, position) {
            Ok((at, bytes)) => {
                let behind = log.bytes_behind(position).map_err(HistoryError::Unreadable)?;
                images.push(Held { at, bytes, behind });
            }
            Err(error) => tracing::warn!(%error, "an image of the state can't be used"),
        }
    }
    Ok(images)
}

/// Wraps a state so that its writing fails before less than `kept` bytes of the disk are free.
fn guarded(state: Snapshot, disk: Disk, kept: u64) -> Snapshot {
    let Some(write) = state.into_writer() else { return Snapshot::unsupported() };
    Snapshot::new(move |to| write(&mut Guarded { to, disk: &disk, kept, unseen: 0 }))
}

struct Guarded<'a> {
    to: &'a mut dyn Write,
    disk: &'a Disk,
    kept: u64,
    /// The bytes that may be written before the next look.
    unseen: u64,
}

/// The error that the rest of the disk is kept for the log, which could not continue without.
#[derive(Debug, thiserror::Error)]
#[error("{free} bytes are free in {}, of which {kept} are for the log: make room, or trim the log", path.display())]
struct NoSpace {
    path: PathBuf,
    free: u64,
    kept: u64,
}

impl Write for Guarded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.unseen == 0 {
            // The disk's free space shows buffered bytes only after a flush.
            self.to.flush()?;
            let free = self.disk.free()?;
            if free <= self.kept {
                let full = NoSpace { path: self.disk.path(""), free, kept: self.kept };
                return Err(io::Error::new(io::ErrorKind::StorageFull, full));
            }
            self.unseen = LOOK_EVERY.min(free - self.kept);
        }
        let most = usize::try_from(self.unseen).unwrap_or(usize::MAX).min(bytes.len());
        let written = self.to.write(&bytes[..most])?;
        self.unseen -= written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("group", &self.group).field("policy", &self.policy).finish_non_exhaustive()
    }
}
