//! Sorted sets: different strings, each with a score, in its order.

use std::{ops::Range, sync::Arc};

use foldhash::fast::RandomState;
use indexmap::IndexMap;

use super::{
    ranked::{Ranked, Scored},
    room,
};

/// The most members that are searched one by one, without a table.
const FEW: usize = 32;

type Scores = IndexMap<Arc<[u8]>, f64, RandomState>;

/// Members and their scores, which are not NaN. A member's rank is its place in the order of scores, and of bytes where
/// scores are the same. The lowest rank is 0.
#[derive(Clone, Debug, Default)]
pub struct SortedSet {
    row: Ranked,
    /// `None` as long as there were few members.
    scores: Option<Box<Scores>>,
}

impl SortedSet {
    /// Whether there is no member.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.row.len()
    }

    /// A member's score.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match &self.scores {
            Some(scores) => scores.get(member).copied(),
            None => self.row.iter().find(|scored| *scored.member == *member).map(|scored| scored.score),
        }
    }

    /// Adds a member, or changes its score. Returns the score that it had. The score -0 becomes 0.
    ///
    /// # Panics
    ///
    /// If the score is NaN, in a build with debug assertions.
    pub fn insert(&mut self, member: &[u8], score: f64) -> Option<f64> {
        debug_assert!(!score.is_nan());
        let score = score + 0.0;
        let old = self.score(member);
        let member = match old {
            Some(old) if old == score => return Some(old),
            Some(old) => self.row.remove(old, member).expect("it has this score").member,
            None => Arc::from(member),
        };
        if let Some(scores) = &mut self.scores {
            scores.insert(Arc::clone(&member), score);
        } else if old.is_none() && self.len() == FEW {
            let all = self.row.iter().map(|scored| (Arc::clone(&scored.member), scored.score));
            self.scores = Some(Box::new(all.chain([(Arc::clone(&member), score)]).collect()));
        }
        self.row.insert(Scored { score, member });
        old
    }

    /// Removes a member. Returns its score, if it was there.
    pub fn remove(&mut self, member: &[u8]) -> Option<f64> {
        let score = self.score(member)?;
        self.row.remove(score, member);
        self.forget(member);
        Some(score)
    }

    /// Removes the members of a range of ranks, and returns them with their scores, the lowest first.
    ///
    /// # Panics
    ///
    /// If a rank of the range does not exist.
    pub fn drain(&mut self, ranks: Range<usize>) -> impl ExactSizeIterator<Item = (Arc<[u8]>, f64)> + use<> {
        let drained = self.row.drain(ranks);
        drained.iter().for_each(|scored| self.forget(&scored.member));
        drained.into_iter().map(|scored| (scored.member, scored.score))
    }

    /// A member's rank.
    pub fn rank(&self, member: &[u8]) -> Option<usize> {
        let score = self.score(member)?;
        Some(self.row.rank(score, member))
    }

    /// The number of members whose score is `before`. If a score is `before`, all lower ones must be.
    pub fn rank_of_score(&self, before: impl Fn(f64) -> bool) -> usize {
        self.row.rank_where(|scored| before(scored.score))
    }

    /// The number of members that are `before`, of a set in which all have the same score. If a member is `before`, all
    /// lesser ones must be. In another set it is some rank, which depends on the members and their scores alone.
    pub fn rank_of_member(&self, before: impl Fn(&[u8]) -> bool) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.row.get(middle).is_some_and(|scored| before(&scored.member)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The member of a rank, and its score.
    pub fn get(&self, rank: usize) -> Option<(&Arc<[u8]>, f64)> {
        self.row.get(rank).map(pair)
    }

    /// The members of a range of ranks, and their scores.
    ///
    /// # Panics
    ///
    /// If a rank of the range does not exist.
    pub fn range(&self, ranks: Range<usize>) -> impl DoubleEndedIterator<Item = (&Arc<[u8]>, f64)> {
        self.row.range(ranks).map(pair)
    }

    /// The members and their scores, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], f64)> {
        self.row.iter().map(|scored| (&*scored.member, scored.score))
    }

    /// The number of places in the table of members. `None` if there is no table, since the members are few.
    pub fn places(&self) -> Option<usize> {
        self.scores.as_ref().map(|scores| scores.len())
    }

    /// Keeps a table of members from now on, even for few members, as a set does that had many before.
    pub(crate) fn keep_table(&mut self) {
        self.scores.get_or_insert_with(|| {
            let all = self.row.iter().map(|scored| (Arc::clone(&scored.member), scored.score));
            Box::new(all.collect())
        });
    }

    /// The member and score at a place of the table of members. When a member is removed, the last takes its place.
    pub fn at(&self, place: usize) -> Option<(&Arc<[u8]>, f64)> {
        self.scores.as_ref()?.get_index(place).map(|(member, score)| (member, *score))
    }

    /// The bytes of memory beyond the value itself; an estimate where there are many members.
    pub fn heap_bytes(&self) -> usize {
        /// The size of an `Arc`'s two counts.
        const COUNTS: usize = 2 * size_of::<usize>();
        /// A place of the table: a hash, a member, its score, and its number in the table of hashes.
        const PLACE: usize = size_of::<(usize, Arc<[u8]>, f64)>() + size_of::<usize>() + 1;
        let member = |rank| COUNTS + self.row.get(rank).map_or(0, |scored| scored.member.len());
        let members = room::sum_bytes(self.len(), member);
        let table = self.scores.as_ref().map_or(0, |scores| size_of::<Scores>() + scores.capacity() * PLACE);
        self.row.heap_bytes() + members + table
    }

    fn forget(&mut self, member: &[u8]) {
        let Some(scores) = &mut self.scores else { return };
        scores.swap_remove(member);
        if let Some(room) = room::surplus(scores.len(), scores.capacity()) {
            scores.shrink_to(room);
        }
    }
}

impl<'a> FromIterator<(&'a [u8], f64)> for SortedSet {
    fn from_iter<I: IntoIterator<Item = (&'a [u8], f64)>>(all: I) -> SortedSet {
        let mut set = SortedSet::default();
        for (member, score) in all {
            set.insert(member, score);
        }
        set
    }
}

fn pair(scored: &Scored) -> (&Arc<[u8]>, f64) {
    (&scored.member, scored.score)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_with_ranks(steps in vec((0u16..100, -4i8..4, 0u8..4), 1..400)) {
            let (mut set, mut map) = (SortedSet::default(), BTreeMap::new());
            for (member, score, what) in steps {
                let (member, score) = (member.to_string().into_bytes(), f64::from(score));
                match what {
                    0 => prop_assert_eq!(set.remove(&member), map.remove(&member)),
                    1 if map.len() > 60 => {
                        for (member, score) in set.drain(3..9) {
                            prop_assert_eq!(map.remove(&*member), Some(score));
                        }
                    }
                    _ => prop_assert_eq!(set.insert(&member, score), map.insert(member, score)),
                }
                let mut expected: Vec<_> = map.iter().map(|(member, score)| (&**member, *score)).collect();
                expected.sort_by(|(m, s), (n, t)| s.total_cmp(t).then(m.cmp(n)));
                prop_assert!(set.iter().eq(expected.iter().copied()));
                for (rank, (member, score)) in expected.into_iter().enumerate() {
                    prop_assert_eq!((set.rank(member), set.score(member)), (Some(rank), Some(score)));
                }
                if let Some(places) = set.places() {
                    prop_assert_eq!(places, map.len());
                    prop_assert!((0..places).all(|place| set.at(place).is_some_and(|(m, s)| map[&**m] == s)));
                }
            }
        }
    }

    #[test]
    fn a_small_set_is_small() {
        let set: SortedSet = [(&b"one"[..], 1.0), (b"two", 2.0)].into_iter().collect();
        assert!(size_of::<SortedSet>() + set.heap_bytes() < 256, "{} bytes", set.heap_bytes());
    }
}
