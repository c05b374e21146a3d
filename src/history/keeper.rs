//! Takes images of the state, and lets go of what lies before those that are kept.
//!
//! An image is captured between two commands, and written on another thread once its version is safe: after a crash of all
//! members the log may end before what is not. A crash in between leaves the images and the log of before; one that falls into
//! the removal leaves images or segments that nobody needs, which the next start or the next image removes.

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
    sync::{Arc, PoisonError, mpsc},
    thread,
};

use event_listener::{Listener, listener};
use squall_ordered::log::{End, Position, Snapshot as Stored, Storage, remove_snapshot, snapshots};

use super::{
    History, HistoryError, Sources, answer, ask, ended,
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
#[derive(Debug, Default)]
pub(super) struct Keeping {
    /// The newest image, and what all take together, in bytes.
    pub(super) newest: Option<Logged>,
    pub(super) bytes: u64,
    /// A thread is about to take one.
    is_busy: bool,
    /// The next was due before that had it.
    pub(super) is_late: bool,
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
        let history = Arc::clone(self);
        let body = move || {
            match history.snapshot() {
                Ok(at) => {
                    tracing::info!(group = history.group, version = at.version, "an image of the state was taken");
                }
                // With the node.
                Err(HistoryError::Ended { .. }) => {}
                Err(error) => {
                    // It is due as soon as a node starts with a long log and no image, which has then to join the group.
                    if !matches!(error, HistoryError::Joining) {
                        tracing::warn!(group = history.group, %error, "no image of the state was taken, so no log is trimmed");
                    }
                    history.schedule(history.policy.snapshot_bytes / AGAIN_AFTER);
                }
            }
            history.is_done();
        };
        if let Err(error) = thread::Builder::new().name("squall-image".to_owned()).spawn(body) {
            tracing::warn!(group = self.group, %error, "there is no thread to take an image of the state");
            self.is_done();
            self.schedule(self.policy.snapshot_bytes / AGAIN_AFTER);
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
        let Sources { journal, .. } = self.sources()?;
        let _alone = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        let changes = journal.changes();
        let captured = self.capture()?;
        let counted = journal.counts().bytes;
        let (Some(LogPlace { end: at, view, .. }), state) = captured.into_image() else {
            return Err(HistoryError::NotDurable { group: self.group.clone() });
        };
        // Behind all that the state has.
        let (shelf, kept) = ask(journal, |log| (Shelf::of(log), 2 * log.options().segment_bytes))?;
        wait_until_safe(journal, at, changes)?;
        if shelf.open(at.position).is_err() {
            shelf.write(at, view.as_ref(), guarded(state, shelf.disk.clone(), kept)).map_err(HistoryError::image)?;
        }
        let taken = Taken { at: at.position, changes };
        self.settle(self.policy.keep(), Some(taken))?;
        journal.call_at(counted.saturating_add(self.policy.snapshot_bytes));
        Ok(logged(at))
    }

    /// See [`Group::trim`](crate::Group::trim).
    pub(super) fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        self.settle(Keep::From(version), None).map(|begin| begin.version + 1)
    }

    /// Has the thread that delivers capture the replica's state.
    fn capture(&self) -> Result<Captured, HistoryError> {
        let Sources { journal, transfer, waker } = self.sources()?;
        let (reply, replies) = mpsc::channel();
        let reply = move |captured| {
            // Who asked may have gone.
            let _ = reply.send(captured);
        };
        transfer.ask(Wanted::State, Box::new(reply));
        waker.wake();
        answer(journal, &replies)?.map_err(|error| match error {
            CaptureError::NotComplete => HistoryError::Joining,
            error => HistoryError::Capture(error.to_string()),
        })
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

/// Waits until all members have on disk what a state has.
fn wait_until_safe(journal: &Journal, at: End, changes: u64) -> Result<(), HistoryError> {
    loop {
        listener!(journal.grown() => rings);
        if journal.changes() != changes {
            return Err(HistoryError::Overtaken);
        }
        if journal.failure().is_some() {
            return Err(ended(journal));
        }
        if journal.safe() >= at.version {
            return Ok(());
        }
        rings.wait();
    }
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
