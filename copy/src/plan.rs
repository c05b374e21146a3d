//! The plan of a transfer: what receivers lack, sorted by who lacks it; and the choice of the segments to send next.
//! Pure.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use squall_services::frame::at_most;

use super::{
    extent::{Extent, PlanPart},
    layout::StreamLayout,
    manifest::Manifest,
};

/// The most interrupted segments that a receiver tells of: more than any has.
const MOST_PARTIAL: usize = 1 << 16;

/// The most parts of a plan: each takes groups of its own. Beyond, receivers get bytes that they have.
const MOST_PARTS: usize = 16;

/// Sorts what receivers lack: `lacking` has each receiver's node id and extents, in order. What most receivers lack
/// comes first.
pub(crate) fn parts(lacking: &[(u32, Vec<Extent>)]) -> Vec<PlanPart> {
    let mut parts: HashMap<Vec<u32>, Vec<Extent>> = HashMap::new();
    // The next extent of each receiver, of which the first bytes may be gone.
    let mut rests: Vec<(u32, std::slice::Iter<'_, Extent>, Option<Extent>)> = lacking
        .iter()
        .map(|(receiver, extents)| {
            let mut extents = extents.iter();
            let first = extents.next().copied();
            (*receiver, extents, first)
        })
        .collect();
    while let Some((entry, at)) = rests.iter().filter_map(|(.., next)| next.map(|next| (next.entry, next.at))).min() {
        let of_entry = || rests.iter().filter_map(|(.., next)| next.filter(|next| next.entry == entry));
        let bounds = of_entry().map(|next| if next.at == at { next.end() } else { next.at });
        let end = bounds.min().expect("at least one begins here");
        let mut receivers = Vec::new();
        for (receiver, extents, next) in &mut rests {
            if let Some(extent) = next.as_mut().filter(|next| next.entry == entry && next.at == at) {
                receivers.push(*receiver);
                (extent.at, extent.len) = (end, extent.end() - end);
                if extent.len == 0 {
                    *next = extents.next().copied();
                }
            }
        }
        let extents = parts.entry(receivers).or_default();
        match extents.last_mut() {
            Some(last) if last.entry == entry && last.end() == at => last.len += end - at,
            _ => extents.push(Extent { entry, at, len: end - at }),
        }
    }
    let parts = parts.into_iter().map(|(receivers, extents)| PlanPart { receivers, extents }).collect();
    let mut parts = merge_smallest(MOST_PARTS, parts);
    parts.sort_unstable_by_key(|part| (usize::MAX - part.receivers.len(), part.extents[0]));
    parts
}

/// Merges the smallest parts, if there are too many.
fn merge_smallest(limit: usize, mut parts: Vec<PlanPart>) -> Vec<PlanPart> {
    if parts.len() <= limit {
        return parts;
    }
    parts.sort_unstable_by_key(|part| u64::MAX - part.bytes());
    let small = parts.split_off(limit - 1);
    let receivers: BTreeSet<u32> = small.iter().flat_map(|part| &part.receivers).copied().collect();
    let mut extents: Vec<Extent> = small.into_iter().flat_map(|part| part.extents).collect();
    extents.sort_unstable();
    parts.push(PlanPart { receivers: receivers.into_iter().collect(), extents });
    parts
}

/// Tells whether a plan that was sent is one: its extents lie in files of the manifest, and are not too many.
pub(crate) fn check(plan: &[PlanPart], manifest: &Manifest) -> bool {
    let mut bytes = 0_u64;
    let extents = plan.iter().flat_map(|part| &part.extents);
    for Extent { entry, at, len } in extents {
        let inside = manifest
            .entries()
            .get(*entry as usize)
            .is_some_and(|entry| entry.is_file() && at.checked_add(*len).is_some_and(|end| end <= entry.bytes()));
        match bytes.checked_add(*len) {
            Some(sum) if inside => bytes = sum,
            _ => return false,
        }
    }
    true
}

/// The part of a plan that a receiver holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holding {
    /// The segment before which it has all that are for it.
    pub(crate) segments: u64,
    /// Segments beyond those, of which it holds some blocks.
    #[serde(deserialize_with = "at_most::<MOST_PARTIAL, _, _>")]
    pub(crate) partial: Vec<u64>,
}

/// Segments for one group to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferStage {
    /// The first segment.
    pub(crate) first: u64,
    /// The one after the last.
    pub(crate) end: u64,
    /// The receivers that lack them, as they were given.
    pub(crate) receivers: Vec<usize>,
    /// Whether some hold blocks of the one segment: it is resumed.
    pub(crate) partial: bool,
}

/// Returns the next stage; None when every receiver holds everything that is for it. `holdings` has a number for each
/// receiver, its node id, and its holding.
///
/// Receivers get the segments that are for them in order, so each holds a first part of those, and perhaps some blocks
/// of the next ones. The receiver that is furthest behind comes first, until it has caught up with the next of the same
/// part: then both continue together. So no receiver gets a segment twice, and segments that all lack are sent once.
pub(crate) fn next_stage<'h>(
    holdings: impl IntoIterator<Item = (usize, u32, &'h Holding)>,
    layout: &StreamLayout,
) -> Option<TransferStage> {
    let holdings: Vec<(usize, u64, &Holding)> = holdings
        .into_iter()
        .map(|(receiver, node, holding)| (receiver, layout.next_for(node, holding.segments), holding))
        .collect();
    let segments = layout.segments();
    let first = holdings.iter().map(|(_, next, _)| *next).min().filter(|&first| first < segments)?;
    let (lacking, ahead): (Vec<_>, Vec<_>) = holdings.into_iter().partition(|(_, next, _)| *next == first);
    let partials: BTreeSet<u64> = lacking.iter().flat_map(|(.., holding)| &holding.partial).copied().collect();
    let partial = partials.contains(&first);
    let stop = partials.into_iter().find(|&segment| segment > first).unwrap_or(segments);
    let caught_up = ahead.iter().map(|(_, next, _)| *next).min().unwrap_or(segments);
    let end = if partial { first + 1 } else { stop.min(caught_up).min(layout.part_end(first)) };
    let receivers = lacking.into_iter().map(|(receiver, ..)| receiver).collect();
    Some(TransferStage { first, end, receivers, partial })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::extent::Lacks, *};

    fn holding(segments: u64, partial: &[u64]) -> Holding {
        Holding { segments, partial: partial.to_vec() }
    }

    /// Lays parts of some segments each out.
    fn layout(parts: &[(&[u32], u64)]) -> StreamLayout {
        let part = |(receivers, len): &(&[u32], u64)| PlanPart {
            receivers: receivers.to_vec(),
            extents: vec![Extent { entry: 0, at: 0, len: *len }],
        };
        StreamLayout::new(&parts.iter().map(part).collect::<Vec<_>>(), 1)
    }

    fn stage(holdings: &[Holding], layout: &StreamLayout) -> Option<TransferStage> {
        let holdings = holdings.iter().enumerate().map(|(receiver, holding)| (receiver, receiver as u32, holding));
        next_stage(holdings, layout)
    }

    #[test]
    fn what_all_lack_is_one_stage() {
        let both: (&[u32], u64) = (&[0, 1], 9);
        let all = [holding(0, &[]), holding(0, &[])];
        let expected = TransferStage { first: 0, end: 9, receivers: vec![0, 1], partial: false };
        assert_eq!(stage(&all, &layout(&[both])), Some(expected));
        assert_eq!(stage(&[holding(9, &[]), holding(9, &[])], &layout(&[both])), None);
        assert_eq!(stage(&[holding(0, &[])], &layout(&[])), None);
    }

    #[test]
    fn who_is_behind_catches_up_alone() {
        let all = [holding(5, &[]), holding(2, &[]), holding(7, &[])];
        let expected = TransferStage { first: 2, end: 5, receivers: vec![1], partial: false };
        assert_eq!(stage(&all, &layout(&[(&[0, 1, 2], 9)])), Some(expected));
    }

    #[test]
    fn an_interrupted_segment_is_resumed_among_those_who_lack_it() {
        let layout = layout(&[(&[0, 1, 2], 9)]);
        let all = [holding(5, &[5, 6]), holding(5, &[]), holding(6, &[])];
        assert_eq!(
            stage(&all, &layout),
            Some(TransferStage { first: 5, end: 6, receivers: vec![0, 1], partial: true })
        );
        let later = [holding(5, &[7]), holding(5, &[])];
        let expected = TransferStage { first: 5, end: 7, receivers: vec![0, 1], partial: false };
        assert_eq!(stage(&later, &layout), Some(expected));
    }

    #[test]
    fn a_part_is_for_its_receivers_only() {
        let layout = layout(&[(&[0, 1], 4), (&[2], 3)]);
        let all = [holding(0, &[]), holding(0, &[]), holding(0, &[])];
        let expected = TransferStage { first: 0, end: 4, receivers: vec![0, 1], partial: false };
        assert_eq!(stage(&all, &layout), Some(expected));
        let all = [holding(4, &[]), holding(4, &[]), holding(0, &[])];
        assert_eq!(stage(&all, &layout), Some(TransferStage { first: 4, end: 7, receivers: vec![2], partial: false }));
    }

    #[test]
    fn parts_are_those_who_lack_the_same() {
        let extent = |entry, at, len| Extent { entry, at, len };
        let one = vec![extent(0, 0, 10), extent(2, 0, 5)];
        let two = vec![extent(0, 4, 3), extent(1, 0, 1), extent(2, 0, 5)];
        let expected = [
            PlanPart { receivers: vec![7, 9], extents: vec![extent(0, 4, 3), extent(2, 0, 5)] },
            PlanPart { receivers: vec![7], extents: vec![extent(0, 0, 4), extent(0, 7, 3)] },
            PlanPart { receivers: vec![9], extents: vec![extent(1, 0, 1)] },
        ];
        assert_eq!(parts(&[(7, one), (9, two), (11, vec![])]), expected);
    }

    proptest! {
        #[test]
        fn every_receiver_gets_what_it_lacks_once(
            lacks in proptest::collection::vec(proptest::collection::vec((0_u32..3, 0_u64..20, 1_u64..6), 0..6), 1..7),
        ) {
            let lacking: Vec<(u32, Vec<Extent>)> = lacks
                .iter()
                .enumerate()
                .map(|(receiver, ranges)| {
                    let bytes: BTreeSet<(u32, u64)> =
                        ranges.iter().flat_map(|&(entry, at, len)| (at..at + len).map(move |at| (entry, at))).collect();
                    let extents = bytes.into_iter().map(|(entry, at)| Extent { entry, at, len: 1 }).collect();
                    (receiver as u32, extents)
                })
                .collect();
            let parts = parts(&lacking);
            prop_assert!(parts.len() <= MOST_PARTS);
            let mut sent = Lacks::default();
            for PlanPart { receivers, extents } in &parts {
                prop_assert!(!receivers.is_empty() && extents.is_sorted());
                let (before, bytes) = (sent.bytes(), extents.iter().map(|extent| extent.len).sum::<u64>());
                for extent in extents {
                    sent.add(extent.entry, std::iter::once(extent.at..extent.end()));
                }
                prop_assert_eq!(before + bytes, sent.bytes());
            }
            for (receiver, extents) in lacking {
                let mut left: BTreeSet<(u32, u64)> = extents.iter().map(|extent| (extent.entry, extent.at)).collect();
                for PlanPart { extents, .. } in parts.iter().filter(|part| part.receivers.contains(&receiver)) {
                    for at in extents.iter().flat_map(|extent| (extent.at..extent.end()).map(|at| (extent.entry, at))) {
                        let was = left.remove(&at);
                        prop_assert!(was || lacks.len() > 4, "{:?} is sent twice, or not lacked", at);
                    }
                }
                prop_assert!(left.is_empty());
            }
        }

        #[test]
        fn everybody_gets_each_missing_segment_once(
            held in proptest::collection::vec((0_u64..12, proptest::collection::vec(0_u64..12, 0..3)), 1..6),
            second in 0_u64..5,
        ) {
            let all_of_them: Vec<u32> = (0..held.len() as u32).collect();
            let layout = layout(&[(&all_of_them, 12), (&all_of_them[..1], second)]);
            let mut all: Vec<Holding> = held
                .iter()
                .map(|(segments, partial)| {
                    let partial = partial.iter().copied().filter(|segment| segment >= segments).collect::<Vec<_>>();
                    holding(*segments, &partial)
                })
                .collect();
            let mut stages = 0;
            while let Some(TransferStage { first, end, receivers, partial }) = stage(&all, &layout) {
                stages += 1;
                prop_assert!(first < end && end <= 12 + second && stages < 100);
                prop_assert!(!partial || end == first + 1);
                for receiver in receivers {
                    prop_assert_eq!(layout.next_for(receiver as u32, all[receiver].segments), first);
                    prop_assert!(partial || !(first..end).any(|segment| all[receiver].partial.contains(&segment)));
                    all[receiver].segments = end;
                }
            }
            prop_assert!(all.iter().all(|holding| holding.segments >= 12));
        }
    }
}
