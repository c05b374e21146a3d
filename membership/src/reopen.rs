//! A suspended shard goes on when one of those who held its state last is a member again, with that state.

use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    register::Refused,
    restart::{Back, End, Ends, Held, counted_end, reach, skipped, skipped_by},
    rules,
    view::{Member, Seq, ShardId, ShardState, View},
    view_log::{Final, Finals, Proposal},
};

impl Back {
    /// The place where a suspended shard goes on with this member's copy, if it is one of those that were complete last, and has all
    /// that was acknowledged.
    pub(crate) fn reopens(&self, view: &View, shard: ShardId) -> Result<End, Refused> {
        let Back { member, epoch, held, .. } = self;
        let refuse = |why: String| Err(Refused::Rule(why));
        let node = member.node;
        let Some(held) = held.get(&shard) else {
            return refuse(format!("{node} has nothing of {shard}"));
        };
        if !view.members.contains(member) {
            return refuse(format!("{node} reopens {shard}, and is no member of {epoch}"));
        }
        let Some(suspended) = view.shard(shard) else {
            return refuse(format!("{node} reopens {shard}, which there is not"));
        };
        let ShardState::Suspended { after, last_holders, acknowledged } = &suspended.state else {
            return refuse(format!("{node} reopens {shard}, which is not suspended"));
        };
        let Some(holder) = suspended.holder(member) else {
            let voter = member.voter.0;
            return refuse(format!(
                "{node} with the disk {voter:x} reopens {shard}, whose last holders were {last_holders:?}"
            ));
        };
        if held.end.epoch > *after {
            let end = held.end;
            return refuse(format!("{node} has {shard} up to {end}, and it was suspended after {after}"));
        }
        counted_end(*after, suspended, &holder, held, *acknowledged).ok_or_else(|| {
            let (Held { end, complete, .. }, since) = (held, holder.since);
            let whole = if *complete && held.has(*acknowledged) { "a whole" } else { "no whole" };
            Refused::Rule(format!(
                "{node} reopens {shard} with {whole} copy up to {end}, and it counts if whole, from {since} on, and with all that was \
                 acknowledged up to version {acknowledged}"
            ))
        })
    }
}

/// A view as its successor follows from it, with the shards not suspended of which members that stay have a copy that counts, and
/// the places where these go on: each at the end of the longest. Whoever has it up to there, and skips the same commands as most of
/// those who do, is complete.
pub(crate) fn reopened(view: &View, backs: &[Back], stays: impl Fn(&Member) -> bool) -> (View, Ends) {
    let (mut next, mut ends) = (view.clone(), Ends::new());
    let nodes = view.nodes();
    let stays = |back: &&Back| view.members.contains(&back.member) && stays(&back.member);
    let staying: Vec<&Back> = backs.iter().filter(stays).collect();
    for (shard, open) in view.shards.iter().zip(&mut next.shards).filter(|(shard, _)| shard.is_suspended()) {
        let reach = |back: &&Back| reach(view, shard, backs, back);
        let Some(end) = staying.iter().filter_map(reach).max() else { continue };
        let reaching: Vec<&Back> = staying.iter().copied().filter(|back| reach(back) == Some(end)).collect();
        let skipped = skipped(view, shard, reaching.iter().copied());
        let is_same = |back: &Back| Some(skipped_by(shard.shard, back)) == skipped;
        let has_it = |node: &NodeId| reaching.iter().any(|back| back.member.node == *node && is_same(back));
        open.complete = nodes.iter().copied().filter(has_it).collect();
        open.since = open.complete.iter().map(|&node| (node, end)).collect();
        open.state = ShardState::Active;
        let is_member = |node: &NodeId| open.complete.contains(node) || shard.members.contains(node);
        open.members = nodes.iter().copied().filter(is_member).collect();
        ends.insert(shard.shard, end);
    }
    (next, ends)
}

/// As [`successor`](crate::successor), and the shards go on of which members who stay have said that they have them.
pub fn reopening(
    current: &View,
    layout: &Layout,
    by: NodeId,
    stay: &[NodeId],
    join: &[Member],
    finals: &Finals,
    backs: &[Back],
) -> Proposal {
    let (view, ends) = reopened(current, backs, |member| stay.contains(&member.node));
    let mut finals = finals.clone();
    for shard in view.shards.iter().filter(|shard| ends.contains_key(&shard.shard)) {
        let told = finals.entry(shard.shard).or_default();
        for &node in &shard.complete {
            match told.iter_mut().find(|end| end.node == node) {
                Some(end) => end.complete = true,
                // The layout has not given it the shard, in whose order nothing stands.
                None => told.push(Final { node, count: Seq(0), complete: true }),
            }
        }
    }
    rules::following(&view, layout, by, stay, join, &finals, &ends)
}

/// [`check`](rules::check), where shards may be reopened.
pub(crate) fn check(
    current: &View,
    layout: &Layout,
    candidates: &[Member],
    backs: &[Back],
    proposal: &Proposal,
) -> Result<(), Refused> {
    let (view, ends) = reopened(current, backs, |member| proposal.view.members.contains(member));
    if proposal.ends != ends {
        let why = format!("its shards are reopened at {:?}, and members have them up to {ends:?}", proposal.ends);
        return Err(Refused::Rule(why));
    }
    rules::check_ending(&view, layout, candidates, &ends, proposal)
}
