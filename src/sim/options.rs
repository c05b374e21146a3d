//! What a simulated cluster is like.

use std::time::Duration;

use squall_fabric::sim::SimConfig;

/// What a simulated cluster is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// The network.
    pub net: SimConfig,
    /// A node acts on what it sees within this time, at random: threads don't run at once.
    pub step_delay: Duration,
    /// An application is called within this time after a message may be delivered, at random.
    pub delivery_delay: Duration,
    /// The first bytes of a replica's state take within this time from one node to another, at random; each further chunk within a
    /// quarter of that.
    pub transfer_delay: Duration,
    /// By how much the rate of a node's clock is off at most, in millionths; clocks also begin anywhere within a minute.
    pub clock_drift: u32,
    /// The view log takes within this time for a question or an answer, at random.
    pub log_delay: Duration,
    /// What decides on views.
    pub view_log: Decider,
    /// The size of a segment of a durable group's log, in bytes: as [`squall_ordered::log::Options`].
    pub segment_bytes: u64,
    /// How much of such a log is written at once, in bytes.
    pub batch_bytes: usize,
    /// The bytes of such logs that a node reads again per second, to find and repair what its disk has damaged; 0: none.
    pub scrub_bytes_per_second: u64,
}

/// What decides on views in a simulated cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decider {
    /// A script, that decides as long as a majority of voters reach each other: cheap, and harsher than Raft in what it tells
    /// to whom and when.
    #[default]
    Scripted,
    /// Raft, as in earnest. A node's part ends with its process.
    Raft,
    /// Raft. Each node has a disk, which loses what it had not synced when the node crashes. Durable groups need it.
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
            view_log: Decider::Scripted,
            segment_bytes: 64 << 10,
            batch_bytes: 16 << 10,
            scrub_bytes_per_second: 0,
        }
    }
}
