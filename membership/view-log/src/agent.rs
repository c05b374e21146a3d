//! A node's part in the log: formation, joins, proposals, and what it hears of them.

mod formation;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use openraft::{
    Config, Raft,
    async_runtime::watch::WatchReceiver,
    raft::{AppendEntriesRequest, TransferLeaderRequest},
    type_config::{TypeConfigExt, alias::InstantOf},
};
use squall_fabric::NodeId;
use squall_membership::{Applied, Entry, Epoch, Incarnation, Member, Proposal, Report, View, ViewEvent, VoterId};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use crate::{
    leader::Leading,
    machine::Machine,
    network::Network,
    settings::{Failure, Settings, Start},
    shared::{Shared, Status},
    store::Store,
    types::{Peer, Reply, Snapshot, Types},
    wire::{Answer, Body, Call, Contact, Envelope, Here, Wants},
};

/// How often a node looks around while it waits for something, and while it does not.
const BUSY: Duration = Duration::from_millis(20);
const IDLE: Duration = Duration::from_millis(250);
/// What a node sent before it was known to be gone may still arrive so long.
const LAST_WORDS: Duration = Duration::from_millis(100);
/// How long a voter waits for each of those before it, when the leader is gone.
const TURN: Duration = Duration::from_millis(50);
/// How often it tries, before it leaves that to Raft.
const TURNS: u32 = 3;
/// A leader that can't write yet is asked again after this.
const SOON: Duration = Duration::from_millis(1);
/// A proposal that is not answered is sent again after this.
const RESEND: Duration = Duration::from_millis(100);

/// What happens to a node's log.
pub(crate) enum Input {
    Message(NodeId, Vec<u8>),
    Propose(Proposal),
    Join(Member),
    Report(Vec<Member>, Report),
    PeerGone(NodeId),
    Force(Proposal, String),
    /// An entry was applied.
    Applied(Applied),
    /// Who leads, or votes, has changed.
    Raft,
    /// What became of a proposal that was written.
    Written(Proposal, Result<Reply, String>),
    /// A change of who votes and learns has ended; whether it took place.
    Changed(bool),
    /// A candidate was written, or withdrawn, or was not.
    Noted(NodeId, bool),
    Stop,
}

/// A proposal of this node's that is not decided.
struct Pending {
    proposal: Proposal,
    sent: Option<(NodeId, Duration)>,
}

pub(crate) struct Agent<C: Types> {
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) network: Arc<Network>,
    pub(crate) raft: Raft<C, Machine>,
    config: Arc<Config>,
    pub(crate) machine: Machine,
    pub(crate) store: Store,
    pub(crate) inbox: UnboundedSender<Input>,
    pub(crate) rng: fastrand::Rng,
    /// Time since the start.
    pub(crate) now: Duration,
    started: InstantOf<C>,
    /// When each node was last heard.
    pub(crate) heard: BTreeMap<NodeId, Duration>,
    pub(crate) leading: Leading,
    /// What an operator forces, until it is written.
    pub(crate) forced: Option<Entry>,
    /// As what it asks to be a member.
    wants: Option<Member>,
    /// From which epoch on it tells of views. None: it has not been in contact yet.
    tells_from: Option<Epoch>,
    told: Option<Epoch>,
    told_candidates: Vec<Member>,
    pending: Option<Pending>,
    /// When the proposal is to be sent again, before the next tick.
    retry_at: Option<Duration>,
    report: Option<(Vec<Member>, Report, Duration)>,
    /// Since when it waits for a decision, or has last said that there is none.
    waits_since: Option<Duration>,
    gone: BTreeMap<NodeId, Duration>,
    turns: u32,
    last_turn: Option<Duration>,
    heard_leader: Duration,
    next_hello: Duration,
    /// When it next follows somebody's word on who leads.
    next_pointer: Duration,
    /// Whose turn it is to be asked for news.
    next_contact: usize,
}

impl<C: Types> Agent<C> {
    pub(crate) fn new(
        settings: Settings,
        shared: Arc<Shared>,
        network: Arc<Network>,
        (raft, config): (Raft<C, Machine>, Arc<Config>),
        (machine, store): (Machine, Store),
        inbox: UnboundedSender<Input>,
        rng: fastrand::Rng,
    ) -> Agent<C> {
        let wants = match settings.start {
            Start::Witness { .. } => None,
            Start::List { .. } | Start::Join { .. } => Some(network.me()),
        };
        Agent {
            settings,
            shared,
            network,
            raft,
            config,
            machine,
            store,
            inbox,
            rng,
            now: Duration::ZERO,
            started: C::now(),
            heard: BTreeMap::new(),
            leading: Leading::default(),
            forced: None,
            wants,
            tells_from: None,
            told: None,
            told_candidates: Vec::new(),
            pending: None,
            retry_at: None,
            report: None,
            waits_since: None,
            gone: BTreeMap::new(),
            turns: 0,
            last_turn: None,
            heard_leader: Duration::ZERO,
            next_hello: Duration::ZERO,
            next_pointer: Duration::ZERO,
            next_contact: 0,
        }
    }

    /// Runs until it is told to stop, or fails.
    pub(crate) async fn run(mut self, mut inputs: UnboundedReceiver<Input>) {
        self.watch_raft();
        let mut next_tick = C::now();
        while self.shared.lock().failure.is_none() {
            let input = match C::timeout_at(next_tick, inputs.recv()).await {
                Ok(Some(Input::Stop) | None) => break,
                Ok(Some(Input::Force(proposal, reason))) => {
                    self.force(proposal, reason).await;
                    continue;
                }
                Ok(Some(input)) => Some(input),
                Err(_) => None,
            };
            self.now = C::now() - self.started;
            match input {
                Some(input) => self.handle(input),
                None => {
                    self.tick().await;
                    next_tick = C::now() + if self.is_busy() { BUSY } else { IDLE };
                }
            }
            if self.is_busy() {
                next_tick = next_tick.min(C::now() + BUSY);
            }
            if let Some(retry_at) = self.retry_at.take() {
                next_tick = next_tick.min(self.started + retry_at);
            }
            self.shared.lock().next_tick = next_tick - self.started;
        }
        // It fails only if a task of Raft's panicked, and then there is nothing left to stop.
        let _ = self.raft.shutdown().await;
    }

    /// Wakes this task when who leads has changed.
    fn watch_raft(&self) {
        let (mut metrics, inbox) = (self.raft.server_metrics(), self.inbox.clone());
        drop(C::spawn(async move {
            while metrics.changed().await.is_ok() {
                if inbox.send(Input::Raft).is_err() {
                    break;
                }
            }
        }));
    }

    fn is_busy(&self) -> bool {
        self.wants.is_some()
            || self.pending.is_some()
            || self.report.is_some()
            || !self.gone.is_empty()
            || self.is_leading_busily()
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Message(from, bytes) => self.on_message(from, &bytes),
            Input::Propose(proposal) => {
                self.pending = Some(Pending { proposal, sent: None });
                self.waits_since.get_or_insert(self.now);
                self.push_proposal();
            }
            Input::Join(member) => {
                let me = self.network.me();
                let incarnation = member.incarnation.max(Incarnation(me.incarnation.0 + 1));
                self.become_member(Member { incarnation, voter: me.voter, ..member });
                self.next_hello = self.now;
                self.hello();
            }
            Input::Report(to, report) => {
                self.waits_since.get_or_insert(self.now);
                self.report = Some((to, report, self.now));
                self.send_report();
            }
            Input::PeerGone(node) => {
                self.gone.insert(node, self.now);
                self.turns = 0;
                self.last_turn = None;
                self.take_over();
            }
            Input::Applied(applied) => self.on_applied(applied),
            Input::Raft => {
                self.push_proposal();
                self.lead();
            }
            Input::Written(proposal, result) => self.on_written(proposal, result),
            Input::Changed(done) => {
                self.leading.changing = false;
                self.go_on(done);
            }
            Input::Noted(node, done) => {
                self.leading.noting.remove(&node);
                self.go_on(done);
            }
            Input::Force(..) | Input::Stop => {}
        }
    }

    async fn tick(&mut self) {
        let running = self.raft.metrics().borrow_watched().running_state.clone();
        if let Err(fatal) = running {
            self.shared.fail(Failure::Storage(fatal.to_string()));
            return;
        }
        self.found().await;
        if self.now >= self.next_hello {
            self.hello();
            self.next_hello = self.now + self.settings.timing.hello;
        }
        self.tell_if_leading();
        self.take_over();
        self.lead();
        self.push_proposal();
        if self.report.as_ref().is_some_and(|(_, _, sent)| self.now - *sent >= RESEND) {
            self.send_report();
        }
        self.check_quorum();
        self.check_formation();
        self.publish();
    }

    pub(crate) fn me(&self) -> Member {
        self.network.me()
    }

    pub(crate) fn last(&self) -> Option<Proposal> {
        self.machine.read(|register| register.last().cloned())
    }

    pub(crate) fn view(&self) -> Option<Arc<View>> {
        self.machine.read(|register| register.view().cloned())
    }

    /// Who leads the log, as this node knows it.
    fn leader(&self) -> Option<Member> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let leader = metrics.current_leader?;
        metrics.membership_config.get_node(&leader).map(|peer| peer.member.clone())
    }

    /// Everyone in the log, and who of them votes.
    pub(crate) fn peers(&self) -> (BTreeMap<u64, Peer>, BTreeSet<u64>) {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let peers = metrics.membership_config.nodes().map(|(&voter, peer)| (voter, peer.clone())).collect();
        (peers, metrics.membership_config.voter_ids().collect())
    }

    fn is_in(&self, view: &View) -> bool {
        let me = self.network.me();
        view.members.iter().any(|member| is_same(member, &me))
    }

    fn on_message(&mut self, from: NodeId, bytes: &[u8]) {
        let Some(Envelope { cluster, from: sender, body }) = Envelope::decode(bytes) else {
            tracing::warn!(%from, bytes = bytes.len(), "a message that is none of a view log's of this version");
            return;
        };
        let me = self.network.me();
        if sender.node != from || from == me.node {
            return;
        }
        self.network.learn(&sender);
        self.heard.insert(from, self.now);
        if self.gone.get(&from).is_some_and(|since| self.now - *since > LAST_WORDS) {
            self.gone.remove(&from);
        }
        let mine = self.network.cluster();
        let reply_to = Contact::from(&sender);
        let lives = mine.zip(cluster).map(|(mine, other)| mine.cmp(&other));
        match (lives, body) {
            (Some(std::cmp::Ordering::Greater), Body::Hello(_)) => {
                self.network.send(&reply_to, Body::Here(Here::OtherLife));
            }
            (_, Body::Here(Here::OtherLife)) if lives.is_some_and(|order| order.is_lt()) => {
                self.shared.fail(Failure::OtherLife { with: from });
            }
            (Some(order), _) if order.is_ne() => {}
            (_, Body::Hello(hello)) => {
                let here = match self.mismatch(&hello) {
                    Some(why) => Here::Mismatch(why),
                    None => {
                        let asks = sender.clone();
                        if hello.wants != Wants::News {
                            self.on_hello(sender, hello.wants == Wants::Found, hello.wants == Wants::Witness);
                        }
                        self.whereabouts(&asks)
                    }
                };
                self.network.send(&reply_to, Body::Here(here));
            }
            (_, Body::Here(here)) => self.on_here(&sender, here),
            (_, Body::Call { id, to, call }) if to == me.voter => {
                if let (None, Some(cluster)) = (mine, cluster) {
                    self.adopt(cluster);
                }
                self.on_call(reply_to, id, call);
            }
            (_, Body::Return { id, answer }) => self.network.answer(id, answer),
            // The rest is for those who are in the same life.
            (None, _) => {}
            (_, Body::Propose(proposal)) => self.take_proposal(*proposal, sender),
            (_, Body::Refused { epoch, why }) => self.on_refused(epoch, &why),
            (_, Body::Report(report)) => {
                if report.member.node == from {
                    self.shared.push(ViewEvent::Reported(report));
                }
            }
            (_, Body::Call { .. }) => {}
        }
    }

    fn on_call(&mut self, reply_to: Contact, id: u64, call: Call) {
        if matches!(call, Call::Append { .. } | Call::Snapshot { .. }) {
            self.heard_leader = self.now;
        }
        let (raft, network) = (self.raft.clone(), Arc::clone(&self.network));
        drop(C::spawn(async move {
            let answer = match call {
                Call::Append { vote, previous, entries, commit } => {
                    let request = AppendEntriesRequest { vote, prev_log_id: previous, entries, leader_commit: commit };
                    raft.append_entries(request).await.map(Answer::from).map_err(|e| e.to_string())
                }
                Call::Vote(ballot) => raft.vote(ballot.into()).await.map(Answer::from).map_err(|e| e.to_string()),
                Call::PreVote(ballot) => {
                    raft.pre_vote(ballot.into()).await.map(Answer::from).map_err(|e| e.to_string())
                }
                Call::Snapshot { vote, meta, data } => {
                    let snapshot = Snapshot { meta, snapshot: data };
                    let installed = raft.install_full_snapshot(vote, snapshot).await;
                    installed.map(|response| Answer::Snapshot(response.vote)).map_err(|e| e.to_string())
                }
            };
            network.send(&reply_to, Body::Return { id, answer });
        }));
    }

    fn on_applied(&mut self, applied: Applied) {
        if let Applied::Refused(why) = &applied {
            tracing::debug!("an entry of the view log does nothing: {why}");
            return;
        }
        if let Applied::View(proposal) = applied {
            self.leading.wrote_view();
            if self.is_in(&proposal.view) {
                // Nobody but this very life can be meant: it has been in contact.
                self.tells_from.get_or_insert(proposal.view.epoch);
            }
            self.tell(&proposal);
        }
        self.tell_candidates();
        self.lead();
        self.publish();
    }

    /// A leader needs nobody to tell it how things stand.
    fn tell_if_leading(&mut self) {
        if self.tells_from.is_none()
            && self.is_leader()
            && let Some(last) = self.last()
        {
            self.tells_from = Some(last.view.epoch);
            self.tell(&last);
            self.tell_candidates();
        }
    }

    fn tell(&mut self, proposal: &Proposal) {
        let epoch = proposal.view.epoch;
        if self.tells_from.is_none_or(|from| epoch < from) || self.told.is_some_and(|told| epoch <= told) {
            return;
        }
        self.told = Some(epoch);
        if self.is_in(&proposal.view) {
            self.wants = None;
        }
        if self.pending.as_ref().is_some_and(|pending| pending.proposal.view.epoch <= epoch) {
            self.pending = None;
        }
        if self.report.as_ref().is_some_and(|(_, report, _)| report.epoch < epoch) {
            self.report = None;
        }
        self.waits_since = (self.pending.is_some() || self.report.is_some()).then_some(self.now);
        self.shared.push(ViewEvent::Committed(proposal.clone()));
    }

    fn tell_candidates(&mut self) {
        let candidates = self.machine.read(|register| register.candidates().to_vec());
        if self.tells_from.is_some() && candidates != self.told_candidates {
            self.told_candidates.clone_from(&candidates);
            self.shared.push(ViewEvent::Candidates(candidates));
        }
    }

    fn push_proposal(&mut self) {
        let (leader, now) = (self.leader(), self.now);
        let Some(pending) = &mut self.pending else { return };
        let Some(leader) = leader else { return };
        if pending.sent.is_some_and(|(to, when)| to == leader.node && now - when < RESEND) {
            return;
        }
        pending.sent = Some((leader.node, now));
        let proposal = pending.proposal.clone();
        let me = self.network.me();
        if leader.node == me.node {
            self.take_proposal(proposal, me);
        } else {
            self.network.send(&Contact::from(&leader), Body::Propose(Box::new(proposal)));
        }
    }

    /// A leader that is new may not be ready: it is asked again soon.
    pub(crate) fn not_written(&mut self, epoch: Epoch) {
        let pending = self.pending.as_mut().filter(|pending| pending.proposal.view.epoch == epoch);
        if let Some(pending) = pending {
            pending.sent = None;
            self.retry_at = Some(self.now + SOON);
        }
    }

    pub(crate) fn on_refused(&mut self, epoch: Epoch, why: &str) {
        tracing::info!(%epoch, why, "a proposal was refused");
        if self.pending.as_ref().is_some_and(|pending| pending.proposal.view.epoch == epoch) {
            self.pending = None;
        }
    }

    fn send_report(&mut self) {
        let me = self.network.me().node;
        let Some((to, report, sent)) = &mut self.report else { return };
        *sent = self.now;
        for member in to.iter().filter(|member| member.node != me) {
            self.network.send(&Contact::from(member), Body::Report(report.clone()));
        }
    }

    fn check_quorum(&mut self) {
        if self.waits_since.is_some_and(|since| self.now - since >= self.settings.timing.no_quorum) {
            self.waits_since = Some(self.now);
            self.shared.push(ViewEvent::NoQuorum);
        }
    }

    /// When the leader is gone, the first voter that is left takes over at once; the next ones a little later, if it does not.
    fn take_over(&mut self) {
        let leader = self.leader();
        let is_led = leader.is_some_and(|leader| !self.gone.contains_key(&leader.node));
        let Some(&since) = self.gone.values().max() else { return };
        if is_led || self.turns >= TURNS {
            return;
        }
        let (peers, voters) = self.peers();
        let me = self.network.me();
        let view = self.view();
        let rank = |node| view.as_ref().and_then(|view| view.rank_of(node)).map_or(u32::MAX, |rank| rank.0);
        let mut left: Vec<(u32, u64)> = peers
            .iter()
            .filter(|(voter, peer)| voters.contains(voter) && !self.gone.contains_key(&peer.member.node))
            .map(|(&voter, peer)| (rank(peer.member.node), voter))
            .collect();
        left.sort_unstable();
        let Some(place) = left.iter().position(|(_, voter)| *voter == me.voter.0) else { return };
        let turn = self.last_turn.map_or(since + TURN * place as u32, |last| last + TURN * left.len() as u32);
        if self.now < turn {
            return;
        }
        (self.last_turn, self.turns) = (Some(self.now), self.turns + 1);
        let vote = self.raft.server_metrics().borrow_watched().vote;
        let raft = self.raft.clone();
        drop(C::spawn(async move {
            let request = TransferLeaderRequest::new(vote, me.voter.0, None);
            if !matches!(raft.handle_transfer_leader(request).await, Ok(Ok(()))) {
                // The vote has changed meanwhile: others are at it. A plain election does no harm.
                let _ = raft.trigger().elect(false).await;
            }
        }));
    }

    fn publish(&self) {
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
        let (candidates, forced) = self.machine.read(|register| {
            let nodes = register.candidates().iter().map(|member| member.node).collect();
            (nodes, register.forced().to_vec())
        });
        let status = Status {
            cluster: self.network.cluster(),
            epoch: self.view().map(|view| view.epoch),
            voters: named(true),
            learners: named(false),
            leader: self.leader().map(|leader| leader.node),
            term,
            applied,
            candidates,
            forced,
        };
        self.shared.lock().status = status;
    }
}

/// Whether both are one life of one node.
pub(crate) fn is_same(a: &Member, b: &Member) -> bool {
    a.node == b.node && a.voter == b.voter && a.incarnation == b.incarnation
}
