//! The state machine: one node's way through many views.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use squall_fabric::{Completion, EndpointId, Fabric, NodeId, Time};

use crate::{
    active_view::{ActiveView, ViewChangeWait},
    end::{Cause, EndReason},
    input::{Effect, Input, MemberEvidence, Settings},
    lead::staying,
    membership_table::MembershipTable,
    planned_change::may_leave,
    propose::leaves_after,
    rejoin_backoff::RejoinBackoff,
    returning::Returning,
    stall::WatchedMembers,
    view::{Epoch, Incarnation, Member, Rank, ShardId, View},
    view_log::{Proposal, Trims, ViewEvent},
};

/// One node's part in the membership protocol.
#[derive(Debug)]
pub struct Membership {
    settings: Settings,
    me: Member,
    active: Option<ActiveView>,
    /// The view that the next call of [`install`](Membership::install) installs.
    installing: Option<Arc<View>>,
    /// The decisions that came after that view.
    later: VecDeque<Proposal>,
    candidates: Vec<Member>,
    returning: Returning,
    /// The views that this node has left, until their endpoints are closed.
    retired: Vec<ActiveView>,
    backoff: RejoinBackoff,
    leaving: bool,
    /// The time at which this node leaves, if it is no member by then.
    leaves_by: Option<Time>,
    /// Whether all members are to leave.
    closing: bool,
    /// Whether this node's storage is short of room.
    short_of_room: bool,
    ended: bool,
    /// The time at which its endpoints are closed, once it has ended; after that [`Time::MAX`].
    closes_at: Option<Time>,
}

impl Membership {
    /// A node that is in no view yet. It enters one when the view log says so: see [`Effect::Install`].
    pub fn new(me: Member, settings: Settings) -> Membership {
        Membership {
            settings,
            me,
            active: None,
            installing: None,
            later: VecDeque::new(),
            candidates: Vec::new(),
            returning: Returning::default(),
            retired: Vec::new(),
            backoff: RejoinBackoff::default(),
            leaving: false,
            leaves_by: None,
            closing: false,
            short_of_room: false,
            ended: false,
            closes_at: None,
        }
    }

    /// This node, in its present life. A node that was dropped has a later incarnation than before.
    pub fn me(&self) -> &Member {
        &self.me
    }

    /// The view that is installed, if any is.
    pub fn view(&self) -> Option<&Arc<View>> {
        self.active.as_ref().map(ActiveView::view)
    }

    /// The members of each of the view's shards that hold it only until the others do.
    pub fn going(&self) -> BTreeMap<ShardId, Vec<NodeId>> {
        self.view().map(|view| self.settings.layout.going(view)).unwrap_or_default()
    }

    /// The nodes that ask to join, in the order in which they asked.
    pub fn candidates(&self) -> &[Member] {
        &self.candidates
    }

    /// Whether the view is connected and goes on as it is.
    pub fn is_running(&self) -> bool {
        self.active.as_ref().is_some_and(ActiveView::is_running)
    }

    /// Members of the view that have not come to it from the one before, as long as it is not connected.
    pub fn lingering(&self) -> Option<WatchedMembers> {
        self.active.as_ref().filter(|_| !self.ended)?.lingers()
    }

    /// The thing for which this node's view change waits; None in a view that goes on as it is, and in none.
    pub fn awaits(&self) -> Option<ViewChangeWait> {
        match &self.active {
            _ if self.ended => None,
            _ if self.installing.is_some() => Some(ViewChangeWait::HandOver),
            active => active.as_ref()?.awaits(),
        }
    }

    /// The endpoints whose completions belong to this layer. Those of a view stay until the next one is connected.
    pub fn endpoints(&self) -> impl Iterator<Item = EndpointId> {
        self.active.iter().flat_map(ActiveView::endpoints)
    }

    /// The time until which a node that was dropped again and again waits before it asks to join.
    pub fn rejoins_at(&self) -> Option<Time> {
        self.backoff.waits_until().filter(|_| !self.ended)
    }

    /// Whether a member's row says that it is wedged.
    pub fn is_wedged(&self, member: Rank) -> bool {
        self.active.as_ref().is_some_and(|active| active.table().is_wedged(member.index()))
    }

    /// Whether this node is wedged, and knows that all members that it would keep are.
    pub fn are_all_wedged(&self) -> bool {
        let is_wedged = |active: &ActiveView| {
            let table = active.table();
            table.is_wedged(table.me())
                && staying(&table.accusations()).into_iter().all(|member| table.is_wedged(member))
        };
        self.active.as_ref().is_some_and(is_wedged)
    }

    /// Returns this node's knowledge of a member.
    pub fn evidence(&self, member: Rank) -> Option<MemberEvidence> {
        self.active
            .as_ref()
            .filter(|active| member.index() < active.table().len())
            .map(|active| active.evidence(member.index()))
    }

    /// The lead of each other member's wall clock over this node's boot clock, in nanoseconds. None unless one changed
    /// since the last call, and all are known.
    pub fn take_clocks(&mut self) -> Option<impl Iterator<Item = (NodeId, i64)>> {
        self.active.as_mut().filter(|_| !self.ended)?.take_clocks()
    }

    /// The members of the view whose storage is short of room, as their rows say. None if that has not changed since
    /// the last call in this view.
    pub fn take_short_of_room(&mut self) -> Option<&[NodeId]> {
        self.active.as_mut().filter(|_| !self.ended)?.take_short_of_room()
    }

    /// The member that leads when the view must change, by this node's knowledge: the lowest-ranked of the members that
    /// would stay.
    pub fn leader(&self) -> Option<NodeId> {
        let table = self.active.as_ref()?.table();
        staying(&table.accusations()).first().map(|&member| table.node(member))
    }

    /// The proposal with which this node goes on alone when an operator gives all others up, and the shards that start
    /// anew in it because this node does not hold their state. None unless it is wedged and does not know its
    /// successor: otherwise there is nothing to force.
    pub fn forced(&self) -> Option<(Proposal, Vec<ShardId>)> {
        self.active.as_ref().filter(|_| !self.ended)?.forced(&self.settings)
    }

    /// Returns what [`forced`](Membership::forced) does, for a node in no view that was started again with its disk.
    /// `last` is the last view that its part of the view log has. None unless it was a member of that view.
    pub fn forced_from_disk(&self, last: Option<&Proposal>) -> Option<(Proposal, Vec<ShardId>)> {
        let is_outside = self.active.is_none() && self.installing.is_none() && !self.ended;
        is_outside.then(|| self.returning.forced(&self.me, &self.settings, last)).flatten()
    }

    /// The time at which [`step`](Membership::step) must be called next, if nothing happens before.
    pub fn deadline(&self) -> Time {
        let due = match &self.active {
            _ if !self.retired.is_empty() => return Time::ZERO,
            _ if self.ended => return self.closes_at.unwrap_or(Time::ZERO),
            Some(active) => active.deadline(&self.settings),
            None if self.leaving && self.installing.is_none() => self.leaves_by.unwrap_or(Time::ZERO),
            None => self.backoff.deadline(),
        };
        due.min(self.returning.deadline())
    }

    /// Installs the view that [`Effect::Install`] has named. The fabric must know by now how its members are reached.
    pub fn install(&mut self, fabric: &mut impl Fabric, out: &mut Vec<Effect>) {
        let Some(view) = self.installing.take().filter(|_| !self.ended) else { return };
        let Some(Rank(rank)) = view.rank_of(self.me.node) else { return };
        let mut before = self.active.take();
        if let Some(before) = &mut before {
            before.disconnect_previous(fabric);
        }
        let backs = self.returning.returns(view.epoch);
        let table = match MembershipTable::connect(fabric, view, rank as usize, self.settings.fingerprint) {
            Ok(table) => table,
            Err(error) => return self.end(error.into(), out),
        };
        self.me = table.member().clone();
        let active = self.active.insert(ActiveView::new(table, before, backs, &self.settings));
        active.set_short_of_room(self.short_of_room);
    }

    /// Takes note of a completion of one of this layer's endpoints.
    pub fn on_completion(&mut self, fabric: &mut impl Fabric, completion: &Completion, out: &mut Vec<Effect>) {
        if let Some(active) = self.active.as_mut().filter(|_| !self.ended) {
            active.on_completion(fabric, completion, out);
        }
    }

    /// Takes an event.
    pub fn input(&mut self, input: Input, out: &mut Vec<Effect>) {
        if self.ended {
            return;
        }
        let active = self.active.as_mut();
        self.closing |= matches!(input, Input::Close);
        match (input, active) {
            (Input::Stop, _) => self.end(EndReason::ShutDown, out),
            (Input::Failed(reason), _) => self.end(reason, out),
            (Input::Leave | Input::Close, active) => {
                self.leaving = true;
                match active {
                    // A next step looks whether it may leave.
                    Some(active) => active.touch(),
                    // The others may go on with what its disk has, and would wait for it: then it leaves as a member.
                    None if self.installing.is_some() || self.returning.has_told() => {}
                    None => self.end(EndReason::Left, out),
                }
            }
            (Input::Held(held), active) => {
                let view = self.installing.as_deref().or_else(|| Some(&**active?.view()));
                self.returning.hold(held, view);
            }
            (Input::Kept(kept), _) => self.returning.keep(kept),
            (Input::ShortOfRoom(is_short), active) => {
                self.short_of_room = is_short;
                active.into_iter().for_each(|active| active.set_short_of_room(is_short));
            }
            (Input::ViewLog(ViewEvent::Committed(next)), _) => {
                self.returning.decided(&next);
                self.on_committed(next, out);
            }
            (Input::ViewLog(ViewEvent::Returns(backs)), active) => {
                self.returning.on_returns(backs);
                if let Some(active) = active {
                    active.on_returns(self.returning.returns(active.view().epoch));
                }
            }
            (Input::ViewLog(ViewEvent::Candidates(candidates)), active) => {
                self.candidates = candidates;
                if let Some(active) = active {
                    active.touch();
                }
            }
            (Input::ViewLog(ViewEvent::Reported(report)), Some(active)) => active.on_report(report, out),
            (Input::ViewLog(ViewEvent::NoQuorum), Some(active)) => active.stall(out),
            (Input::Broken(node, reason), Some(active)) => active.broken(node, reason, out),
            (Input::Faulty(node, why), Some(active)) => active.suspect(node, Cause::Faulty { node, why }, out),
            (Input::Late { stall, waited }, Some(active)) => active.late(stall, waited, out),
            (Input::Suspect(node), Some(active)) => active.suspect_as_told(node, out),
            (Input::Frozen { shard, count, stable, leased }, Some(active)) => {
                active.on_frozen(shard, (count, stable), &leased);
            }
            (Input::DropOut(why), Some(_)) => self.drop_out_by_itself(why, out),
            (Input::Complete(shard), Some(active)) => active.on_complete(shard),
            (Input::Connected, Some(active)) => active.on_endpoint(),
            (Input::ShardsConnected, Some(active)) => active.on_connected(),
            (Input::CleansUp(waits), Some(active)) => active.cleans_up(&waits),
            (Input::Ended(shard), Some(active)) => {
                active.on_ended(shard);
                self.go_on(out);
            }
            (_, None) => {}
        }
    }

    /// Looks at the table and the clock, and pushes the changes. Returns whether anything changed. `wall` is the wall
    /// clock, in nanoseconds since 1970; it is only told to the others.
    pub fn step(&mut self, fabric: &mut impl Fabric, now: Time, wall: u64, out: &mut Vec<Effect>) -> bool {
        for mut active in self.retired.drain(..) {
            active.disconnect(fabric);
        }
        if self.leaving && self.active.is_none() {
            self.leave_outside(now, out);
        }
        if !self.ended {
            self.returning.step(now, &self.settings, &self.me, self.active.as_ref(), out);
            // These decisions waited until the view was installed.
            if self.installing.is_none() {
                for next in std::mem::take(&mut self.later) {
                    self.on_committed(next, out);
                }
                self.leave(now, out);
            }
        }
        if self.ended {
            self.close(fabric, now);
            return false;
        }
        let Some(active) = self.active.as_mut() else {
            let asks = !self.leaving && self.backoff.asks(now, &self.settings);
            if asks {
                out.push(Effect::Join(self.me.clone()));
            }
            return asks;
        };
        self.backoff.is_member(now);
        let changed = active.step(fabric, (now, wall), &self.settings, &self.candidates, out);
        if self.leaving && active.is_deserted(now, &self.settings) {
            active.close_now(fabric);
            self.end(EndReason::Left, out);
        }
        self.go_on(out);
        changed
    }

    /// Closes this layer's endpoints.
    pub fn disconnect(&mut self, fabric: &mut impl Fabric) {
        for active in self.active.iter_mut().chain(&mut self.retired) {
            active.disconnect(fabric);
        }
    }

    /// Closes the endpoints of a node that has ended, once the others have had time to read its row. The node's owner
    /// may keep it for long, and a member that still waits for it is to know that it has gone.
    fn close(&mut self, fabric: &mut impl Fabric, now: Time) {
        if now >= *self.closes_at.get_or_insert(now + self.settings.failure_timeout) {
            self.disconnect(fabric);
            self.closes_at = Some(Time::MAX);
        }
    }

    /// Takes the next step of leaving that is due, if this node is to leave, or all are.
    fn leave(&mut self, now: Time, out: &mut Vec<Effect>) {
        let Some(active) = &mut self.active else { return };
        self.closing |= active.closes();
        self.leaving |= self.closing;
        if self.closing {
            active.close();
        } else if !self.leaving || !may_leave(active.table()) {
            return;
        }
        if active.is_open() && active.table().len() == 1 {
            // No member is left to which it could matter.
            self.end(EndReason::Left, out);
        } else if active.is_open() || self.candidates.is_empty() || active.waits_in_vain(now, &self.settings) {
            // Not while others may join instead, as long as anything is decided.
            active.leave(out);
        }
    }

    /// Ends a node that leaves and is no member, unless the others may be about to go on with what it has reported.
    fn leave_outside(&mut self, now: Time, out: &mut Vec<Effect>) {
        let by = *self.leaves_by.get_or_insert(now + leaves_after(&self.settings));
        if self.installing.is_none() && (now >= by || !self.returning.has_told()) {
            self.end(EndReason::Left, out);
        }
    }

    /// The epoch of the last view that this node has, or is about to install.
    fn epoch(&self) -> Option<Epoch> {
        self.installing.as_ref().or(self.view()).map(|view| view.epoch)
    }

    fn on_committed(&mut self, next: Proposal, out: &mut Vec<Effect>) {
        if self.epoch().is_some_and(|epoch| next.view.epoch <= epoch) {
            return;
        }
        if self.lost_its_place(&next.view) {
            // This node may never come to an end of the current view.
            return self.drop_out(next.view, None, out);
        }
        let Some(active) = self.active.as_mut() else {
            // A node that asks to join, from outside.
            match &self.installing {
                Some(_) => self.later.push_back(next),
                None if self.is_me(&next.view) => self.prepare(next, out),
                None => {}
            }
            return;
        };
        if self.installing.is_some() || active.is_decided() {
            return self.later.push_back(next);
        }
        let follows = next.view.epoch.0 == active.view().epoch.0 + 1;
        let as_frozen = |(index, shard): (usize, ShardId)| {
            // Nothing stands in the order of a suspended shard, and a restart knows of a copy in its place.
            if active.view().shards[index].is_suspended() {
                return true;
            }
            let ends = next.finals.get(&shard).map_or(&[][..], Vec::as_slice);
            ends.iter().find(|end| end.node == self.me.node).map(|end| end.count) == active.table().count(shard)
        };
        let stays = next.view.members.contains(&self.me) && active.table().own_shards().all(as_frozen);
        if follows && active.is_frozen() && (stays || self.leaving) {
            tracing::info!(epoch = next.view.epoch.0, members = ?next.view.nodes(), "decided");
            active.commit(next);
        } else {
            self.drop_out(next.view, follows.then_some(next.trims), out);
        }
    }

    /// Whether the others have given this node up in a view that it has not come to yet.
    fn lost_its_place(&self, next: &View) -> bool {
        let coming = self.installing.as_ref().or_else(|| self.active.as_ref()?.committed());
        let place = coming.and_then(|view| view.members.iter().find(|member| member.node == self.me.node));
        place.is_some_and(|me| !next.members.contains(me)) && !self.is_me(next)
    }

    /// Leaves the view, which this node can't bring to its end, if another member is in the next one.
    fn drop_out_by_itself(&mut self, why: EndReason, out: &mut Vec<Effect>) {
        // Where no shard has to be cleaned up, the next view is on its way to be installed.
        let committed = self.active.as_ref().and_then(ActiveView::committed);
        let next = committed.or(self.installing.as_ref()).cloned();
        match next.filter(|next| next.members.iter().any(|member| member.node != self.me.node)) {
            // If no other member has delivered more either, no messages' fates follow from the trims.
            Some(next) => self.drop_out(next, None, out),
            None => self.end(why, out),
        }
    }

    /// Leaves the view, as others go on to the next without this node. The trims are those of the view at hand, if they
    /// are known.
    fn drop_out(&mut self, next: Arc<View>, trims: Option<Trims>, out: &mut Vec<Effect>) {
        tracing::warn!(epoch = next.epoch.0, members = ?next.nodes(), "this node was dropped");
        let active = self.active.take();
        let readable_until = active.as_ref().map_or(Time::MAX, |active| active.readable_until(&next));
        self.retired.extend(active);
        self.installing = None;
        self.later.clear();
        self.returning.dropped();
        self.me.incarnation = Incarnation(self.me.incarnation.0 + 1);
        out.push(Effect::Dropped { next, trims, readable_until });
        if self.leaving {
            self.end(EndReason::Left, out);
        } else {
            self.backoff.dropped();
        }
    }

    /// Whether a view has this node, as it asked to join or in a later life that the view log has given it.
    fn is_me(&self, view: &View) -> bool {
        let is =
            |m: &Member| m.node == self.me.node && m.voter == self.me.voter && m.incarnation >= self.me.incarnation;
        view.members.iter().any(is)
    }

    fn prepare(&mut self, next: Proposal, out: &mut Vec<Effect>) {
        self.returning.install(&next, &self.me, out);
        let view = next.view;
        tracing::info!(epoch = view.epoch.0, members = ?view.nodes(), joined = ?view.joined, left = ?view.left, "to be installed");
        self.installing = Some(Arc::clone(&view));
        out.push(Effect::Install(view));
    }

    /// Goes on to the next view, once the current one is over.
    fn go_on(&mut self, out: &mut Vec<Effect>) {
        let Some(next) = self.active.as_mut().and_then(ActiveView::next) else { return };
        if next.view.members.contains(&self.me) {
            self.prepare(next, out);
        } else {
            self.end(EndReason::Left, out);
        }
    }

    fn end(&mut self, reason: EndReason, out: &mut Vec<Effect>) {
        if !self.ended {
            tracing::info!(%reason, "the node's part ends");
            self.ended = true;
            out.push(Effect::End(reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        rejoin_backoff::tests::settings,
        returning::tests::{SHARD, held, next},
    };

    /// The disk was slow. A copy of a shard that goes on in the view would grow, and is no evidence in a later one.
    #[test]
    fn a_disk_s_copies_that_come_late_are_judged_by_the_view_that_is_to_be_installed() {
        let (next, me) = next();
        let (mut membership, mut out) = (Membership::new(me, settings()), Vec::new());
        membership.input(Input::ViewLog(ViewEvent::Committed(next)), &mut out);
        assert!(membership.installing.is_some());
        membership.input(Input::Held([(SHARD, held()), (ShardId(1), held())].into()), &mut out);
        assert_eq!(membership.returning.held(), Some(&[(SHARD, held())].into()));
    }
}
