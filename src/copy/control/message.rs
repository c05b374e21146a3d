//! The messages.

use rkyv::{Archive, Deserialize, Serialize};

use super::super::{
    manifest::RawEntry,
    sink::{Outcome, SinkOptions, Verdict},
};

/// What a source says.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) enum ToReceiver {
    /// What it would like to send. The first message.
    Offer(Offer),
    /// Take part in a group.
    Join(Join),
    /// What files turned out to be, by entry.
    Verdicts(Vec<(u32, Verdict)>),
    /// All contents and verdicts are sent.
    Finish,
    /// There will be no more, and why.
    Abort(String),
}

/// What a receiver says.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) enum ToSource {
    /// It takes part, and holds this already.
    Ready(Holding),
    /// It does not, and why.
    Refused(String),
    /// So many bytes of the stream are written.
    Progress { written: u64 },
    /// A group is over for it.
    Over(Over),
    /// It can't write any more, and why: it leaves.
    Failed(String),
    /// It has finished.
    Done(Report),
}

/// A transfer that is offered.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) entries: Vec<RawEntry>,
    pub(crate) segment_bytes: u64,
    pub(crate) options: SinkOptions,
    /// Over a network: where each receiver is found, as the source found it.
    pub(crate) receivers: Vec<Address>,
    /// Go on where an earlier attempt stopped.
    pub(crate) resume: bool,
}

/// Where a node is found.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Address {
    pub(crate) node: u32,
    pub(crate) at: String,
}

/// A group that moves segments `first..end`, a message each.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Join {
    pub(crate) group: u32,
    pub(crate) instance: u64,
    /// By rank; the source first.
    pub(crate) members: Vec<u32>,
    pub(crate) algorithm: Layer,
    /// The members are on several hosts.
    pub(crate) network: bool,
    pub(crate) block_bytes: u64,
    pub(crate) first: u64,
    pub(crate) end: u64,
    /// Some members hold blocks of the one segment: only what is missing moves.
    pub(crate) partial: bool,
}

/// An [`Algorithm`](squall_rdmc::schedule::Algorithm), by name.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) name: String,
    /// The rack of each rank, if racks were given.
    pub(crate) racks: Vec<u32>,
}

/// What a receiver holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// So many segments, from the first.
    pub(crate) segments: u64,
    /// Segments beyond those, of which it holds some blocks.
    pub(crate) partial: Vec<u64>,
    /// It needs no verdicts of entries before this one.
    pub(crate) first_open: u32,
}

/// How a group ended.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Over {
    pub(crate) instance: u64,
    pub(crate) holding: Holding,
    /// Why it failed, if it did, and who is thought to be the cause.
    pub(crate) failure: Option<(Option<u32>, String)>,
}

/// How a transfer went at a receiver.
#[derive(Clone, Debug, PartialEq, Eq, Archive, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) outcome: Outcome,
    /// Bytes that came by RDMC since the offer.
    pub(crate) moved: u64,
}
