//! What a benchmark's parent and its workers tell each other.
//!
//! The parent gives each worker its [`Work`] as an argument. Then the worker says [`Ready`](Said::Ready), the parent
//! answers with a [`Go`], and the worker says how it went: one line of JSON each. A worker whose input ends, stops. (Workers
//! that move bulk data agree among themselves when to go.)

use std::path::PathBuf;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use squall::Spin;

use super::{
    bulk::{BulkJob, Round},
    collectives::{CollectivesJob, Timed},
    failover::{FailoverJob, Recovered, Settled},
    onepipe::{OnePipeJob, Scattered},
    places::Place,
};

/// What a worker is given to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Work {
    Ordered(Job),
    Bulk(BulkJob),
    Collectives(CollectivesJob),
    OnePipe(OnePipeJob),
    Failover(FailoverJob),
}

/// Which nodes send.
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
    /// How many of so many nodes send; they are the first ones.
    pub(crate) fn of(self, nodes: u32) -> u32 {
        match self {
            Senders::All => nodes,
            Senders::Half => (nodes / 2).max(1),
            Senders::One => 1,
        }
    }
}

/// How a node's engine waits.
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

/// What one worker does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Unique to the run, so that no other run's nodes are met.
    pub(crate) cluster: String,
    /// This worker's node, from 0.
    pub(crate) node: u32,
    pub(crate) nodes: u32,
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
    /// None in shared memory.
    pub(crate) place: Option<Place>,
    /// What it does instead of sending messages whose replies nobody waits for.
    pub(crate) calls: Option<Calls>,
    /// This node's directory, if the group is durable.
    pub(crate) storage: Option<PathBuf>,
}

/// Threads that wait for their answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Calls {
    /// How many threads of a node call.
    pub(crate) callers: u32,
    /// How many calls each keeps under way.
    pub(crate) in_flight: u32,
    /// How many of a hundred are reads.
    pub(crate) reads_percent: u32,
    pub(crate) read_lease_ms: u64,
}

impl Job {
    pub(crate) fn sends(&self) -> bool {
        self.node < self.senders.of(self.nodes)
    }
}

/// Send from now on, and measure within this time, in nanoseconds of the host's boot clock.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Go {
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Said {
    /// Its group is formed.
    Ready,
    Done(Box<Outcome>),
    /// What it saw of each round of bulk data.
    Moved(Vec<Round>),
    /// What its operations took.
    Timed(Timed),
    /// What became of its scatterings.
    Scattered(Scattered),
    /// All nodes are full members of a view.
    Settled(Settled),
    /// Its caller goes on in a new view.
    Recovered(Recovered),
    /// The sentence says why it gave up.
    Failed(String),
}

/// What a worker measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// Messages delivered here within the time, whoever sent them.
    pub(crate) delivered: u64,
    /// Calls of this node that were answered within the time.
    pub(crate) answered: u64,
    /// How long that was, in seconds.
    pub(crate) wall_seconds: f64,
    /// Processor time that the whole process took in it, in seconds.
    pub(crate) cpu_seconds: f64,
    /// How often the process' threads gave up their cores in it.
    pub(crate) switches: u64,
    /// A histogram of nanoseconds: (value, how often).
    pub(crate) latencies: Vec<(u64, u64)>,
    /// The same, of how late the sending thread itself was.
    pub(crate) lateness: Vec<(u64, u64)>,
    /// What this node wrote to its log within the time.
    pub(crate) written: Written,
}

/// What a node wrote to its log; nothing if the group is not durable.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Written {
    pub(crate) records: u64,
    /// On disk.
    pub(crate) bytes: u64,
    /// Batches, each written and synced.
    pub(crate) syncs: u64,
}
