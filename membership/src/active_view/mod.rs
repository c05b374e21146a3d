//! A node's time in one view: from its installation until everything that it delivers is delivered.

mod room;
mod step;
mod waits;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use squall_fabric::{BreakReason, Completion, EndpointId, Fabric, NodeId, Time};

use crate::{
    appearance::{Appearance, has_departed},
    clocks::Clocks,
    detector::Detector,
    end::Cause,
    input::{Effect, MemberEvidence, Settings},
    leases::Leases,
    membership_table::{MembershipTable, TableEvent},
    propose::{Proposer, alone},
    return_report::ReturnReport,
    stall::{Stall, Waits, WatchedMembers},
    tables::Tables,
    view::{Seq, ShardId, View},
    view_log::{Proposal, Report},
};

use self::room::RoomTable;
pub use self::waits::ViewChangeWait;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// A view of which not all endpoints are up.
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
    table: MembershipTable,
    /// The table of the view before: it tells of members that have not appeared in this one, and tells them of this
    /// node.
    previous: Option<MembershipTable>,
    phase: Phase,
    /// Whether it has taken a step.
    has_begun: bool,
    appearance: Appearance,
    detector: Detector,
    next_beat: Time,
    clocks: Clocks,
    room: RoomTable,
    shards_connected: bool,
    /// Members that an operator suspects. If a view was decided with them meanwhile, they are suspected in that view,
    /// too.
    to_suspect: BTreeSet<NodeId>,
    cause: Option<Cause>,
    leases: Leases,
    proposer: Proposer,
    /// The decision on the next view.
    committed: Option<Proposal>,
    /// The shards that are being cleaned up, and for each the last published reason for its waiting.
    cleaning: BTreeMap<ShardId, Option<Waits>>,
    /// A member says that all are to leave.
    closes: bool,
    /// Members that closed their endpoints in an orderly way, or whose processes are gone.
    departed: BTreeSet<usize>,
    /// Members whose endpoints broke after the next view was decided.
    lost: Vec<(NodeId, BreakReason)>,
    /// The reports of nodes that come back.
    backs: Vec<ReturnReport>,
    /// The time since which there is a reason to ask for another view.
    wanted: Option<Time>,
    /// Whether something came in since the last step.
    touched: bool,
}

impl ActiveView {
    pub(crate) fn new(
        table: MembershipTable,
        before: Option<ActiveView>,
        backs: Vec<ReturnReport>,
        settings: &Settings,
    ) -> ActiveView {
        let members = table.len();
        let short = before.as_ref().map(|before| before.room.short(&before.table)).unwrap_or_default();
        let room = RoomTable::new(&table, short);
        let (previous, lost, mut to_suspect) =
            before.map(|before| (Some(before.table), before.lost, before.to_suspect)).unwrap_or_default();
        to_suspect.retain(|&node| table.rank_of(node).is_some() && !table.view().joined.contains(&node));
        let mut appearance = Appearance::default();
        lost.into_iter().for_each(|(node, reason)| appearance.note_break(&table, node, reason));
        ActiveView {
            table,
            previous,
            phase: Phase::Connecting,
            has_begun: false,
            appearance,
            detector: Detector::new(members, settings.failure_timeout),
            next_beat: Time::ZERO,
            clocks: Clocks::new(members),
            room,
            shards_connected: false,
            to_suspect,
            cause: None,
            leases: Leases::new(members, settings.read_lease),
            proposer: Proposer::default(),
            committed: None,
            cleaning: BTreeMap::new(),
            closes: false,
            departed: BTreeSet::new(),
            lost: Vec::new(),
            backs,
            wanted: None,
            touched: true,
        }
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        self.table.view()
    }

    pub(crate) fn table(&self) -> &MembershipTable {
        &self.table
    }

    fn tables(&self) -> Tables<'_> {
        Tables { table: &self.table, previous: self.previous.as_ref() }
    }

    pub(crate) fn returns(&self) -> &[ReturnReport] {
        &self.backs
    }

    /// Takes the reports of nodes that come back.
    pub(crate) fn on_returns(&mut self, backs: Vec<ReturnReport>) {
        self.backs = backs;
        self.touched = true;
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
            suspected: self.table.suspects(self.table.me(), member),
            wedged: self.table.is_wedged(member),
            leaving: self.table.is_leaving(member),
            short_of_room: self.room.is_short(&self.table, member),
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

    /// Whether the view is connected and goes on as it is.
    pub(crate) fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether all shards have reported their final counts.
    pub(crate) fn is_frozen(&self) -> bool {
        !self.is_open() && self.table.is_frozen()
    }

    /// Whether all shards have reported their final counts, and nothing can be decided for now.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_frozen() && !self.is_decided() && self.proposer.is_stalled()
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
            self.appearance.note_break(&self.table, node, reason);
        }
    }

    /// Takes note that an endpoint of this view broke.
    pub(crate) fn broken(&mut self, node: NodeId, reason: BreakReason, out: &mut Vec<Effect>) {
        self.touched = true;
        let Some(member) = self.table.rank_of(node).filter(|&member| member != self.table.me()) else { return };
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
    /// be decided; or all leave, too, and nothing was decided for long. The members that left before may have been
    /// voters that a decision needs.
    pub(crate) fn is_deserted(&self, now: Time, settings: &Settings) -> bool {
        let tables = self.tables();
        let leaves = |member| self.closes || self.table.is_leaving(member) || tables.left_before(member);
        // A member that has closed its endpoints has ended, or gone on to the next view, which may need this one.
        let has_departed = |member| {
            self.departed.contains(&member)
                || !self.table.was_reached(member) && self.appearance.is_suspicion_pending(member)
        };
        let has_ended = |member| has_departed(member) && (leaves(member) || !self.table.has_decided(member));
        let ends = |member| leaves(member) && (has_departed(member) || !self.table.has_decided(member));
        let mut others = (0..self.table.len()).filter(|&member| member != self.table.me());
        !self.is_decided()
            && (self.proposer.is_stalled() && others.clone().all(has_ended)
                || self.proposer.waits_in_vain(now, settings) && others.all(ends))
    }

    /// Whether nothing was decided for so long that members which all leave wait no longer.
    pub(crate) fn waits_in_vain(&self, now: Time, settings: &Settings) -> bool {
        self.proposer.waits_in_vain(now, settings)
    }

    /// Whether a member says that all are to leave.
    pub(crate) fn closes(&self) -> bool {
        self.closes
    }

    /// Tells the others that all are to leave.
    pub(crate) fn close(&mut self) {
        self.table.close();
    }

    /// Closes as [`close`](ActiveView::close) does, but at once: one that waits may not have heard it.
    pub(crate) fn close_now(&mut self, fabric: &mut impl Fabric) {
        self.table.close();
        self.table.push(fabric);
    }

    /// Leaves, unless the next view is decided.
    pub(crate) fn leave(&mut self, out: &mut Vec<Effect>) {
        if !self.is_decided() && !self.table.is_leaving(self.table.me()) {
            self.table.leave();
            self.wedge(Cause::Leaving, out);
        }
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
        let Some(member) = self.table.rank_of(node).filter(|&member| member != self.table.me()) else { return };
        if self.is_decided() {
            return;
        }
        if matches!(&cause, Cause::Lost { reason, .. } if has_departed(reason)) {
            self.departed.insert(member);
        }
        let me = self.table.me();
        let accused = self.table.accused_by(me).count();
        let (is_known, keeps_half) =
            (self.table.suspects(me, member), 2 * (self.table.len() - accused - 1) >= self.table.len());
        if !is_known && !keeps_half {
            self.proposer.cut_off();
        } else if !is_known {
            tracing::warn!(epoch = self.view().epoch.0, %cause, "suspected");
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
        let accused = self.table.accused_by(self.table.me()).filter(|&member| self.table.node(member) != node).count();
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
        tracing::info!(epoch = self.view().epoch.0, %cause, "wedged");
        self.cause = Some(cause);
        self.phase = Phase::Wedged;
        out.push(Effect::Wedge);
        self.look_whether_frozen();
    }

    pub(crate) fn on_frozen(&mut self, shard: ShardId, count: (Seq, Seq), leased: &[NodeId]) {
        self.touched = true;
        let Some(index) = self.table.place_of(shard) else { return };
        for member in leased.iter().filter_map(|&node| self.table.rank_of(node)) {
            self.leases.vouched(member);
        }
        if self.phase == Phase::Wedged && self.table.freeze(index, count) {
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
        let index = self.table.own_shards().find(|(_, s)| *s == shard).map(|(index, _)| index);
        // A proposer that has seen the final counts must not see another answer later.
        if let Some(index) = index.filter(|_| self.is_open()) {
            self.table.set_complete(index);
        }
    }

    /// Counts an endpoint of a shard that has come about.
    pub(crate) fn on_endpoint(&mut self) {
        self.appearance.endpoint();
    }

    pub(crate) fn on_connected(&mut self) {
        self.touched = true;
        self.shards_connected = true;
    }

    /// Takes note of another member's report. The report tells, if nothing else did, that the view is over.
    pub(crate) fn on_report(&mut self, report: Report, out: &mut Vec<Effect>) {
        let rank = self.view().members.iter().position(|member| *member == report.member);
        let is_other = |rank: &usize| report.epoch == self.view().epoch && *rank != self.table.me();
        let Some(rank) = rank.filter(is_other) else { return };
        self.wedge(Cause::WedgedBy { node: report.member.node, accused: Vec::new() }, out);
        self.proposer.on_report(rank, report.finals);
    }

    /// Tells callers that nothing is decided for now.
    pub(crate) fn stall(&mut self, out: &mut Vec<Effect>) {
        if self.phase == Phase::Wedged && self.proposer.stall() {
            self.touched = true;
            let cause = self.cause.as_ref().map_or_else(String::new, |cause| format!(" ({cause})"));
            out.push(Effect::Stalled(format!(
                "too few members can be reached to decide what follows {}{cause}",
                self.view().epoch
            )));
        }
    }

    /// Returns what [`Tables::lingers`] does, while the view is not connected.
    pub(crate) fn lingers(&self) -> Option<WatchedMembers> {
        self.tables().lingers().filter(|_| self.phase == Phase::Connecting)
    }

    /// Returns the proposal of [`Membership::forced`](crate::Membership::forced).
    pub(crate) fn forced(&self, settings: &Settings) -> Option<(Proposal, Vec<ShardId>)> {
        let is_undecided = self.phase == Phase::Wedged && self.is_frozen();
        is_undecided.then(|| alone(&self.table, settings))
    }

    /// Takes the clocks for [`Membership::take_clocks`](crate::Membership::take_clocks).
    pub(crate) fn take_clocks(&mut self) -> Option<impl Iterator<Item = (NodeId, i64)>> {
        let table = &self.table;
        let offsets = self.clocks.take(table.me())?;
        Some(offsets.map(|(member, offset)| (table.node(member), offset)))
    }

    /// Tells the others whether this node's storage is short of room.
    pub(crate) fn set_short_of_room(&mut self, is_short: bool) {
        self.table.set_short_of_room(is_short);
        self.touched = true;
    }

    /// Takes the members for [`Membership::take_short_of_room`](crate::Membership::take_short_of_room).
    pub(crate) fn take_short_of_room(&mut self) -> Option<&[NodeId]> {
        self.room.take(&self.table)
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

    /// The time from which on no other member that the next view leaves out reads any more. A member whose row says
    /// `wedged` reads no more.
    pub(crate) fn readable_until(&self, next: &View) -> Time {
        let left = next.left.iter().filter_map(|&node| self.table.rank_of(node));
        let mut others = left.filter(|&member| member != self.table.me() && !self.table.is_wedged(member));
        if self.is_frozen() {
            return self.leases.over(others);
        }
        // The shards have not said for which members they have vouched.
        others.next().map_or(Time::ZERO, |_| Time::MAX)
    }

    /// Publishes what the clean-up of each shard waits for.
    pub(crate) fn cleans_up(&mut self, waits: &BTreeMap<ShardId, Waits>) {
        for (shard, told) in &mut self.cleaning {
            let waits = waits.get(shard).copied();
            if let Some(index) = self.table.place_of(*shard).filter(|_| waits != std::mem::replace(told, waits)) {
                self.table.set_waits(index, waits);
                self.touched = true;
            }
        }
    }

    pub(crate) fn on_ended(&mut self, shard: ShardId) {
        self.touched = true;
        let Some(told) = self.cleaning.remove(&shard) else { return };
        if let Some(index) = self.table.place_of(shard).filter(|_| told.is_some()) {
            self.table.set_waits(index, None);
        }
        if self.phase == Phase::CleaningUp && self.cleaning.is_empty() {
            self.phase = Phase::Over;
        }
    }
}
