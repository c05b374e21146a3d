//! A view log that is scripted: one [`ViewLogState`] for all nodes, which changes while a majority of voters can reach
//! each other.
//!
//! It does at random what the real view log may do. Questions and news take their time. A node that is out of reach
//! hears of nothing; later it is told a part of what it missed, or only the last of it. Leaders change. Without a
//! majority, nothing is decided.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use fastrand::Rng;
use squall_fabric::{NodeId, Time, sync::Lock};
use squall_membership::{
    Applied, ClusterId, Entry, Epoch, Incarnation, Layout, LayoutPolicy, Member, Proposal, Refused, Report,
    ReturnReport, View, ViewEvent, ViewLog, ViewLogState, VoterId,
};

use super::clock::Clock;

/// The longest time between two looks of the script while something is pending.
const TICK: Duration = Duration::from_millis(1);

/// The time after which a node that asks to join and can't be reached asks no more.
const WITHDRAWN_AFTER: Duration = Duration::from_millis(40);

/// The largest number of voters.
const MAX_VOTERS: usize = 5;

/// The times that the script takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptTiming {
    /// The longest time that a message takes.
    pub(super) delay: Duration,
    /// The longest time that the choice of a new leader takes.
    pub(super) election: Duration,
    /// The time after which a proposal that is not decided has no quorum.
    pub(super) patience: Duration,
}

/// The script, which all nodes' view logs of one cluster share.
#[derive(Debug)]
pub(super) struct Script {
    shared: Arc<Lock<SimLogShared>>,
}

#[derive(Debug)]
struct SimLogShared {
    rng: Rng,
    timing: ScriptTiming,
    layout: (Layout, LayoutPolicy),
    founders: Vec<NodeId>,
    log_state: ViewLogState,
    history: BTreeMap<Epoch, Proposal>,
    voters: Vec<(NodeId, VoterId)>,
    /// The leader, and the time from which it leads.
    leader: Option<(NodeId, Time)>,
    /// The number of changes of the nodes that ask to join.
    candidacies: u64,
    /// The number of changes of the nodes that are back, and of the shards that are reopened.
    returns: u64,
    clients: BTreeMap<NodeId, LogClient>,
    /// Reports that were sent since the last look.
    reports: Vec<(NodeId, Vec<NodeId>, Report)>,
    /// Whether anything was asked since the last look.
    is_fresh: bool,
}

/// One node's side.
#[derive(Debug)]
struct LogClient {
    clock: Clock,
    me: Member,
    /// The member that it asks to be, and the time at which the leader gets that; the time is None before the script
    /// has looked.
    joins: Option<(Option<Time>, Member)>,
    proposes: Option<(Option<Time>, Proposal)>,
    /// The entries that say that it is back, with the shards that it reopens. The times are as in `joins`.
    returns: Vec<(Option<Time>, Entry)>,
    /// The time since which it waits for a decision.
    waits_since: Time,
    /// The last time that the leader reached it.
    reached: Time,
    told: Option<Epoch>,
    told_candidacies: u64,
    told_returns: u64,
    /// The time at which it hears the last of what is on its way to it.
    last_news: Time,
    news: VecDeque<(Time, ViewEvent)>,
}

impl Script {
    /// A script for a cluster that these nodes begin.
    pub(super) fn new(founders: Vec<NodeId>, layout: (Layout, LayoutPolicy), timing: ScriptTiming, rng: Rng) -> Script {
        let shared = SimLogShared {
            rng,
            timing,
            layout,
            founders,
            log_state: ViewLogState::default(),
            history: BTreeMap::new(),
            voters: Vec::new(),
            leader: None,
            candidacies: 0,
            returns: 0,
            clients: BTreeMap::new(),
            reports: Vec::new(),
            is_fresh: false,
        };
        Script { shared: Arc::new(Lock::new(shared)) }
    }

    /// The side of one node that starts, which has this clock. The node asks to be a member.
    pub(super) fn log(&self, me: Member, clock: Clock, now: Time) -> Box<dyn ViewLog> {
        let node = me.node;
        let client = LogClient {
            clock,
            joins: Some((None, me.clone())),
            me,
            proposes: None,
            returns: Vec::new(),
            waits_since: now,
            reached: now,
            told: None,
            told_candidacies: 0,
            told_returns: 0,
            last_news: now,
            news: VecDeque::new(),
        };
        let mut shared = self.shared.lock();
        shared.clients.insert(node, client);
        shared.is_fresh = true;
        Box::new(ScriptedLog { node, shared: Arc::clone(&self.shared) })
    }

    /// Lets a node's clock run as `clock` says from now on.
    pub(super) fn set_clock(&self, node: NodeId, clock: Clock) {
        if let Some(client) = self.shared.lock().clients.get_mut(&node) {
            client.clock = clock;
        }
    }

    /// Forgets the side of a node whose process is gone.
    pub(super) fn crash(&self, node: NodeId) {
        self.shared.lock().clients.remove(&node);
    }

    /// Whether anything was asked since the last look.
    pub(super) fn is_fresh(&self) -> bool {
        self.shared.lock().is_fresh
    }

    /// Looks at what is pending. `reach` says whether two nodes run and reach each other. Returns the time of the next
    /// look, and appends the nodes that hear of something, each with the time at which it does.
    pub(super) fn look(
        &self,
        now: Time,
        reach: impl Fn(NodeId, NodeId) -> bool,
        wakes: &mut Vec<(Time, NodeId)>,
    ) -> Option<Time> {
        self.shared.lock().look(now, &reach, wakes)
    }

    /// The decided views, in their order.
    pub(super) fn history(&self) -> Vec<Proposal> {
        self.shared.lock().history.values().cloned().collect()
    }

    /// A node that runs, as it is known to the log or as it asks to be.
    pub(super) fn me(&self, node: NodeId) -> Option<Member> {
        self.shared.lock().clients.get(&node).map(|client| client.me.clone())
    }

    /// Whether the voters that decide can reach each other. True before the first view.
    pub(super) fn has_quorum(&self, reach: impl Fn(NodeId, NodeId) -> bool) -> bool {
        let shared = self.shared.lock();
        shared.log_state.view().is_none() || shared.voters.iter().any(|&(node, _)| shared.can_lead(node, &reach))
    }
}

impl SimLogShared {
    fn look(
        &mut self,
        now: Time,
        reach: &dyn Fn(NodeId, NodeId) -> bool,
        wakes: &mut Vec<(Time, NodeId)>,
    ) -> Option<Time> {
        self.is_fresh = false;
        self.send_reports(now, reach, wakes);
        self.begin(reach);
        self.elect(now, reach);
        for node in self.clients.keys().copied().collect::<Vec<_>>() {
            self.schedule(now, node);
        }
        if let Some((leader, since)) = self.leader
            && since <= now
        {
            self.take(now, leader, reach);
            self.withdraw(now, leader, reach);
            self.reconcile(reach, leader);
            self.tell(now, leader, reach, wakes);
        }
        self.complain(now, wakes);
        self.next_look(now)
    }

    fn random(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.rng.u64(1..=most.as_nanos().max(1) as u64))
    }

    /// Decides the first view, once all founders are there and ask.
    fn begin(&mut self, reach: &dyn Fn(NodeId, NodeId) -> bool) {
        if self.log_state.view().is_some() {
            return;
        }
        let founder = self.founders[0];
        let asks = |node: &NodeId| self.clients.contains_key(node) && reach(founder, *node);
        if !self.founders.iter().all(asks) {
            return;
        }
        let members: Vec<Member> = self.founders.iter().map(|node| self.clients[node].me.clone()).collect();
        let odd = members.len().min(MAX_VOTERS) - usize::from(members.len().min(MAX_VOTERS).is_multiple_of(2));
        self.voters = members[..odd].iter().map(|member| (member.node, member.voter)).collect();
        let (cluster, (layout, policy)) = (ClusterId(self.rng.u64(..)), self.layout.clone());
        let preferred = policy.preferred(&layout, &members);
        self.apply(Entry::First { cluster, layout, members, preferred });
    }

    fn apply(&mut self, entry: Entry) -> Applied {
        let applied = self.log_state.apply(entry);
        if let Applied::View(proposal) = &applied {
            self.history.insert(proposal.view.epoch, proposal.clone());
        }
        if matches!(applied, Applied::View(_) | Applied::Candidates) {
            self.candidacies += 1;
        }
        if matches!(applied, Applied::Returns) {
            self.returns += 1;
        }
        applied
    }

    /// Whether a node is a voter that runs, and reaches a majority.
    fn can_lead(&self, node: NodeId, reach: &dyn Fn(NodeId, NodeId) -> bool) -> bool {
        let lives = |&&(other, voter): &&(NodeId, VoterId)| {
            self.clients.get(&other).is_some_and(|client| client.me.voter == voter) && reach(node, other)
        };
        let itself = self.voters.iter().find(|(other, _)| *other == node);
        itself.as_ref().is_some_and(lives) && 2 * self.voters.iter().filter(lives).count() > self.voters.len()
    }

    fn elect(&mut self, now: Time, reach: &dyn Fn(NodeId, NodeId) -> bool) {
        if self.leader.is_some_and(|(leader, _)| self.can_lead(leader, reach)) {
            return;
        }
        let able: Vec<NodeId> =
            self.voters.iter().map(|&(node, _)| node).filter(|&node| self.can_lead(node, reach)).collect();
        self.leader = match able.len() {
            0 => None,
            some => {
                let leader = able[self.rng.usize(0..some)];
                Some((leader, now + self.random(self.timing.election)))
            }
        };
    }

    /// Sets the times at which the leader gets what a node has just asked for.
    fn schedule(&mut self, now: Time, node: NodeId) {
        let delays = [(); 3].map(|()| self.random(self.timing.delay));
        let Some(client) = self.clients.get_mut(&node) else { return };
        for (at, _) in client.returns.iter_mut().filter(|(at, _)| at.is_none()) {
            *at = Some(now + delays[2]);
        }
        if let Some((at @ None, _)) = &mut client.joins {
            *at = Some(now + delays[0]);
        }
        if let Some((at @ None, _)) = &mut client.proposes {
            *at = Some(now + delays[1]);
        }
    }

    /// Applies what the leader has got by now.
    fn take(&mut self, now: Time, leader: NodeId, reach: &dyn Fn(NodeId, NodeId) -> bool) {
        for node in self.clients.keys().copied().collect::<Vec<_>>() {
            if !reach(leader, node) {
                continue;
            }
            let Some(client) = self.clients.get_mut(&node) else { continue };
            client.reached = now;
            let is_due = |at: &Option<Time>| at.is_some_and(|at| at <= now);
            if let Some((_, proposal)) = client.proposes.take_if(|(at, _)| is_due(at)) {
                self.apply(Entry::Successor(proposal));
            }
            let Some(client) = self.clients.get_mut(&node) else { continue };
            let returns: Vec<_> = client.returns.extract_if(.., |(at, _)| is_due(at)).collect();
            returns.into_iter().for_each(|(_, entry)| _ = self.apply(entry));
            let Some(client) = self.clients.get(&node) else { continue };
            if let Some((_, me)) = client.joins.clone().filter(|(at, _)| is_due(at)) {
                self.take_candidate(me);
            }
        }
    }

    fn take_candidate(&mut self, me: Member) {
        let node = me.node;
        // It goes on asking until it has been told that it is a member: it may be dropped again before.
        let members = self.log_state.view().map_or(&[][..], |view| &view.members);
        if members.contains(&me) || self.log_state.candidates().contains(&me) {
            return;
        }
        if let Applied::Refused(Refused::Rule(_)) = self.apply(Entry::Candidate(me)) {
            // It has been known in a later life: an incarnation beyond that one asks in its place.
            let beyond = self.log_state.known(node).map_or(1, |last| last.0 + 1);
            let client = self.clients.get_mut(&node).expect("it asks");
            client.me.incarnation = Incarnation(beyond.max(client.me.incarnation.0));
            client.joins = Some((None, client.me.clone()));
        }
    }

    fn withdraw(&mut self, now: Time, leader: NodeId, reach: &dyn Fn(NodeId, NodeId) -> bool) {
        for candidate in self.log_state.candidates().to_vec() {
            let gone = match self.clients.get(&candidate.node) {
                None => true,
                Some(client) => !reach(leader, candidate.node) && now.since(client.reached) > WITHDRAWN_AFTER,
            };
            if gone {
                self.apply(Entry::Withdraw(candidate.node, candidate.incarnation));
            }
        }
    }

    /// Gives the place of a voter that is no member any more to a member that is no voter. If every voter is a member,
    /// it adds two voters where the view has room for them.
    fn reconcile(&mut self, reach: &dyn Fn(NodeId, NodeId) -> bool, leader: NodeId) {
        let Some(view) = self.log_state.view().cloned() else { return };
        let fresh = |voters: &[(NodeId, VoterId)]| {
            let new = |member: &&Member| !voters.contains(&(member.node, member.voter)) && reach(leader, member.node);
            view.members.iter().filter(new).map(|member| (member.node, member.voter)).collect::<Vec<_>>()
        };
        let stays = |&(node, voter): &(NodeId, VoterId)| {
            view.members.iter().any(|member| (member.node, member.voter) == (node, voter))
        };
        if let Some(left) = self.voters.iter().position(|voter| !stays(voter)) {
            if let Some(&next) = fresh(&self.voters).first() {
                self.voters[left] = next;
            }
            return;
        }
        let fresh = fresh(&self.voters);
        if self.voters.len() + 2 <= view.members.len().min(MAX_VOTERS) && fresh.len() >= 2 {
            self.voters.extend(&fresh[..2]);
        }
    }

    fn tell(
        &mut self,
        now: Time,
        leader: NodeId,
        reach: &dyn Fn(NodeId, NodeId) -> bool,
        wakes: &mut Vec<(Time, NodeId)>,
    ) {
        let Some(view) = self.log_state.view().cloned() else { return };
        let (current, is_in) = (view.epoch, |me: &Member| view.members.contains(me));
        for node in self.clients.keys().copied().filter(|&node| reach(leader, node)).collect::<Vec<_>>() {
            // A snapshot says nothing of what came before it.
            let skips = self.rng.u8(0..4) == 0;
            let told = self.clients[&node].told;
            let first = match told {
                Some(told) if !skips => Epoch(told.0 + 1),
                _ => current,
            };
            let mut events = Vec::new();
            if told.is_none_or(|told| told < current) {
                events.extend(self.history.range(first..).map(|(_, next)| ViewEvent::Committed(next.clone())));
            }
            if self.clients[&node].told_candidacies < self.candidacies {
                events.push(ViewEvent::Candidates(self.log_state.candidates().to_vec()));
            }
            if self.clients[&node].told_returns < self.returns {
                events.push(ViewEvent::Returns(self.log_state.returns()));
            }
            for event in events {
                let delay = self.random(self.timing.delay);
                self.send(now + delay, node, event, wakes);
            }
            let (candidacies, returns) = (self.candidacies, self.returns);
            let client = self.clients.get_mut(&node).expect("it was just there");
            if client.told.is_none_or(|told| told < current) {
                client.returns.clear();
            }
            (client.told, client.told_candidacies, client.told_returns) = (Some(current), candidacies, returns);
            client.joins.take_if(|(_, me)| is_in(me));
            if client.proposes.as_ref().is_some_and(|(_, proposal)| proposal.view.epoch <= current) {
                client.proposes = None;
            }
        }
    }

    fn send(&mut self, at: Time, node: NodeId, event: ViewEvent, wakes: &mut Vec<(Time, NodeId)>) {
        let Some(client) = self.clients.get_mut(&node) else { return };
        client.last_news = client.last_news.max(at);
        client.news.push_back((client.last_news, event));
        wakes.push((client.last_news, node));
    }

    fn send_reports(&mut self, now: Time, reach: &dyn Fn(NodeId, NodeId) -> bool, wakes: &mut Vec<(Time, NodeId)>) {
        for (from, to, report) in std::mem::take(&mut self.reports) {
            for node in to {
                if node != from && reach(from, node) {
                    let delay = self.random(self.timing.delay);
                    self.send(now + delay, node, ViewEvent::Reported(report.clone()), wakes);
                }
            }
        }
    }

    /// Tells the nodes whose proposals wait for too long.
    fn complain(&mut self, now: Time, wakes: &mut Vec<(Time, NodeId)>) {
        let patience = self.timing.patience;
        for node in self.clients.keys().copied().collect::<Vec<_>>() {
            let client = self.clients.get_mut(&node).expect("it was just there");
            if client.proposes.is_none() {
                client.waits_since = now;
            } else if now.since(client.waits_since) >= patience {
                client.waits_since = now;
                self.send(now, node, ViewEvent::NoQuorum, wakes);
            }
        }
    }

    fn next_look(&self, now: Time) -> Option<Time> {
        let current = self.log_state.view().map(|view| view.epoch);
        let waits = |client: &LogClient| {
            client.proposes.is_some()
                || client.joins.is_some()
                || !client.returns.is_empty()
                || client.told < current
                || client.told_returns < self.returns
                || client.told_candidacies < self.candidacies
        };
        let pending = self.clients.values().any(waits) || !self.log_state.candidates().is_empty();
        if !pending {
            return None;
        }
        let asked = self.clients.values().flat_map(|client| {
            let returns = client.returns.iter().filter_map(|(at, _)| *at).min();
            [client.joins.as_ref().and_then(|(at, _)| *at), client.proposes.as_ref().and_then(|(at, _)| *at), returns]
        });
        let elected = self.leader.map(|(_, at)| at);
        asked.flatten().chain(elected).filter(|&at| at > now).chain([now + TICK]).min()
    }
}

#[derive(Debug)]
struct ScriptedLog {
    node: NodeId,
    shared: Arc<Lock<SimLogShared>>,
}

impl ScriptedLog {
    fn ask(&mut self, ask: impl FnOnce(&mut LogClient)) {
        let mut shared = self.shared.lock();
        if let Some(client) = shared.clients.get_mut(&self.node) {
            ask(client);
            shared.is_fresh = true;
        }
    }
}

impl ViewLog for ScriptedLog {
    fn propose(&mut self, proposal: Proposal) {
        self.ask(|client| client.proposes = Some((None, proposal)));
    }

    fn join(&mut self, me: Member) {
        self.ask(|client| {
            client.me = me.clone();
            client.joins = Some((None, me));
        });
    }

    fn report(&mut self, to: &View, report: Report) {
        let mut shared = self.shared.lock();
        shared.reports.push((self.node, to.nodes(), report));
        shared.is_fresh = true;
    }

    fn report_return(&mut self, back: ReturnReport) {
        self.ask(|client| {
            client.returns.retain(|(_, entry)| !matches!(entry, Entry::Return(_)));
            client.returns.push((None, Entry::Return(back)));
        });
    }

    /// Lets another leader be elected, even where the leader is there and only this node does not reach it.
    fn peer_gone(&mut self, node: NodeId) {
        let mut shared = self.shared.lock();
        if shared.leader.is_some_and(|(leader, _)| leader == node) && shared.rng.bool() {
            shared.leader = None;
            shared.is_fresh = true;
        }
    }

    fn deadline(&self) -> Time {
        let shared = self.shared.lock();
        let Some(client) = shared.clients.get(&self.node) else { return Time::MAX };
        client.news.front().map_or(Time::MAX, |(at, _)| client.clock.at(*at))
    }

    fn poll(&mut self, now: Time) -> Option<ViewEvent> {
        let mut shared = self.shared.lock();
        let client = shared.clients.get_mut(&self.node)?;
        let clock = client.clock;
        let (_, event) = client.news.pop_front_if(|(at, _)| clock.at(*at) <= now)?;
        Some(event)
    }
}
