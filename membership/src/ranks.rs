//! Sets of members.

use crate::view::MAX_MEMBERS;

/// A set of ranks, up to the largest that a view has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranks(pub(crate) u64);

impl Ranks {
    /// The first `count` ranks, at most as many as a view has.
    pub(crate) fn first(count: usize) -> Ranks {
        (0..count.min(MAX_MEMBERS)).collect()
    }

    pub(crate) fn one(rank: usize) -> Ranks {
        Ranks(1 << rank)
    }

    pub(crate) fn has(self, rank: usize) -> bool {
        self.0 >> rank & 1 == 1
    }

    pub(crate) fn with(self, other: Ranks) -> Ranks {
        Ranks(self.0 | other.0)
    }

    pub(crate) fn without(self, other: Ranks) -> Ranks {
        Ranks(self.0 & !other.0)
    }

    pub(crate) fn and(self, other: Ranks) -> Ranks {
        Ranks(self.0 & other.0)
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The ranks, in order.
    pub(crate) fn iter(self) -> impl Iterator<Item = usize> + Clone {
        (0..MAX_MEMBERS).filter(move |&rank| self.has(rank))
    }
}

impl FromIterator<usize> for Ranks {
    fn from_iter<I: IntoIterator<Item = usize>>(ranks: I) -> Ranks {
        ranks.into_iter().fold(Ranks::default(), |set, rank| set.with(Ranks::one(rank)))
    }
}
