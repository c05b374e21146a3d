//! The job of each node of `squall-bench transactions`.

use std::path::PathBuf;

use clap::{Args, value_parser};
use serde::{Deserialize, Serialize};
use squall_transactions::Placement;

use super::Go;

/// The size of a store, and of its clients' work.
#[derive(Clone, Debug, Args, Serialize, Deserialize)]
pub(crate) struct StoreShape {
    /// The number of nodes
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u32).range(1..=32))]
    pub(crate) nodes: u32,
    /// The number of shards [default: as many as nodes]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    pub(crate) shards: Option<u32>,
    /// The number of nodes that have a copy of each shard
    #[arg(long, value_name = "N", default_value = "2", value_parser = value_parser!(u32).range(1..))]
    pub(crate) replicas: u32,
    /// The number of accounts between which money is moved
    #[arg(long, value_name = "N", default_value = "64", value_parser = value_parser!(u32).range(2..=128))]
    pub(crate) accounts: u32,
    /// The number of transactions that each client has under way at a time
    #[arg(long, value_name = "W", default_value = "16", value_parser = value_parser!(u32).range(1..=4096))]
    pub(crate) window: u32,
}

impl StoreShape {
    pub(crate) fn shards(&self) -> u32 {
        self.shards.unwrap_or(self.nodes)
    }

    pub(crate) fn placement(&self) -> Result<Placement, String> {
        let placement = Placement::new(self.nodes as usize, self.shards(), self.replicas as usize);
        placement.map_err(|error| error.to_string())
    }
}

/// The job of one node.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TransactionsJob {
    /// Unique to the run.
    pub(crate) cluster: String,
    /// This worker's node, from 0, which is also its rank.
    pub(crate) node: u32,
    pub(crate) shape: StoreShape,
    pub(crate) seed: u64,
    /// Whether what the client sees is recorded.
    pub(crate) record: bool,
}

/// A command to a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreCommand {
    /// Submit transactions until the time is over, and say [`Transacted`](super::WorkerReport::Transacted).
    Begin(Go),
    /// Write down what was recorded, into this directory, and say [`Recorded`](super::WorkerReport::Recorded).
    Record(PathBuf),
}

/// One worker's measurements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Transacted {
    /// A histogram of nanoseconds: (value, count).
    pub(crate) latencies: Vec<(u64, u64)>,
    /// The number of readings of all accounts. `wrong_sums` counts those that found another sum.
    pub(crate) read_all: u64,
    pub(crate) wrong_sums: u64,
    /// The ranks that it goes on without, and the times from which it does, in nanoseconds of the host's boot clock.
    pub(crate) removed: Vec<(usize, u64)>,
}
