//! A node's part in how a group goes on with what comes back: it says what it has, and in a restart waits for others, and
//! proposes what follows.

use std::collections::BTreeMap;

use squall_fabric::{NodeId, Time};

use crate::{
    input::{Effect, Settings},
    leases,
    restart::{Back, End, Held, Skipped, restart},
    tenure::Tenure,
    view::{Epoch, Incarnation, Member, ShardId, ShardView, View},
    view_log::Proposal,
};

/// What a node knows of a restart, and does for it.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    /// What this node's disk holds, of shards that it does not work in. None if it has no disk to come back with.
    held: Option<BTreeMap<ShardId, Held>>,
    /// Copies of suspended shards in this process's memory.
    kept: BTreeMap<ShardId, Held>,
    /// From when on nobody reads any more because this process has vouched for it in the view from which it was dropped. Until then the
    /// shards must not go on with what is kept.
    kept_from: Option<Time>,
    /// What was decided last, as far as this node knows.
    last: Option<Proposal>,
    /// Who is back, in the order of ranks.
    backs: Vec<Back>,
    said: Option<Said>,
    waits_for: Vec<NodeId>,
    /// Since when more than half are back, and all.
    enough_since: Option<Time>,
    all_since: Option<Time>,
    proposed: Option<(Vec<Back>, Time)>,
    /// When to look again if nothing changes.
    wake: Time,
}

/// As what, and of which view, a node has said what it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Said {
    me: Incarnation,
    epoch: Epoch,
    goes_on: bool,
    /// With what is in its memory.
    kept: bool,
}

impl Returning {
    /// This node's disk holds this.
    pub(crate) fn hold(&mut self, held: BTreeMap<ShardId, Held>) {
        self.held = Some(held);
        (self.said, self.wake) = (None, Time::ZERO);
    }

    /// So does its memory, and it vouches for nobody's reads any more.
    pub(crate) fn keep(&mut self, kept: BTreeMap<ShardId, Held>) {
        self.kept.extend(kept);
        (self.said, self.kept_from) = (None, None);
    }

    /// A view was decided.
    pub(crate) fn decided(&mut self, next: &Proposal) {
        if self.last.as_ref().is_some_and(|last| last.view.epoch >= next.view.epoch) {
            return;
        }
        let Returning { held, mut kept, kept_from, backs, said, .. } = std::mem::take(self);
        kept.retain(|shard, _| is_suspended(&next.view, *shard));
        *self = Returning { held, kept, kept_from, last: Some(next.clone()), said, ..Returning::default() };
        self.on_backs(backs);
    }

    /// Who is back, of the current view.
    pub(crate) fn on_backs(&mut self, mut backs: Vec<Back>) {
        let Some(last) = &self.last else { return self.backs = backs };
        backs.retain(|back| back.epoch >= last.view.epoch);
        backs.sort_by_key(|back| last.view.rank_of(back.member.node));
        self.backs = backs;
        self.wake = Time::ZERO;
    }

    /// Who is back, of a view.
    pub(crate) fn backs(&self, epoch: Epoch) -> Vec<Back> {
        self.backs.iter().filter(|back| back.epoch == epoch).cloned().collect()
    }

    /// A view is to be installed. What this node has beyond where a shard goes on is void; what is left on its disk is of use only
    /// where a shard is suspended.
    pub(crate) fn install(&mut self, next: &Proposal, me: &Member, out: &mut Vec<Effect>) {
        for (&shard, &end) in &next.ends {
            let has_more = self.held.as_ref().and_then(|held| held.get(&shard)).is_some_and(|held| held.end > end);
            // One that is not complete may all the same have got a state, too late to say so.
            if has_more || next.view.shard(shard).is_some_and(|shard| !shard.is_complete(me.node)) {
                out.push(Effect::CutTo { shard, end });
            }
        }
        let Some(held) = &mut self.held else { return };
        held.retain(|shard, _| is_suspended(&next.view, *shard));
    }

    /// This node begins another life. What its disk holds then is to be said again.
    pub(crate) fn dropped(&mut self) {
        self.held = None;
    }

    pub(crate) fn deadline(&self) -> Time {
        self.wake
    }

    /// Says what this node has, if it is time for it, and proposes how to go on, if it is its turn.
    pub(crate) fn step(
        &mut self,
        now: Time,
        settings: &Settings,
        me: &Member,
        tenure: Option<&Tenure>,
        out: &mut Vec<Effect>,
    ) {
        let Some(epoch) = self.last.as_ref().map(|last| last.view.epoch) else { return self.wake = Time::MAX };
        let tenure = tenure.filter(|tenure| tenure.view.epoch == epoch);
        if !self.kept.is_empty() {
            // Its clock was read after it had ceased to vouch.
            self.kept_from.get_or_insert(now + leases::over_after(settings.read_lease));
        }
        let kept = self.kept_from.is_some_and(|from| now >= from);
        let goes_on = tenure.is_some_and(Tenure::is_open);
        let says = Some(Said { me: me.incarnation, epoch, goes_on, kept });
        if self.said != says
            && let Some(back) = self.back(kept, me, tenure)
        {
            tracing::info!(epoch = epoch.0, goes_on, held = ?back.held, "this node is back");
            self.said = says;
            out.push(Effect::Back(back));
        }
        if now >= self.wake {
            self.wake = Time::MAX;
            self.propose(now, settings, me, out);
        }
        if let Some(from) = self.kept_from.filter(|&from| now < from) {
            self.wake = self.wake.min(from);
        }
    }

    /// What this node has to say of the current view, if it is a member that is out of it for good, or has the state of a suspended
    /// shard: from a disk, or, once that may be said, `kept` in memory.
    fn back(&self, kept: bool, me: &Member, tenure: Option<&Tenure>) -> Option<Back> {
        let view = &self.last.as_ref()?.view;
        if let Some(tenure) = tenure {
            if tenure.is_open() {
                return self.reopens(kept, tenure).filter(|back| !back.held.is_empty());
            }
            let mut back = tenure.back()?;
            back.held.extend(self.reopens(kept, tenure).into_iter().flat_map(|reopens| reopens.held));
            return Some(back);
        }
        let held = self.held.clone()?;
        let is_earlier =
            |member: &Member| member.node == me.node && member.voter == me.voter && member.incarnation < me.incarnation;
        let was_member = view.members.iter().any(is_earlier);
        was_member.then(|| Back { member: me.clone(), epoch: view.epoch, goes_on: false, held })
    }

    /// The suspended shards whose state this node has, if it has anything.
    fn reopens(&self, kept: bool, tenure: &Tenure) -> Option<Back> {
        let view = &tenure.view;
        let kept = self.kept.iter().filter(|_| kept);
        let held =
            self.held.iter().flatten().chain(kept).map(|(&shard, &held)| (shard, held)).collect::<BTreeMap<_, _>>();
        if held.is_empty() {
            return None;
        }
        let mut back = Back { member: tenure.member().clone(), epoch: view.epoch, goes_on: true, held };
        let counts: Vec<ShardId> =
            back.held.keys().copied().filter(|&shard| back.reopens(view, shard).is_ok()).collect();
        back.held.retain(|shard, _| counts.contains(shard));
        Some(back)
    }

    fn propose(&mut self, now: Time, settings: &Settings, me: &Member, out: &mut Vec<Effect>) {
        let Some(last) = &self.last else { return };
        let backs: Vec<&Back> = self.backs.iter().filter(|back| !back.goes_on).collect();
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
        // The lowest rank first; the others only if it does not.
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
        let proposal = restart(last, &settings.layout, me.node, &self.backs);
        let (epoch, members, ends) = (proposal.view.epoch.0, proposal.view.nodes(), &proposal.ends);
        tracing::info!(epoch, ?members, ?ends, "a restart is proposed");
        out.push(Effect::Propose(proposal));
        self.proposed = Some((self.backs.clone(), now));
        self.wake = now + settings.failure_timeout;
    }
}

impl Tenure {
    /// What this member has, if it is wedged and nothing can be decided.
    fn back(&self) -> Option<Back> {
        let end = |seq| End { epoch: self.view.epoch, seq };
        let held = |(index, shard): (usize, ShardId)| {
            let end = end(*self.frozen.get(&shard)?);
            Some((
                shard,
                Held {
                    end,
                    complete: self.holds(self.me, index),
                    version: None,
                    acknowledged: 0,
                    trusted: false,
                    skipped: Skipped::default(),
                },
            ))
        };
        let is_stuck = self.is_frozen() && !self.is_decided() && self.decider.is_stalled();
        let (member, epoch) = (self.member().clone(), self.view.epoch);
        is_stuck.then(|| Back { member, epoch, goes_on: false, held: self.shards().filter_map(held).collect() })
    }
}

fn is_suspended(view: &View, shard: ShardId) -> bool {
    view.shard(shard).is_some_and(ShardView::is_suspended)
}
