//! The choice of voters.

use std::collections::{BTreeMap, BTreeSet};

use squall_fabric::NodeId;
use squall_membership::{Member, View};

use crate::types::LogNode;

/// The largest odd number of voters, up to five, that this many members allow.
pub(crate) fn count_of(members: usize) -> usize {
    match members.min(5) {
        0 => 0,
        n if n % 2 == 1 => n,
        n => n - 1,
    }
}

/// The voters of a new group: the configured ones, or the first members in the order of rank.
pub(crate) fn first<'a>(members: &'a [Member], witnesses: &'a [Member], fixed: Option<&[NodeId]>) -> Vec<&'a Member> {
    match fixed {
        Some(fixed) => members.iter().chain(witnesses).filter(|member| fixed.contains(&member.node)).collect(),
        None => members.iter().take(count_of(members.len())).collect(),
    }
}

/// The leader's knowledge when it looks for a better set of voters.
pub(crate) struct Situation<'a> {
    pub(crate) view: &'a View,
    pub(crate) fixed: Option<&'a [NodeId]>,
    pub(crate) voters: &'a BTreeSet<u64>,
    pub(crate) peers: &'a BTreeMap<u64, LogNode>,
    /// Whether a part in the log has (nearly) all of it, and answers.
    pub(crate) caught_up: &'a dyn Fn(u64) -> bool,
}

/// The voters that there should be now, if they differ from the present ones.
///
/// They are the first members by rank that have caught up. A dropped voter votes on until another takes its place: two
/// members keep the third voter that there was, and only a member that is alone decides alone.
pub(crate) fn plan(situation: &Situation<'_>) -> Option<BTreeSet<u64>> {
    let Situation { view, fixed, voters, peers, caught_up } = situation;
    let (wanted, preferred): (usize, Vec<u64>) = match fixed {
        Some(fixed) => {
            // The latest life of each; a witness is in no view.
            let latest = |node: &NodeId| {
                let lives = peers.iter().filter(|(_, peer)| peer.member.node == *node);
                lives.max_by_key(|(_, peer)| peer.member.incarnation).map(|(&voter, _)| voter)
            };
            (fixed.len(), fixed.iter().filter_map(latest).collect())
        }
        None => {
            let members = view.members.len();
            let wanted = if members == 2 { voters.len().min(3) } else { count_of(members) };
            (wanted, view.members.iter().map(|member| member.voter.0).collect())
        }
    };
    let may_vote = |voter: &u64| peers.contains_key(voter) && (voters.contains(voter) || caught_up(*voter));
    let mut target: BTreeSet<u64> = preferred.iter().copied().filter(may_vote).take(wanted).collect();
    for &voter in *voters {
        if target.len() < wanted.min(voters.len()) {
            target.insert(voter);
        }
    }
    let is_odd = target.len() % 2 == 1 || fixed.is_some();
    (is_odd && target != **voters && !target.is_empty()).then_some(target)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use squall_membership::{Incarnation, Layout, VoterId};

    use super::*;

    fn member(id: u32) -> Member {
        Member { voter: VoterId(id.into()), ..Member::new(NodeId(id), Incarnation(1)) }
    }

    fn planned(members: &[u32], voters: &[u64], lag: &[u64], fixed: Option<&[NodeId]>) -> Option<Vec<u64>> {
        let view = Arc::new(View::first(
            members.iter().copied().map(member).collect(),
            &Layout::default(),
            Default::default(),
        ));
        let peers = (0..20).map(|id| (id, LogNode { member: member(id as u32), witness: false })).collect();
        let voters = voters.iter().copied().collect();
        let caught_up = |voter| !lag.contains(&voter);
        let situation = Situation { view: &view, fixed, voters: &voters, peers: &peers, caught_up: &caught_up };
        plan(&situation).map(|target| target.into_iter().collect())
    }

    #[test]
    fn an_odd_number_up_to_five() {
        assert_eq!((0..8).map(count_of).collect::<Vec<_>>(), [0, 1, 1, 3, 3, 5, 5, 5]);
    }

    #[test]
    fn a_dropped_voter_is_replaced_by_the_next_member_that_has_caught_up() {
        assert_eq!(planned(&[1, 2, 4, 5], &[1, 2, 3], &[], None), Some(vec![1, 2, 4]));
        assert_eq!(planned(&[1, 2, 4, 5], &[1, 2, 3], &[4], None), Some(vec![1, 2, 5]));
        assert_eq!(planned(&[1, 2, 4], &[1, 2, 3], &[4], None), None);
    }

    #[test]
    fn two_members_keep_the_third_voter_and_one_alone_decides_alone() {
        assert_eq!(planned(&[1, 2], &[1, 2, 3], &[], None), None);
        assert_eq!(planned(&[1], &[1, 2, 3], &[], None), Some(vec![1]));
    }

    #[test]
    fn voters_become_more_only_by_two() {
        assert_eq!(planned(&[1, 2, 3], &[1], &[3], None), None);
        assert_eq!(planned(&[1, 2, 3], &[1], &[], None), Some(vec![1, 2, 3]));
        assert_eq!(planned(&[1, 2, 3], &[1, 2, 3, 4, 5], &[], None), Some(vec![1, 2, 3]));
    }

    #[test]
    fn fixed_voters_may_be_in_no_view() {
        let fixed = [NodeId(1), NodeId(2), NodeId(9)];
        assert_eq!(planned(&[1, 2], &[1, 2], &[], Some(&fixed)), Some(vec![1, 2, 9]));
        assert_eq!(planned(&[2], &[1, 2, 9], &[], Some(&fixed)), None);
    }
}
