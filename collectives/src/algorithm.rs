//! The operations and their algorithms.

/// An operation in which all ranks take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display(rename_all = "kebab-case")]
pub enum Collective {
    /// A barrier: no rank leaves before all have entered.
    Barrier,
    /// The move of the root's vector to all.
    Broadcast,
    /// The combination of the vectors, element by element, at the root.
    Reduce,
    /// The combination of the vectors, whose result all get.
    Allreduce,
    /// The move of each rank's block to the root.
    Gather,
    /// The move of a block from the root to each rank.
    Scatter,
    /// The move of each rank's block to all.
    Allgather,
    /// The combination of the vectors, of whose result each rank gets one block.
    ReduceScatter,
    /// An exchange in which each rank has a block for each rank.
    AllToAll,
}

/// The way in which an operation is carried out among n ranks. Each algorithm names its operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Barrier and allgather: ⌈log₂ n⌉ steps; in step i, a rank writes to the one 2^i further on.
    Dissemination,
    /// Barrier and allreduce: pairwise exchange with recursive doubling, ⌊log₂ n⌋ steps, and 2 more where n is no power
    /// of two (thesis, §4.1).
    Exchange,
    /// Broadcast: the binomial tree (thesis, §5.2).
    Binomial,
    /// Broadcast: each rank forwards to the next.
    Chain,
    /// Broadcast: by RDMC, into memory that receivers provide when they start it (rendezvous; thesis, §5.5). Takes
    /// memory of the vector's length on all ranks, of which some is kept for the next broadcast.
    Rdmc,
    /// Reduce and allreduce: trees in which a rank receives from at most `degree` others in a step (thesis, §6.2).
    #[display("tree-{degree}")]
    Tree {
        /// The most ranks from which one receives in a step: 2^i − 1 for an i from 1 to 16.
        degree: usize,
    },
    /// Allreduce: reduce-scatter by recursive halving, then allgather by recursive doubling.
    Halving,
    /// Allreduce: reduce-scatter and allgather, both in one step, in which each rank writes to all others.
    Direct,
    /// Allgather; and allreduce by commutative operations, whose operands it combines in another order than all other
    /// algorithms.
    Ring,
    /// Broadcast, gather and scatter: between the root and each other rank. Barrier, allreduce and allgather: between
    /// each two ranks, in one step.
    Flat,
    /// Reduce-scatter and all-to-all: each two ranks swap their blocks.
    Pairwise,
}

impl Algorithm {
    /// Whether the algorithm can carry out this operation.
    pub fn carries_out(self, collective: Collective) -> bool {
        match self {
            Algorithm::Dissemination => matches!(collective, Collective::Barrier | Collective::Allgather),
            Algorithm::Exchange => matches!(collective, Collective::Barrier | Collective::Allreduce),
            Algorithm::Binomial | Algorithm::Chain | Algorithm::Rdmc => collective == Collective::Broadcast,
            Algorithm::Tree { .. } => matches!(collective, Collective::Reduce | Collective::Allreduce),
            Algorithm::Halving | Algorithm::Direct => collective == Collective::Allreduce,
            Algorithm::Ring => matches!(collective, Collective::Allreduce | Collective::Allgather),
            Algorithm::Flat => matches!(
                collective,
                Collective::Barrier
                    | Collective::Broadcast
                    | Collective::Allreduce
                    | Collective::Gather
                    | Collective::Scatter
                    | Collective::Allgather
            ),
            Algorithm::Pairwise => matches!(collective, Collective::ReduceScatter | Collective::AllToAll),
        }
    }

    /// Whether the algorithm's parameters are in their range.
    pub(crate) fn is_sound(self) -> bool {
        match self {
            Algorithm::Tree { degree } => degree > 0 && degree < 1 << 16 && (degree + 1).is_power_of_two(),
            _ => true,
        }
    }
}
