//! The means to tell whether logs could decide anything, for an observer that knows all of them.

use std::collections::BTreeSet;

use squall_membership::VoterId;

use crate::types::{LogId, Membership};

/// The values at which Raft looks when a node wants to lead.
#[derive(Clone, Debug)]
pub struct Eligibility {
    pub(super) voter: VoterId,
    pub(super) last: Option<LogId>,
    /// The voters that it knows of; two sets while they change, of which both must agree.
    configs: Vec<BTreeSet<u64>>,
}

impl Eligibility {
    pub(super) fn new(voter: VoterId, last: Option<LogId>, membership: &Membership) -> Eligibility {
        Eligibility { voter, last, configs: membership.get_joint_config().clone() }
    }

    /// The last entry that it has: its term and leader, and its index.
    pub fn last(&self) -> (u64, u64, u64) {
        self.last.map_or((0, 0, 0), |last| (last.leader_id.term, last.leader_id.node_id, last.index))
    }

    /// Whether a change of voters is under way.
    pub fn is_changing(&self) -> bool {
        self.configs.len() > 1
    }

    /// The voters that decide, if this node leads.
    pub fn voters(&self) -> BTreeSet<VoterId> {
        self.configs.iter().flatten().copied().map(VoterId).collect()
    }

    /// Whether this node could lead, if just these were left, itself among them: a majority of its voters are there,
    /// and know no more than it does. If none can, nothing will ever be decided, unless others come back with what they
    /// knew.
    pub fn can_lead<'a>(&self, left: impl Iterator<Item = &'a Eligibility>) -> bool {
        let agree: BTreeSet<u64> = left.filter(|other| other.last <= self.last).map(|other| other.voter.0).collect();
        let is_majority = |config: &BTreeSet<u64>| 2 * config.intersection(&agree).count() > config.len();
        let is_voter = self.configs.iter().any(|config| config.contains(&self.voter.0));
        is_voter && self.configs.iter().all(is_majority)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use openraft::vote::RaftLeaderId;

    use super::*;
    use crate::types::{Committed, LeaderId, LogNode};

    fn eligibility(voter: u64, last: u64, configs: &[&[u64]]) -> Eligibility {
        let leader: Committed = LeaderId::new(1, 1).to_committed();
        let configs = configs.iter().map(|config| config.iter().copied().collect()).collect::<Vec<BTreeSet<u64>>>();
        let nodes = configs.iter().flatten().map(|&voter| (voter, LogNode::default())).collect::<BTreeMap<_, _>>();
        let membership = Membership::new(configs, nodes).expect("voters with nodes");
        Eligibility::new(VoterId(voter), Some(LogId::new(leader, last)), &membership)
    }

    fn can_decide(left: &[Eligibility]) -> bool {
        left.iter().any(|one| one.can_lead(left.iter()))
    }

    #[test]
    fn a_majority_decides() {
        let of = |voter| eligibility(voter, 5, &[&[1, 2, 3]]);
        assert!(can_decide(&[of(1), of(3)]));
        assert!(!can_decide(&[of(2)]));
        assert!(!can_decide(&[of(1), of(4)]), "4 does not vote");
    }

    #[test]
    fn who_knows_more_can_not_be_outvoted() {
        let (old, new) = (eligibility(1, 5, &[&[1, 2, 3]]), eligibility(2, 6, &[&[2, 3, 4]]));
        assert!(!can_decide(&[old.clone(), new.clone()]), "2 needs 3 or 4, and 1 needs 2");
        assert!(can_decide(&[old, new, eligibility(4, 6, &[&[2, 3, 4]])]));
    }

    #[test]
    fn while_voters_change_both_majorities_count() {
        let of = |voter| eligibility(voter, 5, &[&[1, 2, 3], &[3, 4, 5]]);
        assert!(can_decide(&[of(1), of(3), of(4)]));
        assert!(!can_decide(&[of(1), of(2), of(3)]));
    }
}
