//! A suspended shard goes on when one of those who held its state last is a member again, with that state.

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    register::Refused,
    restart::{End, Ends, Held, counted_end},
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
    /// Its copy, with which the shard goes on.
    pub held: Held,
}

impl Reopen {
    /// Whether it may be said of the view that is the current one.
    pub(crate) fn check(&self, view: &View) -> Result<(), Refused> {
        self.end(view).map(|_| ())
    }

    /// The place where the shard goes on with this copy, if it is one of those that were complete last, and has all that was acknowledged.
    pub(crate) fn end(&self, view: &View) -> Result<End, Refused> {
        let Reopen { member, epoch, shard, held } = self;
        let refuse = |why: String| Err(Refused::Rule(why));
        if *epoch != view.epoch {
            return Err(Refused::NotCurrent { current: view.epoch });
        }
        if !view.members.contains(member) {
            return refuse(format!("{} reopens {shard}, and is no member of {epoch}", member.node));
        }
        let Some(suspended) = view.shard(*shard) else {
            return refuse(format!("{} reopens {shard}, which there is not", member.node));
        };
        let ShardState::Suspended { after, last_holders, acknowledged } = &suspended.state else {
            return refuse(format!("{} reopens {shard}, which is not suspended", member.node));
        };
        let Some(holder) = last_holders.iter().find(|holder| holder.is(member)) else {
            let (node, voter) = (member.node, member.voter.0);
            return refuse(format!(
                "{node} with the disk {voter:x} reopens {shard}, whose last holders were {last_holders:?}"
            ));
        };
        if held.end.epoch > *after {
            let (node, end) = (member.node, held.end);
            return refuse(format!("{node} has {shard} up to {end}, and it was suspended after {after}"));
        }
        counted_end(*after, suspended, holder, held, *acknowledged).ok_or_else(|| {
            let (node, Held { end, complete, .. }, since) = (member.node, held, holder.since);
            let whole = if *complete && held.has(*acknowledged) { "a whole" } else { "no whole" };
            Refused::Rule(format!(
                "{node} reopens {shard} with {whole} copy up to {end}, and it counts if whole, from {since} on, and with all that was \
                 acknowledged up to version {acknowledged}"
            ))
        })
    }
}

/// A view as its successor follows from it, with the shards not suspended that a member reopens which stays, and where these
/// go on.
pub(crate) fn reopened(view: &View, reopens: &[Reopen], stays: impl Fn(&Member) -> bool) -> (View, Ends) {
    let (mut view, mut ends) = (view.clone(), Ends::new());
    let nodes = view.nodes();
    for reopen in reopens.iter().filter(|reopen| stays(&reopen.member)) {
        let (Reopen { member, shard, .. }, Ok(end)) = (reopen, reopen.end(&view)) else { continue };
        let Some(open) = view.shards.iter_mut().find(|open| open.shard == *shard) else { continue };
        open.complete = vec![member.node];
        open.since = [(member.node, end)].into();
        open.state = ShardState::Active;
        open.members =
            nodes.iter().filter(|&node| *node == member.node || open.members.contains(node)).copied().collect();
        ends.insert(*shard, end);
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
    rules::following(&view, layout, by, stay, join, &finals, &ends)
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
    if proposal.ends != ends {
        let why = format!("its shards are reopened at {:?}, and members have them up to {ends:?}", proposal.ends);
        return Err(Refused::Rule(why));
    }
    rules::check_ending(&view, layout, candidates, &ends, proposal)
}
