//! The members that stay, and the one that leads them: a function of the members' accusations.
//!
//! Members see each other's accusations as far as their rows reach them, so they may differ on the leader. That costs a
//! refused proposal and never more: the decision depends on the view log alone.

use crate::{ranks::Ranks, view::MAX_MEMBERS};

/// The accusations of members against each other, by rank, as one member's table says them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accusations {
    /// The members that each member accuses.
    made: Vec<Ranks>,
    /// The members that accuse each member.
    received: Vec<Ranks>,
}

impl Accusations {
    /// Makes a set without accusations, among `members` members.
    ///
    /// # Panics
    ///
    /// If there are more members than a view can have.
    pub fn none(members: usize) -> Accusations {
        assert!(members <= MAX_MEMBERS, "{members} members");
        Accusations { made: vec![Ranks::default(); members], received: vec![Ranks::default(); members] }
    }

    /// Adds an accusation by member `by` of member `whom`.
    pub fn accuse(&mut self, by: usize, whom: usize) {
        self.made[by] = self.made[by].with(Ranks::one(whom));
        self.received[whom] = self.received[whom].with(Ranks::one(by));
    }

    /// The number of members.
    pub fn members(&self) -> usize {
        self.made.len()
    }

    fn all(&self) -> Ranks {
        Ranks::first(self.members())
    }

    /// The members among some with which a member can't go on: one of the two accuses the other.
    fn opponents(&self, among: Ranks, of: usize) -> Ranks {
        among.and(self.made[of].with(self.received[of]))
    }

    /// The member among some that is to go first, if any is: the one with the most accusations made and received among
    /// them. Of several, one that accuses no member goes first, then the highest rank.
    fn worst(&self, among: Ranks) -> Option<usize> {
        let made = |m: usize| among.and(self.made[m]).len();
        let received = |m: usize| among.and(self.received[m]).len();
        let worst = among.iter().max_by_key(|&m| (made(m) + received(m), made(m) == 0, m))?;
        (made(worst) + received(worst) > 0).then_some(worst)
    }

    /// Drops the worst, one by one, until no member accuses another.
    fn without_the_worst(&self, mut left: Ranks) -> Ranks {
        while let Some(worst) = self.worst(left) {
            left = left.without(Ranks::one(worst));
        }
        left
    }

    /// Drops at most `spare` members so that no member accuses another, whenever that is possible.
    ///
    /// This is the search for a vertex cover. Each choice between two takes at least three members from `spare` on one
    /// side, so it takes less than 1.5 to the power of `spare` steps; `spare` is at most 32.
    fn with_few_dropped(&self, left: Ranks, spare: usize) -> Option<Ranks> {
        let at_odds = |m: &usize| self.opponents(left, *m).len();
        let Some(most) = left.iter().max_by_key(at_odds).filter(|m| at_odds(m) > 0) else { return Some(left) };
        // Each drop settles at most as many quarrels as the member with the most quarrels has.
        let quarrels: usize = left.iter().map(|m| at_odds(&m)).sum();
        if quarrels > 2 * spare * at_odds(&most) {
            return None;
        }
        if let Some(single) = left.iter().find(|m| at_odds(m) == 1) {
            // To drop its one opponent is never worse than to drop the member itself.
            return self.with_few_dropped(left.without(self.opponents(left, single)), spare - 1);
        }
        let drop_it = || self.with_few_dropped(left.without(Ranks::one(most)), spare - 1);
        let opponents = self.opponents(left, most);
        if opponents.len() == 2 {
            // All members have two opponents now: they form rings, of which any member may be dropped.
            return drop_it();
        }
        let keep_it = || self.with_few_dropped(left.without(opponents), spare.checked_sub(opponents.len())?);
        drop_it().or_else(keep_it)
    }
}

/// The ranks that stay, in order; the first of them leads.
///
/// The member with the most accusations made and received among those left is dropped, one by one, until no accusation
/// is left. Of several, one that accuses no member goes first, then the highest rank.
pub fn staying(accusations: &Accusations) -> Vec<usize> {
    accusations.without_the_worst(accusations.all()).iter().collect()
}

/// The ranks that stay if `me` leads them, whatever its rank and whichever member would drop it; in order, `me` among
/// them. At least half of the view, if some half with `me` in it is free of accusations.
///
/// This is for when nothing commits under the leaders that [`staying`] names. First go all members that `me` accuses or
/// that accuse it: what their rows say of others counts no more, which matters as those rows may be out of date. Of the
/// rest, members are dropped as in `staying`; if less than half would be left, as few as possible instead. So wherever
/// half of a view is alive and fully connected, each of its members finds such a half to lead.
pub fn staying_with(accusations: &Accusations, me: usize) -> Vec<usize> {
    let all = accusations.all();
    let left = all.without(accusations.opponents(all, me));
    let half = all.len().div_ceil(2);
    let mut staying = accusations.without_the_worst(left);
    if staying.len() < half
        && let Some(spare) = left.len().checked_sub(half)
    {
        staying = accusations.with_few_dropped(left, spare).unwrap_or(staying);
    }
    staying.iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accusations(members: usize, pairs: &[(usize, usize)]) -> Accusations {
        let mut accusations = Accusations::none(members);
        for &(by, whom) in pairs {
            accusations.accuse(by, whom);
        }
        accusations
    }

    #[test]
    fn the_accused_goes_and_the_lowest_rank_leads() {
        let with = |members, pairs: &[_]| staying(&accusations(members, pairs));
        assert_eq!(with(3, &[]), [0, 1, 2]);
        assert_eq!(with(3, &[(1, 0), (2, 0)]), [1, 2]);
        assert_eq!(with(3, &[(0, 2)]), [0, 1], "the silent one goes, not its accuser");
        assert_eq!(with(4, &[(0, 1), (1, 0)]), [0, 2, 3], "of two that accuse each other, the higher rank");
    }

    #[test]
    fn who_leads_in_spite_of_all_keeps_itself_and_drops_its_opponents() {
        let quarrel = accusations(4, &[(0, 1), (1, 0), (2, 0)]);
        assert_eq!(staying(&quarrel), [1, 2, 3]);
        assert_eq!(staying_with(&quarrel, 0), [0, 3]);
        assert_eq!(staying_with(&quarrel, 3), [1, 2, 3]);
    }

    #[test]
    fn rows_of_dropped_members_count_no_more() {
        // Member 4 has accused 1, 2 and 3, and then all lost it: its row drops no member.
        let lost = accusations(5, &[(4, 1), (4, 2), (4, 3), (0, 4)]);
        assert_eq!(staying_with(&lost, 0), [0, 1, 2, 3]);
    }

    #[test]
    fn what_stays_holds_no_accusation_for_every_pattern_of_four() {
        for pattern in 0..1u32 << 12 {
            let pairs: Vec<(usize, usize)> = (0..16)
                .map(|i| (i / 4, i % 4))
                .filter(|(by, whom)| by != whom)
                .enumerate()
                .filter(|(bit, _)| pattern >> bit & 1 == 1)
                .map(|(_, pair)| pair)
                .collect();
            let accusations = accusations(4, &pairs);
            let sets = (0..4).map(|me| staying_with(&accusations, me)).chain([staying(&accusations)]);
            for staying in sets {
                assert!(!staying.is_empty());
                assert!(!pairs.iter().any(|(by, whom)| staying.contains(by) && staying.contains(whom)), "{pairs:?}");
            }
        }
    }
}
