//! A suspended shard goes on when one of those who held its state last is a member again, with that state.

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    register::Refused,
    restart::{End, Ends},
    rules,
    view::{Epoch, Member, Seq, ShardId, ShardState, View},
    view_log::{Final, Finals, Proposal},
};

/// A member has the state of a suspended shard, as one of its last holders. If it stays in the next view, the shard goes on there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reopen {
    /// The member, as it is in the current view.
    pub member: Member,
    /// The current view's.
    pub epoch: Epoch,
    /// The shard.
    pub shard: ShardId,
    /// How far its state goes: all that it has received, or all that its disk has if it was [complete](crate::Held::complete).
    pub end: End,
}

impl Reopen {
    /// Whether it may be said of the view that is the current one.
    pub(crate) fn check(&self, view: &View) -> Result<(), Refused> {
        let Reopen { member, epoch, shard, end } = self;
        let refuse = |why: String| Err(Refused::Rule(why));
        if *epoch != view.epoch {
            return Err(Refused::NotCurrent { current: view.epoch });
        }
        if !view.members.contains(member) {
            return refuse(format!("{} reopens {shard}, and is no member of {epoch}", member.node));
        }
        match view.shard(*shard).map(|shard| &shard.state) {
            Some(ShardState::Suspended { last_holders }) if !last_holders.contains(&member.node) => {
                refuse(format!("{} reopens {shard}, whose last holders were {last_holders:?}", member.node))
            }
            Some(ShardState::Suspended { .. }) if end.epoch >= *epoch => {
                refuse(format!("{} has {shard} up to {end}, where it was suspended", member.node))
            }
            Some(ShardState::Suspended { .. }) => Ok(()),
            _ => refuse(format!("{} reopens {shard}, which is not suspended", member.node)),
        }
    }
}

/// A view as its successor follows from it, with the shards not suspended that a member reopens which stays, and where these
/// go on.
pub(crate) fn reopened(view: &View, reopens: &[Reopen], stays: impl Fn(&Member) -> bool) -> (View, Ends) {
    let (mut view, mut ends) = (view.clone(), Ends::new());
    let nodes = view.nodes();
    for Reopen { member, shard, end, .. } in reopens.iter().filter(|reopen| stays(&reopen.member)) {
        let Some(open) = view.shards.iter_mut().find(|open| open.shard == *shard) else { continue };
        open.complete = vec![member.node];
        open.state = ShardState::Active;
        open.members =
            nodes.iter().filter(|&node| *node == member.node || open.members.contains(node)).copied().collect();
        ends.insert(*shard, *end);
    }
    (view, ends)
}

/// As [`successor`](crate::successor), and the shards go on that members reopen who stay.
pub fn reopening(
    current: &View,
    layout: &Layout,
    by: NodeId,
    stay: &[NodeId],
    join: &[Member],
    finals: &Finals,
    reopens: &[Reopen],
) -> Proposal {
    let (view, ends) = reopened(current, reopens, |member| stay.contains(&member.node));
    let mut finals = finals.clone();
    for Reopen { member, shard, .. } in reopens.iter().filter(|reopen| ends.contains_key(&reopen.shard)) {
        let told = finals.entry(*shard).or_default();
        match told.iter_mut().find(|end| end.node == member.node) {
            Some(end) => end.complete = true,
            // The layout has not given it the shard, in whose order nothing stands.
            None => told.push(Final { node: member.node, count: Seq(0), complete: true }),
        }
    }
    Proposal { ends, ..rules::successor(&view, layout, by, stay, join, &finals) }
}

/// [`check`](rules::check), where shards may be reopened.
pub(crate) fn check(
    current: &View,
    layout: &Layout,
    candidates: &[Member],
    reopens: &[Reopen],
    proposal: &Proposal,
) -> Result<(), Refused> {
    let (view, ends) = reopened(current, reopens, |member| proposal.view.members.contains(member));
    rules::check(&view, layout, candidates, &Proposal { ends: Ends::new(), ..proposal.clone() })?;
    if proposal.ends != ends {
        let why = format!("its shards are reopened at {:?}, and members have them up to {ends:?}", proposal.ends);
        return Err(Refused::Rule(why));
    }
    Ok(())
}
