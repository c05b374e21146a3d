//! The restart of a group: the view that follows one of which less than half goes on, when its members come back with
//! their disks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};
use squall_fabric::NodeId;

use crate::{
    layout::{Counts, Layout},
    register::Refused,
    reopen::{learn, reopened},
    rules,
    view::{Epoch, Former, Holder, Member, Seq, ShardId, ShardState, ShardView, View},
    view_log::{Final, Finals, Proposal, Trims},
};

/// The end of a copy of a shard's order: all of the epochs before this one, up to their trims, and so many places of
/// this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OrderEnd {
    /// The last epoch of which the copy has, or could have, anything.
    pub epoch: Epoch,
    /// The number of places of that epoch's order.
    pub seq: Seq,
}

impl OrderEnd {
    /// The place before the first epoch, where an empty log ends.
    pub const START: OrderEnd = OrderEnd { epoch: Epoch(0), seq: Seq(0) };
}

impl std::fmt::Display for OrderEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.seq, self.epoch)
    }
}

/// The places where shards go on whose order does not go on at a trim, but at the end of a copy that came back. What
/// lies behind, in any log or memory, is void.
pub type Ends = BTreeMap<ShardId, OrderEnd>;

/// A node's report of its copy of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCopy {
    /// The end of the copy. A disk's log that ends in an epoch has a record of that epoch's view, so all of the epochs
    /// before it.
    pub end: OrderEnd,
    /// Whether it is the whole state at that place. Of a disk, that is an undamaged log, and the one that it always
    /// had; of a process that has not stopped, the state of a complete member.
    pub complete: bool,
    /// The version at the end: the number of messages in the whole order up to there. None for the memory of a process
    /// that has not stopped: of the view in which it was complete, it has every message of which a caller was told.
    pub version: Option<u64>,
    /// The version up to which this node knows that messages were acknowledged, also where its copy lacks them.
    pub acknowledged: u64,
    /// Whether an operator has accepted the loss of what the copy lacks.
    pub trusted: bool,
    /// The commands before the end that the copy's replica has not applied, on an operator's word. A process that has
    /// not stopped tells none.
    pub skipped: Skipped,
}

/// The commands of a copy that are not applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Skipped {
    /// Their number.
    pub commands: u32,
    /// The last one's version.
    pub last: u64,
    /// A digest of the commands; 0 if there are none.
    pub digest: u64,
}

impl HeldCopy {
    /// Whether the copy has the messages that were acknowledged up to this version.
    pub(crate) fn has(&self, acknowledged: u64) -> bool {
        self.version.is_none_or(|version| version >= acknowledged.max(self.acknowledged))
    }

    /// Whether it is a disk's log that still has everything it ever had, and ends before this place.
    pub(crate) fn never_reached(&self, place: OrderEnd) -> bool {
        self.version.is_some() && self.complete && !self.trusted && self.has(0) && self.end < place
    }
}

/// The report of a node that comes back to the group: its copies of shards.
///
/// Such a node is one of these:
/// * A node that has started anew with its disk, as a later incarnation of a member of the current view, with the same
///   part in the view log.
/// * A member that is wedged, has its final counts, and can't keep half of the view. Like the first, it does no more in
///   that view.
/// * A member that [goes on](Back::goes_on), and has a copy, whole or not, of a suspended shard: as one of its last
///   holders, or a [former](ShardView::former) one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Back {
    /// The node, as it is now.
    pub member: Member,
    /// The current view's epoch.
    pub epoch: Epoch,
    /// Whether it stays a member, and only reports suspended shards, which go on in the next view in which it stays.
    pub goes_on: bool,
    /// Its copies, by shard. A wedged member names all shards of which it is a member, with its final counts. For a
    /// suspended one it names its copy from before instead.
    pub held: BTreeMap<ShardId, HeldCopy>,
}

impl Back {
    /// Whether this is the incarnation that the view names: the member has never stopped.
    fn still_runs(&self, view: &View) -> bool {
        view.members.contains(&self.member)
    }

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
/// [`check_restart`] accepts this view of all members that are back, if they are more than half. Members that go on in
/// the last view don't count.
pub fn restart(last: &Proposal, layout: &Layout, by: NodeId, backs: &[Back]) -> Proposal {
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
        let members: Vec<&Back> = shard.members.iter().filter_map(back).collect();
        let reopened = ends.get(&shard.shard).copied();
        let end = match layout.counts(shard.shard) {
            Counts::Received => reopened.or_else(|| end(current, shard, backs, &members)),
            // A missing member may have gone further, and it is not known which members go on together.
            Counts::Passed => None,
        };
        let reaches = |back: &Back| end.is_some_and(|end| reach(current, shard, backs, back) >= Some(end));
        let skipped = skipped(current, shard, members.iter().copied().filter(|back| reaches(back)));
        let holds = |back: &Back| match reopened {
            Some(_) => shard.is_complete(back.member.node),
            None => reaches(back) && Some(skipped_by(shard.shard, back)) == skipped,
        };
        let is_log = |back: &Back| back.held.get(&shard.shard).is_some_and(|held| held.version.is_some());
        let holder = |back: &&Back| {
            let (node, complete) = (back.member.node, holds(back));
            Final { node, count: Seq(0), complete, on_disk: complete && (reopened.is_some() || is_log(back)) }
        };
        holders.insert(shard.shard, members.iter().map(holder).collect());
        let runs = members.iter().filter(|back| back.still_runs(current));
        let count = |back: &&Back| {
            let held = back.held.get(&shard.shard).filter(|held| held.end.epoch == current.epoch)?;
            Some(Final { node: back.member.node, count: held.end.seq, complete: held.complete, on_disk: false })
        };
        finals.insert(shard.shard, runs.filter_map(count).collect());
        ends.extend(end.map(|end| (shard.shard, end)));
        trims.extend(end.filter(|end| end.epoch == current.epoch).map(|end| (shard.shard, end.seq)));
    }
    let nodes: Vec<NodeId> = backs.iter().map(|back| back.member.node).collect();
    let mut view = rules::following(&before, layout, by, &nodes, &[], &holders, &ends).view;
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
pub fn alone_from_disk(last: &Proposal, layout: &Layout, mut back: Back) -> (Proposal, Vec<ShardId>) {
    back.held.values_mut().for_each(|held| held.trusted = true);
    // The view log's part on that disk may be behind: the log of a shard may have records of later views than the view
    // log knows of.
    let latest = back.held.values().map(|held| held.end.epoch).fold(last.view.epoch, Epoch::max);
    let mut proposal = restart(last, layout, back.member.node, &[back]);
    Arc::make_mut(&mut proposal.view).epoch = Epoch(latest.0 + 1);
    let anew = rules::start_anew(&mut proposal, layout);
    (proposal, anew)
}

/// The reports of nodes that do no more in the current view.
fn out_of(backs: &[Back]) -> Vec<Back> {
    backs.iter().filter(|back| !back.goes_on).cloned().collect()
}

/// The place where a shard that is not suspended goes on, if any of these members has come back with its state.
fn end(view: &View, shard: &ShardView, backs: &[Back], members: &[&Back]) -> Option<OrderEnd> {
    let (runs, restarted): (Vec<&Back>, Vec<&Back>) = members.iter().partition(|back| back.still_runs(view));
    let reach = |back: &Back| reach(view, shard, backs, back);
    let longest = restarted.into_iter().filter_map(reach).max();
    longest.max(runs.into_iter().filter_map(reach).min())
}

/// The commands of its copy of a shard that a node has not applied.
pub(crate) fn skipped_by(shard: ShardId, back: &Back) -> Skipped {
    back.held.get(&shard).map(|held| held.skipped).unwrap_or_default()
}

/// The commands that most of these nodes, which have a shard up to its end, have not applied. Of equal votes, the one
/// for more skipped commands counts: an operator has said so at some nodes, and not yet at the others.
///
/// A member that still runs tells none, and counts before all others: its log had a list before, or none. So a member
/// that restarted and has a list is to show it to a source, whose list may agree. Of a suspended shard all tell what
/// their copies are.
pub(crate) fn skipped<'a>(view: &View, shard: &ShardView, backs: impl Iterator<Item = &'a Back>) -> Option<Skipped> {
    let runs = |back: &Back| back.still_runs(view) && !shard.is_suspended();
    let mut votes: BTreeMap<(bool, Skipped), usize> = BTreeMap::new();
    backs.for_each(|back| *votes.entry((runs(back), skipped_by(shard.shard, back))).or_default() += 1);
    if votes.keys().any(|(runs, _)| *runs) {
        return Some(Skipped::default());
    }
    let votes = votes.into_iter().map(|((_, skipped), votes)| (skipped, votes));
    votes.max_by_key(|&(skipped, votes)| (votes, skipped)).map(|(skipped, _)| skipped)
}

/// The place up to which a node's copy of a shard counts. Of a member that has not left the view in which the shard is
/// held, that is all that it has. Else it is as [`counted_end`] says, of one of the last holders, or of a former one
/// that is known to count.
pub(crate) fn reach(view: &View, shard: &ShardView, backs: &[Back], back: &Back) -> Option<OrderEnd> {
    let held = back.held.get(&shard.shard)?;
    if back.still_runs(view) && !shard.is_suspended() {
        return held.complete.then_some(held.end);
    }
    let known = acknowledged(shard, backs);
    let as_last = || counted_end(shard.held_until(view.epoch), shard.began, &shard.holder(&back.member)?, held, known);
    let counts = |one: &&Former| one.counts && one.holder.is(&back.member) && held.version.is_some();
    let former = shard.former.iter().filter(counts);
    former.filter_map(|one| counted_end(one.last, one.began, &one.holder, held, known)).max().max(as_last())
}

/// The version up to which messages were acknowledged, as far as the logs of the shard's last or former holders say.
/// Other nodes' logs may be of another life of the group.
pub(crate) fn acknowledged(shard: &ShardView, backs: &[Back]) -> u64 {
    let (before, holders) = match &shard.state {
        ShardState::Suspended { last_holders, acknowledged, .. } => (*acknowledged, &last_holders[..]),
        _ => (0, &[][..]),
    };
    let holders = || holders.iter().chain(shard.former.iter().map(|one| &one.holder));
    let is_holder = |member: &Member| shard.is_complete(member.node) || holders().any(|holder| holder.is(member));
    let holding = backs.iter().filter(|back| is_holder(&back.member));
    let told = holding.filter_map(|back| Some(back.held.get(&shard.shard)?.acknowledged));
    told.fold(before, u64::max)
}

/// The place up to which a holder's copy counts, if nothing was acknowledged after the holder's last view. That view is
/// of epoch `last`, and the shard's order `began` at that place in it. None if the copy may lack something that was
/// acknowledged.
///
/// A disk's copy has all of that if it reaches the place from which on it has been complete. What was acknowledged
/// before lies before that place, and what was acknowledged later had to be on this disk. A copy that lacks what is
/// known to have been `acknowledged` was damaged. A copy for which an operator has accepted that loss counts all the
/// same.
///
/// The memory of a process that has not stopped has all that any member has delivered, since delivery took its receipt:
/// of the last view, or, if it never installed that, of the one before.
///
/// Records of earlier epochs beyond the place where that view began are void. Those of later epochs, in which the copy
/// was not complete any more, were delivered.
pub(crate) fn counted_end(
    last: Epoch,
    began: OrderEnd,
    holder: &Holder,
    held: &HeldCopy,
    acknowledged: u64,
) -> Option<OrderEnd> {
    let has_all = match held.version {
        Some(_) => held.trusted || held.end >= holder.since && held.has(acknowledged),
        None => held.end >= began,
    };
    (held.complete && has_all).then(|| if held.end.epoch < last { held.end.min(began) } else { held.end })
}

/// Checks that a proposal may follow a view as its restart. It names the current epoch, a node that is back proposes
/// it, more than half of the members are back, and it is what [`restart`] makes of them all.
pub fn check_restart(last: &Proposal, layout: &Layout, backs: &[Back], proposal: &Proposal) -> Result<(), Refused> {
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
    let expected = restart(last, layout, proposal.by, &backs);
    if nodes(&proposal.view.members) != nodes(&expected.view.members) {
        return refuse("its members are not those who are back".into());
    }
    if proposal.ends != expected.ends {
        return refuse(format!("its shards end at {:?}, and what is back makes {:?}", proposal.ends, expected.ends));
    }
    if *proposal != expected {
        return refuse("it is not what follows from what is back".into());
    }
    Ok(())
}
