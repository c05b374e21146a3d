//! Members in the order of their scores, found by rank as well.
//!
//! They lie in a row of sorted chunks. A Fenwick tree over the chunks' lengths turns ranks into places and back. It is
//! built anew when a chunk is split or merged, which takes hundreds of changes. So a change or a rank in a row of a
//! million members takes about a microsecond, and a small row is one short `Vec`.

use std::{cmp::Ordering, ops::Range, sync::Arc};

/// The most members of a chunk.
const CHUNK: usize = 512;

/// Neighbours that have no more members together become one chunk. It is far below [`CHUNK`], so that a few changes do
/// not split the chunk again.
const MERGED: usize = CHUNK / 2;

/// A member and its score, which is not NaN.
#[derive(Clone, Debug)]
pub(super) struct Scored {
    pub(super) score: f64,
    pub(super) member: Arc<[u8]>,
}

/// The order of members and their scores: by score, in which -0 is 0, and then by bytes.
pub(crate) fn order(one: (&[u8], f64), other: (&[u8], f64)) -> Ordering {
    (one.1 + 0.0).total_cmp(&(other.1 + 0.0)).then_with(|| one.0.cmp(other.0))
}

impl Scored {
    fn order(&self, score: f64, member: &[u8]) -> Ordering {
        order((&self.member, self.score), (member, score))
    }
}

/// Members in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranked {
    /// The chunks, none of which is empty.
    chunks: Vec<Vec<Scored>>,
    /// The Fenwick tree; empty for a single chunk.
    counts: Vec<usize>,
    len: usize,
}

/// A chunk, and a place in it.
type ChunkPosition = (usize, usize);

impl Ranked {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds a member that is not there.
    pub(super) fn insert(&mut self, scored: Scored) {
        self.len += 1;
        let (mut chunk, mut at) = self.place(|other| other.order(scored.score, &scored.member).is_lt());
        if chunk == self.chunks.len() {
            let Some(last) = chunk.checked_sub(1) else {
                self.chunks.reserve_exact(1);
                return self.chunks.push(vec![scored]);
            };
            (chunk, at) = (last, self.chunks[last].len());
        }
        if self.chunks[chunk].len() < CHUNK {
            self.chunks[chunk].insert(at, scored);
            return self.count(chunk, 1);
        }
        // A row that is only appended to leaves full chunks behind.
        let appends = chunk + 1 == self.chunks.len() && at == CHUNK;
        let middle = if appends { CHUNK } else { CHUNK / 2 };
        let mut upper = self.chunks[chunk].split_off(middle);
        match at.checked_sub(middle) {
            Some(at) => upper.insert(at, scored),
            None => self.chunks[chunk].insert(at, scored),
        }
        self.chunks.insert(chunk + 1, upper);
        self.count_anew();
    }

    /// Removes a member that has this score.
    pub(super) fn remove(&mut self, score: f64, member: &[u8]) -> Option<Scored> {
        let (chunk, at) = self.place(|other| other.order(score, member).is_lt());
        if self.chunks.get(chunk)?.get(at)?.order(score, member).is_ne() {
            return None;
        }
        let removed = self.chunks[chunk].remove(at);
        self.took(chunk, 1);
        Some(removed)
    }

    /// Removes the members of a range of ranks, which must exist.
    pub(super) fn drain(&mut self, ranks: Range<usize>) -> Vec<Scored> {
        if ranks.is_empty() {
            return Vec::new();
        }
        let (first, from) = self.at_rank(ranks.start);
        let (last, to) = self.at_rank(ranks.end - 1);
        if first == last {
            let drained: Vec<_> = self.chunks[first].drain(from..=to).collect();
            self.took(first, drained.len());
            return drained;
        }
        let mut drained = Vec::with_capacity(ranks.len());
        drained.append(&mut self.chunks[first].split_off(from));
        drained.extend(self.chunks.drain(first + 1..last).flatten());
        drained.extend(self.chunks[first + 1].drain(..=to));
        self.len -= drained.len();
        self.chunks.retain(|chunk| !chunk.is_empty());
        self.tidy(first.min(self.chunks.len().saturating_sub(1)));
        self.count_anew();
        drained
    }

    /// The number of members before the first that is not `before`. All members ahead of that one must be `before`.
    pub(super) fn rank_where(&self, before: impl Fn(&Scored) -> bool) -> usize {
        let (chunk, at) = self.place(before);
        self.before(chunk) + at
    }

    /// The rank of a member that has this score.
    pub(super) fn rank(&self, score: f64, member: &[u8]) -> usize {
        self.rank_where(|other| other.order(score, member).is_lt())
    }

    /// The member of a rank.
    pub(super) fn get(&self, rank: usize) -> Option<&Scored> {
        let (chunk, at) = self.at_rank(rank);
        self.chunks.get(chunk)?.get(at)
    }

    /// The members of a range of ranks, which must exist.
    pub(super) fn range(&self, ranks: Range<usize>) -> impl DoubleEndedIterator<Item = &Scored> {
        let (mut chunks, mut from, mut to) = (0..0, 0, 0);
        if !ranks.is_empty() {
            let (first, last);
            (first, from) = self.at_rank(ranks.start);
            (last, to) = self.at_rank(ranks.end - 1);
            chunks = first..last + 1;
        }
        let last = chunks.len().saturating_sub(1);
        self.chunks[chunks].iter().enumerate().flat_map(move |(place, chunk)| {
            let from = if place == 0 { from } else { 0 };
            if place == last { &chunk[from..=to] } else { &chunk[from..] }
        })
    }

    /// All members.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &Scored> {
        self.chunks.iter().flatten()
    }

    /// The bytes of memory beyond this struct and the members.
    pub(super) fn heap_bytes(&self) -> usize {
        let chunks: usize = self.chunks.iter().map(|chunk| chunk.capacity() * size_of::<Scored>()).sum();
        chunks + self.chunks.capacity() * size_of::<Vec<Scored>>() + self.counts.capacity() * size_of::<usize>()
    }

    /// The place of the first member that is not `before`; beyond the last chunk if there is none.
    fn place(&self, before: impl Fn(&Scored) -> bool) -> ChunkPosition {
        let chunk = self.chunks.partition_point(|chunk| chunk.last().is_some_and(&before));
        (chunk, self.chunks.get(chunk).map_or(0, |chunk| chunk.partition_point(before)))
    }

    /// The place of a rank; beyond all members if there is none.
    fn at_rank(&self, rank: usize) -> ChunkPosition {
        let (mut chunk, mut left) = (0, rank);
        let mut step = (self.counts.len() + 1).next_power_of_two() / 2;
        while step > 0 {
            if let Some(&count) = self.counts.get(chunk + step - 1)
                && count <= left
            {
                left -= count;
                chunk += step;
            }
            step /= 2;
        }
        (chunk, left)
    }

    /// The number of members in the chunks before one.
    fn before(&self, chunk: usize) -> usize {
        // A single chunk has no tree.
        if self.counts.is_empty() {
            return if chunk == 0 { 0 } else { self.len };
        }
        let (mut end, mut sum) = (chunk, 0);
        while end > 0 {
            sum += self.counts[end - 1];
            end &= end - 1;
        }
        sum
    }

    fn count(&mut self, chunk: usize, added: isize) {
        let mut at = chunk;
        while let Some(count) = self.counts.get_mut(at) {
            *count = count.wrapping_add_signed(added);
            at |= at + 1;
        }
    }

    fn count_anew(&mut self) {
        self.counts.clear();
        if self.chunks.len() < 2 {
            self.counts = Vec::new();
            return;
        }
        self.counts.extend(self.chunks.iter().map(Vec::len));
        for at in 0..self.counts.len() {
            let count = self.counts[at];
            if let Some(above) = self.counts.get_mut(at | (at + 1)) {
                *above += count;
            }
        }
    }

    /// Updates the counts after members were taken out of one chunk.
    fn took(&mut self, chunk: usize, taken: usize) {
        self.len -= taken;
        if self.tidy(chunk) {
            self.count_anew();
        } else {
            self.count(chunk, -(taken as isize));
        }
    }

    /// Removes a chunk that is empty, or merges it with a neighbour if both fit into [`MERGED`]. Returns whether it
    /// did.
    fn tidy(&mut self, chunk: usize) -> bool {
        let Some(len) = self.chunks.get(chunk).map(Vec::len) else { return false };
        if len == 0 {
            self.chunks.remove(chunk);
            return true;
        }
        if len > MERGED {
            return false;
        }
        let joined = |lower: &usize| {
            let both = self.chunks.get(*lower..lower + 2);
            both.is_some_and(|both| both[0].len() + both[1].len() <= MERGED)
        };
        if let Some(lower) = [chunk.checked_sub(1), Some(chunk)].into_iter().flatten().find(joined) {
            let mut upper = self.chunks.remove(lower + 1);
            self.chunks[lower].append(&mut upper);
            return true;
        }
        let chunk = &mut self.chunks[chunk];
        if len < chunk.capacity() / 4 {
            chunk.shrink_to(2 * len);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// The same as a plain sorted vector.
    #[derive(Default)]
    struct Model(Vec<(f64, Vec<u8>)>);

    impl Model {
        fn find(&self, score: f64, member: &[u8]) -> Result<usize, usize> {
            self.0.binary_search_by(|(s, m)| s.partial_cmp(&score).expect("no NaN").then_with(|| (**m).cmp(member)))
        }
    }

    fn same(ranked: &Ranked, model: &Model) {
        let all: Vec<_> = ranked.iter().map(|scored| (scored.score, scored.member.to_vec())).collect();
        assert_eq!(all, model.0);
        assert_eq!(ranked.len(), model.0.len());
        for (rank, (score, member)) in model.0.iter().enumerate() {
            let found = ranked.get(rank).expect("there is one of this rank");
            assert_eq!((found.score, &*found.member), (*score, &**member));
            assert_eq!(ranked.rank(*score, member), rank);
        }
        assert!(ranked.get(model.0.len()).is_none());
        assert!(ranked.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
    }

    #[derive(Clone, Debug)]
    enum RankedStep {
        Insert(f64, Vec<u8>),
        /// This many members with rising scores.
        Append(u16),
        Remove(prop::sample::Index),
        Drain(prop::sample::Index, prop::sample::Index),
    }

    fn step() -> impl Strategy<Value = RankedStep> {
        let score = prop_oneof![Just(0.0), Just(-0.0), Just(f64::INFINITY), Just(f64::NEG_INFINITY), -3.0..3.0f64];
        prop_oneof![
            4 => (score, vec(any::<u8>(), 0..3)).prop_map(|(score, member)| RankedStep::Insert(score, member)),
            2 => (1u16..900).prop_map(RankedStep::Append),
            4 => any::<prop::sample::Index>().prop_map(RankedStep::Remove),
            2 => any::<(prop::sample::Index, prop::sample::Index)>().prop_map(|(from, to)| RankedStep::Drain(from, to)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn it_does_what_a_sorted_vec_does(steps in vec(step(), 1..30)) {
            let (mut ranked, mut model) = (Ranked::default(), Model::default());
            for (number, step) in steps.into_iter().enumerate() {
                let added = match step {
                    RankedStep::Insert(score, member) => vec![(score, member)],
                    // Some lie in between, some at the end.
                    RankedStep::Append(count) => (0..count)
                        .map(|of| (f64::from(of / 3), [&(number as u32).to_be_bytes()[..], &of.to_be_bytes()].concat()))
                        .collect(),
                    RankedStep::Remove(index) => {
                        if !model.0.is_empty() {
                            let (score, member) = model.0.remove(index.index(model.0.len()));
                            let removed = ranked.remove(score, &member).expect("it is there");
                            prop_assert_eq!((removed.score, &*removed.member), (score, &*member));
                            prop_assert!(ranked.remove(score, &member).is_none());
                        }
                        Vec::new()
                    }
                    RankedStep::Drain(from, to) => {
                        let ends = [from.index(model.0.len() + 1), to.index(model.0.len() + 1)];
                        let ranks = ends[0].min(ends[1])..ends[0].max(ends[1]);
                        let seen: Vec<_> = ranked.range(ranks.clone()).rev().map(|s| s.member.to_vec()).collect();
                        let drained: Vec<_> = ranked.drain(ranks.clone()).into_iter().map(|s| s.member.to_vec()).collect();
                        let expected: Vec<_> = model.0.drain(ranks).map(|(_, member)| member).collect();
                        prop_assert_eq!(&drained, &expected);
                        prop_assert!(seen.iter().eq(expected.iter().rev()));
                        Vec::new()
                    }
                };
                for (score, member) in added {
                    if let Err(at) = model.find(score, &member) {
                        ranked.insert(Scored { score, member: member.clone().into() });
                        model.0.insert(at, (score, member));
                    }
                }
                same(&ranked, &model);
            }
        }
    }
}
