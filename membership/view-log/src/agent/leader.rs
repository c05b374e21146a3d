//! The leader's work for all nodes: it writes entries, and looks after the voters and the learners.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use openraft::{ChangeMembers, async_runtime::watch::WatchReceiver, type_config::TypeConfigExt};
use squall_fabric::NodeId;
use squall_membership::{Entry, Layout, Member, Proposal};

use super::{Agent, input::Input, is_same, messages::Asker};
use crate::{
    types::{AppRequest, AppResponse, LogNode, Types},
    voters::{self, Situation},
    wire::{Body, Contact},
};

/// The most entries that a node may lack that has nearly all of the log: others are on their way.
const NEARLY: u64 = 3;
/// The time after which something that could not be done is tried again.
const PAUSE: Duration = Duration::from_millis(15);
/// The most proposals that may be on their way at once.
const WRITING: usize = 64;
/// The time for which a node that has asked counts as one that asks.
const RECENT: Duration = Duration::from_secs(1);
/// The time for which a node that is no member any more is still told the news: it learns that it was dropped.
const FAREWELL: Duration = Duration::from_secs(5);

/// A node that asked for a place.
#[derive(Clone, Debug)]
pub(super) struct Asking {
    pub(super) peer: LogNode,
    /// Whether it is in no group yet, and among the founders of one.
    pub(super) founds: bool,
    pub(super) heard: Duration,
}

/// The nodes that found a group.
pub(super) struct Founders {
    pub(super) layout: Layout,
    /// The members, by rank.
    pub(super) members: Vec<NodeId>,
    pub(super) witnesses: Vec<NodeId>,
}

/// A leader's memory. Another leader begins without it.
#[derive(Debug, Default)]
pub(super) struct Leading {
    /// The nodes that asked. A node that does not lead keeps them, too: it may soon lead.
    pub(super) asking: BTreeMap<NodeId, Asking>,
    /// Whether a change of voters and learners is under way.
    pub(super) changing: bool,
    /// Candidates that are being written, or withdrawn.
    pub(super) noting: BTreeSet<NodeId>,
    /// The time since which this node has led a log without a first view.
    first_since: Option<Duration>,
    /// The proposals that are being written.
    writing: Vec<Proposal>,
    /// The time until which nothing is tried, after something could not be done.
    pause_until: Duration,
    refused: Option<(Proposal, String)>,
    /// The time since which parts in the log have no place in it any more.
    idle_since: BTreeMap<u64, Duration>,
    /// The time since which candidates have not been heard.
    silent_since: BTreeMap<NodeId, Duration>,
}

impl Leading {
    /// Takes note that a node asks, unless it has asked in a later life a moment ago: then this comes late. Nodes that
    /// ask no more are forgotten.
    pub(super) fn asked(&mut self, node: NodeId, asking: Asking) {
        let now = asking.heard;
        self.asking.retain(|_, other| now - other.heard < RECENT);
        let is_later = |other: &Asking| other.peer.member.incarnation > asking.peer.member.incarnation;
        if !self.asking.get(&node).is_some_and(is_later) {
            self.asking.insert(node, asking);
        }
    }

    /// Forgets the last refusal: after a change, that proposal may be right.
    pub(super) fn on_change(&mut self) {
        self.refused = None;
    }
}

impl<C: Types> Agent<C> {
    pub(super) fn is_leading_busily(&self) -> bool {
        self.leading.asking.values().any(|asking| self.now - asking.heard < RECENT)
    }

    /// Does what is due, if this node leads.
    pub(super) fn lead(&mut self) {
        if !self.is_leader() {
            self.leading.idle_since.clear();
            self.leading.silent_since.clear();
            self.leading.first_since = None;
            return;
        }
        if self.now < self.leading.pause_until {
            return;
        }
        let (peers, voters) = self.peers();
        if self.last().is_none() {
            match self.forced.clone() {
                Some(force) if !self.leading.changing => {
                    self.leading.changing = true;
                    self.write(force, Input::Changed);
                }
                Some(_) => {}
                None => self.write_first(&peers),
            }
            return;
        }
        if self.admit(&peers) || self.leading.changing {
            return;
        }
        self.reconcile(&peers, &voters);
    }

    /// Goes on after something was done, or could not be.
    pub(super) fn go_on(&mut self, done: bool) {
        if !done {
            self.leading.pause_until = self.now + PAUSE;
            self.retry_in(PAUSE);
        }
        self.lead();
    }

    /// Writes the first view: once all founders are in the log, or after a while without those that don't come, if they
    /// are not more than half. A witness that leads knows the founders from their own words.
    fn write_first(&mut self, peers: &BTreeMap<u64, LogNode>) {
        let Some(Founders { layout, members, witnesses }) = self.founders() else { return };
        let Some(cluster) = self.network.cluster() else { return };
        if self.leading.changing {
            return;
        }
        let in_log = |node: NodeId| {
            let lives = peers.values().map(|peer| &peer.member).filter(|member| member.node == node);
            lives.max_by_key(|member| member.incarnation).cloned()
        };
        let asking = |node: NodeId| self.leading.asking.get(&node).filter(|asking| self.now - asking.heard < RECENT);
        let place = |&node: &NodeId| {
            let mut peer = asking(node)?.peer.clone();
            peer.witness = witnesses.contains(&node);
            let is_newer = in_log(node).is_none_or(|known| known.incarnation < peer.member.incarnation);
            // A part that is in the log stays as it was written there.
            (is_newer && !peers.contains_key(&peer.member.voter.0)).then_some((peer.member.voter.0, peer))
        };
        let found: BTreeMap<u64, LogNode> = members.iter().chain(&witnesses).filter_map(place).collect();
        if !found.is_empty() {
            return self.change(ChangeMembers::AddNodes(found));
        }
        let since = *self.leading.first_since.get_or_insert(self.now);
        let is_whole = members.iter().chain(&witnesses).all(|&node| in_log(node).is_some());
        let here: Vec<Member> = members.iter().copied().filter_map(in_log).collect();
        if is_whole || (2 * here.len() >= members.len() && self.now - since >= self.settings.timing.election.1 * 2) {
            self.leading.changing = true;
            let preferred = self.settings.policy.preferred(&layout, &here);
            self.write(Entry::First { cluster, layout, members: here, preferred }, Input::Changed);
        }
    }

    /// Gives nodes that ask their place: first in the log, then among the candidates. Returns whether it changes the
    /// nodes in the log.
    fn admit(&mut self, peers: &BTreeMap<u64, LogNode>) -> bool {
        let candidates = self.machine.read(|log_state| log_state.candidates().to_vec());
        let now = self.now;
        self.leading.asking.retain(|_, asking| now - asking.heard < RECENT);
        let is_known = |asks: &Member| {
            self.machine.read(|log_state| log_state.known(asks.node)).is_some_and(|known| known >= asks.incarnation)
        };
        // The members tell other nodes why they may not join.
        let may_join =
            |peer: &LogNode| peer.witness || self.view().is_none_or(|view| view.has_fingerprint_of(&peer.member));
        let asking: Vec<LogNode> =
            self.leading.asking.values().map(|asking| asking.peer.clone()).filter(may_join).collect();
        let newcomers = asking.iter().filter(|peer| {
            let is_new = !peers.contains_key(&peer.member.voter.0);
            is_new
                && (peer.witness
                    || !is_known(&peer.member)
                    || candidates.iter().any(|asks| is_same(asks, &peer.member)))
        });
        let newcomers: BTreeMap<u64, LogNode> = newcomers.map(|peer| (peer.member.voter.0, peer.clone())).collect();
        for peer in &asking {
            let member = &peer.member;
            let has_log = peers.contains_key(&member.voter.0) && self.caught_up(member.voter.0);
            if !peer.witness && has_log && !is_known(member) && self.leading.noting.insert(member.node) {
                let node = member.node;
                self.write(Entry::Candidate(member.clone()), move |done| Input::Noted(node, done));
            }
        }
        for candidate in &candidates {
            let node = candidate.node;
            let is_asking =
                self.leading.asking.get(&node).is_some_and(|asking| is_same(&asking.peer.member, candidate));
            if is_asking {
                self.leading.silent_since.remove(&node);
                continue;
            }
            let since = *self.leading.silent_since.entry(node).or_insert(now);
            if now - since >= self.settings.timing.withdraw && self.leading.noting.insert(node) {
                self.leading.silent_since.remove(&node);
                self.write(Entry::Withdraw(node, candidate.incarnation), move |done| Input::Noted(node, done));
            }
        }
        if newcomers.is_empty() || self.leading.changing {
            return false;
        }
        self.change(ChangeMembers::AddNodes(newcomers));
        true
    }

    /// Whether a part in the log has nearly all of it, and its node is there.
    fn caught_up(&self, voter: u64) -> bool {
        let me = self.me();
        if voter == me.voter.0 {
            return true;
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched =
            metrics.replication.as_ref().and_then(|replication| replication.get(&voter)?.as_ref().map(|id| id.index));
        let node = metrics.membership_config.get_node(&voter).map(|peer| peer.member.node);
        let heard = node.filter(|node| !self.gone.contains_key(node)).and_then(|node| self.heard.get(&node));
        let is_there = heard.is_some_and(|heard| self.now - *heard < self.calm() * 2);
        let last = metrics.last_log_index.unwrap_or(0);
        is_there && matched.is_some_and(|index| index + NEARLY >= last)
    }

    /// One step towards the voters and learners that there should be.
    fn reconcile(&mut self, peers: &BTreeMap<u64, LogNode>, voters: &BTreeSet<u64>) {
        let Some(view) = self.view() else { return };
        let caught_up = |voter| self.caught_up(voter);
        let situation =
            Situation { view: &view, fixed: self.settings.voters.as_deref(), voters, peers, caught_up: &caught_up };
        // A leader that died while it changed the voters has left two sets, both of which must agree: one is enough.
        if let Some(target) = voters::plan(&situation).or_else(|| self.half_changed()) {
            self.change(ChangeMembers::ReplaceAllVoters(target));
            return;
        }
        let candidates = self.machine.read(|log_state| log_state.candidates().to_vec());
        let has_place = |voter: u64, peer: &LogNode| {
            let member = &peer.member;
            let asks = self.leading.asking.get(&member.node).is_some_and(|asking| asking.peer.member.voter.0 == voter);
            let is_member = view.members.iter().chain(&candidates).any(|other| other.voter.0 == voter);
            voters.contains(&voter) || is_member || asks || (peer.witness && self.heard_recently(member.node))
        };
        let idle: BTreeSet<u64> =
            peers.iter().filter(|(voter, peer)| !has_place(**voter, peer)).map(|(&voter, _)| voter).collect();
        self.leading.idle_since.retain(|voter, _| idle.contains(voter));
        for &voter in &idle {
            self.leading.idle_since.entry(voter).or_insert(self.now);
        }
        let now = self.now;
        let over = self.leading.idle_since.iter().filter(|(_, since)| now - **since >= FAREWELL);
        let over: BTreeSet<u64> = over.map(|(&voter, _)| voter).collect();
        if !over.is_empty() {
            self.change(ChangeMembers::RemoveNodes(over));
        }
    }

    /// The voters of an unfinished change.
    fn half_changed(&self) -> Option<BTreeSet<u64>> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let sets = metrics.membership_config.get_joint_config();
        sets.last().filter(|_| sets.len() > 1).cloned()
    }

    fn heard_recently(&self, node: NodeId) -> bool {
        node == self.me().node || self.heard.get(&node).is_some_and(|heard| self.now - *heard < FAREWELL)
    }

    fn change(&mut self, change: ChangeMembers<u64, LogNode>) {
        self.leading.changing = true;
        let (raft, inbox) = (self.raft.clone(), self.inbox.clone());
        drop(C::spawn(async move {
            let what = change.to_string();
            let changed = raft.change_membership(change, true).await;
            if let Err(e) = &changed {
                tracing::info!("the view log's parts don't change ({what}): {e}");
            }
            // The agent may have ended.
            let _ = inbox.send(Input::Changed(changed.is_ok()));
        }));
    }

    /// Writes an entry, and tells the agent whether it was taken.
    pub(super) fn write(&self, entry: Entry, then: impl FnOnce(bool) -> Input + Send + 'static) {
        let (raft, inbox) = (self.raft.clone(), self.inbox.clone());
        drop(C::spawn(async move {
            let written = raft.client_write(AppRequest(entry)).await;
            let done = written.is_ok_and(|response| response.data == AppResponse::Taken);
            // The agent may have ended.
            let _ = inbox.send(then(done));
        }));
    }

    /// Writes a proposal, if this node leads and it may still count.
    pub(super) fn take_proposal(&mut self, proposal: Proposal, from: Member) {
        let Some(view) = self.view() else { return };
        let me = self.me();
        if proposal.view.epoch.0 != view.epoch.0 + 1 {
            // It comes late: the last decision helps more than a refusal.
            if from.node != me.node {
                self.reply(&Asker::new(&from, self.network.cluster()), self.whereabouts(&from));
            }
            return;
        }
        if !self.is_leader() {
            return self.pass_on(&proposal, &from);
        }
        self.is_lively();
        if self.leading.writing.contains(&proposal) {
            return;
        }
        // Without a quorum none of them ends, and rivals ask again and again.
        if self.leading.writing.len() >= WRITING {
            return;
        }
        if let Some((refused, why)) = &self.leading.refused
            && *refused == proposal
        {
            return self.refuse(proposal, why.clone());
        }
        self.leading.writing.push(proposal.clone());
        let (raft, inbox) = (self.raft.clone(), self.inbox.clone());
        drop(C::spawn(async move {
            let written = raft.client_write(AppRequest(Entry::Successor(proposal.clone()))).await;
            let result = written.map(|response| response.data).map_err(|e| e.to_string());
            // The agent may have ended.
            let _ = inbox.send(Input::Written(proposal, result));
        }));
    }

    pub(super) fn on_written(&mut self, proposal: Proposal, result: Result<AppResponse, String>) {
        self.leading.writing.retain(|other| *other != proposal);
        match result {
            Ok(AppResponse::Taken) => {}
            Ok(AppResponse::Refused(why)) => {
                let why = why.to_string();
                self.leading.refused = Some((proposal.clone(), why.clone()));
                self.refuse(proposal, why);
            }
            // The proposer sends it again, to the present leader.
            Err(e) => {
                tracing::info!("a proposal was not written: {e}");
                self.not_written(proposal.view.epoch);
            }
        }
    }

    /// Tells the member that made a proposal, which another one may have passed on, that it was not taken.
    fn refuse(&mut self, proposal: Proposal, why: String) {
        let Some(view) = self.view() else { return };
        let Some(by) = view.members.iter().find(|member| member.node == proposal.by) else { return };
        if by.node == self.me().node {
            self.on_refused(&proposal, &why);
        } else {
            self.network.send(&Contact::from(by), Body::Refused { proposal: Box::new(proposal), why });
        }
    }
}
