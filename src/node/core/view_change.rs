//! The way of a node from one view to the next, or out of the group.

use std::{collections::BTreeMap, sync::Arc};

use squall_fabric::Time;
use squall_membership::{
    EndReason, HeldCopy, Holder, Input, OrderEnd, Seq, ShardId, ShardState, ShardView, Skipped, View,
};
use squall_ordered::{CreateError, Mode, Undelivered};

use super::{
    CoreEffect, NodeCore, Owner, Turn,
    view_shards::{ShardRemainder, ViewShards},
};
use crate::{
    calls::error::Unavailable,
    delivery::shard_change::{Fate, Installed, ShardChange},
    fabric::NodeFabric,
    node::status::ViewChangeTimes,
};

impl<F: NodeFabric> NodeCore<F> {
    /// Wedges all shards and 1Pipe groups, and tells membership where each stands.
    pub(super) fn wedge(&mut self) {
        self.changing = ViewChangeTimes { suspected: self.now, ..ViewChangeTimes::default() };
        for (shard, [count, stable], leased) in self.shards.wedge() {
            self.membership.input(Input::Frozen { shard, count, stable, leased }, &mut self.effects);
        }
        let epoch = self.membership.view().map_or(0, |view| view.epoch.0);
        for (&shard, slot) in &self.pipe_slots {
            let (count, stable) = (slot.wedge(epoch), Seq(0));
            self.membership.input(Input::Frozen { shard, count, stable, leased: Vec::new() }, &mut self.effects);
        }
    }

    /// Tells membership once the shards have delivered all that their view delivers.
    pub(super) fn watch_clean_up(&mut self) {
        if !self.is_cleaning {
            return;
        }
        if let Some(why) = self.shards.is_stuck().cloned() {
            // Other members may have delivered what a faulty sender has spoiled here.
            self.is_cleaning = false;
            self.membership.input(Input::DropOut(why), &mut self.effects);
        } else if self.shards.are_ended() {
            self.is_cleaning = false;
            for shard in self.shards.cleaned_up() {
                self.membership.input(Input::Ended(shard), &mut self.effects);
            }
        }
    }

    /// Goes on from the view that is over, once its shards have handed out what they have not delivered.
    pub(super) fn turn(&mut self, out: &mut Vec<CoreEffect>) -> bool {
        let mut busy = false;
        while let Some(turn) = self.turns.front() {
            match turn {
                Turn::Install(_) if !self.cutting.is_empty() => return busy,
                Turn::Install(_) => self.shards.close(),
                Turn::Drop(..) => {
                    let ended = self.shards.hand_out_ended();
                    busy |= !ended.is_empty();
                    self.let_go(ended, out);
                }
                Turn::End(_) => {}
            }
            let Some(mut remainders) = self.shards.hand_out() else { return busy };
            busy = true;
            // Some may have ended since.
            if matches!(self.turns.front(), Some(Turn::Drop(..))) {
                self.let_go(std::mem::take(&mut remainders), out);
            }
            let turn = self.turns.pop_front().expect("it was just there");
            self.leave_view();
            match turn {
                Turn::Install(view) => self.install(view, remainders, out),
                Turn::Drop(..) => self.drop_out(out),
                Turn::End(reason) => {
                    // For a node that leaves, the end of the others' delivery is known.
                    let trims = (reason == EndReason::Left).then(|| std::mem::take(&mut self.trims));
                    for (shard, ShardRemainder { undelivered, .. }) in remainders {
                        let trim = trims.as_ref().and_then(|trims| trims.get(&shard));
                        let undelivered = with_fates(undelivered, trim, Fate::Delivered);
                        let reason = reason.clone();
                        out.push(CoreEffect::Shard(shard, ShardChange::End { undelivered, reason }));
                    }
                    self.is_ended = true;
                    self.end_pipe_slots(&reason);
                    out.push(CoreEffect::Ended(reason));
                }
            }
        }
        busy
    }

    /// Closes all that belongs to the view that is over.
    fn leave_view(&mut self) {
        self.shards.disconnect(&mut self.fabric);
        self.shards = ViewShards::default();
        self.owners.retain(|_, owner| matches!(owner, Owner::Membership));
        (self.is_connected, self.is_cleaning) = (true, false);
    }

    fn install(
        &mut self,
        view: Arc<View>,
        mut remainders: BTreeMap<ShardId, ShardRemainder>,
        out: &mut Vec<CoreEffect>,
    ) {
        let node = self.fabric.node();
        view.members.iter().for_each(|member| self.fabric.learn(member));
        self.watch.forget();
        self.membership.install(&mut self.fabric, &mut self.effects);
        self.own_membership();
        self.view = Some(Arc::clone(&view));
        let (pipe_slots, trims) = (&self.pipe_slots, std::mem::take(&mut self.trims));
        pipe_slots.iter().for_each(|(&shard, slot)| slot.install(shard, &view, trims.get(&shard).copied()));
        let has_part =
            |shard: &&ShardView| shard.rank_of(node).is_some() && !self.pipe_slots.contains_key(&shard.shard);
        for members in view.shards.iter().filter(has_part) {
            let shard = members.shard;
            let config = self.configs.get(&shard).copied().unwrap_or_default();
            let (submitter, part, deliverer) = match squall_ordered::create(&mut self.fabric, &view, shard, &config) {
                Ok(parts) => parts,
                Err(error) => {
                    let reason = match error {
                        CreateError::Register(error) => EndReason::NoMemory(error),
                        other => EndReason::Incompatible { node, why: other.to_string() },
                    };
                    self.membership.input(Input::Failed(reason), &mut self.effects);
                    return;
                }
            };
            self.owners.extend(part.endpoints().map(|endpoint| (endpoint, Owner::Shard(shard))));
            self.shards.add(part, members.is_complete(node));
            let ShardRemainder { undelivered: resubmit, fell_short, .. } =
                remainders.remove(&shard).unwrap_or_default();
            let view = Arc::clone(&view);
            let installed = Installed { view, shard, submitter, deliverer, resubmit, fell_short };
            out.push(CoreEffect::Shard(shard, ShardChange::Install(Box::new(installed))));
        }
        self.is_connected = false;
        for other in view.shards.iter().filter(|shard| shard.rank_of(node).is_none()) {
            let shard = other.shard;
            let why = match &other.state {
                ShardState::Suspended { .. } => {
                    let all_back = other.are_all_back(&view.members);
                    Unavailable::Suspended { last_holders: other.waits_for(), all_back }
                }
                _ => Unavailable::Elsewhere { members: other.members.clone() },
            };
            // The members that stay have delivered as much as this node, before it gave the shard up.
            let undelivered = remainders.remove(&shard).unwrap_or_default().undelivered;
            let undelivered = undelivered.into_iter().map(|message| (message, Fate::NotDelivered)).collect();
            out.push(CoreEffect::Shard(shard, ShardChange::Outside { undelivered, why }));
        }
    }

    /// Lets go of shards of the view from which this node was dropped.
    fn let_go(&mut self, remainders: BTreeMap<ShardId, ShardRemainder>, out: &mut Vec<CoreEffect>) {
        let Some(Turn::Drop(next, trims, readable_until)) = self.turns.front() else { return };
        let why = Unavailable::Dropped { epoch: next.epoch };
        // A clock that is read too early only makes this node say less.
        let within = if self.now < *readable_until { Fate::Unknown } else { Fate::Delivered };
        for (shard, ShardRemainder { undelivered, received, .. }) in remainders {
            if let Some(seq) = received.filter(|_| self.keeps(shard, next)) {
                self.kept.extend(self.view.as_ref().map(|view| (shard, OrderEnd { epoch: view.epoch, seq })));
                out.push(CoreEffect::Shard(shard, ShardChange::Keep { received: seq }));
            }
            let undelivered = with_fates(undelivered, trims.as_ref().and_then(|trims| trims.get(&shard)), within);
            let why = why.clone();
            out.push(CoreEffect::Shard(shard, ShardChange::Outside { undelivered, why }));
        }
        if self.now >= self.halts_at {
            self.halts_at = Time::MAX;
            out.extend(self.shards.not_taken().map(|shard| CoreEffect::Halt { shard, why: why.clone() }));
        }
    }

    /// Whether this node keeps in memory what it has of a shard, now that others have gone on to the view `next`
    /// without it. It does if the shard is suspended, and this node one of the last to hold it. Of a durable shard it
    /// has a log.
    fn keeps(&self, shard: ShardId, next: &View) -> bool {
        let in_memory = self.configs.get(&shard).is_none_or(|config| config.mode == Mode::Ordered);
        let is_me = |holder: &Holder| holder.is(self.membership.me());
        match next.shard(shard).map(|shard| &shard.state) {
            Some(ShardState::Suspended { last_holders, .. }) => in_memory && last_holders.iter().any(is_me),
            _ => false,
        }
    }

    /// Leaves the view, once all its shards are let go.
    fn drop_out(&mut self, out: &mut Vec<CoreEffect>) {
        self.view = None;
        self.trims.clear();
        self.halts_at = Time::MAX;
        self.pipe_slots.values().for_each(|slot| slot.drop_out());
        out.push(CoreEffect::Returns);
        let in_memory = |end| HeldCopy {
            end,
            complete: true,
            version: None,
            acknowledged: 0,
            trusted: false,
            skipped: Skipped::default(),
        };
        let kept = std::mem::take(&mut self.kept).into_iter().map(|(shard, end)| (shard, in_memory(end)));
        self.membership.input(Input::Kept(kept.collect()), &mut self.effects);
        if let Some(me) = self.joins.take() {
            self.view_log.join(me);
        }
    }
}

/// Adds the fates to messages that this node has not delivered. The others deliver up to `trim`; messages before it
/// have the fate `within`.
///
/// Without a trim the fate is not known: more views have passed, or no member stays that has the shard.
fn with_fates(undelivered: Vec<Undelivered>, trim: Option<&Seq>, within: Fate) -> Vec<(Undelivered, Fate)> {
    let fate = |message: &Undelivered| match (trim, message.place) {
        (Some(trim), Some(place)) if place < *trim => within,
        (Some(_), _) => Fate::NotDelivered,
        (None, _) => Fate::Unknown,
    };
    undelivered.into_iter().map(|message| (fate(&message), message)).map(|(fate, message)| (message, fate)).collect()
}
