//! Operations on one block for each rank: gather, scatter, all-to-all, and reduce-scatter over all-to-all.

use std::ops::Range;

use super::{
    Action, ChunkTarget, Schedule,
    fold::{FoldRole, Folding},
};

fn block(rank: usize, bytes: usize) -> Range<usize> {
    rank * bytes..(rank + 1) * bytes
}

/// Sends each rank's block to the root. The root's vector has all blocks, another rank's only its own.
pub(crate) fn gather(out: &mut Schedule, ranks: usize, rank: usize, root: usize, bytes: usize) {
    if rank != root {
        return out.phase(vec![Action::Send { to: root, range: 0..bytes }]);
    }
    let others = (0..ranks).filter(|&from| from != root);
    out.phase(others.map(|from| Action::Recv { from, range: block(from, bytes), into: ChunkTarget::Vector }).collect());
}

/// The reverse of [`gather`].
pub(crate) fn scatter(out: &mut Schedule, ranks: usize, rank: usize, root: usize, bytes: usize) {
    if rank != root {
        return out.phase(vec![Action::Recv { from: root, range: 0..bytes, into: ChunkTarget::Vector }]);
    }
    let others = (0..ranks).filter(|&to| to != root);
    out.phase(others.map(|to| Action::Send { to, range: block(to, bytes) }).collect());
}

/// Takes n steps; in step s, the ranks whose sum is s (mod n) swap their blocks, in place.
pub(crate) fn all_to_all(out: &mut Schedule, ranks: usize, rank: usize, bytes: usize) {
    for step in 0..ranks {
        let peer = (step + ranks - rank) % ranks;
        if peer != rank {
            out.phase(vec![
                Action::Send { to: peer, range: block(peer, bytes) },
                Action::Recv { from: peer, range: block(peer, bytes), into: ChunkTarget::Vector },
            ]);
        }
    }
}

/// Combines all blocks into the first, by the same tree as every other reduction.
pub(crate) fn fold(out: &mut Schedule, ranks: usize, bytes: usize) {
    let folding = Folding::new(ranks);
    let mut actions = Vec::new();
    for rank in 0..ranks {
        if let FoldRole::Excess { behind } = folding.part(rank) {
            actions.push(Action::Fold { into: block(behind, bytes), with: block(rank, bytes) });
        }
    }
    let mut distance = 1;
    while distance < folding.size {
        for number in (0..folding.size).step_by(2 * distance) {
            let (into, with) = (folding.rank(number), folding.rank(number + distance));
            actions.push(Action::Fold { into: block(into, bytes), with: block(with, bytes) });
        }
        distance *= 2;
    }
    out.phase(actions);
}
