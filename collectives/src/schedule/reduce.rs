//! Reductions to one rank, along the trees of the thesis (§6.2).
//!
//! All degrees combine by the same binary tree, in rank order. A rank that has received from many children combines
//! their values pairwise, as more levels of a tree of degree 1 would have done. So the degree decides which ranks do
//! the work, not the result.

use std::ops::Range;

use super::{
    Action, ChunkTarget, OperandOrder, Schedule,
    fold::{FoldRole, Folding},
};

/// Reduces to rank 0; a rank receives from at most `degree` = 2^i − 1 others in each of its steps.
pub(crate) fn tree(out: &mut Schedule, ranks: usize, rank: usize, degree: usize, range: Range<usize>) {
    let folding = Folding::new(ranks);
    let mut actions = Vec::new();
    match folding.part(rank) {
        FoldRole::Excess { behind } => actions.push(Action::Send { to: behind, range }),
        FoldRole::Active { number, stands_for } => {
            if let Some(from) = stands_for {
                let (into, order) = (ChunkTarget::Vector, OperandOrder::MineFirst);
                actions.push(Action::Combine { from, range: range.clone(), into, order });
            }
            let mut span = 1;
            while span < folding.size {
                let width = (degree + 1).min(folding.size / span);
                let parent = number - number % (span * width);
                if parent != number {
                    actions.push(Action::Send { to: folding.rank(parent), range: range.clone() });
                    break;
                }
                let children: Vec<usize> = (0..width).map(|child| folding.rank(number + child * span)).collect();
                collect(&mut actions, &children, true, ChunkTarget::Vector, 0, &range);
                span *= width;
            }
        }
    }
    out.phase(actions);
}

/// Brings the values of `from`, a power of two of them, into one place; the first is there already if it is `mine`.
fn collect(
    actions: &mut Vec<Action>,
    from: &[usize],
    mine: bool,
    into: ChunkTarget,
    free_temp: usize,
    range: &Range<usize>,
) {
    if let [from] = *from {
        if !mine {
            actions.push(Action::Recv { from, range: range.clone(), into });
        }
        return;
    }
    let (first, second) = from.split_at(from.len() / 2);
    collect(actions, first, mine, into, free_temp, range);
    if let [from] = *second {
        actions.push(Action::Combine { from, range: range.clone(), into, order: OperandOrder::MineFirst });
    } else {
        collect(actions, second, false, ChunkTarget::Temp(free_temp), free_temp + 1, range);
        actions.push(Action::Merge { temp: free_temp, range: range.clone(), into, order: OperandOrder::MineFirst });
    }
}

/// Brings the result from rank 0 to the root. (A tree with another root would combine in another order.)
pub(crate) fn forward(out: &mut Schedule, rank: usize, root: usize, range: Range<usize>) {
    if root == 0 {
        return;
    }
    if rank == 0 {
        out.phase(vec![Action::Send { to: root, range }]);
    } else if rank == root {
        out.phase(vec![Action::Recv { from: 0, range, into: ChunkTarget::Vector }]);
    }
}
