//! The simplest controller: one process decides for all which members have failed.

use squall_onepipe::{Directive, Settlement};

/// Settles failures: takes what members suspect and report, and returns what all members are to be told, in order.
///
/// It keeps to the paper's rule: a failed sender's messages count up to the greatest barrier that a survivor has reported.
/// It does not survive itself, as a controller on the [view log](https://docs.rs/squall) does: the members then stay as they
/// are until they fail to reach each other.
#[derive(Clone, Debug)]
pub struct Arbiter {
    epoch: u64,
    members: Vec<Member>,
    /// Those that are taken out next; none while nobody is suspected.
    failed: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Member {
    In,
    /// It has told how far it has got, and waits.
    Reported(u64),
    Out,
}

impl Arbiter {
    /// For members with ranks from 0, whose first epoch is this one.
    pub fn new(members: usize, epoch: u64) -> Arbiter {
        Arbiter { epoch, members: vec![Member::In; members], failed: Vec::new() }
    }

    /// The member `by` says that another one has failed. Of two that say it of each other, the first is believed.
    pub fn suspect(&mut self, by: usize, epoch: u64, rank: usize) -> Vec<Directive> {
        let is_out = |rank: usize| self.members.get(rank).is_none_or(|&member| member == Member::Out);
        if epoch != self.epoch || is_out(by) || is_out(rank) {
            return Vec::new();
        }
        self.members[rank] = Member::Out;
        self.failed.push(rank);
        let mut told = Vec::new();
        if self.failed.len() == 1 {
            told.push(Directive::Wedge { epoch });
        }
        told.extend(self.settle());
        told
    }

    /// A wedged member says how far it has got.
    pub fn report(&mut self, rank: usize, epoch: u64, barrier: u64) -> Vec<Directive> {
        match self.members.get_mut(rank) {
            Some(member) if epoch == self.epoch && *member == Member::In => *member = Member::Reported(barrier),
            _ => return Vec::new(),
        }
        self.settle().into_iter().collect()
    }

    /// Decides, once all have reported that are left.
    fn settle(&mut self) -> Option<Directive> {
        let mut failure_timestamp = None;
        for member in &self.members {
            match *member {
                Member::In => return None,
                Member::Reported(barrier) => failure_timestamp = failure_timestamp.max(Some(barrier)),
                Member::Out => {}
            }
        }
        for member in &mut self.members {
            if matches!(member, Member::Reported(_)) {
                *member = Member::In;
            }
        }
        self.epoch += 1;
        let failed = std::mem::take(&mut self.failed);
        Some(Directive::Settle(Settlement { epoch: self.epoch, failed, failure_timestamp: failure_timestamp? }))
    }

    /// Who is still a member.
    pub fn survivors(&self) -> impl Iterator<Item = usize> {
        self.members.iter().enumerate().filter(|(_, member)| **member != Member::Out).map(|(rank, _)| rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(epoch: u64, failed: &[usize], failure_timestamp: u64) -> Directive {
        Directive::Settle(Settlement { epoch, failed: failed.to_vec(), failure_timestamp })
    }

    #[test]
    fn it_decides_once_all_survivors_have_reported_and_takes_the_greatest_barrier() {
        let mut arbiter = Arbiter::new(4, 1);
        assert_eq!(arbiter.suspect(0, 1, 2), [Directive::Wedge { epoch: 1 }]);
        assert_eq!(arbiter.suspect(1, 1, 2), [], "it is known");
        assert_eq!(arbiter.report(0, 1, 70), []);
        assert_eq!(arbiter.report(2, 1, 99), [], "it has failed");
        assert_eq!(arbiter.report(3, 1, 90), []);
        assert_eq!(arbiter.report(1, 1, 80), [settled(2, &[2], 90)]);
        assert_eq!(arbiter.survivors().collect::<Vec<_>>(), [0, 1, 3]);
    }

    #[test]
    fn who_fails_meanwhile_is_not_waited_for_and_its_report_does_not_count() {
        let mut arbiter = Arbiter::new(4, 1);
        arbiter.suspect(1, 1, 0);
        arbiter.report(1, 1, 50);
        arbiter.report(2, 1, 40);
        assert_eq!(arbiter.suspect(2, 1, 1), [], "one has not reported");
        assert_eq!(arbiter.report(3, 1, 30), [settled(2, &[0, 1], 40)]);
        // What is said of the epoch before comes late.
        assert_eq!(arbiter.suspect(2, 1, 3), []);
        assert_eq!(arbiter.report(2, 1, 40), []);
        assert_eq!(arbiter.suspect(2, 2, 3), [Directive::Wedge { epoch: 2 }]);
    }

    #[test]
    fn who_was_taken_out_is_not_believed() {
        let mut arbiter = Arbiter::new(3, 1);
        arbiter.suspect(0, 1, 1);
        assert_eq!(arbiter.suspect(1, 1, 0), []);
        arbiter.report(0, 1, 10);
        assert_eq!(arbiter.report(2, 1, 20), [settled(2, &[1], 20)]);
        assert_eq!(arbiter.suspect(1, 2, 0), []);
    }

    #[test]
    fn the_last_report_may_be_one_that_is_no_longer_needed() {
        let mut arbiter = Arbiter::new(3, 1);
        arbiter.suspect(0, 1, 1);
        arbiter.report(0, 1, 10);
        assert_eq!(arbiter.suspect(0, 1, 2), [settled(2, &[1, 2], 10)]);
    }
}
