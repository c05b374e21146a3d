//! Who stays, and who leads them: a function of who accuses whom.

/// Who accuses whom, by rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accusations {
    members: usize,
    accuses: Vec<bool>,
}

impl Accusations {
    /// Nobody accuses anybody.
    pub fn none(members: usize) -> Accusations {
        Accusations { members, accuses: vec![false; members * members] }
    }

    /// `by` accuses `whom`.
    pub fn accuse(&mut self, by: usize, whom: usize) {
        self.accuses[by * self.members + whom] = true;
    }

    fn accuses(&self, by: usize, whom: usize) -> bool {
        self.accuses[by * self.members + whom]
    }
}

/// The ranks that stay, in order; the first of them leads.
///
/// The member with the most accusations made and received among those left is dropped, one by one, until no accusation is
/// left. Of several, one that accuses nobody goes first, then the highest rank.
pub fn staying(accusations: &Accusations) -> Vec<usize> {
    let mut staying: Vec<usize> = (0..accusations.members).collect();
    loop {
        let made = |m: usize| staying.iter().filter(|&&other| accusations.accuses(m, other)).count();
        let received = |m: usize| staying.iter().filter(|&&other| accusations.accuses(other, m)).count();
        let worst = staying.iter().copied().max_by_key(|&m| (made(m) + received(m), made(m) == 0, m));
        match worst {
            Some(worst) if made(worst) + received(worst) > 0 => staying.retain(|&m| m != worst),
            _ => return staying,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(members: usize, pairs: &[(usize, usize)]) -> Vec<usize> {
        let mut accusations = Accusations::none(members);
        for &(by, whom) in pairs {
            accusations.accuse(by, whom);
        }
        staying(&accusations)
    }

    #[test]
    fn the_accused_goes_and_the_lowest_rank_leads() {
        assert_eq!(with(3, &[]), [0, 1, 2]);
        assert_eq!(with(3, &[(1, 0), (2, 0)]), [1, 2]);
        assert_eq!(with(3, &[(0, 2)]), [0, 1], "the silent one goes, not its accuser");
        assert_eq!(with(4, &[(0, 1), (1, 0)]), [0, 2, 3], "of two that accuse each other, the higher rank");
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
            let staying = with(4, &pairs);
            assert!(!staying.is_empty());
            assert!(!pairs.iter().any(|(by, whom)| staying.contains(by) && staying.contains(whom)), "{pairs:?}");
        }
    }
}
