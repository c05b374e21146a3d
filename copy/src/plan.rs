//! The choice of the segments to send next, and of their receivers, given the holdings of all. Pure.

use std::collections::BTreeSet;

use super::control::Holding;

/// Segments for one group to move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TransferStage {
    /// The first segment.
    pub(crate) first: u64,
    /// The one after the last.
    pub(crate) end: u64,
    /// The receivers that lack them, as indices into the holdings that were given.
    pub(crate) receivers: Vec<usize>,
    /// Whether some hold blocks of the one segment: it is resumed.
    pub(crate) partial: bool,
}

/// Returns the next stage; None when every receiver holds everything.
///
/// Receivers get segments in order, so each holds a first part, and perhaps some blocks of the next ones. The receiver
/// that is furthest behind comes first, until it has caught up with the next: then both continue together. So no
/// receiver gets a segment twice, and segments that all lack are sent once.
pub(crate) fn next_stage<'h>(
    holdings: impl IntoIterator<Item = (usize, &'h Holding)>,
    segments: u64,
) -> Option<TransferStage> {
    let holdings: Vec<(usize, &Holding)> = holdings.into_iter().collect();
    let first = holdings.iter().map(|(_, holding)| holding.segments).min().filter(|&first| first < segments)?;
    let (lacking, ahead): (Vec<_>, Vec<_>) = holdings.into_iter().partition(|(_, holding)| holding.segments == first);
    let partials: BTreeSet<u64> = lacking.iter().flat_map(|(_, holding)| &holding.partial).copied().collect();
    let partial = partials.contains(&first);
    let stop = partials.into_iter().find(|&segment| segment > first).unwrap_or(segments);
    let caught_up = ahead.iter().map(|(_, holding)| holding.segments).min().unwrap_or(segments);
    let end = if partial { first + 1 } else { stop.min(caught_up).min(segments) };
    Some(TransferStage { first, end, receivers: lacking.into_iter().map(|(receiver, _)| receiver).collect(), partial })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn holding(segments: u64, partial: &[u64]) -> Holding {
        Holding { segments, partial: partial.to_vec(), first_open: 0 }
    }

    fn stage(holdings: &[Holding], segments: u64) -> Option<TransferStage> {
        next_stage(holdings.iter().enumerate(), segments)
    }

    #[test]
    fn what_all_lack_is_one_stage() {
        let all = [holding(0, &[]), holding(0, &[])];
        let expected = TransferStage { first: 0, end: 9, receivers: vec![0, 1], partial: false };
        assert_eq!(stage(&all, 9), Some(expected));
        assert_eq!(stage(&[holding(9, &[]), holding(9, &[])], 9), None);
        assert_eq!(stage(&[holding(0, &[])], 0), None);
    }

    #[test]
    fn who_is_behind_catches_up_alone() {
        let all = [holding(5, &[]), holding(2, &[]), holding(7, &[])];
        assert_eq!(stage(&all, 9), Some(TransferStage { first: 2, end: 5, receivers: vec![1], partial: false }));
    }

    #[test]
    fn an_interrupted_segment_is_resumed_among_those_who_lack_it() {
        let all = [holding(5, &[5, 6]), holding(5, &[]), holding(6, &[])];
        assert_eq!(stage(&all, 9), Some(TransferStage { first: 5, end: 6, receivers: vec![0, 1], partial: true }));
        let later = [holding(5, &[7]), holding(5, &[])];
        assert_eq!(stage(&later, 9), Some(TransferStage { first: 5, end: 7, receivers: vec![0, 1], partial: false }));
    }

    proptest! {
        #[test]
        fn everybody_gets_each_missing_segment_once(
            held in proptest::collection::vec((0_u64..12, proptest::collection::vec(0_u64..12, 0..3)), 1..6),
        ) {
            let mut all: Vec<Holding> = held
                .iter()
                .map(|(segments, partial)| {
                    let partial = partial.iter().copied().filter(|segment| segment >= segments).collect::<Vec<_>>();
                    holding(*segments, &partial)
                })
                .collect();
            let mut stages = 0;
            while let Some(TransferStage { first, end, receivers, partial }) = stage(&all, 12) {
                stages += 1;
                prop_assert!(first < end && end <= 12 && stages < 100);
                prop_assert!(!partial || end == first + 1);
                for receiver in receivers {
                    prop_assert_eq!(all[receiver].segments, first);
                    prop_assert_eq!(partial, partial && end == first + 1);
                    prop_assert!(partial || !(first..end).any(|segment| all[receiver].partial.contains(&segment)));
                    all[receiver].segments = end;
                }
            }
            prop_assert!(all.iter().all(|holding| holding.segments == 12));
        }
    }
}
