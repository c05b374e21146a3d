//! The messages between sources and receivers.

use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

use super::super::{
    chunks::Chunk,
    extent::PlanPart,
    manifest::RawEntry,
    plan::Holding,
    sink::{Lacking, Outcome, SinkOptions, Verdict},
};

/// The most verdicts in one message.
pub(crate) const MAX_VERDICTS: usize = 4096;

/// The most open files in one message.
pub(crate) const MAX_FILES: usize = 32;

/// The most open files that a receiver has been handed, and not copied yet: while it copies those of one message, the
/// next comes.
pub(crate) const MAX_HANDED: usize = 2 * MAX_FILES;

/// The most parts of a plan in one message: more than any plan has.
const MAX_PARTS: usize = 64;

/// The most addresses, and the most interrupted segments, in one message: more than any transfer has.
const MAX_LISTED: usize = 1 << 16;

/// A message of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToReceiver {
    /// The transfer that it would like to send. The first message.
    Offer(Offer),
    /// The chunks of a file of which the receiver has another version; none if it could not be read.
    Chunks { entry: u32, chunks: Vec<Chunk> },
    /// The extents that are sent from now on, and their receivers. Segments are counted from its beginning.
    Plan {
        /// The address of each receiver, as the source found it, over a network.
        #[serde(deserialize_with = "at_most::<MAX_LISTED, _, _>")]
        receivers: Vec<Address>,
        #[serde(deserialize_with = "at_most::<MAX_PARTS, _, _>")]
        parts: Vec<PlanPart>,
    },
    /// Take part in a group. The receiver that is its first member sends the segments, which it has.
    Join(Join),
    /// Leave a group in which a receiver sends, or do not join it.
    EndGroup { instance: u64 },
    /// The verdicts on files, by entry.
    Verdicts(#[serde(deserialize_with = "at_most::<MAX_VERDICTS, _, _>")] Vec<(u32, Verdict)>),
    /// Files that the receiver lacks, for it to copy: open, and their descriptors come along.
    Files(#[serde(deserialize_with = "at_most::<MAX_FILES, _, _>")] Vec<HandedFile>),
    /// The end: all contents and verdicts are sent.
    Finish,
    /// The source sends no more, for this reason.
    Abort(String),
    /// The source wanted to know only what the receiver lacks.
    Leave,
}

/// A message of a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToSource {
    /// The receiver takes part, and lacks this.
    Ready(Lacking),
    /// The ranges that it lacks of a file whose chunks it was told, in order: the offset of each, and its length.
    Missing { entry: u32, ranges: Vec<(u64, u64)> },
    /// The receiver does not take part, for this reason.
    Refused(String),
    /// The number of bytes that are written, of those that it lacked.
    Progress { written: u64 },
    /// The receiver has copied so many of the files that it was handed, or can't, and needs them no more.
    Copied { files: u32 },
    /// A group is over for the receiver.
    Over(Over),
    /// The receiver can't write any more, for this reason: it leaves.
    Failed(String),
    /// The receiver has finished.
    Done(Report),
}

/// A transfer that is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) entries: Vec<RawEntry>,
    pub(crate) segment_bytes: u64,
    pub(crate) options: SinkOptions,
}

/// A file of the source, open for a receiver that copies it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandedFile {
    pub(crate) entry: u32,
    /// The hash that it must have when it is copied, if the source has read it; or the reason for which it can't be.
    pub(crate) verdict: Option<Verdict>,
}

/// A message of a conversation on which open files may come along.
pub(crate) trait Message {
    /// Returns the number of open files that come along.
    fn files(&self) -> usize;
}

impl Message for ToReceiver {
    fn files(&self) -> usize {
        let ToReceiver::Files(files) = self else { return 0 };
        files.iter().filter(|file| !matches!(file.verdict, Some(Verdict::Damaged(_)))).count()
    }
}

impl Message for ToSource {
    fn files(&self) -> usize {
        0
    }
}

/// The address of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) node: u32,
    pub(crate) at: String,
}

/// A group that moves segments `first..end`, a message each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) group: u32,
    pub(crate) instance: u64,
    /// The members by rank: first the one that sends, which is the source, or a receiver in its place.
    pub(crate) members: Vec<u32>,
    pub(crate) algorithm: Layer,
    /// Whether the members are on several hosts.
    pub(crate) network: bool,
    pub(crate) block_bytes: u64,
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Whether some members hold blocks of the one segment: then only missing blocks move.
    pub(crate) partial: bool,
}

/// An [`Algorithm`](squall_rdmc::schedule::Algorithm), by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) name: String,
    /// The rack of each rank, if racks were given.
    pub(crate) racks: Vec<u32>,
}

/// The end of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Over {
    pub(crate) instance: u64,
    pub(crate) holding: Holding,
    /// The reason of its failure, if it failed, and the node that is thought to be the cause.
    pub(crate) failure: Option<(Option<u32>, String)>,
}

/// The outcome of a transfer at a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// Bytes that came by RDMC since the offer.
    pub(crate) moved: u64,
}
