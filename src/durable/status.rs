//! The status of a durable group's log at a node.

use serde::{Deserialize, Serialize};

/// A durable group's log at a node. Times are nanoseconds since 1970 (UTC).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStatus {
    /// The first version that can be read here.
    pub first: u64,
    /// A bound: no command before the first version is later than this.
    pub begins_at_ns: u64,
    /// The last version that is on this node's disk.
    pub last: u64,
    /// The time of the last version.
    pub ends_at_ns: u64,
    /// The last globally persisted version: all members have it on disk, as far as this node knows.
    pub globally_persisted: u64,
    /// The approximate size of its segments' contents, in bytes.
    pub bytes: u64,
    /// The version of the newest snapshot of the state.
    pub snapshot: Option<u64>,
    /// The size of all snapshots, in bytes.
    pub snapshots_bytes: u64,
    /// Whether a snapshot was due while the one before was still being taken. If taking it hangs, no log is trimmed
    /// until that goes on.
    #[serde(default)]
    pub snapshot_late: bool,
    /// Records that were written since the node's start: messages, and few views.
    pub records: u64,
    /// Their size on disk, in bytes.
    pub written_bytes: u64,
    /// The number of times that the disk was asked to make records durable, each time for a batch of them.
    pub syncs: u64,
    /// The reason for which nothing more is written, if that is so.
    pub failure: Option<String>,
    /// The reason for which records wait that the group has delivered, while the disk has no room for them.
    pub no_room: Option<String>,
    /// The damage that was found on the disk while the node runs, and is not repaired yet, in words.
    pub damaged: Vec<String>,
    /// The number of damages that were repaired from other members' logs while the node runs.
    pub repaired: u64,
    /// The search for damage.
    pub scrub: ScrubStatus,
    /// Records, acknowledged or not, that a cut or a new beginning took away: they are kept beside the log.
    pub asides: Vec<AsideStatus>,
}

/// Records that are kept beside a log, which has them no more. They appear here within a second after they were taken
/// away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsideStatus {
    /// The name.
    pub name: String,
    /// The log's directory at its node.
    pub directory: String,
    /// The version of the first message. It may still be in the log, too.
    pub first: u64,
    /// The version of the last message.
    pub last: u64,
    /// The room that they take, in bytes.
    pub bytes: u64,
}

/// The search for damage in a log while its node runs. The log is read from its beginning to its end, again and again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// The average rate, in bytes per second; 0 if nothing is read.
    pub bytes_per_second: u64,
    /// The bytes that were read since it last began at the beginning.
    pub read_bytes: u64,
    /// The approximate size of the log when it began there, in bytes.
    pub of_bytes: u64,
    /// The number of times that it came to the end since the node's start.
    pub passes: u64,
    /// The last time that it came to the end, in nanoseconds since 1970 (UTC); 0 if it has not.
    pub ended_at_ns: u64,
    /// The number of damages that it has found since the node's start, those that are repaired included.
    pub found: u64,
}

/// The outcome of a log's damages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScrubReport {
    /// The damages that are left, in words.
    pub(crate) damaged: Vec<String>,
    /// The number of damages that were repaired while the node runs.
    pub(crate) repaired: u64,
    /// The search.
    pub(crate) scrub: ScrubStatus,
}
