//! The keeper: it takes snapshots of the state, and trims the log before those that are kept.
//!
//! A snapshot is captured between two commands, and written on another thread once its version is globally persisted:
//! after a crash of all members the log may end before a version that is not globally persisted. A crash in between
//! leaves the snapshots and the log of before. A crash during the removal leaves snapshots or segments that are not
//! needed, and the next start or the next snapshot removes them.

use std::{
    io::{self, Write},
    ops::ControlFlow,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread,
};

use event_listener::{Listener, listener};
use squall_ordered::log::{End, Position, Snapshot as Stored, Storage, remove_snapshot, snapshots};
use squall_runtime::blocking;

use super::{
    History, HistoryError, Sources, ask, ended, logged,
    snapshots::{Keep, KeptSnapshot, plan},
};
use crate::{
    capture::{
        exchange::Wanted,
        state::{CaptureError, Captured, LogPlace},
    },
    config::GroupConfig,
    durable::{
        disk::Disk,
        log_writer::{DiskLog, LogWriter},
        room,
        snapshot_store::SnapshotStore,
    },
    replica::{replicated::Logged, snapshot::Snapshot},
};

/// The rules for keeping a group's past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// The bytes of log after which the next snapshot is taken.
    pub(crate) snapshot_bytes: u64,
    /// The bytes of the log before the newest snapshot that are kept; None for all.
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

/// The state of the keeper.
#[derive(Default)]
pub(super) struct KeeperState {
    /// The newest snapshot, and the size of all snapshots, in bytes.
    pub(super) newest: Option<Logged>,
    pub(super) bytes: u64,
    /// Whether a thread is about to take a snapshot.
    is_busy: bool,
    /// Whether another snapshot came due while that one was being taken.
    pub(super) is_late: bool,
    /// The snapshot that is taken step by step, where there are no threads.
    taking: Option<Taking>,
}

/// The divisor of the distance between two snapshots, after which the next attempt follows one that failed.
const AGAIN_AFTER: u64 = 4;

/// The bytes that are written between two looks at the disk's free space.
const LOOK_EVERY: u64 = 16 << 20;

impl History {
    /// Takes snapshots when they are due, from now on.
    pub(super) fn keep(self: &Arc<History>) {
        let Ok(log_writer) = self.log_writer() else { return };
        let history = Arc::downgrade(self);
        log_writer.on_due(move || {
            if let Some(history) = history.upgrade() {
                history.begin_snapshot();
            }
        });
        let history = Arc::downgrade(self);
        // The job is queued before any later request for a state or a snapshot.
        drop(log_writer.ask(move |log| {
            let Some(history) = history.upgrade() else { return };
            let snapshots = kept_snapshots(log).unwrap_or_default();
            history.note(&snapshots);
            let since = snapshots.last().map_or(u64::MAX, |newest| newest.behind);
            if let Ok(log_writer) = history.log_writer() {
                log_writer.call_at(log_writer.counts().bytes + history.policy.snapshot_bytes.saturating_sub(since));
            }
        }));
    }

    /// Begins a snapshot that is due. It runs on the thread that writes, which must not wait.
    fn begin_snapshot(self: &Arc<History>) {
        let (was_busy, was_late) = {
            let mut keeper = self.keeper.lock();
            let was_busy = std::mem::replace(&mut keeper.is_busy, true);
            (was_busy, std::mem::replace(&mut keeper.is_late, was_busy))
        };
        // If the snapshot is done by then, that has set the time of the next one.
        self.schedule(self.policy.snapshot_bytes);
        if was_busy && !was_late {
            let why = "a snapshot of the state is due, and the one before is still being taken: if its writer or its disk hangs, no \
                       log is trimmed until that goes on";
            tracing::warn!(group = self.group, "{why}");
        }
        if was_busy {
            return;
        }
        if self.log_writer().is_ok_and(|log_writer| log_writer.is_pumped()) {
            self.keeper.lock().taking = Some(Taking::Due);
            return;
        }
        let history = Arc::clone(self);
        let body = move || history.snapshot_taken(history.snapshot());
        if let Err(error) = thread::Builder::new().name("squall-snapshot".to_owned()).spawn(body) {
            tracing::warn!(group = self.group, %error, "there is no thread to take a snapshot of the state");
            self.is_done();
            self.schedule(self.policy.snapshot_bytes / AGAIN_AFTER);
        }
    }

    /// Notes the outcome of a snapshot that was due.
    fn snapshot_taken(&self, taken: Result<Logged, HistoryError>) {
        match taken {
            Ok(at) => {
                tracing::info!(group = self.group, version = at.version, "a snapshot of the state was taken");
            }
            // The node has ended.
            Err(HistoryError::Ended { .. }) => {}
            Err(error) => {
                // A snapshot is due as soon as a node starts with a long log and no snapshot; such a node must join the
                // group first.
                if !matches!(error, HistoryError::Joining) {
                    tracing::warn!(group = self.group, %error, "no snapshot of the state was taken, so no log is trimmed");
                }
                self.schedule(self.policy.snapshot_bytes / AGAIN_AFTER);
            }
        }
        self.is_done();
    }

    /// Tells whether a snapshot is due or under way that no thread takes: the caller must call
    /// [`step_snapshot`](History::step_snapshot).
    #[cfg(feature = "sim")]
    pub(crate) fn wants_step(&self) -> bool {
        self.keeper.lock().taking.is_some()
    }

    /// Continues that snapshot, as far as it goes without waiting.
    #[cfg(feature = "sim")]
    pub(crate) fn step_snapshot(&self) {
        let Some(taking) = self.keeper.lock().taking.take() else { return };
        match taking.go_on(self) {
            Ok(ControlFlow::Continue(taking)) => self.keeper.lock().taking = Some(taking),
            Ok(ControlFlow::Break(at)) => self.snapshot_taken(Ok(at)),
            Err(error) => self.snapshot_taken(Err(error)),
        }
    }

    fn is_done(&self) {
        let mut keeper = self.keeper.lock();
        (keeper.is_busy, keeper.is_late) = (false, false);
    }

    fn schedule(&self, bytes: u64) {
        if let Ok(log_writer) = self.log_writer() {
            log_writer.call_at(log_writer.counts().bytes.saturating_add(bytes.max(1)));
        }
    }

    fn note(&self, snapshots: &[KeptSnapshot]) {
        let mut keeper = self.keeper.lock();
        keeper.newest = snapshots.last().map(|snapshot| logged(snapshot.at));
        keeper.bytes = snapshots.iter().map(|snapshot| snapshot.bytes).sum();
    }

    /// Takes a snapshot: see [`Group::snapshot_now`](crate::Group::snapshot_now).
    pub(crate) fn snapshot(&self) -> Result<Logged, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        let log_writer = self.log_writer()?;
        let _alone = self.taking.lock();
        let mut taking = Taking::Due;
        loop {
            listener!(log_writer.grown => rings);
            match taking.go_on(self)? {
                ControlFlow::Continue(goes_on) => taking = goes_on,
                ControlFlow::Break(at) => return Ok(at),
            }
            rings.wait();
        }
    }

    /// Trims the log: see [`Group::trim`](crate::Group::trim).
    pub(crate) fn trim(&self, version: u64) -> Result<u64, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        self.settle(Keep::From(version), None).map(|begin| begin.version + 1)
    }

    /// Asks the delivery thread for the replica's state.
    fn capture(&self) -> Result<mpsc::Receiver<Result<Captured, CaptureError>>, HistoryError> {
        let Sources { log_writer, exchange, waker } = self.sources()?;
        let (to, answers) = mpsc::channel();
        let reply = CaptureHandover { to: Some(to), log_writer: Arc::clone(log_writer) };
        exchange.ask(Wanted::State, Box::new(move |captured| reply.send(captured)));
        waker.wake();
        Ok(answers)
    }

    /// Removes the snapshots that are not needed, and trims the log. Returns the log's beginning.
    fn settle(&self, keep: Keep, taken: Option<Taken>) -> Result<End, HistoryError> {
        let log_writer = self.log_writer()?;
        let _alone = self.settling.lock();
        let (store, mut snapshots) =
            ask(log_writer, |log| Ok::<_, HistoryError>((SnapshotStore::of(log), kept_snapshots(log)?)))??;
        let mut damaged = Vec::new();
        let mut plan = plan(&snapshots, keep);
        // Removed data can't be had again, so the snapshots that stay are read first.
        while plan.trim.is_some() || !plan.remove.is_empty() {
            let from = plan.trim.unwrap_or(Position::START);
            let newest = snapshots.len() - 1;
            let needed = snapshots
                .iter()
                .enumerate()
                .filter(|(nth, snapshot)| snapshot.at.position == from || nth + 1 >= newest);
            let Some((bad, error)) = needed
                .map(|(_, snapshot)| snapshot.at.position)
                .find_map(|at| store.open(at).err().map(|error| (at, error)))
            else {
                break;
            };
            tracing::warn!(group = self.group, %error, "a snapshot of the state is of no use, and is removed");
            damaged.push(bad);
            snapshots.retain(|snapshot| snapshot.at.position != bad);
            plan = super::snapshots::plan(&snapshots, keep);
        }
        plan.remove.extend(damaged);
        snapshots.retain(|snapshot| !plan.remove.contains(&snapshot.at.position));
        let of_job = Arc::clone(log_writer);
        let begin = ask(log_writer, move |log| {
            let remove = |at| remove_snapshot(&store.disk, at).map_err(HistoryError::snapshot);
            if let Some(taken) = taken.filter(|taken| of_job.changes() != taken.changes) {
                remove(taken.at)?;
                return Err(HistoryError::Overtaken);
            }
            // Snapshots go first: a log without the snapshots is whole, and snapshots without their log are of no use.
            plan.remove.into_iter().try_for_each(remove)?;
            let trimmed = plan.trim.map_or(Ok(log.begin()), |at| log.trim_before(at));
            trimmed.map_err(|error| HistoryError::Ended { why: error.to_string() })
        })??;
        self.note(&snapshots);
        Ok(begin)
    }
}

/// A snapshot on its way to the disk. It continues when [`LogWriter::grown`] signals.
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
    /// Continues as far as it goes without waiting for other threads: [`ControlFlow::Break`] once the snapshot is
    /// complete.
    fn go_on(self, history: &History) -> Result<ControlFlow<Logged, Taking>, HistoryError> {
        let log_writer = history.log_writer()?;
        match self {
            Taking::Due => {
                let changes = log_writer.changes();
                Taking::Asked { answers: history.capture()?, changes }.go_on(history)
            }
            Taking::Asked { answers, changes } => {
                let captured = match answers.try_recv() {
                    Err(mpsc::TryRecvError::Empty) => {
                        return Ok(ControlFlow::Continue(Taking::Asked { answers, changes }));
                    }
                    Err(mpsc::TryRecvError::Disconnected) => return Err(ended(log_writer)),
                    Ok(captured) => captured.map_err(|error| match error {
                        CaptureError::NotComplete => HistoryError::Joining,
                        error => HistoryError::Capture(error.to_string()),
                    })?,
                };
                let counted = log_writer.counts().bytes;
                let (Some(place), state) = captured.into_snapshot() else {
                    return Err(HistoryError::NotDurable { group: history.group.clone() });
                };
                Taking::Given { state, place: Box::new(place), changes, counted }.go_on(history)
            }
            Taking::Given { changes, .. } if log_writer.changes() != changes => Err(HistoryError::Overtaken),
            Taking::Given { .. } if log_writer.failure().is_some() => Err(ended(log_writer)),
            Taking::Given { ref place, .. } if log_writer.globally_persisted() < place.end.version => {
                Ok(ControlFlow::Continue(self))
            }
            Taking::Given { state, place, changes, counted } => {
                let LogPlace { end: at, view, .. } = *place;
                // All that the state has is on disk.
                let (store, kept) =
                    ask(log_writer, |log| (SnapshotStore::of(log), room::kept_by_snapshots(log.options())))?;
                if store.open(at.position).is_err() {
                    let state = guarded(state, store.disk.clone(), kept);
                    store.write(at, view.as_ref(), state).map_err(HistoryError::snapshot)?;
                }
                history.settle(history.policy.keep(), Some(Taken { at: at.position, changes }))?;
                log_writer.call_at(counted.saturating_add(history.policy.snapshot_bytes));
                Ok(ControlFlow::Break(logged(at)))
            }
        }
    }
}

/// A captured state on its way to the waiting thread, which is woken also if none comes.
struct CaptureHandover {
    to: Option<mpsc::Sender<Result<Captured, CaptureError>>>,
    log_writer: Arc<LogWriter>,
}

impl CaptureHandover {
    fn send(mut self, captured: Result<Captured, CaptureError>) {
        if let Some(to) = self.to.take() {
            // The thread that asked may have ended.
            let _ = to.send(captured);
        }
    }
}

impl Drop for CaptureHandover {
    fn drop(&mut self) {
        self.to = None;
        self.log_writer.grown.notify(usize::MAX);
    }
}

/// A snapshot that was just written, and the count of changes of the log's end before it.
#[derive(Clone, Copy, Debug)]
struct Taken {
    at: Position,
    changes: u64,
}

/// Returns the snapshots that belong to a log, oldest first.
fn kept_snapshots(log: &mut DiskLog) -> Result<Vec<KeptSnapshot>, HistoryError> {
    let SnapshotStore { disk, cluster, shard, .. } = SnapshotStore::of(log);
    let (begin, end) = (log.begin().position, log.persisted().position);
    let mut kept = Vec::new();
    for position in snapshots(&disk).map_err(HistoryError::snapshot)? {
        if position < begin || position > end {
            continue;
        }
        match Stored::glance(disk.clone(), cluster, shard, position) {
            Ok((at, bytes)) => {
                let behind = log.bytes_behind(position).map_err(HistoryError::Unreadable)?;
                kept.push(KeptSnapshot { at, bytes, behind });
            }
            Err(error) => tracing::warn!(%error, "a snapshot of the state can't be used"),
        }
    }
    Ok(kept)
}

/// Wraps a state so that its writing fails before less than `kept` bytes of the disk are free.
fn guarded(state: Snapshot, disk: Disk, kept: u64) -> Snapshot {
    let Some(write) = state.write else { return Snapshot::unsupported() };
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
