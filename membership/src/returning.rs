//! A node's part in a restart: it says what it has, waits for others, and proposes how to go on.

use std::collections::BTreeMap;

use squall_fabric::{NodeId, Time};

use crate::{
    input::{Effect, Settings},
    reopen::Reopen,
    restart::{Back, End, Held, Skipped, restart},
    tenure::Tenure,
    view::{Epoch, Member, ShardId, ShardView},
    view_log::Proposal,
};

/// What a node knows of a restart, and does for it.
#[derive(Debug, Default)]
pub(crate) struct Returning {
    /// What this node's disk holds, of shards that it does not work in. None if it has no disk to come back with.
    held: Option<BTreeMap<ShardId, Held>>,
    /// What was decided last, as far as this node knows.
    last: Option<Proposal>,
    /// Who is back, in the order of ranks.
    backs: Vec<Back>,
    /// Shards that members reopen.
    reopens: Vec<Reopen>,
    /// As what it has said of which view what it has.
    said: Option<(Member, Epoch)>,
    reopened: Option<Epoch>,
    waits_for: Vec<NodeId>,
    /// Since when more than half are back, and all.
    enough_since: Option<Time>,
    all_since: Option<Time>,
    proposed: Option<(Vec<Back>, Time)>,
    /// When to look again if nothing changes.
    wake: Time,
}

impl Returning {
    /// This node's disk holds this.
    pub(crate) fn hold(&mut self, held: BTreeMap<ShardId, Held>) {
        self.held = Some(held);
        self.wake = Time::ZERO;
    }

    /// A view was decided.
    pub(crate) fn decided(&mut self, next: &Proposal) {
        if self.last.as_ref().is_some_and(|last| last.view.epoch >= next.view.epoch) {
            return;
        }
        let held = self.held.take();
        let (backs, reopens) = (std::mem::take(&mut self.backs), std::mem::take(&mut self.reopens));
        *self = Returning { held, last: Some(next.clone()), said: self.said.take(), ..Returning::default() };
        self.on_backs(backs);
        self.on_reopens(reopens);
    }

    /// Who is back, of the current view.
    pub(crate) fn on_backs(&mut self, mut backs: Vec<Back>) {
        let Some(last) = &self.last else { return self.backs = backs };
        backs.retain(|back| back.epoch >= last.view.epoch);
        backs.sort_by_key(|back| last.view.rank_of(back.member.node));
        self.backs = backs;
        self.wake = Time::ZERO;
    }

    pub(crate) fn on_reopens(&mut self, reopens: Vec<Reopen>) {
        self.reopens = reopens;
        self.wake = Time::ZERO;
    }

    /// Shards of a view that members reopen.
    pub(crate) fn reopens(&self, epoch: Epoch) -> Vec<Reopen> {
        self.reopens.iter().filter(|reopen| reopen.epoch == epoch).cloned().collect()
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
        held.retain(|shard, _| next.view.shard(*shard).is_some_and(ShardView::is_suspended));
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
        if self.said.as_ref().is_none_or(|said| *said != (me.clone(), epoch))
            && let Some(back) = self.back(me, tenure)
        {
            tracing::info!(epoch = epoch.0, held = ?back.held, "this node is back");
            self.said = Some((me.clone(), epoch));
            out.push(Effect::Back(back));
        }
        if let Some(tenure) = tenure.filter(|tenure| tenure.is_open() && self.reopened != Some(epoch)) {
            self.reopened = Some(epoch);
            out.extend(self.own_reopens(tenure).map(Effect::Reopen));
        }
        if now >= self.wake {
            self.wake = Time::MAX;
            self.propose(now, settings, me, out);
        }
    }

    /// What this node has to say of the current view, if it is a member that is out of it for good.
    fn back(&self, me: &Member, tenure: Option<&Tenure>) -> Option<Back> {
        let view = &self.last.as_ref()?.view;
        if let Some(tenure) = tenure {
            return tenure.back();
        }
        let held = self.held.clone()?;
        let is_earlier =
            |member: &Member| member.node == me.node && member.voter == me.voter && member.incarnation < me.incarnation;
        let was_member = view.members.iter().any(is_earlier);
        was_member.then(|| Back { member: me.clone(), epoch: view.epoch, held })
    }

    /// The suspended shards whose state this node has.
    fn own_reopens<'a>(&'a self, tenure: &'a Tenure) -> impl Iterator<Item = Reopen> + 'a {
        let (view, member) = (&tenure.view, tenure.member());
        let reopen = |(&shard, &held)| Reopen { member: member.clone(), epoch: view.epoch, shard, held };
        self.held.iter().flatten().map(reopen).filter(|reopen| reopen.check(view).is_ok())
    }

    fn propose(&mut self, now: Time, settings: &Settings, me: &Member, out: &mut Vec<Effect>) {
        let Some(last) = &self.last else { return };
        let Some(place) = self.backs.iter().position(|back| back.member == *me) else { return };
        let is_back = |node: &NodeId| self.backs.iter().any(|back| back.member.node == *node);
        let missing: Vec<NodeId> = last.view.nodes().into_iter().filter(|node| !is_back(node)).collect();
        let (members, all) = (last.view.members.len(), missing.is_empty());
        if missing != self.waits_for {
            self.waits_for.clone_from(&missing);
            out.push(Effect::WaitsFor(missing));
        }
        if 2 * self.backs.len() <= members {
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
        is_stuck.then(|| Back { member, epoch, held: self.shards().filter_map(held).collect() })
    }
}
