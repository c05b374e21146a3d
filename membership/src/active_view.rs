//! A node's time in one view: from its installation until everything that it delivers is delivered.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, NodeId, Time};

use crate::{
    appear::{Coming, PendingSuspicion},
    clocks::Clocks,
    detector::Detector,
    end::Cause,
    input::{Effect, Settings},
    leases::Leases,
    machine::MemberEvidence,
    membership_table::{MembershipTable, TableEvent},
    propose::Proposer,
    restart::Back,
    stall::{Stall, Waits},
    view::{Member, Seq, ShardId, View},
    view_log::{Final, Proposal, Trims},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not all endpoints are up.
    Connecting,
    Running,
    /// The shards are asked to wedge, or have.
    Wedged,
    /// The next view is decided; a dropped member may still read.
    Waiting,
    CleaningUp,
    /// Cleaned up.
    Over,
}

#[derive(Debug)]
pub(crate) struct ActiveView {
    pub(crate) view: Arc<View>,
    pub(crate) me: usize,
    pub(crate) table: MembershipTable,
    /// The table of the view before: it tells of members that have not appeared in this one, and tells them of this
    /// node.
    pub(crate) previous: Option<MembershipTable>,
    /// The shards of that view.
    pub(crate) shards_before: Vec<ShardId>,
    /// By member, the time since which it is late for this view, and its row does not say for what it waits.
    pub(crate) lingering: BTreeMap<usize, Time>,
    pub(crate) phase: Phase,
    /// The first step.
    pub(crate) began: Option<Time>,
    pub(crate) coming: Coming,
    detector: Detector,
    next_beat: Time,
    pub(crate) clocks: Clocks,
    pub(crate) shards_connected: bool,
    pub(crate) suspicions: Vec<PendingSuspicion>,
    /// Members that an operator suspects. If a view was decided with them meanwhile, they are suspected in that view,
    /// too.
    to_suspect: BTreeSet<NodeId>,
    pub(crate) cause: Option<Cause>,
    /// This node's final counts.
    pub(crate) frozen: BTreeMap<ShardId, Seq>,
    pub(crate) leases: Leases,
    pub(crate) proposer: Proposer,
    /// The decision on the next view.
    committed: Option<Proposal>,
    /// The shards that are being cleaned up, and for each the last published reason for its waiting.
    cleaning: BTreeMap<ShardId, Option<Waits>>,
    /// A member says that all are to leave.
    pub(crate) closes: bool,
    /// Members that closed their endpoints in an orderly way, or whose processes are gone.
    departed: BTreeSet<usize>,
    /// Members whose endpoints broke after the next view was decided.
    pub(crate) lost: Vec<(NodeId, BreakReason)>,
    /// The reports of nodes that come back.
    pub(crate) backs: Vec<Back>,
    /// The time since which there is a reason to ask for another view.
    pub(crate) wanted: Option<Time>,
    /// Whether something came in since the last step.
    pub(crate) touched: bool,
}

impl ActiveView {
    pub(crate) fn new(
        view: Arc<View>,
        table: MembershipTable,
        before: Option<ActiveView>,
        settings: &Settings,
    ) -> ActiveView {
        let (me, members) = (table.me(), table.len());
        let shards_before = before.iter().flat_map(|before| &before.view.shards).map(|shard| shard.shard).collect();
        let (previous, lost, mut to_suspect) =
            before.map(|before| (Some(before.table), before.lost, before.to_suspect)).unwrap_or_default();
        to_suspect.retain(|&node| table.rank_of(node).is_some() && !view.joined.contains(&node));
        let mut active = ActiveView {
            me,
            table,
            previous,
            shards_before,
            lingering: BTreeMap::new(),
            phase: Phase::Connecting,
            began: None,
            coming: Coming::default(),
            detector: Detector::new(members, settings.failure_timeout),
            next_beat: Time::ZERO,
            clocks: Clocks::new(members),
            shards_connected: false,
            suspicions: Vec::new(),
            to_suspect,
            cause: None,
            frozen: BTreeMap::new(),
            leases: Leases::new(members, settings.read_lease),
            proposer: Proposer::default(),
            committed: None,
            cleaning: BTreeMap::new(),
            closes: false,
            departed: BTreeSet::new(),
            lost: Vec::new(),
            backs: Vec::new(),
            wanted: None,
            touched: true,
            view,
        };
        lost.into_iter().for_each(|(node, reason)| active.note_break(node, reason));
        active
    }

    pub(crate) fn member(&self) -> &Member {
        &self.view.members[self.me]
    }

    /// The shards that this node is a member of, with their places in the view.
    pub(crate) fn shards(&self) -> impl Iterator<Item = (usize, ShardId)> {
        let node = self.member().node;
        let mine = self.view.shards.iter().enumerate().filter(move |(_, shard)| shard.members.contains(&node));
        mine.map(|(index, shard)| (index, shard.shard))
    }

    pub(crate) fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.table.endpoints().chain(self.previous.iter().flat_map(MembershipTable::endpoints))
    }

    pub(crate) fn disconnect(&mut self, fabric: &mut impl Fabric) {
        self.table.disconnect(fabric);
        self.disconnect_previous(fabric);
    }

    pub(crate) fn disconnect_previous(&mut self, fabric: &mut impl Fabric) {
        if let Some(mut previous) = self.previous.take() {
            previous.disconnect(fabric);
        }
    }

    /// Returns this node's knowledge of a member.
    pub(crate) fn evidence(&self, member: usize) -> MemberEvidence {
        MemberEvidence {
            heartbeat: self.detector.moved(member),
            suspected: self.table.suspects(self.me, member),
            wedged: self.table.is_wedged(member),
            leaving: self.table.is_leaving(member),
        }
    }

    /// Notes that something came in that the next step is to look at.
    pub(crate) fn touch(&mut self) {
        self.touched = true;
    }

    /// Whether the view goes on as it is, or has not begun to.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Connecting | Phase::Running)
    }

    /// Whether all shards have reported their final counts.
    pub(crate) fn is_frozen(&self) -> bool {
        !self.is_open() && self.shards().all(|(_, shard)| self.frozen.contains_key(&shard))
    }

    pub(crate) fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion, out: &mut Vec<Effect>) {
        self.touched = true;
        match self.table.on_completion(fabric, completion) {
            Some(TableEvent::Up) => return,
            Some(TableEvent::Down(member, reason)) => return self.broken(self.table.node(member), reason, out),
            Some(TableEvent::Strange(member)) => {
                let (node, why) = (self.table.node(member), "the memory that it exposed is no membership table".into());
                return self.suspect(node, Cause::Faulty { node, why }, out);
            }
            None => {}
        }
        let Some(previous) = &mut self.previous else { return };
        if let Some(TableEvent::Down(member, reason)) = previous.on_completion(fabric, completion) {
            let node = previous.node(member);
            self.note_break(node, reason);
        }
    }

    /// Takes note that an endpoint of this view broke.
    pub(crate) fn broken(&mut self, node: NodeId, reason: BreakReason, out: &mut Vec<Effect>) {
        self.touched = true;
        let Some(member) = self.table.rank_of(node).filter(|&member| member != self.me) else { return };
        if reason == BreakReason::ProcessGone {
            self.leases.gone(member);
        }
        if self.is_decided() {
            // A member that has gone on to the next view closes its endpoints in this one.
            if reason != BreakReason::PeerClosed {
                self.lost.push((node, reason));
            }
            return;
        }
        match reason {
            // This node was silent, or not heard: that is no evidence against the other.
            BreakReason::GivenUp => self.wedge(Cause::GivenUp { by: node }, out),
            reason => self.suspect(node, Cause::Lost { node, reason }, out),
        }
    }

    /// Whether no other member tells this one, which leaves, what follows: all have ended or gone on, and nothing can
    /// be decided; or all leave, too, and nothing was decided for long. Those who left before may have taken the votes
    /// along that a decision needs.
    pub(crate) fn is_deserted(&self, now: Time, settings: &Settings) -> bool {
        let leaves = |member| self.closes || self.table.is_leaving(member) || self.left_before(member);
        // A member that has closed its endpoints has ended, or gone on to the next view, which may need this one.
        let has_departed = |member| {
            self.departed.contains(&member) || !self.table.was_reached(member) && self.is_suspicion_pending(member)
        };
        let has_ended = |member| has_departed(member) && (leaves(member) || !self.table.has_decided(member));
        let ends = |member| leaves(member) && (has_departed(member) || !self.table.has_decided(member));
        let mut others = (0..self.table.len()).filter(|&member| member != self.me);
        !self.is_decided()
            && (self.proposer.is_stalled() && others.clone().all(has_ended)
                || self.proposer.waits_in_vain(now, settings) && others.all(ends))
    }

    /// Whether a member that may not have come to this view said in the one before that it leaves.
    fn left_before(&self, member: usize) -> bool {
        let node = self.table.node(member);
        let previous = self.previous.as_ref().filter(|_| !self.view.joined.contains(&node));
        previous.and_then(|previous| Some(previous.is_leaving(previous.rank_of(node)?))).unwrap_or_default()
    }

    /// Whether the decision on the next view is known.
    pub(crate) fn is_decided(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::CleaningUp | Phase::Over)
    }

    /// Suspects a member because an operator says so, here and in the views that follow until one is without it.
    pub(crate) fn suspect_as_told(&mut self, node: NodeId, out: &mut Vec<Effect>) {
        self.to_suspect.insert(node);
        self.suspect(node, Cause::Operator { node }, out);
    }

    /// Suspects a member, on this node's own evidence, and wedges.
    ///
    /// A node that would leave itself less than half of the view accuses no member: the node itself is cut off.
    pub(crate) fn suspect(&mut self, node: NodeId, cause: Cause, out: &mut Vec<Effect>) {
        self.touched = true;
        let Some(member) = self.table.rank_of(node).filter(|&member| member != self.me) else { return };
        if self.is_decided() {
            return;
        }
        if matches!(&cause, Cause::Lost { reason, .. } if has_departed(reason)) {
            self.departed.insert(member);
        }
        let accused = self.table.accused_by(self.me).count();
        let (is_known, keeps_half) =
            (self.table.suspects(self.me, member), 2 * (self.table.len() - accused - 1) >= self.table.len());
        if !is_known && !keeps_half {
            self.proposer.cut_off();
        } else if !is_known {
            tracing::warn!(epoch = self.view.epoch.0, %cause, "suspected");
            self.table.suspect(member);
            // One that closes its endpoints in an orderly way has mostly gone on to the next view.
            if !matches!(cause, Cause::Lost { reason: BreakReason::PeerClosed, .. }) {
                out.push(Effect::PeerGone(node));
            }
        }
        self.wedge(cause, out);
    }

    /// Gives up a member that makes no progress, if at least half of the view is left without it. The member's
    /// heartbeat still moves, so it is no reason for this node to end its own part.
    pub(crate) fn late(&mut self, stall: Stall, waited: Duration, out: &mut Vec<Effect>) {
        let Stall { shard, node, waits_for, .. } = stall;
        let accused = self.table.accused_by(self.me).filter(|&member| self.table.node(member) != node).count();
        let keeps_half = 2 * (self.table.len() - accused - 1) >= self.table.len();
        if keeps_half {
            self.suspect(node, Cause::Late { node, shard, waits_for, waited }, out);
        }
    }

    pub(crate) fn wedge(&mut self, cause: Cause, out: &mut Vec<Effect>) {
        self.touched = true;
        if !self.is_open() {
            return;
        }
        tracing::info!(epoch = self.view.epoch.0, %cause, "wedged");
        self.cause = Some(cause);
        self.phase = Phase::Wedged;
        out.push(Effect::Wedge);
        self.look_whether_frozen();
    }

    pub(crate) fn on_frozen(&mut self, shard: ShardId, count: Seq, leased: &[NodeId]) {
        self.touched = true;
        let Some(index) = self.view.shards.iter().position(|s| s.shard == shard) else { return };
        for member in leased.iter().filter_map(|&node| self.table.rank_of(node)) {
            self.leases.vouched(member);
        }
        if self.phase == Phase::Wedged && self.frozen.insert(shard, count).is_none() {
            self.table.freeze(index, count);
            self.look_whether_frozen();
        }
    }

    fn look_whether_frozen(&mut self) {
        if self.is_frozen() {
            // The flag follows the final counts: a member that sees the flag sees them, too.
            self.table.wedge();
        }
    }

    /// Takes note that this node holds a shard's state.
    pub(crate) fn on_complete(&mut self, shard: ShardId) {
        self.touched = true;
        let index = self.shards().find(|(_, s)| *s == shard).map(|(index, _)| index);
        // A proposer that has seen the final counts must not see another answer later.
        if let Some(index) = index.filter(|_| self.is_open()) {
            self.table.set_complete(index);
        }
    }

    /// Whether the view calls a member complete, and its disk is known to have all that it had delivered when the view
    /// began.
    pub(crate) fn is_on_disk(&self, member: usize, shard: usize) -> bool {
        self.view.shards[shard].is_complete(self.table.node(member)) && self.table.is_complete(member, shard)
    }

    pub(crate) fn on_connected(&mut self) {
        self.touched = true;
        self.shards_connected = true;
    }

    /// Whether a member holds a shard's state, as far as is known; the shard by its place in the view.
    pub(crate) fn holds(&self, member: usize, shard: usize) -> bool {
        self.view.shards[shard].is_complete(self.table.node(member)) || self.table.is_complete(member, shard)
    }

    /// Looks at the table and the clock, and pushes the changes. Returns whether anything changed.
    pub(crate) fn step(
        &mut self,
        fabric: &mut impl Fabric,
        (now, wall): (Time, u64),
        settings: &Settings,
        candidates: &[Member],
        out: &mut Vec<Effect>,
    ) -> bool {
        let (changed, mut signal) = self.table.refresh();
        if changed {
            self.clocks.look(now, |member| self.table.clock(member));
        }
        signal |= std::mem::take(&mut self.touched);
        if let Some(previous) = &mut self.previous {
            previous.refresh();
        }
        if signal && !self.closes && self.table.is_closing() {
            (self.closes, self.touched) = (true, true);
        }
        if self.began.is_none() {
            self.began = Some(now);
            self.to_suspect.clone().into_iter().for_each(|node| self.suspect(node, Cause::Operator { node }, out));
        }
        // Not while the shards are only asked to wedge: they may have echoed in this step, after its clock was read.
        if self.is_frozen() {
            self.leases.ceased(now);
            self.proposer.begin(now);
        }
        if now >= self.next_beat {
            self.table.tell_clock(wall);
            self.beat(now, settings, out);
        }
        if signal && self.is_open() {
            self.look_whether_others_end(out);
            self.look_for_restarts(candidates, out);
        }
        match self.phase {
            Phase::Connecting => self.connect(fabric, now, settings, out),
            Phase::Running if signal || self.wanted.is_some() => {
                self.look_whether_to_ask(now, settings, candidates, out);
            }
            Phase::Wedged if signal || now >= self.proposer.deadline() => self.decide(now, settings, candidates, out),
            Phase::Waiting if now >= self.leases_over() => self.clean_up(out),
            _ => {}
        }
        self.table.push(fabric);
        if let Some(previous) = &mut self.previous {
            previous.push(fabric);
        }
        changed || signal
    }

    pub(crate) fn deadline(&self, settings: &Settings) -> Time {
        if self.touched {
            return Time::ZERO;
        }
        let due = match self.phase {
            Phase::Connecting => self.appear_by(settings),
            Phase::Running => self.wanted.map_or(Time::MAX, |since| self.may_ask_at(since, settings)),
            Phase::Wedged => self.proposer.deadline(),
            Phase::Waiting => self.leases_over(),
            Phase::CleaningUp | Phase::Over => Time::MAX,
        };
        due.min(self.next_beat)
    }

    fn beat(&mut self, now: Time, settings: &Settings, out: &mut Vec<Effect>) {
        self.next_beat = now + self.detector.interval();
        self.table.beat();
        self.table.tell_endpoints(self.coming.endpoints_here(&self.table, self.previous.as_ref()));
        if let Some(previous) = &mut self.previous {
            previous.beat();
        }
        let (table, previous) = (&self.table, &self.previous);
        let before = |member| previous.as_ref().and_then(|p| Some((p, p.rank_of(table.node(member))?)));
        let was_reached = |member| {
            before(member).is_some_and(|(previous, rank): (&MembershipTable, usize)| previous.was_reached(rank))
        };
        // Any sign of life counts: of a member that is not here yet, its heartbeat in the view before.
        let evidence = |member| {
            let earlier = before(member).map_or(0, |(previous, rank)| previous.heartbeat(rank));
            let reached =
                [table.was_reached(member), was_reached(member)].into_iter().filter(|reached| *reached).count();
            table.heartbeat(member) + earlier + reached as u64
        };
        let mut silent = self.detector.look(now, evidence);
        if self.detector.has_stalled() {
            self.coming.wait_anew(now);
            self.proposer.wait_anew(now);
        }
        let joined = &self.view.joined;
        // No clock runs against a member that has never been heard.
        silent.retain(|&m| table.was_reached(m) || was_reached(m) && !joined.contains(&table.node(m)));
        for member in silent {
            let (node, timeout) = (self.table.node(member), settings.failure_timeout);
            self.suspect(node, Cause::Silent { node, timeout }, out);
        }
    }

    fn look_whether_others_end(&mut self, out: &mut Vec<Effect>) {
        let others = (0..self.table.len()).filter(|&member| member != self.me);
        if let Some(by) = others.clone().find(|&member| self.table.suspects(member, self.me)) {
            return self.wedge(Cause::GivenUp { by: self.table.node(by) }, out);
        }
        let ending = others.filter(|&member| self.table.ends(member));
        if let Some(by) = ending.min_by_key(|&member| self.table.accused_by(member).next().is_none()) {
            let accused = self.table.accused_by(by).map(|member| self.table.node(member)).collect();
            self.wedge(Cause::WedgedBy { node: self.table.node(by), accused }, out);
        }
    }

    /// Takes the decision on the next view.
    pub(crate) fn commit(&mut self, next: Proposal) {
        self.touched = true;
        self.phase = Phase::Waiting;
        self.table.decide();
        self.committed = Some(next);
    }

    /// The view that follows, if it is known, and this one is not over.
    pub(crate) fn committed(&self) -> Option<&Arc<View>> {
        self.committed.as_ref().map(|next| &next.view)
    }

    /// Takes the view that follows, once everything is delivered.
    pub(crate) fn next(&mut self) -> Option<Proposal> {
        self.committed.take_if(|_| self.phase == Phase::Over)
    }

    /// The time from which on the members that the decision drops read no more.
    fn leases_over(&self) -> Time {
        self.committed.as_ref().map_or(Time::ZERO, |next| self.readable_until(&next.view))
    }

    /// The time from which on no other member that the next view leaves out reads any more. A member whose row says
    /// `wedged` reads no more.
    pub(crate) fn readable_until(&self, next: &View) -> Time {
        let left = next.left.iter().filter_map(|&node| self.table.rank_of(node));
        let mut others = left.filter(|&member| member != self.me && !self.table.is_wedged(member));
        if self.is_frozen() {
            return self.leases.over(others);
        }
        // The shards have not said for which members they have vouched.
        others.next().map_or(Time::ZERO, |_| Time::MAX)
    }

    /// Carries out the decision, now that no dropped member can read any more.
    fn clean_up(&mut self, out: &mut Vec<Effect>) {
        let Some(next) = &self.committed else { return };
        let (mut trims, mut counted) = (Trims::new(), BTreeSet::new());
        for (_, shard) in self.shards() {
            let Some(&trim) = next.trims.get(&shard) else { continue };
            trims.insert(shard, trim);
            let node = self.member().node;
            // A restart's trim may be that of a log which goes further than what this member has received.
            let has_it = |end: &Final| end.node == node && end.complete && end.count >= trim;
            if next.finals.get(&shard).is_some_and(|ends| ends.iter().any(has_it)) {
                counted.insert(shard);
            }
        }
        self.cleaning = trims.keys().map(|&shard| (shard, None)).collect();
        self.phase = if trims.is_empty() { Phase::Over } else { Phase::CleaningUp };
        self.touched = true;
        out.push(Effect::CleanUp { trims, counted });
    }

    /// Publishes what the clean-up of each shard waits for.
    pub(crate) fn cleans_up(&mut self, waits: &BTreeMap<ShardId, Waits>) {
        for (shard, told) in &mut self.cleaning {
            let waits = waits.get(shard).copied();
            let index = self.view.shards.iter().position(|s| s.shard == *shard);
            if let Some(index) = index.filter(|_| waits != std::mem::replace(told, waits)) {
                self.table.set_waits(index, waits);
                self.touched = true;
            }
        }
    }

    pub(crate) fn on_ended(&mut self, shard: ShardId) {
        self.touched = true;
        let Some(told) = self.cleaning.remove(&shard) else { return };
        if let Some(index) = self.view.shards.iter().position(|s| s.shard == shard).filter(|_| told.is_some()) {
            self.table.set_waits(index, None);
        }
        if self.phase == Phase::CleaningUp && self.cleaning.is_empty() {
            self.phase = Phase::Over;
        }
    }
}

/// Whether a break with this reason tells that the process has gone, or has gone on to another view.
pub(crate) fn has_departed(reason: &BreakReason) -> bool {
    matches!(reason, BreakReason::PeerClosed | BreakReason::ProcessGone)
}
