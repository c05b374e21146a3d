//! The messages between a benchmark's parent and its workers.
//!
//! The parent gives each worker its [`WorkerJob`] as an argument. The worker then says [`Ready`](WorkerReport::Ready),
//! the parent answers with a [`Go`], and the worker reports the outcome: one line of JSON each. A worker whose input
//! ends stops.
//! (Workers that move bulk data agree among themselves when to go.)

mod bulk;
mod collectives;
mod failover;
mod groups;
mod hostile;
mod onepipe;
mod shards;
mod transactions;

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use squall::Spin;

pub(crate) use self::{
    bulk::{BlockRoute, BulkJob, BulkRound, Touch, Touched},
    collectives::{By, CollectivesJob, Of, ROOT, Timed},
    failover::{FailoverJob, Recovered, Settled, Victim, WorkerCommand},
    groups::{Carried, CarriedEnd, CarriedRecord, GroupsCommand, GroupsJob},
    hostile::{Borne, Harm, HostileCommand, HostileJob, Role},
    onepipe::{OnePipeJob, PAUSE_NANOS, Scattered, ScatteringOrder},
    shards::{Called, ShardsCommand, ShardsJob},
    transactions::{StoreCommand, StoreShape, Transacted, TransactionsJob},
};
use crate::places::WorkerNode;

/// The name of a value on the command line.
pub(crate) fn spelt(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// The work of a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkerJob {
    Ordered(Job),
    Bulk(BulkJob),
    Collectives(CollectivesJob),
    OnePipe(OnePipeJob),
    Failover(FailoverJob),
    Hostile(HostileJob),
    Transactions(TransactionsJob),
    Shards(ShardsJob),
    Groups(GroupsJob),
}

/// The nodes that send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Senders {
    /// Every node
    All,
    /// The first half of the nodes
    Half,
    /// The first node only
    One,
}

impl Senders {
    /// The number of senders among `nodes` nodes; they are the first ones.
    pub(crate) fn of(self, nodes: u32) -> u32 {
        match self {
            Senders::All => nodes,
            Senders::Half => (nodes / 2).max(1),
            Senders::One => 1,
        }
    }
}

/// The waiting policy of a node's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Spinning {
    /// Spin for a moment where each node can have a core, else yield, then sleep
    Auto,
    /// Never sleep
    Always,
    /// Sleep as soon as there is nothing to do
    Never,
}

impl From<Spinning> for Spin {
    fn from(spinning: Spinning) -> Spin {
        match spinning {
            Spinning::Auto => Spin::Auto,
            Spinning::Always => Spin::Always,
            Spinning::Never => Spin::Never,
        }
    }
}

/// The `bulk_reserve` that a configuration has by default.
pub(crate) const DEFAULT_BULK_RESERVE: usize = 64 << 20;

/// The job of one worker.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct Job {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) senders: Senders,
    pub(crate) size_bytes: usize,
    pub(crate) ring_bytes: usize,
    pub(crate) bulk_threshold: usize,
    pub(crate) bulk_reserve: usize,
    /// The most messages of this node that are not delivered here yet.
    pub(crate) window: usize,
    /// Messages per second of this node; None for as many as the window lets through.
    pub(crate) rate: Option<f64>,
    pub(crate) spin: Spinning,
    /// The calls that it makes, instead of sending messages whose replies no thread waits for.
    pub(crate) calls: Option<Calls>,
    /// This node's directory, if the group is durable.
    pub(crate) storage: Option<PathBuf>,
}

/// Threads that wait for their answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Calls {
    /// The number of threads of a node that call.
    pub(crate) callers: u32,
    /// The number of calls that each keeps under way.
    pub(crate) in_flight: u32,
    /// The number of reads among a hundred calls.
    pub(crate) reads_percent: u32,
    pub(crate) read_lease_ms: u64,
}

impl Job {
    pub(crate) fn sends(&self) -> bool {
        self.node < self.senders.of(self.nodes)
    }
}

/// A span to measure, in nanoseconds of the host's boot clock. Workers send from its receipt on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// A line that a worker says to its parent.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::TryInto)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WorkerReport {
    /// Its group is formed.
    Ready,
    Done(Box<WorkerMeasurements>),
    /// Its measurements of each round of bulk data.
    Moved(Vec<BulkRound>),
    /// The times of its operations.
    Timed(Timed),
    /// The outcome of its scatterings.
    Scattered(Scattered),
    /// The membership of all nodes in a view, as full members.
    Settled(Settled),
    /// Its caller goes on in a new view.
    Recovered(Recovered),
    /// The experience of its caller with a hostile member.
    Borne(Borne),
    /// The latencies of its caller.
    Called(Called),
    /// The outcome of its transactions.
    Transacted(Transacted),
    /// The outcome of its transactions over the shards of a group.
    Carried(Carried),
    /// The end of its part of the history, which it has written down.
    Recorded,
    /// A failure; the sentence says why.
    Failed(String),
}

/// One worker's measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerMeasurements {
    /// Messages of all senders that were delivered here within the time.
    pub(crate) delivered: u64,
    /// Calls of this node that were answered within the time.
    pub(crate) answered: u64,
    /// The length of that time, in seconds.
    pub(crate) wall_seconds: f64,
    /// Processor time that the whole process took in it, in seconds.
    pub(crate) cpu_seconds: f64,
    /// The number of times that the process' threads gave up their cores in it.
    pub(crate) switches: u64,
    /// A histogram of nanoseconds: (value, count).
    pub(crate) latencies: Vec<(u64, u64)>,
    /// The same, of the sending thread's own lateness.
    pub(crate) lateness: Vec<(u64, u64)>,
    /// The records that this node wrote to its log within the time.
    pub(crate) written: Written,
}

/// A node's writes to its log; nothing if the group is not durable.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) records: u64,
    /// The bytes on disk.
    pub(crate) bytes: u64,
    /// Batches, each written and synced.
    pub(crate) syncs: u64,
}
