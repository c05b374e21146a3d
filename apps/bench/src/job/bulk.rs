//! The job of each node of `squall-bench bulk`, and the measurements that it reports.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use squall::rdmc::{
    GroupConfig, GroupId,
    schedule::{Algorithm, Outer, Racks},
};
use squall_fabric::NodeId;

use super::Spinning;
use crate::places::WorkerNode;

/// A route of blocks from the root to the receivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BlockRoute {
    /// The root sends the whole message to each receiver in turn
    Sequential,
    /// The root sends each block to all receivers, then the next
    Interleaved,
    /// Each node hands every block on to the next
    Chain,
    /// Each node that has the whole message sends it on to one that does not
    Tree,
    /// The binomial pipeline
    Pipeline,
    /// A binomial pipeline in each half of the nodes, behind one between the halves
    Hybrid,
}

impl BlockRoute {
    pub(crate) fn of(algorithm: &Algorithm) -> BlockRoute {
        match algorithm {
            Algorithm::Sequential => BlockRoute::Sequential,
            Algorithm::Interleaved => BlockRoute::Interleaved,
            Algorithm::Chain => BlockRoute::Chain,
            Algorithm::BinomialTree => BlockRoute::Tree,
            Algorithm::BinomialPipeline => BlockRoute::Pipeline,
            Algorithm::Hybrid(_) => BlockRoute::Hybrid,
        }
    }

    fn algorithm(self, nodes: u32) -> Algorithm {
        match self {
            BlockRoute::Sequential => Algorithm::Sequential,
            BlockRoute::Interleaved => Algorithm::Interleaved,
            BlockRoute::Chain => Algorithm::Chain,
            BlockRoute::Tree => Algorithm::BinomialTree,
            BlockRoute::Pipeline => Algorithm::BinomialPipeline,
            BlockRoute::Hybrid => {
                let halves: Vec<bool> = (0..nodes).map(|node| node >= nodes.div_ceil(2)).collect();
                Algorithm::Hybrid(Racks::new(&halves, Outer::default()).expect("there are nodes"))
            }
        }
    }
}

/// A receiver's use of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Touch {
    /// Not at all
    None,
    /// Read a byte of each page
    Read,
    /// Write a byte of each page
    Write,
}

/// The cost to one receiver of using the messages of a round.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Touched {
    pub(crate) nanos: u64,
    /// Page faults that needed no disk.
    pub(crate) page_faults: u64,
}

/// The job of one worker.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct BulkJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    /// Groups of all nodes. Their roots are the first `roots` nodes, in turn.
    pub(crate) groups: u32,
    pub(crate) roots: u32,
    pub(crate) way: BlockRoute,
    pub(crate) size_bytes: usize,
    pub(crate) block_bytes: usize,
    pub(crate) receives_ahead: usize,
    pub(crate) sends_in_flight: usize,
    pub(crate) steps_ahead: u64,
    /// Node 0 shares its pages; the algorithm and its settings are not used.
    pub(crate) share: bool,
    /// The receivers' use of each message that counts.
    pub(crate) touch: Touch,
    /// Rounds before those that count, besides the one in which every byte is compared.
    pub(crate) warm_up: u32,
    pub(crate) iterations: u32,
    pub(crate) spin: Spinning,
}

impl BulkJob {
    pub(crate) fn root(&self, group: u32) -> u32 {
        group % self.roots
    }

    /// The RDMC group with this number, for this job's messages.
    pub(crate) fn group(&self, group: u32) -> GroupConfig {
        let members = (0..self.nodes).map(|rank| NodeId((self.root(group) + rank) % self.nodes)).collect();
        GroupConfig {
            algorithm: self.way.algorithm(self.nodes),
            block_bytes: self.block_bytes,
            receives_ahead: self.receives_ahead,
            sends_in_flight: self.sends_in_flight,
            steps_ahead: self.steps_ahead,
            ..GroupConfig::new(GroupId { group, instance: 1 }, members)
        }
    }
}

/// One node's measurements of a round, in which every group moves one message. Times are nanoseconds of the host's boot
/// clock.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BulkRound {
    /// The time of its send, if it is a root.
    pub(crate) sent: Option<u64>,
    /// The time at which the shared message was sealed. Sealing begins at `sent`.
    pub(crate) sealed: Option<u64>,
    /// The time at which it had the message, by group. None for a group whose root it is.
    pub(crate) received: Vec<Option<u64>>,
    /// Processor time that its process took, in seconds.
    pub(crate) cpu_seconds: f64,
    /// The cost of using its messages, if it used any.
    pub(crate) touched: Option<Touched>,
}
