//! The arithmetic of the order: the sequence number of each turn of each sender.
//!
//! Turn j of the sender with rank s, of S senders, has the sequence number j·S + s.

/// Returns the length of the longest gap-free prefix of the order, if `turns(s)` turns of each of the `senders` senders
/// have arrived.
///
/// Saturates instead of overflowing, since the counts come from peers.
pub(crate) fn prefix(senders: usize, turns: impl Fn(usize) -> u64) -> u64 {
    // The first missing turn of sender s is turn turns(s).
    (0..senders).map(|s| turns(s).saturating_mul(senders as u64).saturating_add(s as u64)).min().unwrap_or(0)
}

/// Returns the number of turns that the sender with rank `me` must have used so that it delays no message that has been
/// seen. On seeing turn j of sender s, those are all turns up to j if me < s, else up to j − 1.
pub(crate) fn turns_due(senders: usize, me: usize, turns: impl Fn(usize) -> u64) -> u64 {
    let due = |s: usize| turns(s).saturating_sub(u64::from(me > s));
    (0..senders).filter(|&s| s != me).map(due).max().unwrap_or(0)
}

/// Returns the number of turns of the sender with rank `s` that lie in the first `seq` places of the order.
pub(crate) fn turns_within(senders: usize, s: usize, seq: u64) -> u64 {
    let senders = senders as u64;
    seq / senders + u64::from(seq % senders > s as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(0..40u64, 1..9)
    }

    proptest! {
        #[test]
        fn the_prefix_ends_at_the_first_place_whose_turn_has_not_arrived(turns in counts()) {
            let senders = turns.len();
            let arrived = |seq: u64| seq / (senders as u64) < turns[(seq % senders as u64) as usize];
            let prefix = prefix(senders, |s| turns[s]);
            prop_assert!((0..prefix).all(arrived));
            prop_assert!(!arrived(prefix));
        }

        #[test]
        fn turns_within_counts_a_senders_places(senders in 1..9usize, seq in 0..300u64) {
            for s in 0..senders {
                let counted = (0..seq).filter(|place| (place % senders as u64) as usize == s).count() as u64;
                prop_assert_eq!(turns_within(senders, s, seq), counted);
            }
        }

        /// Once all senders have filled up the turns that are due, every message that was sent can be delivered. Then
        /// no more turns are due: nulls don't call for nulls.
        #[test]
        fn nulls_complete_the_order_and_then_stop(turns in counts()) {
            let senders = turns.len();
            let filled: Vec<u64> =
                (0..senders).map(|me| turns[me].max(turns_due(senders, me, |s| turns[s]))).collect();
            let last = (0..senders).filter(|&s| turns[s] > 0).map(|s| (turns[s] - 1) * senders as u64 + s as u64).max();
            if let Some(last) = last {
                prop_assert!(prefix(senders, |s| filled[s]) > last);
            }
            for me in 0..senders {
                prop_assert!(turns_due(senders, me, |s| filled[s]) <= filled[me]);
            }
        }
    }

    #[test]
    fn absurd_counts_saturate() {
        assert_eq!(prefix(3, |_| u64::MAX), u64::MAX);
        assert_eq!(turns_due(3, 0, |_| u64::MAX), u64::MAX);
    }
}
