//! The reports of nodes that come back to a group, and how far their copies of shards count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::view::{Epoch, Former, Holder, Member, OrderEnd, ShardId, ShardState, ShardView, View};

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
/// * A member that [goes on](ReturnReport::goes_on), and has a copy, whole or not, of a suspended shard: as one of its
///   last holders, or a [former](ShardView::former) one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReturnReport {
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

impl ReturnReport {
    /// Whether this is the incarnation that the view names: the member has never stopped.
    pub(crate) fn still_runs(&self, view: &View) -> bool {
        view.members.contains(&self.member)
    }

    /// The commands of its copy of a shard that it has not applied.
    pub(crate) fn skipped(&self, shard: ShardId) -> Skipped {
        self.held.get(&shard).map(|held| held.skipped).unwrap_or_default()
    }
}

/// The commands that most of these nodes, which have a shard up to its end, have not applied. Of equal votes, the one
/// for more skipped commands counts: an operator has said so at some nodes, and not yet at the others.
///
/// A member that still runs tells none, and counts before all others: its log had a list before, or none. So a member
/// that restarted and has a list is to show it to a source, whose list may agree. Of a suspended shard all tell what
/// their copies are.
pub(crate) fn skipped<'a>(
    view: &View,
    shard: &ShardView,
    backs: impl Iterator<Item = &'a ReturnReport>,
) -> Option<Skipped> {
    let runs = |back: &ReturnReport| back.still_runs(view) && !shard.is_suspended();
    let mut votes: BTreeMap<(bool, Skipped), usize> = BTreeMap::new();
    backs.for_each(|back| *votes.entry((runs(back), back.skipped(shard.shard))).or_default() += 1);
    if votes.keys().any(|(runs, _)| *runs) {
        return Some(Skipped::default());
    }
    let votes = votes.into_iter().map(|((_, skipped), votes)| (skipped, votes));
    votes.max_by_key(|&(skipped, votes)| (votes, skipped)).map(|(skipped, _)| skipped)
}

/// The place up to which a node's copy of a shard counts. Of a member that has not left the view in which the shard is
/// held, that is all that it has. Else it is as [`counted_end`] says, of one of the last holders, or of a former one
/// that is known to count.
pub(crate) fn reach(view: &View, shard: &ShardView, backs: &[ReturnReport], back: &ReturnReport) -> Option<OrderEnd> {
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
pub(crate) fn acknowledged(shard: &ShardView, backs: &[ReturnReport]) -> u64 {
    let before = match &shard.state {
        ShardState::Suspended { acknowledged, .. } => *acknowledged,
        ShardState::Active | ShardState::Inadequate => 0,
    };
    let is_earlier = |member: &Member| shard.earlier_holders().any(|holder| holder.is(member));
    let is_holder = |member: &Member| shard.is_complete(member.node) || is_earlier(member);
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
fn counted_end(last: Epoch, began: OrderEnd, holder: &Holder, held: &HeldCopy, acknowledged: u64) -> Option<OrderEnd> {
    let has_all = match held.version {
        Some(_) => held.trusted || held.end >= holder.since && held.has(acknowledged),
        None => held.end >= began,
    };
    (held.complete && has_all).then(|| if held.end.epoch < last { held.end.min(began) } else { held.end })
}

/// Takes over what the logs that are back tell of a suspended shard: the version up to which messages were
/// acknowledged, and the former copies with which it may go on.
///
/// A member's disk reaches the place from which on it has been complete before it has anything acknowledged. So where
/// the log of a holder ends before that place, nothing was acknowledged in any of its views. Copies that were complete
/// up to there, or later, then lack nothing.
pub(crate) fn learn(shard: &mut ShardView, backs: &[ReturnReport]) {
    let known = acknowledged(shard, backs);
    let id = shard.shard;
    let ShardState::Suspended { last_holders, acknowledged, .. } = &mut shard.state else { return };
    *acknowledged = known;
    let is_short = |holder: &Holder| {
        let copies = backs.iter().filter(|back| holder.is(&back.member)).filter_map(|back| back.held.get(&id));
        copies.into_iter().any(|held| held.never_reached(holder.since))
    };
    // The last epoch in which anything may have been acknowledged.
    let mut last = last_holders.iter().filter(|holder| is_short(holder)).map(|holder| holder.since.epoch).min();
    for one in shard.former.iter_mut().rev() {
        one.counts |= last.is_some_and(|last| last <= one.last);
        if one.counts && is_short(&one.holder) {
            let since = one.holder.since.epoch;
            last = Some(last.map_or(since, |last| last.min(since)));
        }
    }
}
