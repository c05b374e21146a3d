//! The messages between sources and receivers.

use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

use super::super::{
    manifest::RawEntry,
    sink::{Outcome, SinkOptions, Verdict},
};

/// The most verdicts in one message.
pub(crate) const MAX_VERDICTS: usize = 4096;

/// The most addresses, and the most interrupted segments, in one message: more than any transfer has.
const MAX_LISTED: usize = 1 << 16;

/// A message of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToReceiver {
    /// The transfer that it would like to send. The first message.
    Offer(Offer),
    /// Take part in a group.
    Join(Join),
    /// The verdicts on files, by entry.
    Verdicts(#[serde(deserialize_with = "at_most::<MAX_VERDICTS, _, _>")] Vec<(u32, Verdict)>),
    /// The end: all contents and verdicts are sent.
    Finish,
    /// The source sends no more, for this reason.
    Abort(String),
}

/// A message of a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToSource {
    /// The receiver takes part, and holds this already.
    Ready(Holding),
    /// The receiver does not take part, for this reason.
    Refused(String),
    /// The number of bytes of the stream that are written.
    Progress { written: u64 },
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
    /// The address of each receiver, as the source found it, over a network.
    #[serde(deserialize_with = "at_most::<MAX_LISTED, _, _>")]
    pub(crate) receivers: Vec<Address>,
    /// Whether to continue where an earlier attempt stopped.
    pub(crate) resume: bool,
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
    /// The members by rank; the source first.
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

/// The part of a transfer that a receiver holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// The number of segments, from the first.
    pub(crate) segments: u64,
    /// Segments beyond those, of which it holds some blocks.
    #[serde(deserialize_with = "at_most::<MAX_LISTED, _, _>")]
    pub(crate) partial: Vec<u64>,
    /// The entry before which it needs no verdicts.
    pub(crate) first_open: u32,
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
