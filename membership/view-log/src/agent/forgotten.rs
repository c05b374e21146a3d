//! Votes that are forgotten: of voters that were started again without their storage.

use std::collections::BTreeSet;

use openraft::async_runtime::watch::WatchReceiver;
use squall_fabric::NodeId;

use super::Agent;
use crate::{settings::forgotten, types::Types};

impl<C: Types> Agent<C> {
    /// The voters whose nodes were started again as other parts in the log, without their earlier votes, if so many are
    /// that nothing can be decided any more.
    pub(super) fn forgotten_votes(&self) -> Vec<NodeId> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let config = &metrics.membership_config;
        let me = self.network.me();
        let forgot = |voter: &u64| {
            let member = &config.get_node(voter)?.member;
            let (incarnation, is) = match member.node == me.node {
                true => (me.incarnation, me.voter.0),
                false => *self.lives.get(&member.node)?,
            };
            (is != *voter && incarnation > member.incarnation).then_some(member.node)
        };
        let is_lost = |set: &BTreeSet<u64>| 2 * set.iter().filter_map(forgot).count() >= set.len();
        let sets = config.membership().get_joint_config();
        let lost: BTreeSet<NodeId> =
            sets.iter().filter(|set| is_lost(set)).flat_map(|set| set.iter().filter_map(forgot)).collect();
        lost.into_iter().collect()
    }

    /// The nodes whose votes are lost, if nothing can be decided without them, and the node that says so.
    pub(super) fn forgot(&self) -> Option<(NodeId, Vec<NodeId>)> {
        let own = self.forgotten_votes();
        if own.is_empty() {
            return self.formation.forgot.clone().filter(|_| self.wants.is_some());
        }
        Some((self.network.me().node, own))
    }

    /// Logs it at once if too many voters have forgotten their votes.
    pub(super) fn check_votes(&mut self) {
        let forgot = self.forgot().map(|(_, nodes)| nodes).unwrap_or_default();
        if forgot != self.formation.named {
            if !forgot.is_empty() {
                tracing::error!(why = forgotten(&forgot), "nothing can be decided any more");
            }
            self.formation.named = forgot;
        }
    }
}
