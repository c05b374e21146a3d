//! Reasons to end a view in which nothing failed: members come, have become complete, or leave.

use squall_fabric::{NodeId, Time};

use crate::{
    input::Settings,
    membership_table::MembershipTable,
    reopen::reopened,
    return_report::ReturnReport,
    view::{MAX_MEMBERS, Member, ShardView, View},
};

/// Members of which a later life asks to join.
pub(crate) fn restarted(view: &View, candidates: &[Member]) -> Vec<NodeId> {
    let is_later = |candidate: &&Member| {
        let is_earlier = |member: &Member| member.node == candidate.node && member.incarnation < candidate.incarnation;
        view.members.iter().any(is_earlier)
    };
    candidates.iter().filter(is_later).map(|candidate| candidate.node).collect()
}

/// Whether this node has got the state of all shards in which the view does not call it complete, if there are any.
pub(crate) fn has_become_complete(table: &MembershipTable) -> bool {
    let node = table.member().node;
    // No member can give this node the state of a suspended shard.
    let lacks = |shard: &ShardView| !shard.is_complete(node) && !shard.complete.is_empty();
    let mut incomplete =
        table.own_shards().map(|(index, _)| index).filter(|&index| lacks(&table.view().shards[index])).peekable();
    incomplete.peek().is_some() && incomplete.all(|index| table.is_complete(table.me(), index))
}

/// Whether a node can join, or members have copies of suspended shards that can go on.
pub(crate) fn can_change(table: &MembershipTable, candidates: &[Member], backs: &[ReturnReport]) -> bool {
    let may_join = |candidate: &Member| table.view().rank_of(candidate.node).is_none();
    let can_join = candidates.iter().any(may_join) && table.len() < MAX_MEMBERS;
    can_join || !backs.is_empty() && !reopened(table.view(), backs, |_| true).1.is_empty()
}

/// The time from which on this node may ask for another view. The lowest rank asks at once; the others only if it does
/// not, since it may not have heard of the node that asks to join.
pub(crate) fn may_ask_at(table: &MembershipTable, since: Time, settings: &Settings) -> Time {
    since + settings.failure_timeout * 2 * table.me() as u32
}

/// Whether this node may leave: not while no other member holds the state of a shard that another one is to get.
pub(crate) fn may_leave(table: &MembershipTable) -> bool {
    let all: Vec<usize> = (0..table.len()).collect();
    may_go(table, table.me(), &all)
}

/// Whether the members that stay can do without one of them. They can't if it alone holds the state of a shard that
/// others of them are to get, or alone has that state on its disk.
pub(crate) fn may_go(table: &MembershipTable, member: usize, stay: &[usize]) -> bool {
    table.view().shards.iter().enumerate().all(|(index, shard)| {
        let mut others = stay.iter().filter(|&&m| m != member && shard.members.contains(&table.node(m))).peekable();
        let holds = shard.members.contains(&table.node(member)) && table.holds(member, index);
        let on_disk = table.is_on_disk(member, index);
        let can_take_over = |other| table.holds(other, index) && (!on_disk || table.is_on_disk(other, index));
        !holds || others.peek().is_none() || others.any(|&other| can_take_over(other))
    })
}
