//! A node's requests until a view answers them: its proposal, and its report.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{Epoch, Member, Proposal, Report, ViewEvent};

use super::Agent;
use crate::{
    types::Types,
    wire::{Body, Contact},
};

/// The pause before a leader that can't write yet is asked again.
const SOON: Duration = Duration::from_millis(1);
/// The time after which a request without an answer is sent again.
const RESEND: Duration = Duration::from_millis(100);

/// The requests of a node that wait for an answer.
#[derive(Default)]
pub(super) struct Asks {
    proposal: Option<PendingProposal>,
    report: Option<Sent>,
    /// The time since which it waits for a decision, or at which it last said that there is none.
    since: Option<Duration>,
}

/// A proposal of this node's that is not decided.
struct PendingProposal {
    proposal: Proposal,
    since: Duration,
    /// The node to which it was last sent as the leader, and the time.
    sent: Option<(Option<NodeId>, Duration)>,
}

struct Sent {
    to: Vec<Member>,
    report: Report,
    at: Duration,
}

impl Asks {
    pub(super) fn is_waiting(&self) -> bool {
        self.proposal.is_some() || self.report.is_some()
    }

    /// The time at which the undecided proposal was first sent.
    pub(super) fn first_sent(&self) -> Option<Duration> {
        self.proposal.as_ref().map(|pending| pending.since)
    }
}

impl<C: Types> Agent<C> {
    pub(super) fn propose(&mut self, proposal: Proposal) {
        if self.has_told(proposal.view.epoch) {
            // Its owner had not taken that news yet.
            return;
        }
        self.asks.proposal = Some(PendingProposal { proposal, since: self.now, sent: None });
        self.asks.since.get_or_insert(self.now);
        self.push_proposal();
    }

    pub(super) fn report(&mut self, to: Vec<Member>, report: Report) {
        if self.has_told(Epoch(report.epoch.0 + 1)) {
            return;
        }
        self.asks.since.get_or_insert(self.now);
        self.asks.report = Some(Sent { to, report, at: self.now });
        self.send_report();
    }

    /// Sends requests without an answer again.
    pub(super) fn ask_again(&mut self) {
        self.push_proposal();
        if self.asks.report.as_ref().is_some_and(|report| self.now - report.at >= RESEND) {
            self.send_report();
        }
    }

    /// Sends the proposal to the leader, if that is due.
    pub(super) fn push_proposal(&mut self) {
        let (leader, now) = (self.leader(), self.now);
        let Some(pending) = &mut self.asks.proposal else { return };
        let to = leader.as_ref().map(|leader| leader.node);
        if pending.sent.is_some_and(|(before, when)| before == to && now - when < RESEND) {
            return;
        }
        pending.sent = Some((to, now));
        let (proposal, since) = (pending.proposal.clone(), pending.since);
        let me = self.network.me();
        match leader {
            Some(leader) if leader.node == me.node => self.take_proposal(proposal, me),
            leader => {
                let (peers, voters) = self.peers();
                let is_detour = leader.is_none() || now - since >= self.settings.timing.heartbeat;
                let others = voters.iter().filter_map(|voter| peers.get(voter)).map(|peer| peer.member.clone());
                let others: Vec<Member> = others.filter(|other| is_detour && other.node != me.node).collect();
                let leader = leader.filter(|leader| others.iter().all(|other| other.node != leader.node));
                for to in leader.iter().chain(&others) {
                    self.network.send(&Contact::from(to), Body::Propose(Box::new(proposal.clone())));
                }
            }
        }
    }

    /// Passes on a member's proposal, which may not reach the leader directly.
    pub(super) fn pass_on(&self, proposal: &Proposal, from: &Member) {
        let leader = self.leader().filter(|leader| leader.node != from.node && leader.node != self.network.me().node);
        if proposal.by == from.node
            && let Some(leader) = leader
            && !self.misses_leader()
        {
            self.network.send(&Contact::from(&leader), Body::Propose(Box::new(proposal.clone())));
        }
    }

    /// Sends the proposal again soon: a new leader may not have been ready.
    pub(super) fn not_written(&mut self, epoch: Epoch) {
        let pending = self.asks.proposal.as_mut().filter(|pending| pending.proposal.view.epoch == epoch);
        if let Some(pending) = pending {
            pending.sent = None;
            self.retry_in(SOON);
        }
    }

    pub(super) fn on_refused(&mut self, proposal: &Proposal, why: &str) {
        tracing::info!(epoch = %proposal.view.epoch, why, "a proposal was refused");
        if self.asks.proposal.as_ref().is_some_and(|pending| pending.proposal == *proposal) {
            self.asks.proposal = None;
            // Something was decided, though not this proposal.
            self.asks.since = self.asks.is_waiting().then_some(self.now);
        }
    }

    /// Takes note of a view of this epoch: it answers earlier requests.
    pub(super) fn decided_until(&mut self, epoch: Epoch) {
        self.asks.proposal.take_if(|pending| pending.proposal.view.epoch <= epoch);
        self.asks.report.take_if(|sent| sent.report.epoch < epoch);
        self.asks.since = self.asks.is_waiting().then_some(self.now);
    }

    fn send_report(&mut self) {
        let me = self.network.me().node;
        let Some(Sent { to, report, at }) = &mut self.asks.report else { return };
        *at = self.now;
        for member in to.iter().filter(|member| member.node != me) {
            self.network.send(&Contact::from(member), Body::Report(report.clone()));
        }
    }

    /// Reports it, if nothing has been decided for too long.
    pub(super) fn check_quorum(&mut self) {
        if self.asks.since.is_some_and(|since| self.now - since >= self.settings.timing.no_quorum) {
            self.asks.since = Some(self.now);
            self.shared.push(ViewEvent::NoQuorum);
        }
    }
}
