//! The barriers of all ranks, as one rank knows them, and their minimum.
//!
//! A rank's barrier promises that nothing earlier will come from it. In a flat group every rank tells its barrier to
//! all others. In a hierarchy a rank tells its [parent](place) the least of its own barrier and those that it is told,
//! and is told the least of all. Its own is among these, so it accepts no more than it has told.

mod place;

pub(crate) use place::BarrierPlace;

use crate::{Mode, tournament::Tournament};

/// The barrier that a rank tells another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tells {
    /// Its own barrier, and in a hierarchy that of all ranks that tell it theirs.
    Up,
    /// The barrier of all ranks.
    Down,
    Nothing,
}

/// The barriers of both modes in one epoch.
#[derive(Debug)]
pub(crate) struct Barriers {
    me: usize,
    place: BarrierPlace,
    /// This rank's barrier, and those that it is told, by mode and indexed by rank; [`u64::MAX`] for other ranks.
    told: [Tournament; 2],
    /// The barrier of all, from the parent, by mode.
    from_parent: [u64; 2],
}

impl Barriers {
    /// The barriers of a new epoch, in which nothing is known yet. `ranks` says which ranks are left; this one has a
    /// place among them.
    pub(crate) fn new(me: usize, place: BarrierPlace, ranks: &[bool]) -> Barriers {
        let mut told = Tournament::new(ranks.len(), u64::MAX);
        for rank in (0..ranks.len()).filter(|&rank| ranks[rank]) {
            if rank == me || place.hears(rank) {
                told.set(rank, 0);
            }
        }
        Barriers { me, place, told: [told.clone(), told], from_parent: [0; 2] }
    }

    /// The barrier that this rank tells another.
    #[inline]
    pub(crate) fn tells(&self, rank: usize) -> Tells {
        match &self.place {
            BarrierPlace::Flat => Tells::Up,
            BarrierPlace::Tree { parent, .. } if *parent == Some(rank) => Tells::Up,
            BarrierPlace::Tree { children, .. } if children.contains(&rank) => Tells::Down,
            BarrierPlace::Tree { .. } => Tells::Nothing,
        }
    }

    /// Whether this rank tells others the barrier of all.
    pub(crate) fn has_children(&self) -> bool {
        matches!(&self.place, BarrierPlace::Tree { children, .. } if !children.is_empty())
    }

    /// Raises this rank's own barrier.
    #[inline]
    pub(crate) fn set_own(&mut self, mode: Mode, barrier: u64) {
        self.hear(mode, self.me, barrier);
    }

    /// This rank's own barrier.
    #[inline]
    pub(crate) fn own(&self, mode: Mode) -> u64 {
        self.told[mode.index()].get(self.me)
    }

    /// Takes note of a barrier that a rank has told. One that is not higher than before changes nothing, nor one that
    /// this rank is not to be told.
    #[inline]
    pub(crate) fn hear(&mut self, mode: Mode, from: usize, barrier: u64) {
        let told = &mut self.told[mode.index()];
        if barrier > told.get(from) {
            told.set(from, barrier);
        }
    }

    /// Takes note of the barrier of all that a rank has told.
    #[inline]
    pub(crate) fn hear_down(&mut self, mode: Mode, from: usize, barrier: u64) {
        if matches!(self.place, BarrierPlace::Tree { parent, .. } if parent == Some(from)) {
            let known = &mut self.from_parent[mode.index()];
            *known = barrier.max(*known);
        }
    }

    /// The rank whose barrier must rise first so that messages up to `stamp` can be delivered, among those that tell
    /// this rank theirs.
    pub(crate) fn waits_for(&self, mode: Mode, stamp: u64) -> Option<usize> {
        let told = &self.told[mode.index()];
        let parent = match self.place {
            BarrierPlace::Tree { parent, .. } => parent.filter(|_| self.all(mode) <= stamp),
            BarrierPlace::Flat => None,
        };
        if told.least() <= stamp { Some(told.first()) } else { parent }
    }

    /// The barrier that goes [up](Tells::Up).
    #[inline]
    pub(crate) fn up(&self, mode: Mode) -> u64 {
        match self.place {
            BarrierPlace::Flat => self.own(mode),
            BarrierPlace::Tree { .. } => self.told[mode.index()].least(),
        }
    }

    /// The barrier of all. It is never beyond this rank's own, nor those that this rank is told, whatever the parent
    /// says.
    #[inline]
    pub(crate) fn all(&self, mode: Mode) -> u64 {
        let told = self.told[mode.index()].least();
        match self.place {
            BarrierPlace::Tree { parent: Some(_), .. } => told.min(self.from_parent[mode.index()]),
            BarrierPlace::Flat | BarrierPlace::Tree { parent: None, .. } => told,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: Mode = Mode::Reliable;

    #[test]
    fn in_a_flat_group_the_least_of_all_counts() {
        let mut barriers = Barriers::new(1, BarrierPlace::Flat, &[true, true, false]);
        barriers.set_own(MODE, 7);
        assert_eq!(barriers.all(MODE), 0, "rank 0 has said nothing");
        barriers.hear(MODE, 0, 9);
        assert_eq!((barriers.up(MODE), barriers.all(MODE)), (7, 7));
        barriers.set_own(MODE, 20);
        barriers.hear(MODE, 0, 8);
        assert_eq!((barriers.up(MODE), barriers.all(MODE)), (20, 9), "a barrier does not go back");
        assert_eq!(barriers.all(Mode::BestEffort), 0, "modes are independent");
        barriers.hear(MODE, 2, 3);
        assert_eq!(barriers.all(MODE), 9, "rank 2 is no longer there");
    }

    #[test]
    fn in_a_hierarchy_minima_go_up_and_the_barrier_of_all_comes_down() {
        let ranks = [true; 5];
        let place = BarrierPlace::Tree { parent: Some(0), children: vec![2, 3] };
        let mut barriers = Barriers::new(1, place, &ranks);
        for (from, barrier) in [(1, 5), (2, 6), (3, 4)] {
            barriers.hear(MODE, from, barrier);
        }
        barriers.hear(MODE, 4, 1);
        assert_eq!((barriers.up(MODE), barriers.all(MODE)), (4, 0));
        barriers.hear_down(MODE, 2, 3);
        assert_eq!(barriers.all(MODE), 0, "a child does not say what holds for all");
        barriers.hear_down(MODE, 0, 3);
        barriers.hear_down(MODE, 0, 2);
        assert_eq!(barriers.all(MODE), 3);
        assert_eq!([0, 2, 4].map(|rank| barriers.tells(rank)), [Tells::Up, Tells::Down, Tells::Nothing]);
        assert_eq!([2, 3, 4, 7].map(|stamp| barriers.waits_for(MODE, stamp)), [None, Some(0), Some(3), Some(3)]);
    }

    #[test]
    fn a_parent_that_claims_too_much_is_believed_as_far_as_this_rank_has_told() {
        let place = BarrierPlace::Tree { parent: Some(0), children: vec![2] };
        let mut barriers = Barriers::new(1, place, &[true; 3]);
        barriers.hear_down(MODE, 0, u64::MAX);
        assert_eq!(barriers.all(MODE), 0);
        barriers.set_own(MODE, 5);
        barriers.hear(MODE, 2, 7);
        assert_eq!(barriers.all(MODE), 5);
        barriers.set_own(MODE, 9);
        assert_eq!(barriers.all(MODE), 7);
    }
}
