//! What a node with durable groups finds on its disk when it starts, and what it does with it.
//!
//! ```text
//! <storage>/view-log.redb        the node's part in the view log; whose the logs beside it are, and how old at least
//! <storage>/logs/<group>/        a group's log, and images of its state at places of the log
//! <storage>/logs/<group>.<n>/    as above, of shard n of a group with several
//! ```
//!
//! - *At start* ([`open`], [`begin`]) each log is opened, and its replica is taken from the newest good image through all
//!   that follows. What is damaged ends that: the replica is then to be completed by another member.
//! - *In a restart* ([`Held`]) the node tells what it has, and a log that goes further than all agree on is cut.
//! - *As a joiner* ([`suffix`]) it gets what its log lacks from a member that has it, or another state.
//!
//! # An interrupted change
//!
//! An image is written before the log that begins with it, and those of places that the log has not are removed whenever it is
//! opened. So a crash leaves the old log with its images, or the new one with its own.

pub(crate) mod anew;
mod image;
mod open;
mod rebuild;
mod repair;
mod replay;
mod suffix;
mod take;
#[cfg(all(test, not(squall_loom)))]
mod tests;

use std::path::{Path, PathBuf};

use squall_fabric::Fingerprint;
use squall_membership::{self as membership, ClusterId, Held, Skipped};
use squall_ordered::log::{Position, Skips};

use crate::journal::DiskLog;

pub use self::open::RecoverError;
pub(crate) use self::{
    image::{LastView, Shelf},
    open::{OpenedLog, Remembered, claim, open, open_all},
    rebuild::{Rebuilt, begin},
    repair::repair,
    replay::{ReplayError, replay},
    suffix::{Plan, offer},
    take::{Repair, Taker},
};

/// What a cluster's logs are marked with: its name, in a number. So it stays when an operator begins another life of it.
pub(crate) fn cluster_id(name: &str) -> ClusterId {
    let mut fingerprint = Fingerprint::default();
    ClusterId(fingerprint.text(name).value())
}

/// Where a group's shard has its log: the one with this number of so many, in a node's directory.
pub(crate) fn directory(storage: &Path, group: &str, number: u32, shards: u32) -> PathBuf {
    let name = if shards > 1 { format!("{group}.{number}") } else { group.to_owned() };
    storage.join("logs").join(name)
}

/// A node's report of its copy of a shard, if it has anything. `is_kept`: the log was not begun anew, or has been complete since.
///
/// Whether the copy has all that was acknowledged only the view log can tell, which knows since when the node was complete.
pub(crate) fn held(rebuilt: &Rebuilt, is_kept: bool, log: &DiskLog) -> Option<Held> {
    let end = rebuilt.end?;
    let (acknowledged, trusted) = (log.acknowledged(), log.is_trusted());
    let complete = rebuilt.is_whole() && (is_kept || trusted) && !log.is_doubtful();
    let skipped = skipped(log.skips(), end.position);
    Some(Held { end: place(end.position), complete, version: Some(end.version), acknowledged, trusted, skipped })
}

/// The commands before a log's end that nobody applies, as membership has them.
fn skipped(skips: &Skips, end: Position) -> Skipped {
    let before = skips.before(end);
    let (commands, last) = (before.iter().count() as u32, before.iter().last().map_or(0, |skip| skip.version));
    Skipped { commands, last, digest: before.digest() }
}

/// A place of a log, as membership has it.
pub(crate) fn place(position: Position) -> membership::End {
    membership::End { epoch: position.epoch, seq: position.seq }
}

/// The same the other way round.
pub(crate) fn position(end: membership::End) -> Position {
    Position::new(end.epoch, end.seq)
}
