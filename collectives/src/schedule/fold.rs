//! Numbers of ranks that are no powers of two: the first pairs of neighbours act as one rank each.
//!
//! They are neighbours, and not the last ranks, so that operands stay in rank order.

/// The ranks that take part in an algorithm for powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Folding {
    /// The number of active ranks: a power of two.
    pub(crate) size: usize,
    /// The number of active ranks, from the first on, that stand for a neighbour too.
    pairs: usize,
}

/// The part of a rank in a [`Folding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldRole {
    /// The rank takes part, under this number, and stands for that neighbour if it has one.
    Active { number: usize, stands_for: Option<usize> },
    /// The rank `behind` stands for this one.
    Excess { behind: usize },
}

impl Folding {
    pub(crate) fn new(ranks: usize) -> Folding {
        let size = 1 << ranks.ilog2();
        Folding { size, pairs: ranks - size }
    }

    pub(crate) fn part(self, rank: usize) -> FoldRole {
        if rank >= 2 * self.pairs {
            FoldRole::Active { number: rank - self.pairs, stands_for: None }
        } else if rank.is_multiple_of(2) {
            FoldRole::Active { number: rank / 2, stands_for: Some(rank + 1) }
        } else {
            FoldRole::Excess { behind: rank - 1 }
        }
    }

    /// The ranks whose values are combined first under a number.
    pub(crate) fn stands_for(self, number: usize) -> Vec<usize> {
        let rank = self.rank(number);
        if number < self.pairs { vec![rank, rank + 1] } else { vec![rank] }
    }

    /// The rank that takes part under a number.
    pub(crate) fn rank(self, number: usize) -> usize {
        if number < self.pairs { 2 * number } else { number + self.pairs }
    }
}
