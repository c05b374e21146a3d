//! Every rank gets every rank's block. A rank's own block lies in place from the beginning.

use std::ops::Range;

use super::{Action, ChunkTarget, Schedule};

/// Takes n − 1 steps around a ring: in each, a rank passes on the block that it got last. `block` gives a block's
/// range.
pub(crate) fn ring(out: &mut Schedule, ranks: usize, rank: usize, block: impl Fn(usize) -> Range<usize>) {
    let (left, right) = ((rank + ranks - 1) % ranks, (rank + 1) % ranks);
    for step in 0..ranks.saturating_sub(1) {
        let given = (rank + ranks - step) % ranks;
        let got = (left + ranks - step) % ranks;
        out.phase(vec![
            Action::Send { to: right, range: block(given) },
            Action::Recv { from: left, range: block(got), into: ChunkTarget::Vector },
        ]);
    }
}

/// Takes ⌈log₂ n⌉ steps: in step i, each rank sends the 2^i blocks that it has to the rank 2^i further on. (Bruck's
/// algorithm without its rotation, since blocks are sent from where they belong.)
pub(crate) fn dissemination(out: &mut Schedule, ranks: usize, rank: usize, bytes: usize) {
    let mut held = 1;
    while held < ranks {
        let count = held.min(ranks - held);
        let (to, from) = ((rank + held) % ranks, (rank + ranks - held) % ranks);
        let mut actions: Vec<Action> =
            last_blocks(ranks, rank, count, bytes).into_iter().map(|range| Action::Send { to, range }).collect();
        actions.extend(last_blocks(ranks, from, count, bytes).into_iter().map(|range| Action::Recv {
            from,
            range,
            into: ChunkTarget::Vector,
        }));
        out.phase(actions);
        held += count;
    }
}

/// The `count` blocks up to that of `rank`, which may begin at the vector's end and go on at its beginning.
fn last_blocks(ranks: usize, rank: usize, count: usize, bytes: usize) -> [Range<usize>; 2] {
    let end = (rank + 1) * bytes;
    let missing = count.saturating_sub(rank + 1);
    [end - (count - missing) * bytes..end, (ranks - missing) * bytes..ranks * bytes]
}

/// Takes one step: each rank sends its block to each other.
pub(crate) fn flat(out: &mut Schedule, ranks: usize, rank: usize, bytes: usize) {
    let others = || (1..ranks).map(|step| (rank + step) % ranks);
    let block = |of: usize| of * bytes..(of + 1) * bytes;
    let mut actions: Vec<Action> = others().map(|to| Action::Send { to, range: block(rank) }).collect();
    actions.extend(others().map(|from| Action::Recv { from, range: block(from), into: ChunkTarget::Vector }));
    out.phase(actions);
}
