//! Broadcasts: each rank forwards a chunk as soon as it has it.

use std::ops::Range;

use super::{Action, ChunkTarget, Schedule};

/// The binomial tree of the thesis (§5.2): ⌈log₂ n⌉ levels, the furthest child first.
pub(crate) fn binomial(out: &mut Schedule, ranks: usize, rank: usize, root: usize, range: Range<usize>) {
    let number = (rank + ranks - root) % ranks;
    let actual = |number: usize| (number + root) % ranks;
    let mut actions = Vec::new();
    // A rank's children are those that differ from it in one bit below its lowest.
    let mut bit = ranks.next_power_of_two();
    if number > 0 {
        bit = 1 << number.trailing_zeros();
        actions.push(Action::Recv { from: actual(number - bit), range: range.clone(), into: ChunkTarget::Vector });
    }
    while bit > 1 {
        bit /= 2;
        if number + bit < ranks {
            actions.push(Action::Send { to: actual(number + bit), range: range.clone() });
        }
    }
    out.phase(actions);
}

/// The root sends to each other rank.
pub(crate) fn flat(out: &mut Schedule, ranks: usize, rank: usize, root: usize, range: Range<usize>) {
    if rank != root {
        return out.phase(vec![Action::Recv { from: root, range, into: ChunkTarget::Vector }]);
    }
    let others = (1..ranks).map(|step| (root + step) % ranks);
    out.phase(others.map(|to| Action::Send { to, range: range.clone() }).collect());
}

/// Forwards from each rank to the next: every link carries the vector once, which is good for long vectors.
pub(crate) fn chain(out: &mut Schedule, ranks: usize, rank: usize, root: usize, range: Range<usize>) {
    let mut actions = Vec::new();
    if rank != root {
        actions.push(Action::Recv {
            from: (rank + ranks - 1) % ranks,
            range: range.clone(),
            into: ChunkTarget::Vector,
        });
    }
    let next = (rank + 1) % ranks;
    if next != root {
        actions.push(Action::Send { to: next, range });
    }
    out.phase(actions);
}
