//! The steps of one rank in an operation: a pure function of the call, the same wherever it is computed.

mod allgather;
mod allreduce;
mod barrier;
mod blocks;
mod broadcast;
mod cursor;
#[cfg(test)]
mod executor;
mod fold;
mod reduce;

use std::ops::Range;

use crate::{Algorithm, Collective, CollectiveError, combine::OperandOrder};

pub(crate) use cursor::{Cursor, Port};

/// Everything that decides a rank's steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CollectiveCall {
    pub(crate) collective: Collective,
    pub(crate) algorithm: Algorithm,
    pub(crate) ranks: usize,
    pub(crate) rank: usize,
    /// The root; 0 where the operation has none.
    pub(crate) root: usize,
    /// The vector's bytes; for gather, scatter, allgather, reduce-scatter and all-to-all, those of one rank's block.
    pub(crate) bytes: usize,
}

/// The target of a received chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChunkTarget {
    /// The vector, at the action's range.
    Vector,
    /// A chunk-sized temporary.
    Temp(usize),
}

/// One action of a rank. Ranges are bytes of its vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Sends a message without bytes.
    Signal {
        to: usize,
    },
    /// Waits for a message without bytes.
    Await {
        from: usize,
    },
    Send {
        to: usize,
        range: Range<usize>,
    },
    Recv {
        from: usize,
        range: Range<usize>,
        into: ChunkTarget,
    },
    Combine {
        from: usize,
        range: Range<usize>,
        into: ChunkTarget,
        order: OperandOrder,
    },
    /// Combines a temporary into another place.
    Merge {
        temp: usize,
        range: Range<usize>,
        into: ChunkTarget,
        order: OperandOrder,
    },
    /// Combines a later block of the vector into an earlier one of the same length.
    Fold {
        into: Range<usize>,
        with: Range<usize>,
    },
}

impl Action {
    fn bytes(&self) -> usize {
        match self {
            Action::Signal { .. } | Action::Await { .. } => 0,
            Action::Send { range, .. }
            | Action::Recv { range, .. }
            | Action::Combine { range, .. }
            | Action::Merge { range, .. }
            | Action::Fold { into: range, .. } => range.len(),
        }
    }

    fn is_lead(&self) -> bool {
        matches!(self, Action::Signal { .. } | Action::Send { .. })
    }

    fn temp(&self) -> Option<usize> {
        match self {
            Action::Recv { into: ChunkTarget::Temp(temp), .. }
            | Action::Combine { into: ChunkTarget::Temp(temp), .. }
            | Action::Merge { temp, .. } => Some(*temp),
            _ => None,
        }
    }
}

/// Actions that are carried out chunk by chunk: all of them on the first chunk of their ranges, then on the second.
#[derive(Debug)]
pub(crate) struct Phase {
    actions: Vec<Action>,
    /// The number of the first actions whose data nothing in this phase changes before: they may run ahead of the rest.
    leads: usize,
    /// The bytes of the longest action.
    bytes: usize,
}

/// The steps of one rank.
#[derive(Debug)]
pub(crate) struct Schedule {
    phases: Vec<Phase>,
    /// The bytes of the vector that are the rank's result.
    pub(crate) output: Range<usize>,
    /// The number of chunk-sized temporaries that the schedule takes.
    pub(crate) temps: usize,
    /// The length above which messages are fetched by their receiver.
    pub(crate) fetch_above: usize,
    /// Whether an RDMC group carries out the whole operation.
    pub(crate) is_bulk: bool,
}

impl Schedule {
    fn new(output: Range<usize>) -> Schedule {
        Schedule { phases: Vec::new(), output, temps: 0, fetch_above: usize::MAX, is_bulk: false }
    }

    /// Appends a phase. Actions without bytes, except signals, vanish on both sides alike.
    fn phase(&mut self, mut actions: Vec<Action>) {
        actions.retain(|action| action.bytes() > 0 || matches!(action, Action::Signal { .. } | Action::Await { .. }));
        if actions.is_empty() {
            return;
        }
        let temps = actions.iter().filter_map(Action::temp).map(|temp| temp + 1).max().unwrap_or(0);
        self.temps = self.temps.max(temps);
        let leads = actions.iter().take_while(|action| action.is_lead()).count();
        let bytes = actions.iter().map(Action::bytes).max().unwrap_or(0);
        self.phases.push(Phase { actions, leads, bytes });
    }

    #[cfg(test)]
    fn actions(&self) -> impl Iterator<Item = &Action> {
        self.phases.iter().flat_map(|phase| &phase.actions)
    }
}

/// The steps of `call.rank`.
///
/// Fails when the algorithm does not carry out the operation.
pub(crate) fn plan(call: &CollectiveCall) -> Result<Schedule, CollectiveError> {
    let &CollectiveCall { collective, algorithm, ranks, rank, root, bytes } = call;
    let whole = 0..bytes;
    let mut schedule = Schedule::new(match collective {
        Collective::Barrier => 0..0,
        Collective::Broadcast | Collective::Allreduce => whole.clone(),
        Collective::Reduce | Collective::Gather if rank != root => 0..0,
        Collective::Reduce => whole.clone(),
        Collective::Scatter if rank == root => root * bytes..(root + 1) * bytes,
        Collective::Scatter | Collective::ReduceScatter => whole.clone(),
        Collective::Gather | Collective::Allgather | Collective::AllToAll => 0..ranks * bytes,
    });
    let out = &mut schedule;
    match (collective, algorithm) {
        (Collective::Barrier, Algorithm::Dissemination) => barrier::dissemination(out, ranks, rank),
        (Collective::Barrier, Algorithm::Exchange) => barrier::exchange(out, ranks, rank),
        (Collective::Barrier, Algorithm::Flat) => barrier::flat(out, ranks, rank),
        (Collective::Broadcast, Algorithm::Flat) => broadcast::flat(out, ranks, rank, root, whole),
        (Collective::Broadcast, Algorithm::Binomial) => broadcast::binomial(out, ranks, rank, root, whole),
        (Collective::Broadcast, Algorithm::Chain) => broadcast::chain(out, ranks, rank, root, whole),
        (Collective::Broadcast, Algorithm::Rdmc) => out.is_bulk = ranks > 1,
        (Collective::Reduce, Algorithm::Tree { degree }) if algorithm.is_sound() => {
            reduce::tree(out, ranks, rank, degree, whole.clone());
            reduce::forward(out, rank, root, whole);
        }
        (Collective::Allreduce, Algorithm::Tree { degree }) if algorithm.is_sound() => {
            reduce::tree(out, ranks, rank, degree, whole.clone());
            broadcast::binomial(out, ranks, rank, 0, whole);
        }
        (Collective::Allreduce, Algorithm::Exchange) => allreduce::exchange(out, ranks, rank, whole),
        (Collective::Allreduce, Algorithm::Halving) => allreduce::halving(out, ranks, rank, whole),
        (Collective::Allreduce, Algorithm::Flat) => allreduce::flat(out, ranks, rank, whole),
        (Collective::Allreduce, Algorithm::Direct) => allreduce::direct(out, ranks, rank, bytes),
        (Collective::Allreduce, Algorithm::Ring) => allreduce::ring(out, ranks, rank, bytes),
        (Collective::Gather, Algorithm::Flat) => blocks::gather(out, ranks, rank, root, bytes),
        (Collective::Scatter, Algorithm::Flat) => blocks::scatter(out, ranks, rank, root, bytes),
        (Collective::Allgather, Algorithm::Ring) => {
            allgather::ring(out, ranks, rank, |block| block * bytes..(block + 1) * bytes);
        }
        (Collective::Allgather, Algorithm::Flat) => allgather::flat(out, ranks, rank, bytes),
        (Collective::Allgather, Algorithm::Dissemination) => allgather::dissemination(out, ranks, rank, bytes),
        (Collective::AllToAll, Algorithm::Pairwise) => blocks::all_to_all(out, ranks, rank, bytes),
        (Collective::ReduceScatter, Algorithm::Pairwise) => {
            blocks::all_to_all(out, ranks, rank, bytes);
            blocks::fold(out, ranks, bytes);
        }
        _ => return Err(CollectiveError::Algorithm { collective, algorithm }),
    }
    Ok(schedule)
}
