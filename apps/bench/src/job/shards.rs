//! The job of each node of `squall-bench shards`, and its parent's commands.

use serde::{Deserialize, Serialize};

use crate::places::WorkerNode;

/// The job of one node of the benchmark.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct ShardsJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) shards: u32,
    pub(crate) replicas: u32,
    pub(crate) failure_timeout_ms: u64,
}

/// A command to a node.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ShardsCommand {
    /// Say [`Settled`](super::WorkerReport::Settled) once all nodes are members, and all shards have their replicas.
    Settle,
    /// Let one caller of this node submit to a shard, and say [`Called`](super::WorkerReport::Called).
    Call { node: u32, is_own: bool, nanos: u64 },
    /// Let this node leave the group.
    Leave { node: u32 },
}

/// The latencies of a node's caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Called {
    /// A histogram of nanoseconds: (value, count).
    pub(crate) latencies: Vec<(u64, u64)>,
}
