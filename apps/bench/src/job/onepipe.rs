//! The job of each node of `squall-bench onepipe`.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::places::WorkerNode;

/// The length of three pauses: scatterings that were late are sent after the first measurement; throughput warms up
/// before the second; messages on their way come in after it.
pub(crate) const PAUSE_NANOS: u64 = 250_000_000;

/// The protocol that orders the scatterings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScatteringOrder {
    /// 1Pipe with best effort: timestamps, one phase
    Be,
    /// 1Pipe, reliable: timestamps, two phases
    R,
    /// The first node numbers all scatterings and passes them on
    Sequencer,
    /// Nodes send in turn
    Token,
    /// Logical clocks, exchanged as often as 1Pipe's barriers
    Lamport,
}

/// The job of one worker.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct OnePipeJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) order: ScatteringOrder,
    /// The size of each message.
    pub(crate) size_bytes: usize,
    /// The number of nodes that each scattering goes to.
    pub(crate) width: usize,
    pub(crate) ring_bytes: usize,
    /// Scatterings per second of each node while latency is measured.
    pub(crate) rate: f64,
    /// The time for which latency is measured, and then throughput, in nanoseconds.
    pub(crate) phase_nanos: u64,
}

/// One worker's measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Scattered {
    /// Messages that were delivered here while throughput was measured.
    pub(crate) delivered: u64,
    /// Scatterings that were due while latency was measured, and were not even sent after it.
    pub(crate) missed: u64,
    /// The length of the throughput measurement, in seconds.
    pub(crate) wall_seconds: f64,
    /// Processor time of its process meanwhile, in seconds.
    pub(crate) cpu_seconds: f64,
    /// A histogram of nanoseconds: (value, count).
    pub(crate) latencies: Vec<(u64, u64)>,
}
