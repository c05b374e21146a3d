//! The return of suspended shards: one goes on when a member that held its state last, or before, is a member again,
//! with that state.

use squall_fabric::NodeId;

use crate::{
    layout::Layout,
    return_report::{HeldCopy, ReturnReport, acknowledged, learn, reach, skipped},
    rules,
    view::{Holder, Member, Preferred, Seq, ShardId, ShardState, View},
    view_log::{Ends, Final, Finals, Proposal, Refused},
};

impl ReturnReport {
    /// Checks that this member may report on a suspended shard: its copy is one of those with which the shard may go
    /// on.
    pub(crate) fn may_tell(&self, view: &View, shard: ShardId) -> Result<(), Refused> {
        let ReturnReport { member, epoch, held, .. } = self;
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
        let ShardState::Suspended { after, last_holders, .. } = &suspended.state else {
            return refuse(format!("{node} reopens {shard}, which is not suspended"));
        };
        if !suspended.may_reopen(member) {
            let (voter, former) = (member.voter.0, &suspended.former);
            return refuse(format!(
                "{node} with the disk {voter:x} reopens {shard}, whose last holders were {last_holders:?}, after {former:?}"
            ));
        }
        if held.end.epoch > *after {
            let end = held.end;
            return refuse(format!("{node} has {shard} up to {end}, and it was suspended after {after}"));
        }
        Ok(())
    }

    /// The reason why a suspended shard does not go on with this member's copy, as far as is known from the nodes that
    /// are back. None if it goes on.
    pub fn falls_short(&self, view: &View, shard: ShardId, backs: &[ReturnReport]) -> Option<String> {
        if let Err(why) = self.may_tell(view, shard) {
            return Some(why.to_string());
        }
        let mut suspended = view.shard(shard)?.clone();
        learn(&mut suspended, backs);
        if reach(view, &suspended, backs, self).is_some() {
            return None;
        }
        let HeldCopy { end, version, complete, .. } = self.held.get(&shard)?;
        let (node, known) = (self.member.node, acknowledged(&suspended, backs));
        let version = version.map_or_else(String::new, |version| format!(" (version {version})"));
        if !complete {
            return Some(format!(
                "the copy of {shard} that {node} has up to {end}{version} is damaged, or was lost before"
            ));
        }
        let others: Vec<String> = suspended.waits_for().iter().map(NodeId::to_string).collect();
        let has = format!("{node} has {shard} up to {end}{version}; the shard waits for {}", others.join(", "));
        let former = suspended.former.iter().rev().find(|one| one.counts && one.holder.is(&self.member));
        let counts_as = suspended.holder(&self.member).or(former.map(|one| one.holder));
        Some(match counts_as {
            Some(Holder { since, .. }) => format!(
                "{has}. This copy counts if it reaches {since} and has all that is known to have been acknowledged, up to version {known}"
            ),
            None => format!(
                "{has}. This copy was not complete in the last view: it counts once the log of a later holder is back, and tells that \
                 nothing was acknowledged since"
            ),
        })
    }
}

/// The view from which a successor follows, and the places where its reopened shards go on.
///
/// In it those shards are not suspended of which members that stay have a copy that counts: each goes on at the end of
/// the longest. A member that has the shard up to there, and skips the same commands as most that do, is complete. The
/// other shards stay suspended, with what is known from all nodes that are back.
pub(crate) fn reopened(view: &View, backs: &[ReturnReport], stays: impl Fn(&Member) -> bool) -> (View, Ends) {
    let (mut next, mut ends) = (view.clone(), Ends::new());
    let nodes = view.nodes();
    let stays = |back: &&ReturnReport| view.members.contains(&back.member) && stays(&back.member);
    let staying: Vec<&ReturnReport> = backs.iter().filter(stays).collect();
    for open in next.shards.iter_mut().filter(|shard| shard.is_suspended()) {
        learn(open, backs);
        let shard = &open.clone();
        let reach = |back: &&ReturnReport| reach(view, shard, backs, back);
        let Some(end) = staying.iter().filter_map(reach).max() else { continue };
        let reaching: Vec<&ReturnReport> = staying.iter().copied().filter(|back| reach(back) == Some(end)).collect();
        let skipped = skipped(view, shard, reaching.iter().copied());
        let is_same = |back: &ReturnReport| Some(back.skipped(shard.shard)) == skipped;
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

/// Returns what [`successor`](crate::successor) does, with the suspended shards going on of which staying members have
/// reported a copy, and with these nodes preferred.
pub fn reopening(
    current: &View,
    layout: &Layout,
    by: NodeId,
    (stay, join): (&[NodeId], &[Member]),
    finals: &Finals,
    backs: &[ReturnReport],
    preferred: Preferred,
) -> Proposal {
    let (view, ends) = reopened(current, backs, |member| stay.contains(&member.node));
    let mut finals = finals.clone();
    for shard in view.shards.iter().filter(|shard| ends.contains_key(&shard.shard)) {
        let told = finals.entry(shard.shard).or_default();
        for &node in &shard.complete {
            match told.iter_mut().find(|end| end.node == node) {
                Some(end) => (end.complete, end.on_disk) = (true, true),
                // The layout has not given it the shard, in whose order nothing stands.
                None => told.push(Final { node, count: Seq(0), complete: true, on_disk: true }),
            }
        }
    }
    rules::following(&view, layout, by, (stay, join), &finals, &ends, preferred)
}

/// [`check`](rules::check), where shards may be reopened.
pub(crate) fn check(
    current: &View,
    layout: &Layout,
    candidates: &[Member],
    backs: &[ReturnReport],
    proposal: &Proposal,
) -> Result<(), Refused> {
    let (view, ends) = reopened(current, backs, |member| proposal.view.members.contains(member));
    if proposal.ends != ends {
        let why = format!("its shards are reopened at {:?}, and members have them up to {ends:?}", proposal.ends);
        return Err(Refused::Rule(why));
    }
    rules::check_ending(&view, layout, candidates, &ends, proposal)
}
