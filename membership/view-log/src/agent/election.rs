//! Elections: a node asks the voters before it stands. So no node that can't win raises the term, or deposes a leader
//! that works.
//!
//! A voter agrees if it misses the leader itself, and the node that asks has all of its log. A node with which a
//! majority agrees can hear that majority and be heard by it. Raft's own elections never begin: their lease would have
//! to run out first, and it protects nothing here, since nothing is ever read by it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use openraft::{async_runtime::watch::WatchReceiver, raft::TransferLeaderRequest, type_config::TypeConfigExt};

use super::{Agent, input::Input};
use crate::{
    network::LogNetworkClient,
    types::{LogId, Types, Vote},
    wire::{Answer, Body, Contact},
};

/// The number of tries after which the time for which a node that stands is left alone grows no more.
const MANY_TRIES: u32 = 10;

/// The state of an election to come.
#[derive(Default)]
pub(super) struct Election {
    /// The last vote that was seen, and the time since which it is this node's.
    vote: Option<Vote>,
    since: Duration,
    /// The number of votes since a leader was elected.
    tries: u32,
    /// The vote of a leader that has said that it reaches no majority.
    stepped_aside: Option<Vote>,
    /// The time at which this node next asks the others. None: it knows of a leader, or may not stand.
    next_ask: Option<Duration>,
    /// The voters that agree that this node stands after that vote, and the time at which each was asked.
    agreed: BTreeMap<u64, Duration>,
    /// The questions of others, one each, that came while this node did not miss the leader.
    questions: Vec<Question>,
}

/// A question: may a node lead whose log ends there?
struct Question {
    from: Contact,
    /// The call to be answered.
    id: u64,
    last: Option<LogId>,
    at: Duration,
}

impl<C: Types> Agent<C> {
    /// Whether this node takes the leader for lost: one that it can't hear, one that has said so itself, or this node
    /// if no majority answers it.
    pub(super) fn misses_leader(&self) -> bool {
        if self.is_leader() { self.is_unanswered() } else { self.now >= self.missed_at() }
    }

    /// The time at which this node, which does not lead, takes the leader for lost, if nothing happens until then.
    /// While another node stands, it waits.
    fn missed_at(&self) -> Duration {
        let (vote, leader) = self.vote();
        let Some(leader) = leader else {
            let is_known = self.election.vote == Some(vote);
            return if is_known { self.election.since + self.stand_patience() } else { self.now };
        };
        let is_gone = self.node_of(leader).is_some_and(|node| self.gone.contains_key(&node));
        match self.leader_heard().filter(|_| !is_gone && self.election.stepped_aside != Some(vote)) {
            Some(heard) => {
                let (first, last) = self.settings.timing.election;
                let impatient = self.asks.first_sent().map(|sent| heard.max(sent) + first);
                impatient.map_or(heard + last, |at| at.min(heard + last))
            }
            None => Duration::ZERO,
        }
    }

    /// The time for which a node that stands is left alone. It is longer at each further try, as votes may take long to
    /// be stored, or to arrive.
    fn stand_patience(&self) -> Duration {
        (self.a_turn() * (1 << self.election.tries)).min(self.settings.timing.election.1)
    }

    /// The time of the next look whether this node misses the leader.
    pub(super) fn next_doubt(&self) -> Option<Duration> {
        match self.election.next_ask {
            Some(at) => Some(at),
            None if self.is_leader() || !self.may_stand() => None,
            None => Some(self.missed_at()).filter(|at| *at > self.now),
        }
    }

    pub(super) fn vote(&self) -> (Vote, Option<u64>) {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        (metrics.vote, metrics.current_leader)
    }

    /// Takes note of a new vote. A voter that agreed before it did so for another term.
    pub(super) fn watch_vote(&mut self) {
        let (vote, _) = self.vote();
        if self.election.vote != Some(vote) {
            let me = self.network.me().voter.0;
            // Voters that have not heard of the vote that ended its term still take this node for the leader.
            let led = self.election.vote.filter(|before| before.committed && before.leader_id.node_id == me);
            if let Some(before) = led.filter(|_| !vote.committed) {
                self.step_aside(before);
            }
            self.on_vote();
            self.election.agreed.clear();
            (self.election.vote, self.election.since) = (Some(vote), self.now);
            self.election.tries = if vote.committed { 0 } else { (self.election.tries + 1).min(MANY_TRIES) };
        }
    }

    /// The time since which the vote is unchanged.
    pub(super) fn vote_since(&self) -> Duration {
        self.election.since
    }

    /// Whether this node votes, or did before a change that may not hold.
    fn may_stand(&self) -> bool {
        let me = self.network.me().voter.0;
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let configs = [&metrics.membership_config, &metrics.committed_membership_config];
        configs.iter().any(|config| config.voter_ids().any(|voter| voter == me))
    }

    /// Answers other nodes, and asks the voters whether this node may lead, when that is due.
    pub(super) fn stand(&mut self) {
        self.watch_vote();
        let misses_leader = self.misses_leader();
        if misses_leader {
            self.answer();
        }
        if self.is_leader() || !self.may_stand() || !misses_leader {
            self.election.next_ask = None;
            return;
        }
        let next = match self.election.next_ask {
            Some(next) => next,
            None => self.now + self.a_turn() * self.turn() as u32,
        };
        self.election.next_ask = Some(next);
        if self.now < next {
            return;
        }
        let again = self.settings.timing.heartbeat;
        self.election.next_ask = Some(self.now + again / 3 + again.mul_f64(self.rng.f64() * 2.0 / 3.0));
        let (me, last, asked) = (self.network.me().voter.0, self.store.last(), self.now);
        for (voter, peer) in self.other_voters() {
            let client = LogNetworkClient::new(&self.network, voter, &peer);
            let (inbox, patience) = (self.inbox.clone(), self.patience());
            drop(C::spawn(async move {
                if let Some(agrees) = client.may_lead::<C>(last, patience).await {
                    // The agent may have ended.
                    let _ = inbox.send(Input::Agreed(voter, asked, agrees));
                }
            }));
        }
        self.on_agreed(me, asked, true);
    }

    /// The time that a voter waits for each of those before it, when it takes the leader for lost.
    fn a_turn(&self) -> Duration {
        self.settings.timing.heartbeat / 6
    }

    /// The time after a question for which an answer counts.
    fn patience(&self) -> Duration {
        self.settings.timing.heartbeat * 2
    }

    /// The place of this node among the voters that may be there, in the order of their ranks.
    fn turn(&self) -> usize {
        let (peers, voters) = self.peers();
        let (me, view) = (self.network.me().voter.0, self.view());
        let lost = self.vote().1;
        let rank = |node| view.as_ref().and_then(|view| view.rank_of(node)).map_or(u32::MAX, |rank| rank.0);
        let is_left =
            |voter: u64, node| voters.contains(&voter) && !self.gone.contains_key(&node) && lost != Some(voter);
        let left = peers.iter().filter(|(voter, peer)| is_left(**voter, peer.member.node));
        let mut left: Vec<(u32, u64)> = left.map(|(&voter, peer)| (rank(peer.member.node), voter)).collect();
        left.sort_unstable();
        left.iter().position(|(_, voter)| *voter == me).unwrap_or(left.len())
    }

    /// Takes another node's question whether it may lead. It is answered once this node misses the leader, too, if that
    /// is soon.
    pub(super) fn on_question(&mut self, from: Contact, id: u64, last: Option<LogId>) {
        self.election.questions.retain(|other| other.from.node != from.node);
        self.election.questions.push(Question { from, id, last, at: self.now });
        self.stand();
    }

    /// Answers the nodes that have asked: one may lead if it has all of the log. If it lacks some of the log, this node
    /// stands itself.
    fn answer(&mut self) {
        let oldest = self.now.saturating_sub(self.patience());
        let mine = self.store.last();
        for Question { from, id, last, at } in mem::take(&mut self.election.questions) {
            if at < oldest {
                continue;
            }
            self.network.send(&from, Body::Return { id, answer: Ok(Answer::MayLead(last >= mine)) });
            if last < mine {
                self.election.next_ask = Some(self.now);
            }
        }
    }

    /// Takes a voter's answer. Once a majority agrees, this node stands.
    pub(super) fn on_agreed(&mut self, voter: u64, asked: Duration, agrees: bool) {
        self.watch_vote();
        if !agrees {
            self.election.agreed.remove(&voter);
            return;
        }
        // If it was asked before the vote changed, it agreed to another term.
        if asked < self.election.since || self.is_leader() || !self.misses_leader() {
            return;
        }
        self.election.agreed.insert(voter, asked);
        let oldest = self.now.saturating_sub(self.patience());
        let agreed: BTreeSet<u64> =
            self.election.agreed.iter().filter(|(_, asked)| **asked >= oldest).map(|(&voter, _)| voter).collect();
        let is_majority = |set: &BTreeSet<u64>| 2 * set.intersection(&agreed).count() > set.len();
        let sets = self.raft.server_metrics().borrow_watched().membership_config.get_joint_config().clone();
        if !sets.iter().all(is_majority) {
            return;
        }
        self.election.agreed.clear();
        let (raft, vote, me) = (self.raft.clone(), self.vote().0, self.network.me().voter.0);
        drop(C::spawn(async move {
            // If the vote has changed meanwhile, another node stands. If Raft has stopped, the next tick finds that
            // out.
            let _ = raft.handle_transfer_leader(TransferLeaderRequest::new(vote, me, None)).await;
        }));
    }

    /// Takes the leader's word that no majority answers it.
    pub(super) fn on_step_aside(&mut self, vote: Vote) {
        if self.vote().0 == vote {
            self.election.stepped_aside = Some(vote);
            self.stand();
        }
    }

    /// Tells the other voters that this node, which leads or led by that vote, decides nothing: some may still hear it.
    pub(super) fn step_aside(&self, vote: Vote) {
        for (_, peer) in self.other_voters() {
            self.network.send(&Contact::from(&peer.member), Body::StepAside(vote));
        }
    }
}
