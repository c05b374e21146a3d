//! A node's part in the log: formation, joins, proposals, and the news of them.

mod asks;
mod election;
mod force;
#[cfg(all(test, feature = "sim"))]
mod forged_tests;
mod forgotten;
mod formation;
mod input;
mod leader;
mod leadership;
mod messages;
mod news;
mod returns;
mod search;
mod went_back;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures_util::FutureExt;
use openraft::{
    Config, Raft,
    async_runtime::watch::WatchReceiver,
    raft::AppendEntriesRequest,
    type_config::{TypeConfigExt, alias::InstantOf},
};
use squall_fabric::NodeId;
use squall_membership::{ClusterId, Entry, Epoch, Incarnation, Member, Proposal, View};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

use self::{
    asks::Asks, election::Election, force::Move, formation::Formation, leader::Leading, leadership::Leadership,
    messages::Asker, returns::Returns, search::Search, went_back::WentBack,
};
pub(crate) use self::{force::Forcing, input::Input};
use crate::{
    machine::Machine,
    network::LogNetwork,
    settings::{Failure, Settings, Start},
    shared::OwnerMailbox,
    store::LogStore,
    types::{LogNode, Snapshot, Types},
    wire::{Answer, Body, Call, Contact},
};

/// The pause between two looks of a node that waits for something.
const BUSY: Duration = Duration::from_millis(20);
/// The most nodes that are remembered as heard, or as turned away: more than there are, unless a sender makes nodes up.
const MANY: usize = 1024;

pub(crate) struct Agent<C: Types> {
    settings: Settings,
    shared: Arc<OwnerMailbox>,
    network: Arc<LogNetwork>,
    raft: Raft<C, Machine>,
    config: Arc<Config>,
    pub(crate) machine: Machine,
    store: LogStore,
    inbox: UnboundedSender<Input>,
    rng: fastrand::Rng,
    /// The time since the start.
    now: Duration,
    started: InstantOf<C>,
    /// The time at which each node was last heard.
    heard: BTreeMap<NodeId, Duration>,
    /// The latest life of each node that was heard, as a part in the log.
    lives: BTreeMap<NodeId, (Incarnation, u64)>,
    formation: Formation,
    search: Search,
    leading: Leading,
    /// The request of an operator, while this node asks whether it may be forced.
    forcing: Option<Forcing>,
    /// The entry that an operator forces, until it is written.
    forced: Option<Entry>,
    /// The life to go over to.
    moves_to: Option<Move>,
    /// The lives that this node has left. It has forgotten how it voted there.
    left: BTreeSet<ClusterId>,
    /// The nodes that it knew in an earlier life.
    former: Vec<Contact>,
    /// The node that told of another life to which this node does not go over.
    other_life: Option<NodeId>,
    /// The nodes that were turned away, each with its latest life: they are named in this node's log once.
    turned_away: BTreeMap<NodeId, Incarnation>,
    went_back: WentBack,
    /// The place where this node's part is kept, in words.
    directory: Option<String>,
    /// The member that this node asks to be. None: it does not ask.
    wants: Option<Member>,
    /// The epoch from which on it tells of views. None: it has not been in contact yet.
    tells_from: Option<Epoch>,
    /// The last view of which it has told, and the cluster's life in which that was decided.
    told: Option<(ClusterId, Epoch)>,
    told_candidates: Vec<Member>,
    asks: Asks,
    returns: Returns,
    leadership: Leadership,
    election: Election,
    /// The time since which nodes are known to be gone.
    gone: BTreeMap<NodeId, Duration>,
    last_tick: Duration,
    /// The time of another attempt at something, which may be before the next tick.
    retry_at: Option<Duration>,
    next_hello: Duration,
    /// The time at which it next logs that it waits.
    next_complaint: Duration,
    /// The time at which it next looks for a life that began beside this one.
    next_look: Duration,
    /// The time from which on it follows another node's word on the leader again.
    next_pointer: Duration,
    /// The contact whose turn it is to be asked for news.
    next_contact: usize,
}

impl<C: Types> Agent<C> {
    pub(crate) fn new(
        settings: Settings,
        shared: Arc<OwnerMailbox>,
        network: Arc<LogNetwork>,
        (raft, config): (Raft<C, Machine>, Arc<Config>),
        (machine, store, directory): (Machine, LogStore, Option<String>),
        inbox: UnboundedSender<Input>,
        rng: fastrand::Rng,
    ) -> Agent<C> {
        let wants = match settings.start {
            Start::Witness { .. } => None,
            Start::List { .. } | Start::Join { .. } => Some(network.me()),
        };
        let returns_to_log = !store.has_no_log();
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
            lives: BTreeMap::new(),
            formation: Formation::new(returns_to_log),
            search: Search::default(),
            leading: Leading::default(),
            forcing: None,
            forced: None,
            moves_to: None,
            left: BTreeSet::new(),
            former: Vec::new(),
            other_life: None,
            turned_away: BTreeMap::new(),
            went_back: WentBack::default(),
            directory,
            wants,
            tells_from: None,
            told: None,
            told_candidates: Vec::new(),
            asks: Asks::default(),
            returns: Returns::default(),
            leadership: Leadership::default(),
            election: Election::default(),
            gone: BTreeMap::new(),
            last_tick: Duration::ZERO,
            retry_at: None,
            next_hello: Duration::ZERO,
            next_complaint: Duration::ZERO,
            next_look: Duration::ZERO,
            next_pointer: Duration::ZERO,
            next_contact: 0,
        }
    }

    /// Runs until it is told to stop, or fails.
    pub(crate) async fn run(mut self, mut inputs: UnboundedReceiver<Input>) {
        self.watch_raft();
        self.resume_force().await;
        let mut next_tick = self.started;
        while self.shared.lock().failure.is_none() {
            let input = match C::timeout_at(next_tick, inputs.recv()).await {
                Ok(Some(Input::Stop)) if self.says_farewell() => None,
                Ok(Some(Input::Stop) | None) => break,
                Ok(Some(input)) => Some(input),
                Err(_) => None,
            };
            self.now = C::now() - self.started;
            match input {
                Some(input) => self.handle(input),
                None => self.tick().await,
            }
            if self.has_handed_over() {
                break;
            }
            if let Some(to) = self.moves_to.take() {
                self.go_over(to).await;
            }
            self.stand();
            next_tick = self.started + self.next_tick();
        }
        // It fails only if a task of Raft's panicked, and then nothing is left to stop.
        let _ = self.raft.shutdown().await;
    }

    /// Wakes this task when the leader has changed, and when Raft has stopped.
    fn watch_raft(&self) {
        let (mut metrics, inbox) = (self.raft.server_metrics(), self.inbox.clone());
        drop(C::spawn(async move {
            loop {
                let runs = metrics.changed().await.is_ok();
                if inbox.send(Input::Raft).is_err() || !runs {
                    break;
                }
            }
        }));
    }

    /// The time of the next look, since the start. Looks are frequent only while this node waits for something.
    fn next_tick(&self) -> Duration {
        let pause = if self.is_busy() { BUSY } else { self.calm() };
        let look = self.last_tick + pause;
        [self.next_beat(), self.next_doubt(), self.retry_at].into_iter().flatten().fold(look, Duration::min)
    }

    fn is_busy(&self) -> bool {
        self.is_outside()
            || self.asks.is_waiting()
            || self.returns.is_waiting()
            || self.forcing.is_some()
            || self.is_leading_busily()
    }

    /// Sets the time of another attempt.
    fn retry_in(&mut self, pause: Duration) {
        let at = self.now + pause;
        self.retry_at = Some(self.retry_at.map_or(at, |retry| retry.min(at)));
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Message { from, only_votes, bytes, _room } => self.on_message(from, only_votes, &bytes),
            Input::Propose(proposal) => self.propose(proposal),
            Input::Join(member) => {
                let me = self.network.me();
                let incarnation = member.incarnation.max(Incarnation(me.incarnation.0 + 1));
                self.become_member(Member { incarnation, voter: me.voter, ..member });
                self.next_hello = self.now;
                self.hello();
            }
            Input::Report(to, report) => self.report(to, report),
            Input::Return(back) => self.report_return(back),
            Input::PeerGone(node) => {
                self.gone.insert(node, self.now);
                self.is_lively();
            }
            Input::Applied(applied) => self.on_applied(applied),
            Input::Raft => {
                self.check_raft();
                self.is_lively();
                self.push_proposal();
                self.lead();
                self.publish();
            }
            Input::Written(proposal, result) => self.on_written(proposal, result),
            Input::Agreed(voter, asked, agrees) => self.on_agreed(voter, asked, agrees),
            Input::Changed(done) => {
                self.leading.changing = false;
                self.go_on(done);
            }
            Input::Noted(node, done) => {
                self.leading.noting.remove(&node);
                self.go_on(done);
            }
            Input::Force(forcing) => self.ask_to_force(forcing),
            Input::WentBack => self.say_went_back_to_all(),
            Input::Stop => {}
        }
    }

    async fn tick(&mut self) {
        (self.last_tick, self.retry_at) = (self.now, None);
        self.check_raft();
        self.found().await;
        self.force_if_due().await;
        if self.now >= self.next_hello {
            self.hello();
            self.next_hello = self.now + self.settings.timing.hello;
        }
        self.tell_if_leading();
        self.forget_gone();
        self.beat().await;
        self.lead();
        self.ask_again();
        self.say_again();
        self.check_quorum();
        self.check_formation();
        self.check_votes();
        self.publish();
        if !self.is_busy()
            && let Err(e) = self.store.settle()
        {
            self.shared.fail(Failure::Storage(e.to_string()));
        }
    }

    /// Stops the log if Raft has stopped: most likely, it can't store what it must.
    fn check_raft(&self) {
        let mut metrics = self.raft.metrics();
        let running = metrics.borrow_and_update().running_state.clone();
        if let Err(fatal) = running {
            self.shared.fail(Failure::Storage(fatal.to_string()));
        } else if let Some(Err(_)) = metrics.changed().now_or_never() {
            self.shared.fail(Failure::Storage("it has panicked".into()));
        }
    }

    /// Forgets that nodes are gone which are in the log no more.
    fn forget_gone(&mut self) {
        if !self.gone.is_empty() {
            let (peers, _) = self.peers();
            self.gone.retain(|node, _| peers.values().any(|peer| peer.member.node == *node));
        }
    }

    fn me(&self) -> Member {
        self.network.me()
    }

    fn last(&self) -> Option<Proposal> {
        self.machine.read(|log_state| log_state.last().cloned())
    }

    fn view(&self) -> Option<Arc<View>> {
        self.machine.read(|log_state| log_state.view().cloned())
    }

    /// All nodes in the log, and the voters among them.
    fn peers(&self) -> (BTreeMap<u64, LogNode>, BTreeSet<u64>) {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        let peers = metrics.membership_config.nodes().map(|(&voter, peer)| (voter, peer.clone())).collect();
        (peers, metrics.membership_config.voter_ids().collect())
    }

    /// The nodes that vote, but this one.
    fn other_voters(&self) -> Vec<(u64, LogNode)> {
        let (mut peers, voters) = self.peers();
        let me = self.network.me().voter.0;
        let others = voters.into_iter().filter(|voter| *voter != me);
        others.filter_map(|voter| Some((voter, peers.remove(&voter)?))).collect()
    }

    fn is_in(&self, view: &View) -> bool {
        let me = self.network.me();
        view.members.iter().any(|member| is_same(member, &me))
    }

    fn on_call(&mut self, asker: Asker, id: u64, call: Call) {
        self.formation.stores |= match &call {
            Call::Append { previous, entries, .. } => previous.is_none() && !entries.is_empty(),
            Call::Snapshot { .. } => true,
            Call::Vote(_) | Call::MayLead(_) => false,
        };
        match call {
            Call::Append { .. } | Call::Snapshot { .. } if self.contradicts(&asker, &call) => return,
            Call::Append { vote, .. } | Call::Snapshot { vote, .. } => self.on_leader_heard(vote),
            Call::MayLead(last) => return self.on_question(asker.contact, id, last),
            Call::Vote(_) => {}
        }
        let (raft, network) = (self.raft.clone(), Arc::clone(&self.network));
        drop(C::spawn(async move {
            let answer = match call {
                Call::Append { vote, previous, entries, commit } => {
                    let request = AppendEntriesRequest { vote, prev_log_id: previous, entries, leader_commit: commit };
                    raft.append_entries(request).await.map(Answer::from).map_err(|e| e.to_string())
                }
                Call::Vote(ballot) => raft.vote(ballot.into()).await.map(Answer::from).map_err(|e| e.to_string()),
                Call::MayLead(_) => return,
                Call::Snapshot { vote, meta, data } => {
                    let snapshot = Snapshot { meta, snapshot: data };
                    let installed = raft.install_full_snapshot(vote, snapshot).await;
                    installed.map(|response| Answer::Snapshot(response.vote)).map_err(|e| e.to_string())
                }
            };
            network.send(&asker.contact, Body::Return { id, answer });
        }));
    }
}

/// Whether both are one life of one node.
fn is_same(a: &Member, b: &Member) -> bool {
    a.node == b.node && a.voter == b.voter && a.incarnation == b.incarnation
}
