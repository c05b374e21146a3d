//! The recovery of a node's durable groups from its disk when it starts.
//!
//! ```text
//! <storage>/view-log.redb        the node's part in the view log; the logs' owner, and the least generation of each
//! <storage>/logs/<group>/        a group's log, and snapshots of its state at places of the log
//! <storage>/logs/<group>.<n>/    as above, of shard n of a group with several
//! ```
//!
//! - *At start* ([`open`], [`begin`]) each log is opened, and its replica is brought from the newest good snapshot
//!   through the records that follow. Damage ends that: the replica must then be completed by another member.
//! - *In a restart* ([`HeldCopy`]) the node reports its copies, and a log that goes further than the agreed end is cut.
//! - *As a joiner* ([`offer`](crate::state_transfer::offer)) it gets the records that its log lacks from a member that
//!   has them, or another state.
//!
//! # An interrupted change
//!
//! A snapshot is written before the log that begins with it. Snapshots of places that the log does not have are removed
//! whenever it is opened. So a crash leaves the old log with its snapshots, or the new one with its own.

mod open;
pub(crate) mod rebuild;
mod repair;
pub(crate) mod replay;
#[cfg(all(test, not(squall_loom)))]
mod room_tests;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::path::{Path, PathBuf};

use squall_fabric::Fingerprint;
use squall_membership::{self as membership, ClusterId, HeldCopy, Skipped};
use squall_ordered::log::{Position, Skips};

use crate::durable::log_writer::DiskLog;

pub use self::open::RecoverError;
#[cfg(feature = "sim")]
pub(crate) use self::open::{Remembered, open};
pub(crate) use self::{
    open::{OpenedLog, claim, open_all},
    rebuild::{Rebuilt, begin},
    repair::repair,
    replay::{ReplayError, replay},
};

/// Returns the mark of a cluster's logs: its name, hashed to a number. It stays the same when an operator begins
/// another life of the cluster.
pub(crate) fn cluster_id(name: &str) -> ClusterId {
    let mut fingerprint = Fingerprint::default();
    ClusterId(fingerprint.text(name).value())
}

/// Returns the directory of a shard's log in a node's storage: `number` is the shard's, of `shards` in its group.
pub(crate) fn directory(storage: &Path, group: &str, number: u32, shards: u32) -> PathBuf {
    let name = if shards > 1 { format!("{group}.{number}") } else { group.to_owned() };
    storage.join("logs").join(name)
}

/// Returns a node's report of its copy of a shard, if it has anything. `is_kept`: the log was not begun anew, or has
/// been complete since.
///
/// Only the view log can tell whether the copy has all that was acknowledged: it knows since when the node was
/// complete.
pub(crate) fn held(rebuilt: &Rebuilt, is_kept: bool, log: &DiskLog) -> Option<HeldCopy> {
    let end = rebuilt.end?;
    let (acknowledged, trusted) = (log.acknowledged(), log.is_trusted());
    let complete = rebuilt.is_whole() && (is_kept || trusted) && !log.is_doubtful();
    let skipped = skipped(log.skips(), end.position);
    Some(HeldCopy { end: place(end.position), complete, version: Some(end.version), acknowledged, trusted, skipped })
}

/// Returns the commands before a log's end that no member applies, in membership's form.
pub(crate) fn skipped(skips: &Skips, end: Position) -> Skipped {
    let before = skips.before(end);
    let (commands, last) = (before.iter().count() as u32, before.iter().last().map_or(0, |skip| skip.version));
    Skipped { commands, last, digest: before.digest() }
}

/// Converts a place of a log to membership's form.
pub(crate) fn place(position: Position) -> membership::OrderEnd {
    membership::OrderEnd { epoch: position.epoch, seq: position.seq }
}

/// Converts a place in membership's form to a place of a log.
pub(crate) fn position(end: membership::OrderEnd) -> Position {
    Position::new(end.epoch, end.seq)
}
