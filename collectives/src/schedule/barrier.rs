//! Barriers: signals without bytes.

use super::{
    Action, Schedule,
    fold::{FoldRole, Folding},
};

/// Takes ⌈log₂ n⌉ steps; in step i each rank signals the one 2^i further on.
pub(crate) fn dissemination(out: &mut Schedule, ranks: usize, rank: usize) {
    let mut distance = 1;
    while distance < ranks {
        let to = (rank + distance) % ranks;
        let from = (rank + ranks - distance) % ranks;
        out.phase(vec![Action::Signal { to }, Action::Await { from }]);
        distance *= 2;
    }
}

/// Takes one step: each rank signals each other.
pub(crate) fn flat(out: &mut Schedule, ranks: usize, rank: usize) {
    let others = || (1..ranks).map(|step| (rank + step) % ranks);
    let mut actions: Vec<Action> = others().map(|to| Action::Signal { to }).collect();
    actions.extend(others().map(|from| Action::Await { from }));
    out.phase(actions);
}

/// Pairwise exchange with recursive doubling; ⌊log₂ n⌋ + 2 steps where n is no power of two (thesis, §4.1).
pub(crate) fn exchange(out: &mut Schedule, ranks: usize, rank: usize) {
    let folding = Folding::new(ranks);
    let (number, stands_for) = match folding.part(rank) {
        FoldRole::Excess { behind } => {
            return out.phase(vec![Action::Signal { to: behind }, Action::Await { from: behind }]);
        }
        FoldRole::Active { number, stands_for } => (number, stands_for),
    };
    if let Some(from) = stands_for {
        out.phase(vec![Action::Await { from }]);
    }
    let mut distance = 1;
    while distance < folding.size {
        let partner = folding.rank(number ^ distance);
        out.phase(vec![Action::Signal { to: partner }, Action::Await { from: partner }]);
        distance *= 2;
    }
    if let Some(to) = stands_for {
        out.phase(vec![Action::Signal { to }]);
    }
}
