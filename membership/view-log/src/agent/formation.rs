//! A node's way into a group: it founds one with others, or finds one.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use squall_fabric::NodeId;
use squall_membership::{ClusterId, Incarnation, Layout, Member, View};

use super::{
    Agent, BUSY, MANY,
    force::LOOKS,
    is_same,
    leader::{Asking, Founders},
    messages::Asker,
};
use crate::{
    settings::{Failure, Settings, Start, nodes},
    types::{LogNode, Types},
    wire::{Body, Contact, Hello, Here, Wants},
};

/// A node's knowledge of a group that forms.
#[derive(Debug, Default)]
pub(super) struct Formation {
    /// Whether this process began with a part of a log that an earlier one had: it waits for the others for as long as
    /// it takes.
    returns_to_log: bool,
    /// Whether it was sent what begins its part of a log. That is written beside the agent, so it may not be there yet.
    pub(super) stores: bool,
    /// Whether it was a member in this process.
    pub(super) was_member: bool,
    /// The layout and the founders, as a founder has told a witness.
    told: Option<(Layout, Vec<NodeId>)>,
    /// The nodes for which the group waits, by the word of its founders.
    pub(super) missing: Option<Vec<NodeId>>,
    /// The view of the group that others have told of.
    group: Option<Arc<View>>,
    /// The voters that have forgotten how they voted, and the node that says so.
    pub(super) forgot: Option<(NodeId, Vec<NodeId>)>,
    /// The nodes of which this node has logged that.
    pub(super) named: Vec<NodeId>,
    /// The time at which a node last said where the group is, or that it forms.
    answered: Option<Duration>,
    /// The number of contacts, of many, that are asked next, and the place of the first of them.
    width: usize,
    next: usize,
    /// The number of times that this node has asked.
    asked: usize,
}

/// The most contacts that are all asked at once. Of more, the nodes that form the group are, and some of the others in
/// turns. Each stream costs both sides a handshake, and all with all would cost a large group's host more than its
/// formation.
pub(super) const FEW: usize = 8;

/// The number of questions of which one also goes to one of the other contacts, while the nodes that form a group
/// answer: others may know of a group that these do not.
const SELDOM: usize = 10;

impl Formation {
    pub(super) fn new(returns_to_log: bool) -> Formation {
        Formation { returns_to_log, ..Formation::default() }
    }
}

impl<C: Types> Agent<C> {
    /// Begins the log at the first node of the list, when that has heard of all the others that they are in no group.
    pub(super) async fn found(&mut self) {
        let Start::List { members, witnesses } = &self.settings.start else { return };
        let me = self.network.me();
        let is_founder = self.settings.start.founder() == Some(me.node);
        // A cluster's number that was stored without a log is of a life that was never begun: the node died in between.
        if !is_founder || !self.is_free() || !self.store.is_empty() {
            return;
        }
        let recent = self.settings.timing.hello * 5;
        let ready = |contact: &Contact| match contact.node {
            Some(node) if node == me.node => Some(me.clone()),
            Some(node) => {
                let asking = self.leading.asking.get(&node)?;
                let is_ready = (asking.founds || asking.peer.witness) && self.now - asking.heard <= recent;
                is_ready.then(|| asking.peer.member.clone())
            }
            None => None,
        };
        let Some(members) = members.iter().map(ready).collect::<Option<Vec<_>>>() else { return };
        let Some(witnesses) = witnesses.iter().map(ready).collect::<Option<Vec<_>>>() else { return };
        let voters = crate::voters::first(&members, &witnesses, self.settings.voters.as_deref());
        let peer = |member: &&Member| {
            let peer = LogNode { member: (*member).clone(), witness: witnesses.contains(member) };
            (member.voter.0, peer)
        };
        let voters: BTreeMap<u64, LogNode> = voters.iter().map(peer).collect();
        // Half of the numbers are left for forced lives, each of which has a greater number than the one before.
        let cluster = ClusterId(self.rng.u64(..1 << 63));
        self.adopt(cluster);
        tracing::info!(?cluster, voters = voters.len(), members = members.len(), "all have come: the view log begins");
        if voters.contains_key(&me.voter.0) {
            if let Err(e) = self.raft.initialize(voters).await {
                tracing::warn!("the view log can't be begun: {e}");
            }
        } else {
            self.shared.fail(Failure::Mismatch { with: me.node, why: "the first of the list must be a voter".into() });
        }
    }

    /// Takes part in a cluster's life from now on.
    pub(super) fn adopt(&mut self, cluster: ClusterId) {
        if self.told.is_some_and(|(life, _)| life != cluster) {
            // It was told of a group in whose log it has no part.
            (self.tells_from, self.told) = (None, None);
        }
        if let Err(e) = self.store.set_cluster(cluster.0) {
            self.shared.fail(Failure::Storage(e.to_string()));
        }
        self.network.set_cluster(Some(cluster));
    }

    /// Whether this node asks for a place that it does not have.
    pub(super) fn is_outside(&self) -> bool {
        let me = self.network.me().voter.0;
        self.wants.is_some() || (self.is_witness() && !self.peers().0.contains_key(&me))
    }

    /// Whether this node has nothing of any log, nor will have soon, and knows of no group.
    pub(super) fn is_free(&self) -> bool {
        self.tells_from.is_none() && !self.formation.stores && self.store.has_no_log()
    }

    pub(super) fn is_witness(&self) -> bool {
        matches!(self.settings.start, Start::Witness { .. })
    }

    pub(super) fn become_member(&mut self, me: Member) {
        if let Err(e) = self.store.set_incarnation(me.incarnation) {
            self.shared.fail(Failure::Storage(e.to_string()));
        }
        self.network.set_lives(self.store.lives());
        self.network.set_me(me.clone());
        self.shared.lock().me = me.clone();
        if self.wants.replace(me).is_none() {
            self.search.begin(self.now);
        }
    }

    /// Asks the nodes that it knows of for its place, or for news.
    pub(super) fn hello(&mut self) {
        let is_witness = self.is_witness();
        let me = self.network.me();
        let wants = match &self.wants {
            _ if is_witness && self.is_outside() => Wants::Witness,
            Some(_) if self.is_free() && matches!(self.settings.start, Start::List { .. }) => Wants::Found,
            Some(_) => Wants::Join,
            None => Wants::News,
        };
        let contacts = self.contacts();
        if wants == Wants::News {
            // A leader that no majority follows any more has not always noticed.
            let is_stuck = self.is_leader() && self.asks.is_waiting();
            if self.is_leader() && !is_stuck {
                return self.look_for_rivals(&contacts);
            }
            if (!is_stuck && !self.misses_leader()) || contacts.is_empty() {
                return;
            }
            self.next_contact = (self.next_contact + 1) % contacts.len();
            self.say_hello(&contacts[self.next_contact], wants);
            return;
        }
        match self.leader() {
            Some(_) if self.is_leader() => {
                self.on_hello(me, wants == Wants::Found, is_witness);
                // It may lead a life that is over, which only the others know.
                if self.now >= self.next_look {
                    self.next_look = self.now + LOOKS;
                    contacts.iter().for_each(|contact| self.say_hello(contact, wants));
                }
            }
            // A leader that is not heard may be gone.
            Some(leader) if leader.node != me.node && self.hears_leader(self.settings.timing.election.1) => {
                self.say_hello(&Contact::from(&leader), wants);
            }
            _ => self.ask_around(&contacts, wants),
        }
    }

    /// Asks all contacts, if they are few. Of many, it asks the nodes that form the group, and others in turns, twice
    /// as many each time until a node answers.
    fn ask_around(&mut self, contacts: &[Contact], wants: Wants) {
        let (first, others) = self.by_turn(contacts);
        first.iter().for_each(|contact| self.say_hello(contact, wants));
        self.formation.asked += 1;
        let width = match (others.len(), self.is_answered()) {
            (0..=FEW, _) => others.len(),
            (_, true) => {
                self.formation.width = 1;
                usize::from(self.formation.asked.is_multiple_of(SELDOM))
            }
            (many, false) => {
                let width = self.formation.width.clamp(1, many);
                self.formation.width = 2 * width;
                width
            }
        };
        for turn in 0..width {
            self.say_hello(others[(self.formation.next + turn) % others.len()], wants);
        }
        self.formation.next += width;
    }

    /// The contacts that form the group, which are asked each time, and the others.
    pub(super) fn by_turn<'a>(&self, contacts: &'a [Contact]) -> (Vec<&'a Contact>, Vec<&'a Contact>) {
        let (peers, voters) = self.peers();
        let votes = |node| peers.iter().any(|(voter, peer)| voters.contains(voter) && peer.member.node == node);
        contacts.iter().partition(|contact: &&Contact| match (&self.settings.start, contact.node) {
            (Start::List { members, witnesses }, Some(node)) => {
                members.first().into_iter().chain(witnesses).any(|first| first.node == Some(node)) || votes(node)
            }
            (_, node) => node.is_some_and(votes),
        })
    }

    /// Whether a node has said a moment ago where the group is, or that it forms.
    fn is_answered(&self) -> bool {
        self.formation.answered.is_some_and(|at| self.now - at <= self.settings.timing.hello * 10)
    }

    pub(super) fn say_hello(&self, to: &Contact, wants: Wants) {
        let list = self.settings.start.listed();
        let Settings { cluster, layout, parameters, .. } = &self.settings;
        let (cluster, layout, parameters) = (cluster.clone(), layout.clone(), parameters.clone());
        let decided = self.last().is_some();
        self.network.send(to, Body::Hello(Hello { cluster, layout, parameters, list, wants, decided }));
    }

    /// All nodes that it knows of, but itself.
    pub(super) fn contacts(&self) -> Vec<Contact> {
        let me = self.network.me().node;
        let mut contacts: Vec<Contact> = self.settings.start.contacts().cloned().collect();
        let members = self.view().map(|view| view.members.clone()).unwrap_or_default();
        let peers = self.peers().0;
        let members = members.iter().chain(peers.values().map(|peer| &peer.member)).map(Contact::from);
        for other in members.chain(self.former.iter().cloned()) {
            if contacts.iter().all(|contact| contact.node != other.node) {
                contacts.push(other);
            }
        }
        contacts.retain(|contact| contact.node != Some(me));
        contacts
    }

    /// The reason for which a node can't be in one group with this one, if there is one.
    pub(super) fn mismatch(&self, from: NodeId, hello: &Hello) -> Option<String> {
        if hello.cluster != self.settings.cluster {
            return Some(format!("it is of cluster {:?}, not of {:?}", hello.cluster, self.settings.cluster));
        }
        let decided = self.machine.read(|log_state| log_state.cluster().map(|_| log_state.layout().clone()));
        // A witness knows of no groups, but by the log's decisions.
        let layout = decided.or_else(|| (!self.is_witness()).then(|| self.settings.layout.clone()));
        let comes_in = matches!(hello.wants, Wants::Found | Wants::Join);
        if comes_in && self.speaks_for_group(hello.wants) {
            let (me, parameters) = (self.me().node, &self.settings.parameters);
            if let Some(why) = parameters.difference(me, &hello.parameters, from) {
                return Some(why);
            }
        }
        if comes_in && layout.is_some_and(|layout| layout != hello.layout) {
            return Some(
                "its groups are laid out differently: give all nodes the same groups, shards, replicas, pins and weights"
                    .into(),
            );
        }
        if let (Wants::Found, Some(mine), Some(list)) = (hello.wants, self.settings.start.listed(), &hello.list)
            && self.view().is_none()
            && mine != *list
        {
            return Some(format!("its list of members is {list:?}, not {mine:?}"));
        }
        None
    }

    /// Whether its parameters are the group's: those of a member, or of a node that founds the group with the one that
    /// asks.
    ///
    /// A node that is no member itself, such as one that was started again, may be the one that is configured wrongly.
    /// A node that was cut off may be of a group that has begun anew since. A witness has no parameters.
    fn speaks_for_group(&self, wants: Wants) -> bool {
        match self.view() {
            Some(view) => {
                let is_heard = || self.hears_leader(self.settings.timing.election.1 * 2);
                self.is_in(&view) && (self.is_leader() || is_heard())
            }
            None => wants == Wants::Found && matches!(self.settings.start, Start::List { .. }),
        }
    }

    /// Refuses a node that does not belong to this one's group, and logs it once for each life of that node.
    pub(super) fn turn_away(&mut self, asks: &Member, why: String) -> Here {
        if self.turned_away.len() >= MANY {
            self.turned_away.clear();
        }
        if self.turned_away.insert(asks.node, asks.incarnation) != Some(asks.incarnation) {
            tracing::warn!(node = %asks.node, why, "a node is refused");
        }
        Here::Mismatch(why)
    }

    pub(super) fn on_hello(&mut self, from: Member, founds: bool, witness: bool) {
        let asking = Asking { peer: LogNode { member: from.clone(), witness }, founds, heard: self.now };
        self.leading.asked(from.node, asking);
        self.lead();
    }

    pub(super) fn whereabouts(&self, asks: &Member) -> Here {
        let Some(last) = self.last() else { return Here::Forming { missing: self.absent() } };
        let exceed = self.machine.read(|log_state| {
            if last.view.members.iter().chain(log_state.candidates()).any(|member| is_same(member, asks)) {
                return None;
            }
            log_state.known(asks.node).filter(|known| *known >= asks.incarnation)
        });
        let forgot = self.forgotten_votes();
        Here::Group { last: Box::new(last), leader: self.leader(), exceed, forgot }
    }

    pub(super) fn on_here(&mut self, from: &Member, cluster: Option<ClusterId>, here: Here) {
        let (me, founder) = (self.network.me().node, self.settings.start.founder());
        let knows = founder.is_some_and(|founder| founder == from.node || founder == me);
        if matches!(here, Here::Forming { .. }) && knows || matches!(here, Here::Group { .. }) {
            self.formation.answered = Some(self.now);
        }
        if self.is_outside() {
            self.search.note(from, &here, self.now);
        }
        match here {
            Here::Forming { missing } => self.on_forming(from.node, missing),
            Here::OtherLife(_) => {}
            Here::WentBack { epoch } => self.on_went_back(from, &Asker::new(from, cluster), epoch),
            Here::GoesOn { epoch } => self.on_goes_on(from.node, epoch),
            Here::Mismatch(why) => {
                if self.tells_from.is_none() || self.wants.is_some() {
                    self.shared.fail(Failure::Mismatch { with: from.node, why });
                }
            }
            Here::Group { last, leader, exceed, forgot } => {
                let me = self.network.me();
                self.formation.missing = None;
                self.formation.group = Some(Arc::clone(&last.view));
                self.formation.forgot = Some((from.node, forgot)).filter(|(_, nodes)| !nodes.is_empty());
                if let (Some(wanted), Some(exceed)) = (&self.wants, exceed)
                    && exceed >= wanted.incarnation
                    && !self.is_in(&last.view)
                {
                    let incarnation = Incarnation(exceed.0 + 1);
                    self.become_member(Member { incarnation, ..wanted.clone() });
                }
                if self.tells_from.is_none() {
                    self.tells_from = Some(last.view.epoch);
                    if let Some(mine) = self.last() {
                        self.tell(&mine);
                    }
                }
                self.tell(&last);
                if self.wants.is_some()
                    && let Some(leader) = leader
                    && !is_same(&leader, from)
                    && leader.node != me.node
                    && self.now >= self.next_pointer
                {
                    // Two nodes may each take the other for the leader: they must not be asked in turns for ever.
                    self.next_pointer = self.now + BUSY;
                    self.say_hello(&Contact::from(&leader), Wants::Join);
                }
            }
        }
    }

    /// The voters of which a node that comes back has not heard, while too few are there to decide.
    pub(super) fn waits_for(&self) -> Vec<NodeId> {
        if self.wants.is_none() || self.is_free() {
            return Vec::new();
        }
        let (peers, voters) = self.peers();
        let me = self.network.me().node;
        let nodes = voters.iter().filter_map(|voter| peers.get(voter)).map(|peer| peer.member.node);
        let missing: Vec<NodeId> = nodes.filter(|&node| node != me && !self.is_heard(node)).collect();
        if 2 * (voters.len() - missing.len()) > voters.len() { Vec::new() } else { missing }
    }

    /// Takes the list of founders at a witness: if it leads the log, it writes the first view.
    pub(super) fn learn_founders(&mut self, from: NodeId, hello: &Hello) {
        if let Some(list) = hello.list.as_ref().filter(|list| list.contains(&from))
            && self.is_witness()
            && hello.cluster == self.settings.cluster
        {
            self.formation.told = Some((hello.layout.clone(), list.clone()));
        }
    }

    pub(super) fn founders(&self) -> Option<Founders> {
        match &self.settings.start {
            Start::List { members, witnesses } => {
                let (layout, members, witnesses) = (self.settings.layout.clone(), nodes(members), nodes(witnesses));
                Some(Founders { layout, members, witnesses })
            }
            Start::Witness { .. } => {
                let (layout, members) = self.formation.told.clone()?;
                Some(Founders { layout, members, witnesses: Vec::new() })
            }
            Start::Join { .. } => None,
        }
    }

    /// The configured nodes of which it hears nothing.
    pub(super) fn absent(&self) -> Vec<NodeId> {
        let me = self.network.me().node;
        let nodes = self.settings.start.contacts().filter_map(|contact| contact.node);
        nodes.filter(|node| *node != me && !self.is_heard(*node)).collect()
    }

    /// Whether anything was heard of a node a moment ago.
    pub(super) fn is_heard(&self, node: NodeId) -> bool {
        self.is_heard_within(node, self.settings.timing.hello * 10)
    }

    pub(super) fn is_heard_within(&self, node: NodeId, limit: Duration) -> bool {
        self.heard.get(&node).is_some_and(|heard| self.now - *heard <= limit)
    }

    /// Takes note that the group for which this node asks is being formed.
    fn on_forming(&mut self, from: NodeId, missing: Vec<NodeId>) {
        let joins = matches!(self.settings.start, Start::Join { .. });
        // One of many founders hears of most others only through the first.
        let is_told = self.settings.start.founder() == Some(from) && self.settings.start.contacts().count() > FEW;
        if !joins && !is_told
            || self.wants.is_none()
            || self.tells_from.is_some()
            || self.formation.missing.as_ref() == Some(&missing)
        {
            return;
        }
        if joins {
            tracing::info!(by = %from, ?missing, "the group has no first view yet: this node waits for it");
        }
        self.formation.missing = Some(missing);
    }

    /// Fails once the time to find or form a group is over, and logs the missing nodes.
    ///
    /// A node that comes back with its part of a log waits for the others for as long as it takes: only the missing
    /// nodes can decide with it. All other nodes wait for a first view, or for one that an operator must force, until
    /// the time is over.
    pub(super) fn check_formation(&mut self) {
        let Some(patience) = self.settings.timing.formation else { return };
        if self.now < patience || self.wants.is_none() {
            return;
        }
        let waits_for = self.waits_for();
        if !waits_for.is_empty() && self.now >= self.next_complaint {
            self.next_complaint = self.now + patience;
            tracing::warn!(?waits_for, "nothing can be decided: this node waits for more voters");
        }
        // A node that was dropped has its owner's work to end, and goes on asking.
        if self.formation.returns_to_log || self.formation.was_member {
            return;
        }
        if let Some((with, nodes)) = self.forgot() {
            return self.shared.fail(Failure::Forgotten { with, nodes });
        }
        let waited_ms = patience.as_millis() as u64;
        if let Some(view) = self.formation.group.clone().or_else(|| self.view()) {
            let is_silent = |node: &NodeId| *node != self.network.me().node && !self.is_heard(*node);
            let silent = view.nodes().into_iter().filter(is_silent).collect();
            return self.shared.fail(Failure::NotAdmitted { waited_ms, epoch: view.epoch.0, silent });
        }
        let joins = matches!(self.settings.start, Start::Join { .. });
        let missing = match &self.formation.missing {
            Some(missing) if !missing.is_empty() && (joins || self.is_answered()) => missing.clone(),
            _ => self.absent(),
        };
        self.shared.fail(Failure::NotFormed { waited_ms, missing });
    }
}
