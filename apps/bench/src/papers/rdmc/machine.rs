//! The papers' machines, and one multicast on them.

use std::time::Duration;

use squall::{
    NodeId,
    sim::{
        SimConfig,
        bulk::{BulkCluster, BulkError, BulkGroup, Multicast},
    },
};
use squall_fabric::sim::Racks;
use squall_rdmc::schedule::Algorithm;

/// The binary megabyte of block and message sizes: 256 MB in blocks of 1 MB are 256 blocks (§5.2.1).
pub(super) const MB: usize = 1 << 20;

/// A gigabit per second, in bytes per second.
const GBIT: u64 = 125_000_000;

/// The time from the first bit at one interface to the first at the other, through one switch. A small RDMA write takes
/// 1 to 2 µs on such hardware, most of it in the two NICs; the paper gives no figure.
const ONE_SWITCH: Duration = Duration::from_nanos(1500);

/// The same through Sierra's two stages of switches (§5.1): three switches instead of one, about 150 ns each.
const TWO_STAGES: Duration = Duration::from_nanos(1800);

/// The time of a node's software from a completion to the next post. Of 449 µs that Table 1 spends waiting during 256
/// blocks, about 100 are one preemption (§5.2.1). The rest is 1.4 µs for each block.
const TURN: Duration = Duration::from_nanos(1400);

/// The portions in which large operations that meet at a port share it, in bytes. They are coarser than the packets of
/// a NIC that serves its queue pairs in turn, and fine enough beside blocks.
const SEGMENT: usize = 64 << 10;

/// Apt: the rate of each node of a loaded rack through the top-of-rack switch (§5.1), in bytes per second.
const APT_LOADED: u64 = 16 * GBIT;

/// Apt: the number of nodes that share an uplink. The paper does not say; small racks let a group of 16 meet the limit.
const APT_RACK: u32 = 8;

/// A cluster that the papers measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    /// The rate of a node's interface, in each direction, in bytes per second.
    pub(super) bytes_per_s: u64,
    latency: Duration,
    pub(super) turn: Duration,
    pub(super) racks: Option<Racks>,
}

/// 16 nodes, 100 Gb/s, one switch, full bisection (§5.1).
pub(super) const FRACTUS: Machine =
    Machine { name: "Fractus", bytes_per_s: 100 * GBIT, latency: ONE_SWITCH, turn: TURN, racks: None };

/// Sierra: up to 512 nodes of a fat tree, 40 Gb/s (§5.1).
pub(super) const SIERRA: Machine =
    Machine { name: "Sierra", bytes_per_s: 40 * GBIT, latency: TWO_STAGES, turn: TURN, racks: None };

/// Nodes with 56 Gb/s in racks with oversubscribed uplinks (§5.1).
pub(super) const APT: Machine = Machine {
    name: "Apt",
    bytes_per_s: 56 * GBIT,
    latency: ONE_SWITCH,
    turn: TURN,
    racks: Some(Racks { nodes_per_rack: APT_RACK, uplink_bytes_per_s: APT_RACK as u64 * APT_LOADED }),
};

/// A network of the theory: 100 Gb/s, a latency of 100 ns, software that takes no time. For the bounds of §4.5, which
/// count block times only.
pub(super) const THEORY: Machine = Machine {
    name: "theory",
    bytes_per_s: 100 * GBIT,
    latency: Duration::from_nanos(100),
    turn: Duration::ZERO,
    racks: None,
};

impl Machine {
    /// A cluster of such nodes.
    pub(super) fn cluster(&self, nodes: u32, seed: u64) -> BulkCluster {
        BulkCluster::new(nodes, self.network(), self.turn, seed)
    }

    /// The network of such nodes.
    pub(super) fn network(&self) -> SimConfig {
        let mut config = SimConfig::ideal(self.bytes_per_s, self.latency);
        config.racks = self.racks;
        config.segment_bytes = SEGMENT;
        config
    }

    /// The time in which one node sends `bytes`, at the rate of its interface, in seconds.
    pub(super) fn time_of(&self, bytes: usize) -> f64 {
        bytes as f64 / self.bytes_per_s as f64
    }

    /// The time from the send of one message to its last receiver, in a group of its own.
    pub(super) fn multicast(&self, group: BulkGroup, bytes: usize, seed: u64) -> Result<Multicast, BulkError> {
        let nodes = group.members.iter().map(|node| node.0 + 1).max().unwrap_or(0);
        let mut cluster = self.cluster(nodes, seed);
        one(&mut cluster, group, bytes)
    }
}

/// One message through a new group, in a cluster where nothing else happens.
pub(super) fn one(cluster: &mut BulkCluster, group: BulkGroup, bytes: usize) -> Result<Multicast, BulkError> {
    let group = cluster.create(group)?;
    cluster.settle()?;
    cluster.send(group, bytes)?;
    Ok(cluster.settle()?[0])
}

/// A group of the nodes 0..n for messages of up to `bytes`.
pub(super) fn group(n: u32, algorithm: Algorithm, block_bytes: usize, bytes: usize) -> BulkGroup {
    among((0..n).map(NodeId).collect(), algorithm, block_bytes, bytes)
}

/// A group of these nodes for messages of up to `bytes`.
pub(super) fn among(members: Vec<NodeId>, algorithm: Algorithm, block_bytes: usize, bytes: usize) -> BulkGroup {
    BulkGroup { members, algorithm, block_bytes, windows: None, largest_bytes: bytes }
}

/// The rate of `bytes` in `time`, in gigabits per second.
pub(super) fn gbit_per_s(bytes: f64, time: Duration) -> f64 {
    bytes * 8.0 / time.as_secs_f64() / 1e9
}

pub(super) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The number of blocks of a message.
pub(super) fn blocks(bytes: usize, block_bytes: usize) -> u64 {
    bytes.div_ceil(block_bytes).max(1) as u64
}

/// ⌈log₂ n⌉: the number of steps after which all nodes have a block.
pub(super) fn log2_ceil(n: u32) -> u64 {
    u64::from(n.next_power_of_two().trailing_zeros())
}
