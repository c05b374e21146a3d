//! The rules for a view's successor, which make each epoch's successor safe, whichever member proposed it.

use std::{collections::BTreeMap, sync::Arc};

use squall_fabric::NodeId;

use crate::{
    layout::{Counts, Layout, ShardLayout},
    view::{
        Epoch, Former, Holder, MAX_FORMER, MAX_MEMBERS, Member, OrderEnd, Preferred, Seq, ShardId, ShardState,
        ShardView, View,
    },
    view_log::{Ends, Final, Finals, Proposal, Refused, Trims},
};

/// The successor in which these members of a view stay, and these join. Shards prefer the nodes that they
/// preferred, as far as these are members.
///
/// `finals` are the final counts of the members that stay. Others in it are left out; but where no member stays that
/// holds a shard's state, those others that hold it are its last holders. Members that stay keep the view's order, and
/// joiners come after them. [`check`] accepts the result of final counts that are complete, if at least half stay, no
/// more join, and all joiners are candidates.
pub fn successor(
    current: &View,
    layout: &Layout,
    by: NodeId,
    stay: &[NodeId],
    join: &[Member],
    finals: &Finals,
) -> Proposal {
    let stays = |node: &NodeId| stay.contains(node) || join.iter().any(|member| member.node == *node);
    let mut preferred = current.preferred.clone();
    preferred.values_mut().for_each(|nodes| nodes.retain(stays));
    following(current, layout, by, (stay, join), finals, &Ends::new(), preferred)
}

/// Returns what [`successor`] does, where some shards' orders end at these places and not at trims, and shards prefer
/// these nodes.
pub(crate) fn following(
    current: &View,
    layout: &Layout,
    by: NodeId,
    (stay, join): (&[NodeId], &[Member]),
    finals: &Finals,
    ends: &Ends,
    preferred: Preferred,
) -> Proposal {
    let (staying, gone): (Vec<&Member>, Vec<&Member>) =
        current.members.iter().partition(|member| stay.contains(&member.node));
    let members: Vec<Member> = staying.iter().copied().chain(join).cloned().collect();
    // The holders of each state at the end of the current view, for the layout function too.
    let mut before = current.clone();
    let (mut kept, mut trims, mut holders) = (Finals::new(), Trims::new(), BTreeMap::new());
    for shard in &mut before.shards {
        let told = finals.get(&shard.shard).map_or(&[][..], Vec::as_slice);
        holders.insert(shard.shard, last_holders(current, shard, told));
        let ends: Vec<Final> = shard
            .members
            .iter()
            .filter(|node| stay.contains(node))
            .filter_map(|node| told.iter().find(|end| end.node == *node).copied())
            .collect();
        shard.complete = ends.iter().filter(|end| end.complete).map(|end| end.node).collect();
        let counts = ends.iter().filter(|end| end.complete).map(|end| end.count);
        let trim = match layout.counts(shard.shard) {
            Counts::Received => counts.min(),
            Counts::Passed => counts.max(),
        };
        trims.extend(trim.map(|trim| (shard.shard, trim)));
        kept.insert(shard.shard, ends);
    }
    let assigned = layout.assign(&members, Some(&before), &preferred);
    let shards = layout.shards().zip(assigned).map(|((shard, its), members)| {
        let group = its.group;
        let held = match group.counts {
            Counts::Received => before.shard(shard).map_or(&[][..], |before| &before.complete),
            Counts::Passed => &members,
        };
        let complete: Vec<NodeId> = members.iter().copied().filter(|node| held.contains(node)).collect();
        let senders = group.senders_of(&complete);
        let state = state(its, &complete, holders.remove(&shard));
        let trim = trims.get(&shard).map(|&seq| OrderEnd { epoch: current.epoch, seq });
        let ended = ends.get(&shard).copied().or(trim).filter(|_| group.counts == Counts::Received);
        let (began, since) = beginning(current.shard(shard), ended, &complete);
        let former = match group.counts {
            Counts::Received => former(current, shard, &complete, kept.get(&shard).map_or(&[], Vec::as_slice)),
            Counts::Passed => Vec::new(),
        };
        ShardView { shard, members, senders, complete, began, since, former, state }
    });
    let view = View {
        life: current.life,
        epoch: Epoch(current.epoch.0 + 1),
        shards: shards.collect(),
        joined: join.iter().map(|member| member.node).collect(),
        left: gone.iter().map(|member| member.node).collect(),
        members,
        preferred,
    };
    Proposal { by, view: Arc::new(view), restart: false, finals: kept, trims, ends: ends.clone() }
}

/// The place where a shard's next view begins, if the one before `ended` there, and the places since which these
/// members have been complete.
fn beginning(
    before: Option<&ShardView>,
    ended: Option<OrderEnd>,
    complete: &[NodeId],
) -> (OrderEnd, BTreeMap<NodeId, OrderEnd>) {
    // Where no member holds the state, the order has not ended.
    let began = ended.or(before.map(|before| before.began)).unwrap_or(OrderEnd::START);
    let since = |node: &NodeId| match before.filter(|before| before.is_complete(*node)) {
        Some(before) => before.since.get(node).map(|&since| (*node, since)),
        None => Some((*node, began)),
    };
    (began, complete.iter().filter_map(since).collect())
}

/// The former copies that the next view names, if these members are complete in it.
///
/// If a member's disk reaches the place from which on the member has been complete, it does so for as long as the
/// member is complete, so no other copy is needed. Else what was acknowledged may be only on the disks of members that
/// are complete no more.
fn former(current: &View, shard: ShardId, complete: &[NodeId], told: &[Final]) -> Vec<Former> {
    let Some(before) = current.shard(shard) else { return Vec::new() };
    if complete.is_empty() {
        return before.former.clone();
    }
    if told.iter().any(|end| end.on_disk && before.is_complete(end.node) && complete.contains(&end.node)) {
        return Vec::new();
    }
    let ceases = |member: &&Member| before.is_complete(member.node) && !complete.contains(&member.node);
    let ceased = current.members.iter().filter(ceases).filter_map(|member| before.holder(member));
    let former = |holder| Former { holder, last: current.epoch, began: before.began, counts: false };
    let mut former: Vec<Former> = before.former.iter().copied().chain(ceased.map(former)).collect();
    former.drain(..former.len().saturating_sub(MAX_FORMER));
    former
}

/// The successor of a view in which one member goes on without any other, as an operator forces it. [`check`] would
/// refuse it. Shards whose state that member does not hold start anew; they are returned, too.
pub fn alone(current: &View, layout: &Layout, by: NodeId, finals: &Finals) -> (Proposal, Vec<ShardId>) {
    let mut proposal = successor(current, layout, by, &[by], &[], finals);
    let anew = start_anew(&mut proposal, layout);
    (proposal, anew)
}

/// Lets the shards of a forced view whose state no member holds start anew. Returns these shards.
pub(crate) fn start_anew(proposal: &mut Proposal, layout: &Layout) -> Vec<ShardId> {
    let view = Arc::make_mut(&mut proposal.view);
    let mut anew = Vec::new();
    for (shard, (_, its)) in view.shards.iter_mut().zip(layout.shards()) {
        // Their logs may go on with what the life before decides.
        shard.former.clear();
        if shard.complete.is_empty() {
            anew.push(shard.shard);
            shard.complete.clone_from(&shard.members);
            shard.senders = its.group.senders_of(&shard.complete);
            shard.state = state(its, &shard.complete, None);
        }
    }
    anew
}

/// The copies of a shard that were complete last. A member that got its copy during the view is among them, as far as
/// its final count tells. It lacks what others acknowledged before they counted it, so no log of its disk counts.
fn last_holders(view: &View, shard: &ShardView, told: &[Final]) -> ShardState {
    if shard.is_suspended() {
        return shard.state.clone();
    }
    let holds = |node: NodeId| told.iter().any(|end| end.node == node && end.complete);
    let nodes = shard.members.iter().filter(|&&node| shard.is_complete(node) || holds(node));
    suspended(view, shard, nodes)
}

/// The state of a shard that was held until this view, if these members held it.
fn suspended<'a>(view: &View, shard: &ShardView, nodes: impl Iterator<Item = &'a NodeId>) -> ShardState {
    let unknown = OrderEnd { epoch: view.epoch, seq: Seq(u64::MAX) };
    let holder = |node: &NodeId| {
        let member = view.members.iter().find(|member| member.node == *node)?;
        let late = Holder { node: *node, voter: member.voter, since: unknown };
        Some(shard.holder(member).unwrap_or(late))
    };
    ShardState::Suspended { after: view.epoch, last_holders: nodes.filter_map(holder).collect(), acknowledged: 0 }
}

/// The state of a shard with these complete members; without any it is `suspended`.
fn state(shard: ShardLayout<'_>, complete: &[NodeId], suspended: Option<ShardState>) -> ShardState {
    if let (true, Some(suspended)) = (complete.is_empty(), suspended) {
        suspended
    } else if complete.len() < shard.min_replicas() as usize {
        ShardState::Inadequate
    } else {
        ShardState::Active
    }
}

/// Checks that a proposal may follow a view.
///
/// The rules are (a) to (f) of docs/src/internals/view-log.md:
/// * It follows the current epoch, and a member proposes it.
/// * At least half of the members stay, as the same incarnations and in the same order.
/// * Joiners, all of them candidates, come last and are no more than stay.
/// * Its policy prefers members, in shards that there are.
/// * It carries the final counts of all members that stay, and all else is what [`successor`] makes of these. Each
///   shard's trim is the smallest final count of its complete members that stay, or the greatest of a shard that
///   [counts so](Counts::Passed). A shard without such a member has no trim and is suspended.
///
/// A member that the view does not call complete may have become so, which can't be seen here: its own row says it. A
/// proposer passes that on, in the final counts of members that stay and the last holders of a shard that is suspended.
pub fn check(current: &View, layout: &Layout, candidates: &[Member], proposal: &Proposal) -> Result<(), Refused> {
    check_ending(current, layout, candidates, &Ends::new(), proposal)
}

/// Checks as [`check`] does, where some shards' orders end at these places and not at trims.
pub(crate) fn check_ending(
    current: &View,
    layout: &Layout,
    candidates: &[Member],
    ends: &Ends,
    proposal: &Proposal,
) -> Result<(), Refused> {
    let next = &proposal.view;
    if next.epoch.0 != current.epoch.0 + 1 {
        return Err(Refused::NotCurrent { current: current.epoch });
    }
    let refuse = |why: String| Err(Refused::Rule(why));
    if current.rank_of(proposal.by).is_none() {
        return refuse(format!("{} proposes, and is not a member", proposal.by));
    }
    let is_same = |member: &&Member| current.members.contains(member);
    let stay = next.members.iter().take_while(is_same).count();
    let (staying, joining) = next.members.split_at(stay);
    if 2 * stay < current.members.len() {
        return refuse(format!("of {} members only {stay} stay, less than half", current.members.len()));
    }
    if joining.len() > stay || next.members.len() > MAX_MEMBERS {
        return refuse(format!(
            "{} nodes join {stay} members that stay: more than these, or than a view has room for",
            joining.len()
        ));
    }
    let ranks: Vec<_> = staying.iter().filter_map(|member| current.rank_of(member.node)).collect();
    if !ranks.is_sorted_by(|a, b| a < b) {
        return refuse("the members that stay are not in the order of their ranks, each once".into());
    }
    if let Some(stranger) = joining.iter().find(|member| !candidates.contains(member)) {
        return refuse(format!("{} joins and did not ask to, as it is said to be", stranger.node));
    }
    check_each_once(&next.members)?;
    let stay: Vec<NodeId> = staying.iter().map(|member| member.node).collect();
    check_finals(current, &stay, &proposal.finals)?;
    layout.check_preferred(&next.members, &next.preferred).map_err(Refused::Rule)?;
    let changes = (&stay[..], joining);
    let mut expected = following(current, layout, proposal.by, changes, &proposal.finals, ends, next.preferred.clone());
    let shards = Arc::make_mut(&mut expected.view).shards.iter_mut();
    shards.zip(&next.shards).zip(&current.shards).for_each(|((expected, given), before)| {
        take_over_holders(current, before, expected, given);
    });
    if proposal.trims != expected.trims {
        return refuse(format!("its trims are {:?}, and its final counts make {:?}", proposal.trims, expected.trims));
    }
    if *proposal != expected {
        return refuse(
            "its shards, or its lists of nodes that joined and left, are not what follows from its members".into(),
        );
    }
    Ok(())
}

/// Checks that no node is in a view twice.
pub(crate) fn check_each_once(members: &[Member]) -> Result<(), Refused> {
    let twice = |(i, member): &(usize, &Member)| members[..*i].iter().any(|other| other.node == member.node);
    match members.iter().enumerate().find(twice) {
        Some((_, member)) => Err(Refused::Rule(format!("{} is in it twice", member.node))),
        None => Ok(()),
    }
}

/// Accepts last holders that only the proposer may know: members that do not stay, and had become complete.
fn take_over_holders(current: &View, before: &ShardView, expected: &mut ShardView, given: &ShardView) {
    let (ShardState::Suspended { last_holders, .. }, ShardState::Suspended { last_holders: told, .. }) =
        (&expected.state, &given.state)
    else {
        return;
    };
    let told: Vec<NodeId> = told.iter().map(|holder| holder.node).collect();
    let are_members = before.members.iter().filter(|node| told.contains(node)).eq(&told);
    if !before.is_suspended() && are_members && last_holders.iter().all(|holder| told.contains(&holder.node)) {
        expected.state = suspended(current, before, told.iter());
    }
}

/// Checks that there is one final count of each member that stays, for each of its shards, and no other.
fn check_finals(current: &View, stay: &[NodeId], finals: &Finals) -> Result<(), Refused> {
    for shard in &current.shards {
        let expected = shard.members.iter().filter(|node| stay.contains(node));
        let given = finals.get(&shard.shard).map_or(&[][..], Vec::as_slice);
        if !expected.eq(given.iter().map(|end| &end.node)) {
            let why = format!("its final counts of {} are not one of each member that stays", shard.shard);
            return Err(Refused::Rule(why));
        }
        if let Some(end) = given.iter().find(|end| shard.is_suspended() && end.complete) {
            let why = format!("{} can't hold the state of {}, which is suspended", end.node, shard.shard);
            return Err(Refused::Rule(why));
        }
        if let Some(end) = given.iter().find(|end| !end.complete && shard.is_complete(end.node)) {
            let why =
                format!("{} holds the state of {} in this view, and its final count says no", end.node, shard.shard);
            return Err(Refused::Rule(why));
        }
    }
    Ok(())
}
