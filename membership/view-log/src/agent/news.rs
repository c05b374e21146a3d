//! The news of the log for a node's owner, and for its operators.

use openraft::async_runtime::watch::WatchReceiver;
use squall_membership::{Applied, Epoch, Proposal, ViewEvent, VoterId};

use super::Agent;
use crate::{
    settings::{Failure, NotForced, forgotten},
    shared::ViewLogStatus,
    types::Types,
};

impl<C: Types> Agent<C> {
    pub(super) fn on_applied(&mut self, applied: Applied) {
        self.is_lively();
        if let Applied::View(proposal) = &applied
            && Some(proposal.view.life) != self.network.cluster()
        {
            // It was applied before this node went over to another life.
            return;
        }
        if let Applied::Refused(why) = &applied {
            tracing::debug!("an entry of the view log does nothing: {why}");
            return;
        }
        self.leading.on_change();
        // Before others hear of it, so that a node that asks then finds it.
        self.publish();
        if let Applied::View(proposal) = applied {
            let voter = self.network.me().voter;
            if let Some(me) = proposal.view.members.iter().find(|member| member.voter == voter) {
                self.store.was_in_view(me.incarnation);
            }
            if self.is_in(&proposal.view) {
                // Only this very life can be meant: it has been in contact.
                self.tells_from.get_or_insert(proposal.view.epoch);
            }
            self.tell(&proposal);
        }
        self.tell_candidates();
        self.tell_returns();
        self.lead();
    }

    /// Tells the last view to this node's owner, if this node leads: a leader needs no other node to tell it how things
    /// stand.
    pub(super) fn tell_if_leading(&mut self) {
        if self.tells_from.is_none()
            && self.is_leader()
            && let Some(last) = self.last()
        {
            self.tells_from = Some(last.view.epoch);
            self.tell(&last);
            self.tell_candidates();
            self.tell_returns();
        }
    }

    /// Whether it has told of a view of this epoch, or of a later one. Who goes over to another life has told of none.
    pub(super) fn has_told(&self, epoch: Epoch) -> bool {
        self.told.is_some_and(|(_, told)| epoch <= told)
    }

    pub(super) fn tell(&mut self, proposal: &Proposal) {
        let (life, epoch) = (proposal.view.life, proposal.view.epoch);
        if self.tells_from.is_none_or(|from| epoch < from) || self.has_told(epoch) {
            return;
        }
        let is_first = self.told.replace((life, epoch)).is_none();
        if self.forcing.as_ref().is_some_and(|forcing| forcing.epoch() <= epoch) {
            self.end_forcing(Err(NotForced::Decided));
        }
        if self.is_in(&proposal.view) {
            (self.wants, self.formation.was_member) = (None, true);
        }
        self.decided_until(epoch);
        self.returned_until(epoch);
        self.shared.push(ViewEvent::Committed(proposal.clone()));
        // A disk that comes back alone, and is forced, must know of a view of its group. Later views are written when
        // there is time.
        if is_first && let Err(e) = self.store.settle() {
            self.shared.fail(Failure::Storage(e.to_string()));
        }
    }

    pub(super) fn tell_candidates(&mut self) {
        let candidates = self.machine.read(|log_state| log_state.candidates().to_vec());
        if self.tells_from.is_some() && candidates != self.told_candidates {
            self.told_candidates.clone_from(&candidates);
            self.shared.push(ViewEvent::Candidates(candidates));
        }
    }

    pub(super) fn publish(&self) {
        let (peers, voters) = self.peers();
        let named = |is_voter: bool| {
            let parts = peers.iter().filter(|(voter, _)| voters.contains(voter) == is_voter);
            parts.map(|(&voter, peer)| (peer.member.node, VoterId(voter))).collect()
        };
        let (term, applied) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            (metrics.current_term, metrics.last_applied.map_or(0, |id| id.index))
        };
        let (candidates, forced) = self.machine.read(|log_state| {
            let nodes = log_state.candidates().iter().map(|member| member.node).collect();
            (nodes, log_state.forced().to_vec())
        });
        let status = ViewLogStatus {
            cluster: self.network.cluster(),
            epoch: self.view().map(|view| view.epoch),
            voters: named(true),
            learners: named(false),
            leader: self.leader().map(|leader| leader.node),
            term,
            applied,
            candidates,
            forced,
            other_life: self.other_life,
            waits_for: self.waits_for(),
            went_back: self.went_back(),
            outside: self.wants.is_some().then(|| self.last()).flatten(),
            stuck: self.forgot().map(|(_, nodes)| forgotten(&nodes)),
            silent: self.silent_voters(),
            search: self.search(),
        };
        self.shared.lock().status = status;
    }
}
