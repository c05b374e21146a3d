//! The rebuilding of a replica from its disk alone: from the newest good snapshot, and the log behind it.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
};

use squall_ordered::log::{Damage, End, Position, ReadError, Reader, Storage};

use super::replay::{ReplayError, Replayed, replay};
use crate::{
    capture::state::LastView,
    durable::{
        disk::Disk,
        log_writer::DiskLog,
        snapshot_store::{SnapshotStore, SnapshotStoreError, StoredSnapshot},
    },
    replica::service::Service,
};

/// A reason for which a replica can't be rebuilt.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RebuildError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotStoreError),
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("the application does not take the state that it wrote: {0}")]
    Restore(io::Error),
    #[error("the application panicked in `Replicated::restore`")]
    Panicked,
    #[error("{0}")]
    Poison(String),
    #[error("the log can't be read any more")]
    LogEnded,
}

impl RebuildError {
    /// Tells whether the application has panicked, so that the replica can't be used any more.
    pub(crate) fn is_panic(&self) -> bool {
        matches!(
            self,
            RebuildError::Panicked | RebuildError::Poison(_) | RebuildError::Replay(ReplayError::Panicked(_))
        )
    }
}

/// A log from which a replica is rebuilt: this thread's own, or that of the thread that writes it.
pub(crate) trait Source {
    /// Returns the directory of its files.
    fn store(&self) -> &SnapshotStore;

    fn ask<T: Send + 'static>(&self, job: impl FnOnce(&DiskLog) -> T + Send + 'static) -> Result<T, RebuildError>;

    /// Returns its beginning and its end.
    fn extent(&self) -> Result<(End, End), RebuildError> {
        self.ask(|log| (log.begin(), log.persisted()))
    }

    /// Returns the log's end at a place of a snapshot, and a reader from there.
    fn read(&self, from: Position) -> Result<(Result<End, ReadError>, Reader<Disk>), RebuildError> {
        let (at, reader) = self.ask(move |log| (log.at_position(from), log.read(from, Position::MAX)))?;
        Ok((at, reader.map_err(ReplayError::from)?))
    }
}

/// A log that no thread writes yet, from which a replica is rebuilt before the node runs.
struct OfflineLog<'a> {
    store: SnapshotStore,
    log: &'a DiskLog,
}

impl Source for OfflineLog<'_> {
    fn store(&self) -> &SnapshotStore {
        &self.store
    }

    fn ask<T: Send + 'static>(&self, job: impl FnOnce(&DiskLog) -> T + Send + 'static) -> Result<T, RebuildError> {
        Ok(job(self.log))
    }
}

/// The result of rebuilding a replica from a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rebuilt {
    /// The place of the replica's state. None if no snapshot was good: then the replica can be used only with another
    /// member's state.
    pub(crate) end: Option<End>,
    /// The last view at that place.
    pub(crate) view: LastView,
    /// The damage that keeps it from the log's end.
    pub(crate) damage: Option<Box<Damage>>,
}

impl Rebuilt {
    /// Tells whether the replica is at the log's end.
    pub(crate) fn is_whole(&self) -> bool {
        self.end.is_some() && self.damage.is_none()
    }
}

/// Starts with a replica that is as it was when the program began. If the log never had anything, it writes a snapshot
/// of this state, so that the replica can be taken back to any place.
pub(crate) fn begin<S: Service>(service: &mut S, log: &DiskLog) -> Result<Rebuilt, RebuildError> {
    let source = OfflineLog { store: SnapshotStore::of(log), log };
    let (begin, end) = source.extent()?;
    source.store().remove_outside(begin.position, end.position)?;
    if end == End::START && source.store().newest(Position::START, Position::START)?.snapshot.is_none() {
        let state = catch_unwind(AssertUnwindSafe(|| service.snapshot())).map_err(|_| SnapshotStoreError::Panicked)?;
        source.store().write(End::START, None, state)?;
        return Ok(Rebuilt { end: Some(End::START), view: None, damage: None });
    }
    let rebuilt = rebuild(service, &source)?;
    if rebuilt.end.is_some() || begin != End::START {
        return Ok(rebuilt);
    }
    tracing::warn!(
        "the snapshot of the group's first state is lost: it is taken for the one that this program begins with"
    );
    go_on(service, &source, End::START, None)
}

/// Replaces a replica's state by the one at the end of its log, or before the first damage.
pub(crate) fn rebuild<S: Service>(service: &mut S, source: &impl Source) -> Result<Rebuilt, RebuildError> {
    let (begin, end) = source.extent()?;
    for position in source.store().positions(begin.position, end.position)?.into_iter().rev() {
        let opened = source.store().open(position);
        match opened.and_then(|snapshot| check(snapshot, source)) {
            Ok(mut snapshot) => {
                restore(service, &mut snapshot)?;
                return go_on(service, source, snapshot.at, snapshot.view);
            }
            Err(error) => {
                tracing::warn!(%error, "a snapshot is passed over: an older one, and more of the log, will do");
            }
        }
    }
    Ok(Rebuilt { end: None, view: None, damage: None })
}

/// Checks that a snapshot is of the log as it is now.
fn check(snapshot: StoredSnapshot, source: &impl Source) -> Result<StoredSnapshot, SnapshotStoreError> {
    match source.read(snapshot.at.position) {
        Ok((Ok(log), _)) if log != snapshot.at => Err(SnapshotStoreError::Other { at: snapshot.at, log }),
        // Damage is found when the log is read.
        _ => Ok(snapshot),
    }
}

fn restore<S: Service>(service: &mut S, snapshot: &mut StoredSnapshot) -> Result<(), RebuildError> {
    let restored = catch_unwind(AssertUnwindSafe(|| service.restore(snapshot)));
    restored.map_err(|_| RebuildError::Panicked)?.map_err(RebuildError::Restore)
}

/// Takes a replica further through its log.
pub(crate) fn go_on<S: Service>(
    service: &mut S,
    source: &impl Source,
    from: End,
    view: LastView,
) -> Result<Rebuilt, RebuildError> {
    let (_, mut reader) = source.read(from.position)?;
    let skips = source.ask(|log| log.skips().clone())?;
    let replayed = replay(service, &mut reader, from, view, &skips);
    let Replayed { end, view, mut damage } = replayed.map_err(|error| match error {
        ReplayError::Panicked(Some(given)) => RebuildError::Poison(given.help(&source.store().disk.path(""))),
        error => error.into(),
    })?;
    if damage.is_none() {
        damage = source.ask(|log| log.end_damage().cloned())?.map(Box::new);
    }
    Ok(Rebuilt { end: Some(end), view, damage })
}
