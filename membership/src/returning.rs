//! A node's part in the return of a group, and of suspended shards: it reports its copies. In a restart it also waits
//! for others, and proposes the next view.

use std::collections::BTreeMap;

use squall_fabric::{NodeId, Time};

use crate::{
    active_view::ActiveView,
    input::{Effect, Settings},
    leases,
    restart::{alone_from_disk, members_back, restart},
    return_report::{HeldCopy, ReturnReport, Skipped},
    view::{Epoch, Incarnation, Member, OrderEnd, ShardId, ShardView, View},
    view_log::Proposal,
};

/// A node's knowledge of a restart, and its part in it.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    /// The copies on this node's disk, of shards that it does not work in. None if it has no disk to come back with.
    held: Option<BTreeMap<ShardId, HeldCopy>>,
    /// Copies of suspended shards in this process's memory.
    kept: BTreeMap<ShardId, HeldCopy>,
    /// The time from which on no member reads any more because this process has vouched for it, in the view from which
    /// it was dropped. Until then the shards must not go on with what is kept.
    kept_from: Option<Time>,
    /// The last decision, as far as this node knows.
    last: Option<Proposal>,
    /// The reports of nodes that are back, in the order of ranks.
    backs: Vec<ReturnReport>,
    said: Option<LastReport>,
    /// The view of which this node has logged why its copies don't count.
    logged: Option<Epoch>,
    waits_for: Vec<NodeId>,
    /// The time since which more than half are back, and that since which all are.
    enough_since: Option<Time>,
    all_since: Option<Time>,
    proposed: Option<(Vec<ReturnReport>, Time)>,
    /// The time of the next look, if nothing changes.
    wake: Time,
}

/// The life, and the view, of a node's last report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastReport {
    me: Incarnation,
    epoch: Epoch,
    goes_on: bool,
    /// Whether it told of the copies in memory.
    kept: bool,
}

impl Returning {
    /// Takes note of the copies on this node's disk. Of the shards of a view that it has installed, only copies of
    /// suspended ones stay as they are.
    pub(crate) fn hold(&mut self, mut held: BTreeMap<ShardId, HeldCopy>, view: Option<&View>) {
        held.retain(|shard, _| view.is_none_or(|view| is_suspended(view, *shard)));
        self.held = Some(held);
        (self.said, self.logged, self.wake) = (None, None, Time::ZERO);
    }

    /// Takes note of the copies in this node's memory, now that it vouches for no member's reads any more.
    pub(crate) fn keep(&mut self, kept: BTreeMap<ShardId, HeldCopy>) {
        self.kept.extend(kept);
        (self.said, self.kept_from) = (None, None);
    }

    /// Takes note of a view that was decided. In a later life of the group, it may be of an earlier epoch than the
    /// decision before.
    pub(crate) fn decided(&mut self, next: &Proposal) {
        let place = |proposal: &Proposal| (proposal.view.life, proposal.view.epoch);
        if self.last.as_ref().is_some_and(|last| place(last) >= place(next)) {
            return;
        }
        let Returning { held, mut kept, kept_from, backs, said, .. } = std::mem::take(self);
        kept.retain(|shard, _| is_suspended(&next.view, *shard));
        *self = Returning { held, kept, kept_from, last: Some(next.clone()), said, ..Returning::default() };
        self.on_returns(backs);
    }

    /// Takes note of the nodes that are back, of the current view.
    pub(crate) fn on_returns(&mut self, mut backs: Vec<ReturnReport>) {
        let Some(last) = &self.last else { return self.backs = backs };
        backs.retain(|back| back.epoch >= last.view.epoch);
        backs.sort_by_key(|back| last.view.rank_of(back.member.node));
        self.backs = backs;
        self.wake = Time::ZERO;
    }

    /// The reports of nodes that are back, of a view.
    pub(crate) fn returns(&self, epoch: Epoch) -> Vec<ReturnReport> {
        self.backs.iter().filter(|back| back.epoch == epoch).cloned().collect()
    }

    /// Prepares for a view that is to be installed. What this node has beyond the place where a shard goes on is void;
    /// the rest on its disk is of use only where a shard is suspended.
    pub(crate) fn install(&mut self, next: &Proposal, me: &Member, out: &mut Vec<Effect>) {
        for (&shard, &end) in &next.ends {
            // Views in between are void, and a log may have got their records since its node reported it.
            let skips_views = end.epoch.0 + 1 < next.view.epoch.0;
            // A member that is not complete may all the same have got a state, too late to say so.
            if skips_views || next.view.shard(shard).is_some_and(|shard| !shard.is_complete(me.node)) {
                out.push(Effect::CutTo { shard, end });
            }
        }
        if let Some(held) = &mut self.held {
            held.retain(|shard, _| is_suspended(&next.view, *shard));
        }
        let has = |shard: ShardId| self.held.as_ref().is_some_and(|held| held.contains_key(&shard));
        let is_former = |shard: &ShardView| shard.former.iter().any(|one| one.holder.is(me));
        let mut shards = next.view.shards.iter().filter(|shard| shard.is_suspended() && is_former(shard));
        // It was never dropped, so it was not yet asked for its copies.
        if shards.any(|shard| !has(shard.shard)) {
            out.push(Effect::Gather);
        }
    }

    /// Begins another life of this node. The copies on its disk are then to be reported again.
    pub(crate) fn dropped(&mut self) {
        self.held = None;
    }

    /// Whether the others may go on from the last view with what this node has reported.
    pub(crate) fn has_told(&self) -> bool {
        let last = self.last.as_ref().map(|last| last.view.epoch);
        self.said.is_some_and(|said| Some(said.epoch) == last)
    }

    pub(crate) fn deadline(&self) -> Time {
        self.wake
    }

    /// Reports this node's copies, if it is time for it, and proposes how to go on, if it is its turn.
    pub(crate) fn step(
        &mut self,
        now: Time,
        settings: &Settings,
        me: &Member,
        active: Option<&ActiveView>,
        out: &mut Vec<Effect>,
    ) {
        let Some(epoch) = self.last.as_ref().map(|last| last.view.epoch) else { return self.wake = Time::MAX };
        let active = active.filter(|active| active.view().epoch == epoch);
        if !self.kept.is_empty() {
            // The clock was read after this node had ceased to vouch.
            self.kept_from.get_or_insert(now + leases::over_after(settings.read_lease));
        }
        let kept = self.kept_from.is_some_and(|from| now >= from);
        let goes_on = active.is_some_and(ActiveView::is_open);
        self.log(active);
        let says = Some(LastReport { me: me.incarnation, epoch, goes_on, kept });
        if self.said != says
            && let Some(back) = self.back(kept, me, active)
        {
            tracing::info!(epoch = epoch.0, goes_on, held = ?back.held, "this node is back");
            self.said = says;
            out.push(Effect::Return(back));
        }
        if now >= self.wake {
            self.wake = Time::MAX;
            self.propose(now, settings, me, out);
        }
        if let Some(from) = self.kept_from.filter(|&from| now < from) {
            self.wake = self.wake.min(from);
        }
    }

    /// This node's report on the current view, if it is a member that is out of it for good, or has the state of a
    /// suspended shard. The state is from a disk, or, once that may be said, `kept` in memory.
    fn back(&self, kept: bool, me: &Member, active: Option<&ActiveView>) -> Option<ReturnReport> {
        if let Some(active) = active {
            if active.is_open() {
                return self.reopens(kept, active).filter(|back| !back.held.is_empty());
            }
            let mut back = back_of_stuck(active)?;
            back.held.extend(self.reopens(kept, active).into_iter().flat_map(|reopens| reopens.held));
            return Some(back);
        }
        self.back_from_disk(me, &self.last.as_ref()?.view)
    }

    /// The report of this node's disk, if an earlier life of the node was a member of a view.
    fn back_from_disk(&self, me: &Member, view: &View) -> Option<ReturnReport> {
        let held = self.held.clone()?;
        let is_earlier =
            |member: &Member| member.node == me.node && member.voter == me.voter && member.incarnation < me.incarnation;
        let was_member = view.members.iter().any(is_earlier);
        was_member.then(|| ReturnReport { member: me.clone(), epoch: view.epoch, goes_on: false, held })
    }

    /// The view in which this node goes on alone from its disk. `last` is the last view, if this node heard of no
    /// decision.
    pub(crate) fn forced(
        &self,
        me: &Member,
        settings: &Settings,
        last: Option<&Proposal>,
    ) -> Option<(Proposal, Vec<ShardId>)> {
        let last = self.last.as_ref().or(last)?;
        Some(alone_from_disk(last, &settings.layout, self.back_from_disk(me, &last.view)?))
    }

    /// Logs why suspended shards don't go on with what this node's disk has, once in each view.
    fn log(&mut self, active: Option<&ActiveView>) {
        let (Some(active), Some(held)) = (active, &self.held) else { return };
        let epoch = active.view().epoch;
        if self.logged.replace(epoch) == Some(epoch) {
            return;
        }
        let mut held = held.clone();
        held.retain(|shard, _| is_suspended(active.view(), *shard));
        let back = ReturnReport { member: active.table().member().clone(), epoch, goes_on: true, held };
        let backs = [active.returns(), std::slice::from_ref(&back)].concat();
        for why in back.held.keys().filter_map(|&shard| back.falls_short(active.view(), shard, &backs)) {
            tracing::warn!(epoch = epoch.0, why, "a suspended shard does not go on with this node's copy");
        }
        let view = active.view();
        let has_copy = |shard: &ShardView| back.held.contains_key(&shard.shard) || self.kept.contains_key(&shard.shard);
        for shard in view.shards.iter().filter(|shard| shard.may_reopen(active.table().member()) && !has_copy(shard)) {
            let others = match shard.are_all_back(&view.members) {
                true => "all are back, too: if none of them has it, it is lost, and the shard does not go on by itself",
                false => "not all are back",
            };
            let shard = shard.shard;
            tracing::warn!(epoch = epoch.0, %shard, others, "this node, which held a suspended shard's state, is back without it");
        }
    }

    /// This node's report on suspended shards, if it has any.
    fn reopens(&self, kept: bool, active: &ActiveView) -> Option<ReturnReport> {
        let view = active.view();
        let kept = self.kept.iter().filter(|_| kept);
        let held =
            self.held.iter().flatten().chain(kept).map(|(&shard, &held)| (shard, held)).collect::<BTreeMap<_, _>>();
        if held.is_empty() {
            return None;
        }
        let mut back = ReturnReport { member: active.table().member().clone(), epoch: view.epoch, goes_on: true, held };
        let counts: Vec<ShardId> =
            back.held.keys().copied().filter(|&shard| back.may_tell(view, shard).is_ok()).collect();
        back.held.retain(|shard, _| counts.contains(shard));
        Some(back)
    }

    fn propose(&mut self, now: Time, settings: &Settings, me: &Member, out: &mut Vec<Effect>) {
        let Some(last) = &self.last else { return };
        let backs: Vec<&ReturnReport> = self.backs.iter().filter(|back| !back.goes_on).collect();
        let Some(place) = backs.iter().position(|back| back.member == *me) else { return };
        let is_back = |node: &NodeId| backs.iter().any(|back| back.member.node == *node);
        let missing: Vec<NodeId> = last.view.nodes().into_iter().filter(|node| !is_back(node)).collect();
        let (members, all) = (last.view.members.len(), missing.is_empty());
        if missing != self.waits_for {
            self.waits_for.clone_from(&missing);
            out.push(Effect::WaitsFor(missing));
        }
        if 2 * backs.len() <= members {
            return;
        }
        let waits = *self.enough_since.get_or_insert(now) + settings.restart_wait;
        let begins = if all { waits.min(*self.all_since.get_or_insert(now)) } else { waits };
        // The lowest rank proposes first; the others only if it does not.
        let mut due = begins + settings.failure_timeout * 2 * place as u32;
        if let Some((backs, at)) = &self.proposed
            && *backs == self.backs
        {
            due = due.max(*at + settings.failure_timeout);
        }
        if now < due {
            self.wake = due;
            return;
        }
        let members = members_back(&last.view, &self.backs);
        let preferred = settings.policy.preferred(&settings.layout, &members);
        let proposal = restart(last, &settings.layout, me.node, &self.backs, preferred);
        let (epoch, members, ends) = (proposal.view.epoch.0, proposal.view.nodes(), &proposal.ends);
        tracing::info!(epoch, ?members, ?ends, "a restart is proposed");
        out.push(Effect::Propose(proposal));
        self.proposed = Some((self.backs.clone(), now));
        self.wake = now + settings.failure_timeout;
    }
}

/// A member's report, if it is wedged and nothing can be decided.
fn back_of_stuck(active: &ActiveView) -> Option<ReturnReport> {
    let (table, epoch) = (active.table(), active.view().epoch);
    let held = |(index, shard)| {
        let (end, complete) = (OrderEnd { epoch, seq: table.count(shard)? }, table.holds(table.me(), index));
        let (version, skipped) = (None, Skipped::default());
        Some((shard, HeldCopy { end, complete, version, acknowledged: 0, trusted: false, skipped }))
    };
    let held = active.is_stuck().then(|| table.own_shards().filter_map(held).collect())?;
    Some(ReturnReport { member: table.member().clone(), epoch, goes_on: false, held })
}

fn is_suspended(view: &View, shard: ShardId) -> bool {
    view.shard(shard).is_some_and(ShardView::is_suspended)
}

#[cfg(test)]
impl Returning {
    pub(crate) fn held(&self) -> Option<&BTreeMap<ShardId, HeldCopy>> {
        self.held.as_ref()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::view::{ClusterId, Former, Holder, Seq, ShardState, VoterId};

    pub(crate) const SHARD: ShardId = ShardId(0);

    fn place(epoch: u64, seq: u64) -> OrderEnd {
        OrderEnd { epoch: Epoch(epoch), seq: Seq(seq) }
    }

    /// Node 1 alone is a member of view 3. A shard is suspended, of which it has a former copy, and another is active.
    pub(crate) fn next() -> (Proposal, Member) {
        let me = Member { voter: VoterId(7), ..Member::new(NodeId(1), Incarnation(1)) };
        let holder = Holder { node: me.node, voter: me.voter, since: place(1, 5) };
        let suspended = ShardView {
            complete: Vec::new(),
            former: vec![Former { holder, last: Epoch(1), began: OrderEnd::START, counts: false }],
            state: ShardState::Suspended { after: Epoch(2), last_holders: Vec::new(), acknowledged: 0 },
            ..ShardView::whole(SHARD, vec![me.node], Vec::new())
        };
        let active = ShardView::whole(ShardId(1), vec![me.node], vec![me.node]);
        let (members, shards) = (vec![me.clone()], vec![suspended, active]);
        let view = Arc::new(View {
            life: ClusterId::default(),
            epoch: Epoch(3),
            members,
            shards,
            joined: Vec::new(),
            left: Vec::new(),
            preferred: BTreeMap::new(),
        });
        let (finals, trims, ends) = Default::default();
        (Proposal { by: me.node, view, restart: false, finals, trims, ends }, me)
    }

    pub(crate) fn held() -> HeldCopy {
        let (end, skipped) = (place(1, 6), Skipped::default());
        HeldCopy { end, complete: true, version: Some(6), acknowledged: 0, trusted: false, skipped }
    }

    #[test]
    fn a_member_that_was_never_dropped_is_asked_once_for_its_former_copy() {
        let (next, me) = next();
        let mut returning = Returning::default();
        let asks = |returning: &mut Returning| {
            let mut out = Vec::new();
            returning.install(&next, &me, &mut out);
            out.iter().any(|effect| matches!(effect, Effect::Gather))
        };
        assert!(asks(&mut returning));
        returning.hold([(SHARD, held())].into(), Some(&next.view));
        assert!(!asks(&mut returning));
        let other = Member { voter: VoterId(8), ..me.clone() };
        let mut out = Vec::new();
        Returning::default().install(&next, &other, &mut out);
        assert!(out.is_empty(), "another disk has no former copy: {out:?}");
    }

    /// The log has got the records of the views in which the shard was suspended since the report was made.
    #[test]
    fn a_log_is_cut_where_a_shard_goes_on_before_the_last_view_whatever_was_reported_of_it() {
        for (end, cuts) in [(place(1, 6), true), (place(2, 0), false)] {
            let (mut next, me) = next();
            let mut returning = Returning::default();
            returning.hold([(SHARD, HeldCopy { end, ..held() })].into(), Some(&next.view));
            Arc::make_mut(&mut next.view).shards[0] = ShardView::whole(SHARD, vec![me.node], vec![me.node]);
            next.ends = [(SHARD, end)].into();
            let mut out = Vec::new();
            returning.install(&next, &me, &mut out);
            assert_eq!(out.iter().any(|effect| matches!(effect, Effect::CutTo { .. })), cuts);
        }
    }

    #[test]
    fn what_a_member_s_disk_has_of_a_shard_that_goes_on_is_not_kept_since_it_grows() {
        let (next, _) = next();
        let mut returning = Returning::default();
        returning.hold([(SHARD, held()), (ShardId(1), held())].into(), Some(&next.view));
        assert_eq!(returning.held, Some([(SHARD, held())].into()));
        returning.hold([(ShardId(1), held())].into(), None);
        assert_eq!(returning.held, Some([(ShardId(1), held())].into()), "it is in no view, so nothing grows");
    }
}
