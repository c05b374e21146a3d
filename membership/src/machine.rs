//! The state machine: formation, suspicion, wedge, decision, cleanup.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, RegionKind, RegisterError, Time};
use squall_sst::{Counter, Counters, Fingerprint, Flag, Layout, Mesh, MeshEvent, Predicates, Table, When};

use crate::{
    detector::Detector,
    end::EndReason,
    lead::{Accusations, staying},
    leases::Leases,
    view::{Epoch, Incarnation, Member, Rank, Seq, ShardId, ShardView, View},
    view_log::{Proposal, ViewEvent},
};

/// The layer's number in a [`GroupTag`].
const LAYER: u32 = 1;

/// A cause that explains little is replaced by a better one that is heard of within this part of the failure timeout.
const EXPLAINED_WITHIN: u32 = 16;

/// How far each shard delivers in a view that ends: a count of places of its order.
pub type Trims = BTreeMap<ShardId, Seq>;

/// What membership is configured with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The members of the first view, by rank: the same list at each.
    pub members: Vec<NodeId>,
    /// The shards of the first view.
    pub shards: Vec<ShardView>,
    /// A number that differs if what the members must agree on, besides their list, differs (groups, modes, sizes).
    pub fingerprint: u64,
    /// How long to wait for all members of the first view.
    pub formation_timeout: Duration,
    /// How long a heartbeat may stand still.
    pub failure_timeout: Duration,
    /// The longest that a member of a shard may read after another has vouched for it.
    pub read_lease: Duration,
    /// Whether there is a [`ViewLog`](crate::ViewLog) that decides what follows a view. Without one the group ends when it
    /// wedges.
    pub view_log: bool,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// An endpoint to a member broke, of whatever layer.
    Broken(NodeId, BreakReason),
    /// A member sent what no correct member sends; the sentence says what.
    Faulty(NodeId, String),
    /// A shard is wedged.
    Frozen {
        /// Which one.
        shard: ShardId,
        /// Its final count.
        count: Seq,
        /// The members that this one has vouched for, so that they may still read. It vouches for nobody any more.
        leased: Vec<NodeId>,
    },
    /// A shard has delivered everything up to its trim.
    Ended(ShardId),
    /// The view log decided.
    ViewLog(ViewEvent),
    /// Every shard's endpoints are connected.
    ShardsConnected,
    /// The node is asked to stop.
    Stop,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Create the shards of this view.
    Install(Arc<View>),
    /// Every member of the first view has appeared.
    Formed(Arc<View>),
    /// Wedge all shards, and answer with [`Input::Frozen`] for each.
    Wedge,
    /// Give this to the view log.
    Propose(Proposal),
    /// Clean up the shards, and answer [`Input::Ended`] for each.
    CleanUp(Trims),
    /// This node's part is over: fail whatever waits.
    End(EndReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for all members until the deadline.
    Forming,
    Running,
    /// The shards are asked to wedge, or have.
    Wedged,
    /// The next view is decided; who is dropped may still read.
    Waiting,
    CleaningUp,
    Ended,
}

/// What a predicate over the table calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Some row says `suspected` or `wedged`.
    Wedge,
    /// A member wedged, or accused another: who stays, and whether all of them are wedged, may have changed.
    Decide,
}

#[derive(Clone, Copy, Debug)]
struct Columns {
    heartbeat: Counter,
    /// By shard, in the view's order.
    frozen: Counters,
    /// By member.
    suspected: [Option<Flag>; MAX_MEMBERS],
    wedged: Flag,
}

/// The largest view.
const MAX_MEMBERS: usize = 64;

/// One node's part in the membership protocol.
#[derive(Debug)]
pub struct Membership {
    settings: Settings,
    view: Arc<View>,
    me: usize,
    phase: Phase,
    began: Time,
    /// What ends the group if nothing follows the view.
    cause: Option<EndReason>,
    /// A cause that explains little waits so long for a better one; none before the clock was read.
    explained_by: Option<Option<Time>>,
    mesh: Mesh,
    remote: Vec<Option<squall_fabric::RegionKey>>,
    table: Table,
    columns: Columns,
    predicates: Predicates<Due>,
    detector: Detector,
    next_beat: Time,
    shards_connected: bool,
    frozen: usize,
    ended: usize,
    /// The members of the last proposal.
    proposed: Vec<usize>,
    leases: Leases,
    /// What was decided, until it may be carried out.
    committed: Option<Proposal>,
}

impl Membership {
    /// Starts to form the first view. [`Effect::Install`] comes with it: its shards are connected while members appear.
    ///
    /// # Panics
    ///
    /// If this node is not in the list, or the list is longer than 64: configuration is checked before.
    pub fn form(
        fabric: &mut impl Fabric,
        now: Time,
        settings: Settings,
        out: &mut Vec<Effect>,
    ) -> Result<Membership, RegisterError> {
        let members = settings.members.len();
        assert!(members <= MAX_MEMBERS, "{members} members");
        let me = settings.members.iter().position(|&node| node == fabric.node()).expect("this node is a member");
        let mut layout = Layout::builder();
        let mut columns = Columns {
            heartbeat: layout.counter("heartbeat"),
            frozen: layout.counters("frozen", settings.shards.len()),
            wedged: layout.flag("wedged"),
            suspected: [None; MAX_MEMBERS],
        };
        for flag in &mut columns.suspected[..members] {
            *flag = Some(layout.flag("suspected"));
        }
        let layout = layout.build();
        let region = fabric.register(RegionKind::Polled, Table::bytes(&layout, members))?;
        let view = Arc::new(View {
            epoch: Epoch::FIRST,
            members: settings
                .members
                .iter()
                .map(|&node| Member { node, incarnation: Incarnation::default() })
                .collect(),
            shards: settings.shards.clone(),
            joined: settings.members.clone(),
            left: Vec::new(),
        });
        let mut agreed = Fingerprint::default();
        agreed.number(settings.fingerprint);
        for member in &settings.members {
            agreed.number(u64::from(member.0));
        }
        let words = [layout.fingerprint(), agreed.value()];
        let hello: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let tag = GroupTag { layer: LAYER, group: 0, epoch: view.epoch.0 };
        let table = Table::new(layout, region, members, me);
        let mesh = Mesh::connect(fabric, &settings.members, me, tag, &hello, |_| vec![table.region().clone()]);
        let mut membership = Membership {
            predicates: predicates(&table, columns, members),
            detector: Detector::new(members, settings.failure_timeout),
            phase: Phase::Forming,
            began: now,
            cause: None,
            explained_by: None,
            remote: vec![None; members],
            next_beat: now,
            shards_connected: false,
            frozen: 0,
            ended: 0,
            proposed: Vec::new(),
            leases: Leases::new(members, settings.read_lease),
            committed: None,
            settings,
            view,
            me,
            mesh,
            table,
            columns,
        };
        out.push(Effect::Install(Arc::clone(&membership.view)));
        membership.check_formed(out);
        Ok(membership)
    }

    /// The current view.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The endpoints whose completions belong to this layer.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.mesh.endpoints()
    }

    /// Whether a member's row says that it is wedged.
    pub fn is_wedged(&self, member: Rank) -> bool {
        self.table.is_set(member.index(), self.columns.wedged)
    }

    /// When [`step`](Membership::step) must be called next, if nothing happens before.
    pub fn deadline(&self) -> Time {
        match self.phase {
            Phase::Forming => (self.began + self.settings.formation_timeout).min(self.next_beat),
            Phase::Ended => Time::MAX,
            Phase::Waiting => self.leases_over().min(self.next_beat),
            _ => self.explained_by.flatten().unwrap_or(Time::MAX).min(self.next_beat),
        }
    }

    /// Takes note of a completion of one of this layer's endpoints.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion, out: &mut Vec<Effect>) {
        match self.mesh.on_completion(fabric, completion) {
            Some(MeshEvent::Up(peer)) => {
                let (_, remote) = self.mesh.link(peer).expect("it has just come up");
                match remote {
                    [table] if table.bytes == self.table.region().len() && table.kind == RegionKind::Polled => {
                        self.remote[peer] = Some(table.key);
                        self.check_formed(out);
                    }
                    _ => {
                        let why = "the memory that it exposed is not that of a membership table".into();
                        self.input(Input::Faulty(self.mesh.node(peer), why), out);
                    }
                }
            }
            Some(MeshEvent::Down(peer, reason)) => self.input(Input::Broken(self.mesh.node(peer), reason), out),
            Some(MeshEvent::Room(_)) | None => {}
        }
    }

    /// Takes note of what happened.
    pub fn input(&mut self, input: Input, out: &mut Vec<Effect>) {
        if self.phase == Phase::Ended {
            return;
        }
        match input {
            Input::Broken(node, BreakReason::Refused(why)) => {
                self.suspect(node, EndReason::Incompatible { node, why }, out);
            }
            Input::Broken(node, BreakReason::GivenUp) => {
                let given_up = EndReason::GivenUp { by: node };
                // It explains what this node has seen before: others who went, or were silent.
                if let Some(cause) = &mut self.cause {
                    *cause = given_up.clone();
                }
                self.suspect(node, given_up, out);
            }
            Input::Broken(node, reason) => {
                if reason == BreakReason::ProcessGone
                    && let Some(rank) = self.view.rank_of(node)
                {
                    self.leases.gone(rank.index());
                }
                self.suspect(node, EndReason::Lost { node, reason }, out);
            }
            Input::Faulty(node, why) => self.suspect(node, EndReason::Faulty { node, why }, out),
            Input::Frozen { shard, count, leased } => self.on_frozen(shard, count, &leased, out),
            Input::Ended(_) => {
                self.ended += 1;
                if self.phase == Phase::CleaningUp && self.ended == self.view.shards.len() {
                    self.end(EndReason::CleanedUp { epoch: self.view.epoch }, out);
                }
            }
            Input::ViewLog(ViewEvent::Committed(next)) => self.on_committed(next, out),
            Input::ViewLog(ViewEvent::NoQuorum) => {
                let cause = self.cause.take().unwrap_or(EndReason::Dropped { epoch: self.view.epoch });
                self.end(cause, out);
            }
            Input::ShardsConnected => {
                self.shards_connected = true;
                self.check_formed(out);
            }
            Input::Stop => self.end(EndReason::ShutDown, out),
        }
    }

    /// Looks at the table and the clock, and pushes what changed. Returns whether anything did.
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time, out: &mut Vec<Effect>) -> bool {
        self.table.refresh();
        // Not while the shards are only asked to wedge: they may have echoed in this very step, long after its clock was read.
        if matches!(self.phase, Phase::Wedged | Phase::Waiting) && self.frozen == self.view.shards.len() {
            self.leases.ceased(now);
        }
        if self.phase == Phase::Forming && now >= self.began + self.settings.formation_timeout {
            let missing = (0..self.mesh.len()).filter(|&m| m != self.me && self.remote[m].is_none());
            let missing: Vec<_> = missing.map(|m| (self.mesh.node(m), None)).collect();
            let waited = self.settings.formation_timeout;
            self.end(EndReason::NotFormed { missing, waited }, out);
        }
        if now >= self.next_beat && self.phase != Phase::Ended {
            self.next_beat = now + self.detector.interval();
            self.table.set(self.columns.heartbeat, self.table.get(self.me, self.columns.heartbeat) + 1);
            if self.phase != Phase::Forming {
                self.look_for_silence(now, out);
            }
        }
        let changes = self.table.take_changes();
        if !changes.is_empty() && self.phase != Phase::Ended {
            let mut due = Vec::new();
            self.predicates.evaluate(&self.table, changes, &mut due);
            for due in due {
                match due {
                    Due::Wedge => self.on_wedge_seen(out),
                    Due::Decide => self.decide(out),
                }
            }
        }
        self.explain(Some(now), out);
        self.go_on(now, out);
        for (peer, remote) in self.remote.iter().enumerate() {
            if let Some(remote) = remote.filter(|_| self.table.owes(peer)) {
                self.table.push(fabric, &self.mesh, peer, remote);
            }
        }
        !changes.is_empty()
    }

    /// Closes this layer's endpoints.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.mesh.disconnect(fabric);
    }

    fn check_formed(&mut self, out: &mut Vec<Effect>) {
        let appeared = (0..self.mesh.len()).all(|m| m == self.me || self.remote[m].is_some());
        if self.phase == Phase::Forming && self.shards_connected && appeared {
            tracing::info!(members = self.mesh.len(), epoch = self.view.epoch.0, "the first view is formed");
            self.phase = Phase::Running;
            out.push(Effect::Formed(Arc::clone(&self.view)));
        }
    }

    fn look_for_silence(&mut self, now: Time, out: &mut Vec<Effect>) {
        let (table, heartbeat) = (&self.table, self.columns.heartbeat);
        let silent = self.detector.look(now, |member| table.get(member, heartbeat));
        for member in silent {
            let (node, timeout) = (self.mesh.node(member), self.settings.failure_timeout);
            self.suspect(node, EndReason::Silent { node, timeout }, out);
        }
    }

    fn suspected(&self, member: usize) -> Flag {
        self.columns.suspected[member].expect("a flag for each member")
    }

    fn suspect(&mut self, node: NodeId, cause: EndReason, out: &mut Vec<Effect>) {
        let Some(rank) = self.view.rank_of(node).filter(|rank| rank.index() != self.me) else { return };
        let flag = self.suspected(rank.index());
        if !self.table.is_set(self.me, flag) {
            tracing::warn!(%cause, "suspected");
            self.table.raise(flag);
        }
        self.wedge(cause, out);
    }

    fn on_wedge_seen(&mut self, out: &mut Vec<Effect>) {
        if let Some(cause) = self.wedge_seen() {
            self.wedge(cause, out);
        }
    }

    /// Why the view ends, by the rows of the others.
    fn wedge_seen(&self) -> Option<EndReason> {
        let others = (0..self.table.rows()).filter(|&m| m != self.me);
        if let Some(by) = others.clone().find(|&m| self.table.is_set(m, self.suspected(self.me))) {
            return Some(EndReason::GivenUp { by: self.mesh.node(by) });
        }
        let by = others.min_by_key(|&m| (self.accused_by(m).is_empty(), !self.table.is_set(m, self.columns.wedged)))?;
        let accused = self.accused_by(by).iter().map(|&m| self.mesh.node(m)).collect();
        Some(EndReason::EndedBy { node: self.mesh.node(by), accused })
    }

    fn accused_by(&self, by: usize) -> Vec<usize> {
        (0..self.table.rows()).filter(|&m| self.table.is_set(by, self.suspected(m))).collect()
    }

    fn wedge(&mut self, cause: EndReason, out: &mut Vec<Effect>) {
        if !matches!(self.phase, Phase::Forming | Phase::Running) {
            return;
        }
        if self.phase == Phase::Forming {
            // There is nothing to clean up, and no view to go on from.
            return self.end(cause, out);
        }
        self.cause = Some(cause);
        self.phase = Phase::Wedged;
        out.push(Effect::Wedge);
        if self.view.shards.is_empty() {
            self.all_frozen(out);
        }
    }

    fn on_frozen(&mut self, shard: ShardId, count: Seq, leased: &[NodeId], out: &mut Vec<Effect>) {
        let Some(index) = self.view.shards.iter().position(|s| s.shard == shard) else { return };
        for &node in leased {
            if let Some(rank) = self.view.rank_of(node) {
                self.leases.vouched(rank.index());
            }
        }
        self.table.set(self.columns.frozen.nth(index), count.0);
        self.frozen += 1;
        if self.frozen == self.view.shards.len() {
            self.all_frozen(out);
        }
    }

    fn all_frozen(&mut self, out: &mut Vec<Effect>) {
        // Raised after the final counts were set, so that who sees the flag sees them.
        self.table.raise(self.columns.wedged);
        if !self.settings.view_log {
            self.explained_by = Some(None);
            self.explain(None, out);
        }
    }

    /// Ends the group where nothing can follow the view, with the cause if it says who failed.
    ///
    /// Who was stopped for a while, and goes on, first sees that others went, and then hears from those who gave it up: their
    /// word says what has happened.
    fn explain(&mut self, now: Option<Time>, out: &mut Vec<Effect>) {
        let Some(until) = self.explained_by else { return };
        if self.cause.as_ref().is_some_and(EndReason::says_little) {
            self.cause = self.wedge_seen().filter(|better| !better.says_little()).or(self.cause.take());
        }
        let until = until.or(now.map(|now| now + self.settings.failure_timeout / EXPLAINED_WITHIN));
        let waits = self.cause.as_ref().is_some_and(EndReason::says_little)
            && until.zip(now).is_none_or(|(until, now)| now < until);
        self.explained_by = Some(until).filter(|_| waits);
        if !waits && let Some(cause) = self.cause.take() {
            self.end(cause, out);
        }
    }

    /// If this member leads those who stay, and all of them are wedged: proposes the next view.
    fn decide(&mut self, out: &mut Vec<Effect>) {
        if self.phase != Phase::Wedged || !self.settings.view_log {
            return;
        }
        let members = self.table.rows();
        let mut accusations = Accusations::none(members);
        for by in 0..members {
            for whom in self.accused_by(by) {
                accusations.accuse(by, whom);
            }
        }
        let staying = staying(&accusations);
        let left = members - self.accused_by(self.me).len();
        if 2 * left.min(staying.len()) < members {
            // Less than half of a view has no successor, so those who wait must not wait for one.
            return self.input(Input::ViewLog(ViewEvent::NoQuorum), out);
        }
        let wedged = staying.iter().all(|&m| self.table.is_set(m, self.columns.wedged));
        if staying.first() != Some(&self.me) || !wedged || staying == self.proposed {
            return;
        }
        out.push(Effect::Propose(self.proposal(&staying)));
        self.proposed = staying;
    }

    fn proposal(&self, staying: &[usize]) -> Proposal {
        let stays = |node: &NodeId| staying.iter().any(|&m| self.mesh.node(m) == *node);
        let keep = |nodes: &[NodeId]| nodes.iter().copied().filter(stays).collect::<Vec<_>>();
        let mut trims = Trims::new();
        for (index, shard) in self.view.shards.iter().enumerate() {
            let of = |node: NodeId| self.view.rank_of(node).expect("shards are of members").index();
            let staying = keep(&shard.members);
            let counts = staying.iter().map(|&node| self.table.get(of(node), self.columns.frozen.nth(index)));
            if let Some(trim) = counts.min() {
                trims.insert(shard.shard, Seq(trim));
            }
        }
        let shard = |s: &ShardView| ShardView { shard: s.shard, members: keep(&s.members), senders: keep(&s.senders) };
        let view = View {
            epoch: Epoch(self.view.epoch.0 + 1),
            members: staying.iter().map(|&m| self.view.members[m].clone()).collect(),
            shards: self.view.shards.iter().map(shard).collect(),
            joined: Vec::new(),
            left: self.view.nodes().into_iter().filter(|node| !stays(node)).collect(),
        };
        Proposal { view: Arc::new(view), trims }
    }

    fn on_committed(&mut self, next: Proposal, out: &mut Vec<Effect>) {
        if next.view.epoch.0 != self.view.epoch.0 + 1 || matches!(self.phase, Phase::Waiting | Phase::CleaningUp) {
            return;
        }
        if next.view.rank_of(self.mesh.node(self.me)).is_none() {
            return self.end(EndReason::Dropped { epoch: next.view.epoch }, out);
        }
        assert_eq!(self.phase, Phase::Wedged, "only members that are wedged stay");
        self.phase = Phase::Waiting;
        self.committed = Some(next);
    }

    /// Carries out what was decided, once nobody who was dropped can read any more.
    fn go_on(&mut self, now: Time, out: &mut Vec<Effect>) {
        if self.phase != Phase::Waiting || now < self.leases_over() {
            return;
        }
        let Some(next) = self.committed.take() else { return };
        self.phase = Phase::CleaningUp;
        let none = next.trims.is_empty();
        out.push(Effect::CleanUp(next.trims));
        if none {
            self.end(EndReason::CleanedUp { epoch: self.view.epoch }, out);
        }
    }

    /// When those who are dropped by what was decided read no more. One whose row says `wedged` does not.
    fn leases_over(&self) -> Time {
        let Some(next) = &self.committed else { return Time::ZERO };
        let left = next.view.left.iter().map(|&node| self.view.rank_of(node).expect("who left was a member").index());
        self.leases.over(left.filter(|&member| !self.table.is_set(member, self.columns.wedged)))
    }

    fn end(&mut self, reason: EndReason, out: &mut Vec<Effect>) {
        if self.phase != Phase::Ended {
            tracing::info!(%reason, "the group ends here");
            self.phase = Phase::Ended;
            out.push(Effect::End(reason));
        }
    }
}

fn predicates(table: &Table, columns: Columns, members: usize) -> Predicates<Due> {
    let mut predicates = Predicates::default();
    let flags: Vec<Flag> = columns.suspected[..members].iter().flatten().copied().chain([columns.wedged]).collect();
    let set = flags
        .iter()
        .fold(Default::default(), |set: squall_sst::ColumnSet, &flag| set.union(table.layout().flag_set(flag)));
    predicates.register(set, When::Becomes, Due::Wedge, move |table| {
        (0..table.rows()).any(|row| flags.iter().any(|&flag| table.is_set(row, flag)))
    });
    predicates.register(set, When::Always, Due::Decide, |_| true);
    predicates
}
