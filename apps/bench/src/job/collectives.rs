//! The job of each node of `squall-bench collectives`, and the spelling of its operations.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use squall::{
    collectives::{Algorithm, Collective},
    rdmc::block::{Medium, Network},
};

use super::Spinning;
use crate::places::{FabricKind, WorkerNode};

/// Bytes per second of a link, for the blocks of long broadcasts: 100 Gb/s.
const LINK_RATE: u64 = 12_500_000_000;

/// A collective operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Of {
    /// No node leaves before all have entered
    Barrier,
    /// The first node's vector goes to all
    Broadcast,
    /// The vectors are added up at the first node
    Reduce,
    /// The vectors are added up, and all get the sums
    Allreduce,
    /// Each node's block goes to the first
    Gather,
    /// The first node gives each a block
    Scatter,
    /// Each node's block goes to all
    Allgather,
    /// The vectors are added up, and each gets a block of the sums
    ReduceScatter,
    /// Each node has a block for each
    AllToAll,
}

impl Of {
    /// The library's name for it.
    pub(crate) fn collective(self) -> Collective {
        match self {
            Of::Barrier => Collective::Barrier,
            Of::Broadcast => Collective::Broadcast,
            Of::Reduce => Collective::Reduce,
            Of::Allreduce => Collective::Allreduce,
            Of::Gather => Collective::Gather,
            Of::Scatter => Collective::Scatter,
            Of::Allgather => Collective::Allgather,
            Of::ReduceScatter => Collective::ReduceScatter,
            Of::AllToAll => Collective::AllToAll,
        }
    }

    /// The elements of a block if `asked` were asked for. For reduce-scatter these are a whole vector's, of which each
    /// node gets a block of sums.
    pub(crate) fn block(self, asked: usize, nodes: usize) -> usize {
        if self == Of::ReduceScatter { asked.div_ceil(nodes) } else { asked }
    }

    /// The elements that are reported as the size.
    pub(crate) fn given(self, block: usize, nodes: usize) -> usize {
        if self == Of::ReduceScatter { block * nodes } else { block }
    }

    /// The number of elements of `node`'s vector, if each of `nodes` nodes has `block` for itself or for each other.
    pub(crate) fn elements(self, block: usize, node: usize, nodes: usize) -> usize {
        match self {
            Of::Barrier => 0,
            Of::ReduceScatter | Of::AllToAll => block * nodes,
            Of::Scatter if node == ROOT => block * nodes,
            _ => block,
        }
    }
}

/// The node whose vector goes to all, or that gets the vectors of all.
pub(crate) const ROOT: usize = 0;

/// An algorithm of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum By {
    /// Barrier, allgather
    Dissemination,
    /// Barrier, allreduce: pairwise exchange with recursive doubling
    Exchange,
    /// Broadcast
    Binomial,
    /// Broadcast
    Chain,
    /// Broadcast
    Rdmc,
    /// Reduce, allreduce: a tree in which one node receives in each step
    Tree1,
    /// The same, from three nodes
    Tree3,
    /// The same, from seven nodes
    Tree7,
    /// Allreduce: reduce-scatter by recursive halving, then allgather
    Halving,
    /// Allreduce: reduce-scatter, then allgather, in which each node sends to all others at once
    Direct,
    /// Allreduce, allgather
    Ring,
    /// All but reductions to one: between each two nodes that have anything for each other, in one step
    Flat,
    /// Reduce-scatter, all-to-all
    Pairwise,
}

impl By {
    pub(crate) fn algorithm(self) -> Algorithm {
        match self {
            By::Dissemination => Algorithm::Dissemination,
            By::Exchange => Algorithm::Exchange,
            By::Binomial => Algorithm::Binomial,
            By::Chain => Algorithm::Chain,
            By::Rdmc => Algorithm::Rdmc,
            By::Tree1 => Algorithm::Tree { degree: 1 },
            By::Tree3 => Algorithm::Tree { degree: 3 },
            By::Tree7 => Algorithm::Tree { degree: 7 },
            By::Halving => Algorithm::Halving,
            By::Direct => Algorithm::Direct,
            By::Ring => Algorithm::Ring,
            By::Flat => Algorithm::Flat,
            By::Pairwise => Algorithm::Pairwise,
        }
    }
}

/// The job of one worker.
#[derive(Clone, Debug, Serialize, Deserialize, derive_more::Deref)]
pub(crate) struct CollectivesJob {
    #[deref]
    pub(crate) worker: WorkerNode,
    pub(crate) operation: Of,
    /// The algorithm; None for what the cost model chooses.
    pub(crate) algorithm: Option<By>,
    pub(crate) reproducible: bool,
    /// 8-byte elements of a vector; of a block, where each node has one.
    pub(crate) elements: usize,
    pub(crate) samples: u32,
    pub(crate) spin: Spinning,
}

impl CollectivesJob {
    /// The medium through which blocks of long broadcasts travel.
    pub(crate) fn medium(&self) -> Medium {
        match self.fabric() {
            FabricKind::Shm => Medium::SharedMemory,
            FabricKind::Tcp => Medium::Network(Network::tcp(LINK_RATE)),
            FabricKind::Verbs => Medium::Network(Network::rdma(LINK_RATE)),
        }
    }
}

/// One worker's measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Timed {
    pub(crate) algorithm: String,
    /// The number of operations in a sample.
    pub(crate) batch: u32,
    /// The time of each sample, in nanoseconds.
    pub(crate) nanos: Vec<u64>,
    /// Processor time of its process while samples were taken, in seconds.
    pub(crate) cpu_seconds: f64,
}
