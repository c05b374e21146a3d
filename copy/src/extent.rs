//! Ranges of files: what a receiver lacks, and what of it is still missing.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Bytes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Extent {
    /// The file, as an index into the manifest.
    pub(crate) entry: u32,
    /// The offset in the file at which it begins.
    pub(crate) at: u64,
    /// The number of bytes.
    pub(crate) len: u64,
}

impl Extent {
    /// Returns the offset in the file at which it ends.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// Extents, and the receivers that lack them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanPart {
    /// The node ids of the receivers.
    pub(crate) receivers: Vec<u32>,
    /// The extents, in order.
    pub(crate) extents: Vec<Extent>,
}

impl PlanPart {
    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.iter().map(|extent| extent.len).sum()
    }
}

/// A set of ranges of one file's bytes: sorted, and none is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// Makes a set of ranges that are in order, and do not overlap.
    pub(crate) fn new(ranges: impl IntoIterator<Item = Range<u64>>) -> Ranges {
        Ranges(ranges.into_iter().filter(|range| !range.is_empty()).collect())
    }

    /// Tells whether no byte is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    /// Takes a range out. Returns the parts of it that were in.
    pub(crate) fn take(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let first = self.0.partition_point(|here| here.end <= range.start);
        let end = self.0.partition_point(|here| here.start < range.end).max(first);
        let touched: Vec<Range<u64>> = self.0[first..end].to_vec();
        let (Some(front), Some(back)) = (touched.first(), touched.last()) else { return Vec::new() };
        let left = [front.start..range.start.max(front.start), range.end.min(back.end)..back.end];
        self.0.splice(first..end, left.into_iter().filter(|range| !range.is_empty()));
        touched.iter().map(|here| here.start.max(range.start)..here.end.min(range.end)).collect()
    }
}

/// Tells whether ranges, each an offset and a length, are in order, do not overlap, and each lies within one of
/// `contents`, which are in order too.
pub(crate) fn lie_in(ranges: &[(u64, u64)], mut contents: impl Iterator<Item = Range<u64>>) -> bool {
    let mut here = contents.next();
    let mut end = 0;
    ranges.iter().all(|&(at, len)| {
        while here.as_ref().is_some_and(|here| here.end <= at) {
            here = contents.next();
        }
        let range_end = at.checked_add(len);
        let is_inside =
            here.as_ref().is_some_and(|here| here.start <= at && range_end.is_some_and(|to| to <= here.end));
        let fits = at >= end && len > 0 && is_inside;
        end = at.saturating_add(len);
        fits
    })
}

/// The extents that a receiver lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lacks(Vec<Extent>);

impl Lacks {
    /// Adds ranges of a file that was not added before.
    pub(crate) fn add(&mut self, entry: u32, ranges: impl IntoIterator<Item = Range<u64>>) {
        let extent = |range: Range<u64>| Extent { entry, at: range.start, len: range.end - range.start };
        self.0.extend(ranges.into_iter().filter(|range| !range.is_empty()).map(extent));
    }

    /// Takes extents out.
    pub(crate) fn take(&mut self, mut taken: Vec<Extent>) {
        self.0.sort_unstable();
        taken.sort_unstable();
        let mut taken = taken.into_iter().peekable();
        let mut left = Vec::with_capacity(self.0.len());
        for Extent { entry, at, len } in std::mem::take(&mut self.0) {
            let mut begin = at;
            while let Some(next) = taken.peek().filter(|next| (next.entry, next.at) < (entry, at + len)) {
                let (next_begin, next_end) = (next.at.max(begin), next.end());
                if next.entry == entry && next_end > begin {
                    left.push(Extent { entry, at: begin, len: next_begin - begin });
                    begin = next_end.min(at + len);
                    if next_end > at + len {
                        // It reaches into the next extent.
                        break;
                    }
                }
                taken.next();
            }
            left.push(Extent { entry, at: begin, len: at + len - begin });
        }
        left.retain(|extent| extent.len > 0);
        self.0 = left;
    }

    /// Returns the number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|extent| extent.len).sum()
    }

    /// Returns the extents, in order.
    pub(crate) fn extents(&mut self) -> Vec<Extent> {
        self.0.sort_unstable();
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_of_a_file_lie_within_its_contents() {
        let contents = || [0..10, 20..30].into_iter();
        for good in [&[][..], &[(0, 10)], &[(0, 3), (3, 7), (20, 1), (29, 1)]] {
            assert!(lie_in(good, contents()), "{good:?}");
        }
        for bad in
            [&[(0, 11)][..], &[(9, 12)], &[(10, 1)], &[(0, 0)], &[(3, 2), (0, 1)], &[(0, 3), (2, 2)], &[(29, u64::MAX)]]
        {
            assert!(!lie_in(bad, contents()), "{bad:?}");
        }
        assert!(!lie_in(&[(0, 1)], std::iter::empty()));
    }

    proptest! {
        #[test]
        fn a_set_holds_what_was_not_taken(
            lens in proptest::collection::vec((0_u64..5, 1_u64..9), 0..6),
            takes in proptest::collection::vec((0_u64..60, 0_u64..30), 0..8),
        ) {
            let mut at = 0;
            let ranges: Vec<Range<u64>> = lens
                .iter()
                .map(|&(gap, len)| {
                    // Neighbours have at least a byte between them.
                    at += gap + 1 + len;
                    at - len..at
                })
                .collect();
            let mut model: std::collections::BTreeSet<u64> = ranges.iter().cloned().flatten().collect();
            let mut set = Ranges::new(ranges);
            for (begin, len) in takes {
                let taken: Vec<u64> = set.take(begin..begin + len).into_iter().flatten().collect();
                let expected: Vec<u64> = (begin..begin + len).filter(|byte| model.remove(byte)).collect();
                prop_assert_eq!(taken, expected);
            }
            prop_assert_eq!(set.0.into_iter().flatten().collect::<Vec<_>>(), model.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn what_was_taken_is_lacking_no_more(
            lacks in proptest::collection::btree_set((0_u32..3, 0_u64..20), 0..30),
            taken in proptest::collection::btree_set((0_u32..3, 0_u64..20), 0..30),
            joined in any::<bool>(),
        ) {
            let extents = |bytes: &std::collections::BTreeSet<(u32, u64)>, joined: bool| {
                let mut extents: Vec<Extent> = Vec::new();
                for &(entry, at) in bytes {
                    match extents.last_mut() {
                        Some(last) if joined && last.entry == entry && last.end() == at => last.len += 1,
                        _ => extents.push(Extent { entry, at, len: 1 }),
                    }
                }
                extents
            };
            let mut set = Lacks(extents(&lacks, true));
            set.take(extents(&taken, joined));
            let left: Vec<(u32, u64)> = set.extents().iter().flat_map(|extent| (extent.at..extent.end()).map(|at| (extent.entry, at))).collect();
            prop_assert_eq!(left, lacks.difference(&taken).copied().collect::<Vec<_>>());
        }
    }
}
