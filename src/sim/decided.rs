//! The decisions of a simulated cluster, and whether it could decide more, as seen by an observer that knows every
//! node.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_membership::{Member, Proposal, View};
use squall_view_log::Eligibility;

use super::{cluster::Cluster, node::SimNode, view_log::Script};

impl Cluster {
    /// The decisions of the view log, in order.
    pub(super) fn history(&self) -> Vec<Proposal> {
        self.script.as_ref().map_or_else(|| self.raft.history(), Script::history)
    }

    /// The last view that was decided, whichever nodes have heard of it.
    pub fn decided(&self) -> Option<Arc<View>> {
        self.history().last().map(|last| Arc::clone(&last.view))
    }

    /// Whether the life of a node that `member` names goes on.
    pub fn lives(&self, member: &Member) -> bool {
        let me = match &self.script {
            Some(script) => script.me(member.node),
            None => self.raft.me(member.node),
        };
        let takes_part = self.nodes.get(&member.node).is_some_and(|node| node.ended.is_none());
        takes_part && me.is_some_and(|me| (me.incarnation, me.voter) == (member.incarnation, member.voter))
    }

    /// Whether a member's node runs with the disk that it had.
    pub(super) fn is_back(&self, member: &Member) -> bool {
        let takes_part = self.nodes.get(&member.node).is_some_and(|node| node.ended.is_none());
        takes_part && self.raft.me(member.node).is_some_and(|me| me.voter == member.voter)
    }

    /// The leader of the last view that a node has installed, or of the log that decides on views, as some running node
    /// knows it. Only a leader whose process exists is returned.
    pub(super) fn leader(&self, of_log: bool) -> Option<NodeId> {
        let known = |(&id, node): (&NodeId, &SimNode)| {
            if of_log { self.raft.status(id)?.leader } else { node.core.membership().leader() }
        };
        self.nodes.iter().filter_map(known).find(|leader| self.nodes.contains_key(leader))
    }

    /// The eligibility of the node that knows most, of the nodes that could lead the log. None if no node could, or
    /// if a script decides.
    pub(super) fn log_leader(&self) -> Option<Eligibility> {
        let leaders = self.raft.leaders(|a, b| self.reach(a, b));
        leaders.into_iter().map(|(_, eligibility)| eligibility).max_by_key(Eligibility::last)
    }

    /// The number of voters in the first view.
    pub(super) fn count_of_voters(&self) -> usize {
        let members = self.config.members().len().min(5);
        self.config.voters().map_or(members - usize::from(members.is_multiple_of(2)), <[_]>::len)
    }

    /// Whether the nodes that decide on views reach each other, and know what was decided.
    pub fn has_quorum(&self) -> bool {
        match &self.script {
            Some(script) => script.has_quorum(|a, b| self.reach(a, b)),
            None => self.history().is_empty() || !self.raft.leaders(|a, b| self.reach(a, b)).is_empty(),
        }
    }

    /// Whether a node can't find the group. It has nothing of the group's log, and neither has any running node that it
    /// was configured with. With a script, every node finds the group.
    pub(super) fn is_adrift(&self, node: NodeId) -> bool {
        let knows = |node: NodeId| (self.is_up(node) || self.is_witness_up(node)) && self.raft.has_part(node);
        // Only the members of the list were configured with the witnesses.
        let witnesses = if self.config.members().contains(&node) { self.config.witnesses() } else { &[] };
        let mut asked = self.config.members().iter().chain(witnesses);
        self.script.is_none() && !knows(node) && !asked.any(|&other| knows(other))
    }
}
