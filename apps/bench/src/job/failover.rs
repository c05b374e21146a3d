//! The job of each node of `squall-bench failover`, and its parent's commands.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::places::WorkerNode;

/// The member that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Victim {
    /// The member of the lowest rank, which leads view changes
    Leader,
    /// The member of the highest rank
    Follower,
}

/// The job of one node of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct FailoverJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) failure_timeout_ms: u64,
}

/// A command to a worker.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkerCommand {
    /// Say [`Settled`](super::WorkerReport::Settled) once all nodes are full members of one view.
    Settle,
    /// Say [`Recovered`](super::WorkerReport::Recovered) once the caller has an answer of a view after this epoch.
    Recover { after: u64 },
}

/// A settled view.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settled {
    pub(crate) epoch: u64,
    /// The nodes, by rank.
    pub(crate) nodes: Vec<u32>,
}

/// The times of a view change at one node, in nanoseconds of the host's boot clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Recovered {
    pub(crate) suspected: u64,
    pub(crate) wedged: u64,
    pub(crate) decided: u64,
    pub(crate) installed: u64,
    pub(crate) answered: u64,
}
