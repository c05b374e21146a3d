//! The restart of a group: the view that follows one of which less than half goes on, when its members come back with
//! their disks.

use std::{collections::BTreeSet, sync::Arc};

use squall_fabric::NodeId;

use crate::{
    layout::{Counts, Layout},
    reopen::reopened,
    return_report::{ReturnReport, learn, reach, skipped},
    rules,
    view::{Epoch, Member, OrderEnd, Preferred, Seq, ShardId, ShardView, View},
    view_log::{Final, Finals, Proposal, Refused, Trims},
};

impl ReturnReport {
    /// Checks that it may be reported of a view, which is the current one.
    pub(crate) fn check(&self, view: &View) -> Result<(), Refused> {
        let refuse = |why: String| Err(Refused::Rule(why));
        if self.epoch != view.epoch {
            return Err(Refused::NotCurrent { current: view.epoch });
        }
        if self.goes_on {
            return self.held.keys().try_for_each(|&shard| self.may_tell(view, shard));
        }
        let node = self.member.node;
        let Some(member) = view.members.iter().find(|member| member.node == node) else {
            return refuse(format!("{node} is back, and was no member of {}: it can join", view.epoch));
        };
        if member.voter != self.member.voter {
            return refuse(format!("{node} is back with another directory than it had in {}: it can join", view.epoch));
        }
        if self.member.incarnation < member.incarnation
            || self.member.incarnation == member.incarnation && !self.still_runs(view)
        {
            let (says, is) = (self.member.incarnation.0, member.incarnation.0);
            return refuse(format!("{node} is back as incarnation {says}, and {is} is a member"));
        }
        if let Some((shard, held)) = self.held.iter().find(|(_, held)| held.end.epoch > view.epoch) {
            let (end, current) = (held.end, view.epoch);
            return refuse(format!("{node} has {shard} up to {end}, and the view log knows of {current} only"));
        }
        let is_told = |shard: &&ShardView| {
            let held = self.held.get(&shard.shard);
            held.is_some_and(|held| held.end.epoch == view.epoch || shard.is_suspended())
        };
        let mut own = view.shards.iter().filter(|shard| self.still_runs(view) && shard.members.contains(&node));
        match own.find(|shard| !is_told(shard)) {
            Some(shard) => {
                refuse(format!("{node} has not stopped, and does not tell its final count of {}", shard.shard))
            }
            None => Ok(()),
        }
    }
}

/// The view in which the members that are back go on, after a view of which less than half does: all of them, in the
/// order of their ranks, as their present lives.
///
/// A shard goes on at the end of the longest log of a member that restarted and was complete in the last view. Members
/// that still run have received all that any member delivered. So if any of them is complete the shard goes on at the
/// smallest of their counts, if that is further. In either case nothing is lost that was delivered by, or is on the
/// disks of, all complete members.
///
/// * Members are complete that have the shard up to there; a shard that none of them has is suspended.
/// * A log of an earlier epoch counts up to where the last view says that this epoch ended.
/// * A log does not count if it lacks what any of them knows to have been acknowledged: its end is damaged.
/// * A member that has the shard up to there, but skips other commands than most, is not complete, since its replica
///   differs.
/// * A shard that [hands on no state](Counts::Passed) begins anew.
/// * A shard that was suspended goes on as in [`reopening`](crate::reopening).
///
/// Shards prefer these nodes. [`check_restart`] accepts this view of all members that are back, if they are more than
/// half. Members that go on in the last view don't count.
pub fn restart(last: &Proposal, layout: &Layout, by: NodeId, backs: &[ReturnReport], preferred: Preferred) -> Proposal {
    let current = &*last.view;
    let backs = &out_of(backs)[..];
    let back = |node: &NodeId| backs.iter().find(|back| back.member.node == *node);
    let mut before = current.clone();
    for member in &mut before.members {
        if let Some(back) = back(&member.node) {
            member.clone_from(&back.member);
        }
    }
    let (before, mut ends) = reopened(&before, backs, |_| true);
    let (mut finals, mut trims, mut holders) = (Finals::new(), Trims::new(), Finals::new());
    for shard in &before.shards {
        let members: Vec<&ReturnReport> = shard.members.iter().filter_map(back).collect();
        let reopened = ends.get(&shard.shard).copied();
        let end = match layout.counts(shard.shard) {
            Counts::Received => reopened.or_else(|| end(current, shard, backs, &members)),
            // A missing member may have gone further, and it is not known which members go on together.
            Counts::Passed => None,
        };
        let reaches = |back: &ReturnReport| end.is_some_and(|end| reach(current, shard, backs, back) >= Some(end));
        let skipped = skipped(current, shard, members.iter().copied().filter(|back| reaches(back)));
        let holds = |back: &ReturnReport| match reopened {
            Some(_) => shard.is_complete(back.member.node),
            None => reaches(back) && Some(back.skipped(shard.shard)) == skipped,
        };
        let is_log = |back: &ReturnReport| back.held.get(&shard.shard).is_some_and(|held| held.version.is_some());
        let holder = |back: &&ReturnReport| {
            let (node, complete) = (back.member.node, holds(back));
            Final { node, count: Seq(0), complete, on_disk: complete && (reopened.is_some() || is_log(back)) }
        };
        holders.insert(shard.shard, members.iter().map(holder).collect());
        let runs = members.iter().filter(|back| back.still_runs(current));
        let count = |back: &&ReturnReport| {
            let held = back.held.get(&shard.shard).filter(|held| held.end.epoch == current.epoch)?;
            Some(Final { node: back.member.node, count: held.end.seq, complete: held.complete, on_disk: false })
        };
        finals.insert(shard.shard, runs.filter_map(count).collect());
        ends.extend(end.map(|end| (shard.shard, end)));
        trims.extend(end.filter(|end| end.epoch == current.epoch).map(|end| (shard.shard, end.seq)));
    }
    let nodes: Vec<NodeId> = backs.iter().map(|back| back.member.node).collect();
    let mut view = rules::following(&before, layout, by, (&nodes, &[]), &holders, &ends, preferred).view;
    let changes = Arc::make_mut(&mut view);
    // A later life joins, and the one before has left.
    let differ = |these: &[Member], others: &[Member]| {
        these.iter().filter(|member| !others.contains(member)).map(|member| member.node).collect()
    };
    changes.joined = differ(&changes.members, &current.members);
    changes.left = differ(&current.members, &changes.members);
    // A member that returns later is to have that, too.
    changes.shards.iter_mut().for_each(|next| learn(next, backs));
    Proposal { by, view, restart: true, finals, trims, ends }
}

/// The view in which one member goes on without any other, started again with its disk, as an operator forces it; and
/// the shards that start anew in it.
///
/// [`check_restart`] would refuse it. The disk's copies count as they are, if the member was complete. Shards of which
/// it was not complete start anew.
pub fn alone_from_disk(last: &Proposal, layout: &Layout, mut back: ReturnReport) -> (Proposal, Vec<ShardId>) {
    back.held.values_mut().for_each(|held| held.trusted = true);
    // The view log's part on that disk may be behind: the log of a shard may have records of later views than the view
    // log knows of.
    let latest = back.held.values().map(|held| held.end.epoch).fold(last.view.epoch, Epoch::max);
    let mut proposal = restart(last, layout, back.member.node, &[back], Preferred::new());
    Arc::make_mut(&mut proposal.view).epoch = Epoch(latest.0 + 1);
    let anew = rules::start_anew(&mut proposal, layout);
    (proposal, anew)
}

/// The members of the view that a restart makes, in the order of their ranks.
pub(crate) fn members_back(current: &View, backs: &[ReturnReport]) -> Vec<Member> {
    let backs = out_of(backs);
    let back = |member: &Member| backs.iter().find(|back| back.member.node == member.node);
    current.members.iter().filter_map(back).map(|back| back.member.clone()).collect()
}

/// The reports of nodes that do no more in the current view.
fn out_of(backs: &[ReturnReport]) -> Vec<ReturnReport> {
    backs.iter().filter(|back| !back.goes_on).cloned().collect()
}

/// The place where a shard that is not suspended goes on, if any of these members has come back with its state.
fn end(view: &View, shard: &ShardView, backs: &[ReturnReport], members: &[&ReturnReport]) -> Option<OrderEnd> {
    let (runs, restarted): (Vec<&ReturnReport>, Vec<&ReturnReport>) =
        members.iter().partition(|back| back.still_runs(view));
    let reach = |back: &ReturnReport| reach(view, shard, backs, back);
    let longest = restarted.into_iter().filter_map(reach).max();
    longest.max(runs.into_iter().filter_map(reach).min())
}

/// Checks that a proposal may follow a view as its restart. It names the current epoch, a node that is back proposes
/// it, more than half of the members are back, and it is what [`restart`] makes of them all.
pub fn check_restart(
    last: &Proposal,
    layout: &Layout,
    backs: &[ReturnReport],
    proposal: &Proposal,
) -> Result<(), Refused> {
    let current = &last.view;
    if proposal.view.epoch.0 != current.epoch.0 + 1 {
        return Err(Refused::NotCurrent { current: current.epoch });
    }
    let refuse = |why: String| Err(Refused::Rule(why));
    if !backs.iter().any(|back| back.member.node == proposal.by && !back.goes_on) {
        return refuse(format!("{} proposes a restart, and has not said what it has", proposal.by));
    }
    let (members, backs) = (current.members.len(), out_of(backs));
    if 2 * backs.len() <= members {
        return refuse(format!("of {members} members {} are back: a restart needs more than half", backs.len()));
    }
    let nodes =
        |these: &[Member]| these.iter().map(|member| (member.node, member.incarnation)).collect::<BTreeSet<_>>();
    layout.check_preferred(&proposal.view.members, &proposal.view.preferred).map_err(Refused::Rule)?;
    let expected = restart(last, layout, proposal.by, &backs, proposal.view.preferred.clone());
    if nodes(&proposal.view.members) != nodes(&expected.view.members) {
        return refuse("its members are not the nodes that are back".into());
    }
    if proposal.ends != expected.ends {
        return refuse(format!("its shards end at {:?}, and what is back makes {:?}", proposal.ends, expected.ends));
    }
    if *proposal != expected {
        return refuse("it is not what follows from what is back".into());
    }
    Ok(())
}
