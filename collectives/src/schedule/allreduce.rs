//! Reductions whose result every rank gets, without a root.

use std::ops::Range;

use super::{
    Action, ChunkTarget, OperandOrder, Schedule, allgather,
    fold::{FoldRole, Folding},
};

/// Lets the active ranks run `body`, between folding the excess ranks in and giving them the result.
fn folded(
    out: &mut Schedule,
    ranks: usize,
    rank: usize,
    range: &Range<usize>,
    body: impl FnOnce(&mut Schedule, usize),
) {
    match Folding::new(ranks).part(rank) {
        FoldRole::Excess { behind } => {
            out.phase(vec![Action::Send { to: behind, range: range.clone() }]);
            out.phase(vec![Action::Recv { from: behind, range: range.clone(), into: ChunkTarget::Vector }]);
        }
        FoldRole::Active { number, stands_for } => {
            let (into, order) = (ChunkTarget::Vector, OperandOrder::MineFirst);
            if let Some(from) = stands_for {
                out.phase(vec![Action::Combine { from, range: range.clone(), into, order }]);
            }
            body(out, number);
            if let Some(to) = stands_for {
                out.phase(vec![Action::Send { to, range: range.clone() }]);
            }
        }
    }
}

/// Sends a part of the vector to one rank, and combines a part with what comes from another.
fn swap(
    out: &mut Schedule,
    (to, give): (usize, Range<usize>),
    (from, keep): (usize, Range<usize>),
    order: OperandOrder,
) {
    let into = ChunkTarget::Vector;
    out.phase(vec![Action::Send { to, range: give }, Action::Combine { from, range: keep, into, order }]);
}

fn order(number: usize, partner: usize) -> OperandOrder {
    if partner < number { OperandOrder::TheirsFirst } else { OperandOrder::MineFirst }
}

/// Recursive doubling: in each step a rank exchanges all it has with a partner. It has the fewest steps, for short
/// vectors.
pub(crate) fn exchange(out: &mut Schedule, ranks: usize, rank: usize, range: Range<usize>) {
    let folding = Folding::new(ranks);
    folded(out, ranks, rank, &range, |out, number| {
        let mut distance = 1;
        while distance < folding.size {
            let partner = number ^ distance;
            let peer = folding.rank(partner);
            swap(out, (peer, range.clone()), (peer, range.clone()), order(number, partner));
            distance *= 2;
        }
    });
}

/// Reduce-scatter by recursive halving, then allgather by recursive doubling: each rank sends the vector twice at most.
///
/// Neighbours come first, unlike in the usual form, so that values combine by the same tree as in [`exchange`].
pub(crate) fn halving(out: &mut Schedule, ranks: usize, rank: usize, range: Range<usize>) {
    let folding = Folding::new(ranks);
    folded(out, ranks, rank, &range, |out, number| {
        let mut mine = range.clone();
        let mut halves = Vec::new();
        let mut distance = 1;
        while distance < folding.size {
            let partner = number ^ distance;
            let middle = mine.start + (mine.len() / 2).next_multiple_of(8).min(mine.len());
            let (low, high) = (mine.start..middle, middle..mine.end);
            let (keep, give) = if number < partner { (low, high) } else { (high, low) };
            let peer = folding.rank(partner);
            swap(out, (peer, give.clone()), (peer, keep.clone()), order(number, partner));
            halves.push((peer, keep.clone(), give));
            mine = keep;
            distance *= 2;
        }
        for (peer, keep, give) in halves.into_iter().rev() {
            out.phase(vec![
                Action::Send { to: peer, range: keep },
                Action::Recv { from: peer, range: give, into: ChunkTarget::Vector },
            ]);
        }
    });
}

/// The range of the `block`-th of `ranks` blocks of the vector, at multiples of 8 bytes.
fn block_of(bytes: usize, ranks: usize, block: usize) -> Range<usize> {
    let words = bytes / 8;
    let start = |block: usize| if block == ranks { bytes } else { words * block / ranks * 8 };
    start(block)..start(block + 1)
}

/// Reduce-scatter and allgather in one step each: each rank combines its block of all ranks, and gives all the result.
///
/// It takes two steps, where [`halving`] takes 2 log₂ n, and n messages in each, where that sends one.
pub(crate) fn direct(out: &mut Schedule, ranks: usize, rank: usize, bytes: usize) {
    let block = |of: usize| block_of(bytes, ranks, of);
    // Each rank begins with another, so that none has to serve all at once.
    let others = || (1..ranks).map(|step| (rank + step) % ranks);
    let mut actions: Vec<Action> = others().map(|to| Action::Send { to, range: block(to) }).collect();
    collect(&mut actions, ranks, rank, &block(rank));
    out.phase(actions);
    let mut actions: Vec<Action> = others().map(|to| Action::Send { to, range: block(rank) }).collect();
    actions.extend(others().map(|from| Action::Recv { from, range: block(from), into: ChunkTarget::Vector }));
    out.phase(actions);
}

/// Takes one step: each rank sends its vector to all others, and combines all. For short vectors, where a step takes
/// long.
pub(crate) fn flat(out: &mut Schedule, ranks: usize, rank: usize, range: Range<usize>) {
    let others = (1..ranks).map(|step| (rank + step) % ranks);
    let mut actions: Vec<Action> = others.map(|to| Action::Send { to, range: range.clone() }).collect();
    collect(&mut actions, ranks, rank, &range);
    out.phase(actions);
}

/// Receives a part of the vector from all other ranks, and combines it with this rank's own.
fn collect(actions: &mut Vec<Action>, ranks: usize, rank: usize, range: &Range<usize>) {
    let folding = Folding::new(ranks);
    let numbers: Vec<Vec<usize>> = (0..folding.size).map(|number| folding.stands_for(number)).collect();
    gather(actions, &numbers, rank, ChunkTarget::Vector, 0, range);
}

/// Combines the values of all ranks under these numbers into one place, by the tree of all reductions. The value of
/// `me` is in the vector, which then is the place.
fn gather(
    actions: &mut Vec<Action>,
    numbers: &[Vec<usize>],
    me: usize,
    into: ChunkTarget,
    free_temp: usize,
    range: &Range<usize>,
) {
    let is_mine = |half: &[Vec<usize>]| half.iter().flatten().any(|&rank| rank == me);
    let (first, second) = match numbers {
        [pair] => match pair[..] {
            [from] if from == me => return,
            [from] => return actions.push(Action::Recv { from, range: range.clone(), into }),
            _ => (vec![vec![pair[0]]], vec![vec![pair[1]]]),
        },
        _ => {
            let (first, second) = numbers.split_at(numbers.len() / 2);
            (first.to_vec(), second.to_vec())
        }
    };
    // This rank's own value stays where it is; a value before it in rank order is combined as the first operand.
    let (base, other, order) = match is_mine(&second) {
        true => (second, first, OperandOrder::TheirsFirst),
        false => (first, second, OperandOrder::MineFirst),
    };
    gather(actions, &base, me, into, free_temp, range);
    if let [one] = &other[..]
        && let [from] = one[..]
    {
        actions.push(Action::Combine { from, range: range.clone(), into, order });
    } else {
        gather(actions, &other, me, ChunkTarget::Temp(free_temp), free_temp + 1, range);
        actions.push(Action::Merge { temp: free_temp, range: range.clone(), into, order });
    }
}

/// Reduce-scatter and allgather around a ring. Block b is combined from rank b + 1 on, so not in rank order.
pub(crate) fn ring(out: &mut Schedule, ranks: usize, rank: usize, bytes: usize) {
    let (left, right) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    let block = |index: usize| block_of(bytes, ranks, index % ranks);
    for step in 1..ranks {
        let (give, keep) = (block(rank + ranks - step), block(rank + 2 * ranks - step - 1));
        swap(out, (right, give), (left, keep), OperandOrder::TheirsFirst);
    }
    allgather::ring(out, ranks, rank, block);
}
