//! The settings of a simulated cluster.

use std::time::Duration;

use squall_fabric::sim::SimConfig;

/// The settings of a simulated cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network.
    pub net: SimConfig,
    /// The longest time within which a node acts on what it sees; the time is random. Threads don't run at once.
    pub step_delay: Duration,
    /// The longest time from when a message may be delivered until the application is called; the time is random.
    pub delivery_delay: Duration,
    /// The longest time that the first bytes of a replica's state take from one node to another; the time is random.
    /// Each further chunk takes up to a quarter of that.
    pub transfer_delay: Duration,
    /// The largest error of the rate of a node's clock, in millionths. A clock also begins at a random reading within a
    /// minute.
    pub clock_drift: u32,
    /// The longest time that the view log takes for a question or an answer; the time is random.
    pub log_delay: Duration,
    /// The mechanism that decides on views.
    pub view_log: ViewLogKind,
    /// The size of a segment of a durable group's log, in bytes: as in [`squall_ordered::log::Options`].
    pub segment_bytes: u64,
    /// The number of bytes of such a log that are written at once.
    pub batch_bytes: usize,
    /// The bytes of such logs that a node reads again per second, to find and repair what its disk has damaged. With 0,
    /// it reads none.
    pub scrub_bytes_per_second: u64,
}

/// The mechanism that decides on views in a simulated cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViewLogKind {
    /// A script, which decides as long as a majority of voters reach each other. It is cheap, and harsher than Raft in
    /// what it tells to which node, and at which time.
    #[default]
    Scripted,
    /// Raft, as in a real cluster. A node's part ends with its process.
    Raft,
    /// Raft, with a disk for each node, which loses what it had not synced when the node crashes. Durable groups need
    /// it.
    RaftOnDisks,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            net: SimConfig::fast(),
            step_delay: Duration::from_micros(1),
            delivery_delay: Duration::from_micros(3),
            transfer_delay: Duration::from_micros(500),
            clock_drift: 83_000,
            log_delay: Duration::from_micros(100),
            view_log: ViewLogKind::Scripted,
            segment_bytes: 64 << 10,
            batch_bytes: 16 << 10,
            scrub_bytes_per_second: 0,
        }
    }
}
