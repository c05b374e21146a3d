//! Takes images of the state, and lets go of what lies before those that are kept.
//!
//! An image is captured between two commands, and written on another thread once its version is safe: after a crash of all
//! members the log may end before what is not. A crash in between leaves the images and the log of before; one that falls into
//! the removal leaves images or segments that nobody needs, which the next start or the next image removes.

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
    blocking,
    config::GroupConfig,
    disk::Disk,
    journal::{DiskLog, Journal},
    recovery::Shelf,
    replicated::Logged,
    state::{CaptureError, Captured, LogPlace, Snapshot},
    transfer::Wanted,
};

/// What is kept for a group's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// An image is taken when so much log was written since the last one, in bytes.
    pub(crate) snapshot_bytes: u64,
    /// How much of the log before the newest image is kept, in bytes; None for all.
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

/// What the keeper knows.
#[derive(Default)]
pub(super) struct Keeping {
    /// The newest image, and what all take together, in bytes.
    pub(super) newest: Option<Logged>,
    pub(super) bytes: u64,
    /// A thread is about to take one.
    is_busy: bool,
    /// The next was due before that had it.
    pub(super) is_late: bool,
    /// One that is taken step by step, where there are no threads.
    taking: Option<Taking>,
}

/// After an image that could not be taken, the next attempt comes when so much of the distance between two was written.
const AGAIN_AFTER: u64 = 4;

/// How much is written between two looks at the room on the disk, in bytes.
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
        // Whoever asks for a state or an image later comes behind it.
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

    /// On the thread that writes, which must not wait.
    fn begin_image(self: &Arc<History>) {
        let (was_busy, was_late) = {
            let mut keeping = self.keeping();
            let was_busy = std::mem::replace(&mut keeping.is_busy, true);
            (was_busy, std::mem::replace(&mut keeping.is_late, was_busy))
        };
        // Unless it is done by then, which settles when the next is due.
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

    /// Takes note of an image that was due: it was taken, or why not.
    fn image_taken(&self, taken: Result<Logged, HistoryError>) {
        match taken {
            Ok(at) => {
                tracing::info!(group = self.group, version = at.version, "an image of the state was taken");
            }
            // With the node.
            Err(HistoryError::Ended { .. }) => {}
            Err(error) => {
                // It is due as soon as a node starts with a long log and no image, which has then to join the group.
                if !matches!(error, HistoryError::Joining) {
                    tracing::warn!(group = self.group, %error, "no image of the state was taken, so no log is trimmed");
                }
                self.schedule(self.policy.snapshot_bytes / AGAIN_AFTER);
            }
        }
        self.is_done();
    }

    /// Whether an image is due or under way that no thread takes: its [steps](History::step_image) are the caller's.
    pub(crate) fn wants_step(&self) -> bool {
        self.keeping().taking.is_some()
    }

    /// Goes on with that image, as far as it comes without waiting.
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

    /// See [`Group::snapshot_now`](crate::Group::snapshot_now).
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

    /// See [`Group::trim`](crate::Group::trim).
    pub(super) fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        self.settle(Keep::From(version), None).map(|begin| begin.version + 1)
    }

    /// Asks the thread that delivers for the replica's state.
    fn capture(&self) -> Result<mpsc::Receiver<Result<Captured, CaptureError>>, HistoryError> {
        let Sources { journal, transfer, waker } = self.sources()?;
        let (to, answers) = mpsc::channel();
        let reply = Reply { to: Some(to), journal: Arc::clone(journal) };
        transfer.ask(Wanted::State, Box::new(move |captured| reply.send(captured)));
        waker.wake();
        Ok(answers)
    }

    /// Removes the images that are not needed, and trims the log. Returns where it begins.
    fn settle(&self, keep: Keep, taken: Option<Taken>) -> Result<End, HistoryError> {
        let journal = self.journal()?;
        let _alone = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        let (shelf, mut images) = ask(journal, |log| Ok::<_, HistoryError>((Shelf::of(log), held(log)?)))??;
        let mut damaged = Vec::new();
        let mut plan = plan(&images, keep);
        // What goes can't be had again, so what stays is read first.
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
            // These first: a log without the images is whole, and images without their log are of no use.
            plan.remove.into_iter().try_for_each(remove)?;
            let trimmed = plan.trim.map_or(Ok(log.begin()), |at| log.trim_before(at));
            trimmed.map_err(|error| HistoryError::Ended { why: error.to_string() })
        })??;
        self.note(&images);
        Ok(begin)
    }
}

/// An image on its way to the disk. It waits for what [`Journal::grown`] rings for.
pub(super) enum Taking {
    Due,
    /// The thread that delivers was asked for the state; the end of the log had been changed so often before.
    Asked {
        answers: mpsc::Receiver<Result<Captured, CaptureError>>,
        changes: u64,
    },
    /// It has given the state, as it is at a place, when so many bytes were written.
    Given {
        state: Snapshot,
        place: Box<LogPlace>,
        changes: u64,
        counted: u64,
    },
}

impl Taking {
    /// Goes on as far as it comes without waiting for others: [`ControlFlow::Break`] once the image is there.
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
                // Behind all that the state has.
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

/// A captured state on its way to the one that waits for it, which is woken also if none comes.
struct Reply {
    to: Option<mpsc::Sender<Result<Captured, CaptureError>>>,
    journal: Arc<Journal>,
}

impl Reply {
    fn send(mut self, captured: Result<Captured, CaptureError>) {
        if let Some(to) = self.to.take() {
            // Who asked may have gone.
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

/// An image that was just written, and how often the end of the log had been changed before.
#[derive(Clone, Copy, Debug)]
struct Taken {
    at: Position,
    changes: u64,
}

/// The images that belong to a log, oldest first.
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

/// A state that leaves so much of the disk free.
fn guarded(state: Snapshot, disk: Disk, kept: u64) -> Snapshot {
    let Some(write) = state.into_writer() else { return Snapshot::unsupported() };
    Snapshot::new(move |to| write(&mut Guarded { to, disk: &disk, kept, unseen: 0 }))
}

struct Guarded<'a> {
    to: &'a mut dyn Write,
    disk: &'a Disk,
    kept: u64,
    /// How much may be written before the next look.
    unseen: u64,
}

/// What is left of the disk is for the log, which could not go on without.
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
            // What was written so far takes its room only then.
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
