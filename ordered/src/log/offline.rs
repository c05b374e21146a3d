//! An operator's work on a log that no node has: reading its good parts, repairing it from copies, or cutting it.

use std::{io, ops::ControlFlow, path::PathBuf};

use super::{
    Body, CutOutcome, Damage, End, Hlc, Log, MAX_REASON_BYTES, MAX_SKIPS, Missing, OpenError, Opened, Position,
    ReadError, Record, Repaired, Skip, SnapshotError, Storage, WriteError, aside,
    cut::CutBy,
    index::RecordStart,
    manifest::{self, Manifest, OperatorVerdict},
    segment::{RECORDS_AT, name},
    snapshot::snapshots,
    walk::{Walk, WalkStep},
};

/// The reasons for which an operator's work on a log was not done.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A log that can't be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A log that can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A log that can't be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The snapshots of its state can't be listed.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A cut that would leave no snapshot of the state within the log, so that the log could not be used.
    #[error(
        "a log that begins later than its group and ends at version {version} is of no use without a snapshot of the state, and the \
         oldest is that of {oldest}: cut behind that, or remove the log, and the node gets it from another member"
    )]
    NoSnapshot {
        /// The version at which the log would end.
        version: u64,
        /// The oldest snapshot's place.
        oldest: Position,
    },
    /// The log does not reach the version at which it should end.
    #[error("the log can't be cut at version {version}: it can be cut at versions {first} to {last}")]
    NotThere {
        /// The version that was asked for.
        version: u64,
        /// The version behind which the log begins.
        first: u64,
        /// The last version that can be read.
        last: u64,
    },
    /// The log has no message of the version that is to be skipped.
    #[error(
        "the log holds versions {first} to {last}, and no version {version}: a log that ends before a command needs no word of it, its \
         node gets that with the command"
    )]
    NoSuchVersion {
        /// The version that was asked for.
        version: u64,
        /// The first version that the log holds.
        first: u64,
        /// The last version that the log holds.
        last: u64,
    },
    /// The version is skipped already.
    #[error("version {version} is skipped already: {reason}")]
    AlreadySkipped {
        /// The version.
        version: u64,
        /// The reason that was given then.
        reason: String,
    },
    /// A snapshot of the state on the disk has the command's effect.
    #[error(
        "the state at {snapshot}, which lies beside the log, includes version {version}, so this node has applied it: it can't be skipped \
         here. Where other members skip it, remove the log, and the node gets their state"
    )]
    IsApplied {
        /// The version.
        version: u64,
        /// The state's place.
        snapshot: Position,
    },
    /// The reason is empty, or too long.
    #[error("the reason has {0} bytes: give one of 1 to {max} bytes", max = MAX_REASON_BYTES)]
    Reason(usize),
    /// The log has as many skipped commands as can be.
    #[error("{max} commands of this log are skipped already, as many as can be: mend the program", max = MAX_SKIPS)]
    TooManySkips,
    /// A log that was given as a copy of this one belongs to another cluster, or to another shard.
    #[error(
        "{} is the log of another cluster, group or shard: give --from copies of the log that is to be repaired",
        path.display()
    )]
    OtherLog {
        /// The log's directory.
        path: PathBuf,
    },
    /// Damaged records lie before the version at which the log should end.
    #[error("{damage}, before version {version}: repair it from another member's log, or cut at version {after}")]
    DamagedBefore {
        /// The version that was asked for.
        version: u64,
        /// The version before the damage.
        after: u64,
        /// The first damage.
        damage: Box<Damage>,
    },
}

/// The place at which a log is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutAt {
    /// The place behind the message that has this version, and the views behind it.
    Version(u64),
    /// The place before the first damaged record, or before the first segment that is missing or can't be recognised.
    /// If there is neither, the cut is at the log's end, which then is settled.
    Damage,
}

/// A part of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem<'a> {
    /// A record that is good.
    Record(Record<'a>),
    /// Records that are damaged.
    Damage(Damage),
    /// Records that were acknowledged, and are missing at the log's end.
    Missing(Missing),
}

/// Shows all records of a log that can be read, of any cluster and shard, and names its damages, until `each` breaks
/// off. Nothing is changed. `is_live` is as for [`Log::look`].
///
/// Fails if the log can't be opened.
pub fn read<S: Storage + Clone>(
    storage: S,
    is_live: bool,
    mut each: impl FnMut(LogItem<'_>) -> ControlFlow<()>,
) -> Result<(), OfflineError> {
    let log = Log::look(storage, is_live)?.log;
    let mut reader = log.read(log.begin().position, Position::MAX)?;
    loop {
        let flow = match reader.next_record() {
            Ok(Some(record)) => each(LogItem::Record(record)),
            Ok(None) => break,
            Err(ReadError::Damaged(damage)) => each(LogItem::Damage(*damage)),
            Err(error) => return Err(error.into()),
        };
        if flow.is_break() {
            return Ok(());
        }
    }
    let damage = log.open_damage.clone().map(LogItem::Damage);
    // Nothing is left to break off.
    let _ = damage.into_iter().chain(log.missing().map(LogItem::Missing)).try_for_each(each);
    Ok(())
}

/// Ends a log before a segment that keeps it from being opened: one that is missing, can't be recognised, or is shorter
/// than it was. Returns false if the log can't be opened for another reason.
fn end_before_unreadable<S: Storage + Clone>(storage: &S, why: &OpenError) -> Result<bool, OpenError> {
    let (OpenError::Block(path) | OpenError::Missing(path) | OpenError::Mixed(path)) = why else { return Ok(false) };
    let failed = |source| OpenError::Io { path: storage.path(manifest::NAME), source };
    let Ok(log) = Manifest::read(storage).map_err(failed)? else { return Ok(false) };
    let Some(index) = (log.first..log.next).find(|&index| storage.path(&name(index)) == *path) else {
        return Ok(false);
    };
    let snapshots = snapshots(storage).map_err(|error| failed(io::Error::other(error)))?;
    if index == log.first && snapshots.iter().any(|&snapshot| snapshot > Position::START) {
        // No log would be left that these segments belong to.
        return Ok(false);
    }
    storage.list().and_then(|names| aside::finish(storage, &log, &names)).map_err(failed)?;
    let ended = match why {
        // It was cut, and is shorter still.
        OpenError::Mixed(_) if log.cut.is_some_and(|cut| cut.index == index) => {
            Manifest { cut: None, word: Some(OperatorVerdict::Doubtful), ..log }.write(storage)
        }
        _ => aside::set_aside_from(storage, log, index),
    };
    ended.map_err(failed)?;
    Ok(true)
}

/// Opens a log to change it, of any cluster and shard.
fn open<S: Storage + Clone>(storage: S, rng: &mut fastrand::Rng) -> Result<Opened<S>, OpenError> {
    let options = *Log::look(storage.clone(), false)?.log.options();
    Log::open(storage, options, rng)
}

/// Ends a log on an operator's word, durably. The records that go are set aside.
///
/// Records that were acknowledged behind that place are [`Missing`] from then on. So the log's node gets them from
/// another member, and the log counts for nothing until then. If the operator accepts the loss, the acknowledged mark
/// goes down instead, and the log is a whole one that is shorter.
///
/// Fails if the log can't be opened or written, if it does not reach that version, or if no snapshot of the state would
/// be left within it.
pub fn cut<S: Storage + Clone>(
    storage: S,
    at: CutAt,
    accepts_loss: bool,
    rng: &mut fastrand::Rng,
) -> Result<(CutOutcome, Option<Missing>), OfflineError> {
    let opened = loop {
        match open(storage.clone(), rng) {
            Err(error) if at == CutAt::Damage && end_before_unreadable(&storage, &error)? => {}
            opened => break opened?,
        }
    };
    let mut log = opened.log;
    let begin = log.begin();
    let to = match at {
        CutAt::Version(version) => version,
        CutAt::Damage => u64::MAX,
    };
    let snapshots = snapshots(&log.storage)?;
    // Damaged records before a snapshot are not needed to go on.
    let newest =
        snapshots.iter().rfind(|&&snapshot| snapshot <= log.persisted().position).copied().unwrap_or(Position::START);
    let mut end = begin;
    let start = RecordStart { segment: log.manifest.first, offset: RECORDS_AT, end: begin, record: 0 };
    let mut walk = log.extent().map(|extent| Walk::new(extent, start));
    while let Some(step) = walk.as_mut().map_or(Ok(None), |walk| walk.next(&log.storage))? {
        match step {
            WalkStep::Record { header, .. } if header.version <= to => end = header.reached(),
            WalkStep::Damage(damage) if at != CutAt::Damage && end.version < to => {
                let after = end.version;
                return Err(OfflineError::DamagedBefore { version: to, after, damage: Box::new(damage) });
            }
            WalkStep::Damage(damage) if damage.before.is_some_and(|before| before <= newest) => {}
            WalkStep::Record { .. } | WalkStep::Damage(_) => break,
        }
    }
    if at != CutAt::Damage && end.version != to {
        return Err(OfflineError::NotThere { version: to, first: begin.version, last: end.version });
    }
    let usable = begin.position..=end.position;
    let oldest = snapshots.iter().find(|&&snapshot| snapshot >= begin.position);
    if let Some(&oldest) = oldest.filter(|snapshot| begin != End::START && !usable.contains(snapshot)) {
        return Err(OfflineError::NoSnapshot { version: end.version, oldest });
    }
    let cut = log.cut_by(end.position, if accepts_loss { CutBy::Trust } else { CutBy::Operator })?;
    Ok((cut, log.missing()))
}

/// Repairs a log from other members' copies of it, as [`Log::repair_from`] does. The copies may be damaged, too, and
/// are only read.
///
/// Fails if the log or a copy can't be opened, if a copy is of another cluster or shard, or if the log can't be
/// written.
pub fn repair<S: Storage + Clone, T: Storage + Clone>(
    storage: S,
    others: impl IntoIterator<Item = T>,
    rng: &mut fastrand::Rng,
) -> Result<Repaired, OfflineError> {
    let mut log = open(storage, rng)?.log;
    let mut copies = Vec::new();
    for other in others {
        let copy = Log::look(other, false)?.log;
        let is_same = (copy.options().cluster, copy.options().shard) == (log.options().cluster, log.options().shard);
        if !is_same {
            return Err(OfflineError::OtherLog { path: copy.storage().path("") });
        }
        copies.push(copy);
    }
    Ok(log.repair_from(&copies)?)
}

/// Makes all members skip a command from now on, on an operator's word, durably: the record stays as it is. All
/// members' logs that hold it need the same word, while no node has them.
///
/// Refused where a snapshot of the state includes the command. Without a snapshot behind the command, a member that
/// takes up the state applies all that follows, so the command is skipped from the beginning.
pub fn skip<S: Storage + Clone>(
    storage: S,
    version: u64,
    time: Hlc,
    reason: &str,
    rng: &mut fastrand::Rng,
) -> Result<Skip, OfflineError> {
    let reason = reason.trim();
    if reason.is_empty() || reason.len() > MAX_REASON_BYTES {
        return Err(OfflineError::Reason(reason.len()));
    }
    let mut log = open(storage, rng)?.log;
    if let Some(skip) = log.skips().get(version) {
        return Err(OfflineError::AlreadySkipped { version, reason: skip.reason.clone() });
    }
    let (first, last) = (log.begin().version + 1, log.persisted().version);
    if !(first..=last).contains(&version) {
        return Err(OfflineError::NoSuchVersion { version, first, last });
    }
    let mut reader = log.read_behind(version - 1)?;
    let skip = loop {
        match reader.next_record()? {
            Some(record) if record.version == version && matches!(record.body, Body::Message { .. }) => {
                break Skip::new(&record, time, reason.to_owned());
            }
            Some(record) if record.version <= version => {}
            _ => break None,
        }
    };
    let skip = skip.ok_or(OfflineError::NoSuchVersion { version, first, last })?;
    if let Some(snapshot) = snapshots(&log.storage)?.into_iter().find(|&snapshot| snapshot > skip.position) {
        return Err(OfflineError::IsApplied { version, snapshot });
    }
    let skips = log.skips().with(skip.clone()).ok_or(OfflineError::TooManySkips)?;
    log.set_skips(skips)?;
    Ok(skip)
}
