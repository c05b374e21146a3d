//! The jobs of `squall-bench transactions --groups`: of members, and of clients.

use serde::{Deserialize, Serialize};

use super::{Go, StoreShape};
use crate::places::WorkerNode;

/// The job of one process: a member, or a client.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct GroupsJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) shape: StoreShape,
    pub(crate) seed: u64,
    /// The client's number; None of a member.
    pub(crate) client: Option<u64>,
    /// Whether the client keeps what it sees.
    pub(crate) record: bool,
}

/// A command to a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GroupsCommand {
    /// Members: say [`Settled`](super::WorkerReport::Settled) once all nodes are members and all shards have their
    /// replicas.
    Settle,
    /// Clients: submit transactions until the time is over, and say [`Carried`](super::WorkerReport::Carried).
    Begin(Go),
}

/// A client's measurements, and its part of the history.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Carried {
    /// A histogram of nanoseconds: (value, count).
    pub(crate) latencies: Vec<(u64, u64)>,
    pub(crate) records: Vec<CarriedRecord>,
    /// The number of transactions without a known outcome, and one of their errors.
    pub(crate) unknown: u64,
    pub(crate) trouble: Option<String>,
}

/// A transaction as its client saw it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CarriedRecord {
    pub(crate) number: u64,
    pub(crate) submitted: u64,
    pub(crate) ended: u64,
    pub(crate) end: CarriedEnd,
}

/// A client's knowledge of a transaction's end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CarriedEnd {
    /// The version and the last writer of each of its keys.
    Applied(Vec<(u64, u64)>),
    Refused,
    Unknown,
}
