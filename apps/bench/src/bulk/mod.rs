//! `squall-bench bulk`: large messages between real processes of this host, by RDMC.

mod contents;
mod figures;
mod mover;
mod sharing;
mod touch;

use clap::{Args, value_parser};
use squall::rdmc::{
    GroupConfig, GroupId, MAX_BLOCK_BYTES,
    block::{Medium, Network},
};
use squall_command::CommandError;
use squall_fabric::NodeId;

pub(crate) use self::mover::Mover;
use super::{
    cluster,
    job::{BlockRoute, BulkJob, Senders, Spinning, Touch},
    places::{FabricKind, NodePlaces, PlaceArgs},
    printing::Printing,
    values,
};

const HELP: &str = "\
Examples:
  squall-bench bulk --nodes 4 --size 256MiB
  squall-bench bulk --nodes 2,4,8 --size 1MiB,16MiB,256MiB --json
  squall-bench bulk --size 256MiB --sweep                         block sizes and algorithms
  squall-bench bulk --size 64MiB --senders all                    a group for each node as the root, all at once
  squall-bench bulk --size 64MiB --groups 4                       four groups that share nodes and root
  squall-bench bulk --fabric tcp --tls                            over loopback
  squall-bench bulk --fabric tcp --addresses host{host} --wrap 'ip netns exec host{host}' --link-rate 25MB/s
  squall-bench bulk --size 256MiB --share --touch write           copy-on-write, and what writing each page costs then

Every node is a process of its own. The root sends one message, and the next one when all have it. Receivers have given
memory for it, which was written before. They compare every byte of the first message, and a word of each page of all
others.

With --share the root seals each message, which was in memory of its own, and receivers map its pages: they copy a page
when they write it. What giving the pages back costs is not measured.

What the figures mean:
  ms        from the root's send until the last receiver has the message: the median, least and most of all iterations
  MB/s      the message's size divided by the median; of several groups, all their messages
  skew ms   from the first receiver's receipt until the last one's (median; the worst group)
  cpu ms    processor time, of users and system, of all nodes together for each iteration, waiting included
  share     of several groups: the speed of the slowest and of the fastest one, where 1 is the mean
  after seal  of --share: ms without the time in which the root seals the message (median)
  touch ms  of --touch: how long a receiver takes to use the message, once all have it (median; the slowest receiver)
  faults    the receiver's page faults while it does so (median; the receiver that has most)

The lines before the table say what the machine itself can do; hold the figures against them.";

/// Measures bulk data: each message goes from its root to all other nodes, block by block.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct BulkArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// The bytes that a node's link moves in a second, unless with --fabric shm: they decide the block size
    #[arg(long, value_name = "RATE", default_value = "2GB/s", value_parser = values::link_rate)]
    link_rate: usize,
    /// The number of nodes; a list gives a row each
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "4")]
    #[arg(value_parser = value_parser!(u32).range(2..=64))]
    nodes: Vec<u32>,
    /// A message's size, such as 1MiB; a list gives a row each
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_value = "256MiB", value_parser = values::size)]
    size: Vec<usize>,
    /// A block's size; a list gives a row each [default: what suits the message and the nodes]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = values::size)]
    block: Vec<usize>,
    /// The route of the blocks; a list gives a row each [default: what suits the fabric]
    #[arg(long, value_enum, value_delimiter = ',')]
    algorithm: Vec<BlockRoute>,
    /// Try all algorithms, with blocks from 64 KiB to the whole message
    #[arg(long, conflicts_with_all = ["block", "algorithm"])]
    sweep: bool,
    /// The number of groups, each of all nodes; all groups move a message at the same time [default: one for each
    /// sender]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=1024))]
    groups: Option<u32>,
    /// The nodes that are roots of a group
    #[arg(long, value_enum, default_value = "one")]
    senders: Senders,
    /// The number of measured messages of each group
    #[arg(long, value_name = "N", default_value = "20", value_parser = value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    /// The number of messages before them, besides the one of which every byte is compared
    #[arg(long, value_name = "N", default_value = "3", value_parser = value_parser!(u32).range(0..=1_000_000))]
    warm_up: u32,
    /// The most receives that a node has posted [default: what suits the fabric]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=4096))]
    receives_ahead: Option<u32>,
    /// The most sends that a node has under way [default: what suits the fabric]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=4096))]
    sends_in_flight: Option<u32>,
    /// The waiting policy of a node with nothing to do
    #[arg(long, value_enum, default_value = "auto")]
    spin: Spinning,
    /// Give receivers the root's own pages, to be copied when they are written
    #[arg(long, conflicts_with_all = WITHOUT_COPIES)]
    share: bool,
    /// The receivers' use of each message, once all have it
    #[arg(long, value_enum, default_value = "none")]
    touch: Touch,
    #[command(flatten)]
    printing: Printing,
}

/// Options that say how copies are made, or how many messages are sent at a time.
const WITHOUT_COPIES: [&str; 7] =
    ["block", "algorithm", "sweep", "groups", "senders", "receives_ahead", "sends_in_flight"];

impl BulkArgs {
    pub(crate) fn run(self) -> Result<(), CommandError> {
        self.check().map_err(CommandError::Usage)?;
        let mut report = self.printing.begin()?;
        for &nodes in &self.nodes {
            for &size in &self.size {
                for way in self.ways() {
                    for block in self.blocks(size) {
                        let places = self.places.find(nodes)?;
                        let jobs = self.jobs(&places, nodes, size, way, block);
                        let rounds = cluster::run_bulk(&jobs, &places)?;
                        report.bulk(&figures::row(&jobs[0], self.senders, &rounds))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        self.places.check(self.nodes.iter().copied().max().unwrap_or_default())?;
        if self.share && self.places.fabric != FabricKind::Shm {
            return Err("--share gives receivers the root's own memory, which only --fabric shm can".into());
        }
        for &block in &self.block {
            if block > MAX_BLOCK_BYTES {
                return Err(format!("--block {block} is too large: give at most {MAX_BLOCK_BYTES}"));
            }
            if let Some(size) = self.size.iter().find(|size| size.div_ceil(block) > u32::MAX as usize) {
                return Err(format!("--size {size} has too many blocks of --block {block}: give larger blocks"));
            }
        }
        Ok(())
    }

    /// The routes to measure; None stands for the default.
    fn ways(&self) -> Vec<Option<BlockRoute>> {
        match &*self.algorithm {
            _ if self.sweep => ALL_WAYS.map(Some).to_vec(),
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        }
    }

    /// The block sizes to measure; None stands for the default.
    fn blocks(&self, size: usize) -> Vec<Option<usize>> {
        match &*self.block {
            _ if self.sweep => {
                let smaller = (LEAST_BLOCK_LOG2..).step_by(2).map(|power| 1 << power).take_while(|&block| block < size);
                smaller.chain([size.min(MAX_BLOCK_BYTES)]).map(Some).collect()
            }
            [] => vec![None],
            some => some.iter().copied().map(Some).collect(),
        }
    }

    fn medium(&self) -> Medium {
        match self.places.fabric {
            FabricKind::Shm => Medium::SharedMemory,
            FabricKind::Tcp => Medium::Network(Network::tcp(self.link_rate as u64)),
            FabricKind::Verbs => Medium::Network(Network::rdma(self.link_rate as u64)),
        }
    }

    /// A job for each node.
    fn jobs(
        &self,
        places: &NodePlaces,
        nodes: u32,
        size_bytes: usize,
        way: Option<BlockRoute>,
        block_bytes: Option<usize>,
    ) -> Vec<BulkJob> {
        let roots = self.senders.of(nodes);
        let members = (0..nodes).map(NodeId).collect();
        let suited =
            GroupConfig::new(GroupId { group: 0, instance: 1 }, members).suited_to(&self.medium(), size_bytes as u64);
        let job = |worker| BulkJob {
            worker,
            groups: self.groups.unwrap_or(roots),
            roots,
            way: way.unwrap_or_else(|| BlockRoute::of(&suited.algorithm)),
            size_bytes,
            block_bytes: block_bytes.unwrap_or(suited.block_bytes),
            receives_ahead: self.receives_ahead.map_or(suited.receives_ahead, |ahead| ahead as usize),
            sends_in_flight: self.sends_in_flight.map_or(suited.sends_in_flight, |sends| sends as usize),
            steps_ahead: suited.steps_ahead,
            share: self.share,
            touch: self.touch,
            warm_up: self.warm_up,
            iterations: self.iterations,
            spin: self.spin,
        };
        places.workers(nodes).map(job).collect()
    }
}

const ALL_WAYS: [BlockRoute; 6] = [
    BlockRoute::Interleaved,
    BlockRoute::Sequential,
    BlockRoute::Chain,
    BlockRoute::Tree,
    BlockRoute::Pipeline,
    BlockRoute::Hybrid,
];

/// The sweep's smallest block: 64 KiB.
const LEAST_BLOCK_LOG2: u32 = 16;
