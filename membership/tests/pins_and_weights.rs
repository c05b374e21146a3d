//! Tests of the options that say which members hold which shards: pins, racks, reserved members and weights; and of the
//! limit on moves.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use squall_fabric::NodeId;
use squall_membership::{
    GroupLayout, Holder, Layout, LayoutError, Member, OrderEnd, ShardLayout, ShardOptions, ShardState, ShardView, View,
};

use crate::layout::{
    RACKS, at_rest, changes, group, layout_of, member, members, new_replicas, places, plain, settled, through, view,
};

fn ids(nodes: &[u32]) -> Vec<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

fn pinned(nodes: &[u32], only: bool) -> ShardOptions {
    ShardOptions { pinned: ids(nodes), only, ..ShardOptions::default() }
}

/// A group of shards of two, the first with these options.
fn with_first(shards: u32, options: ShardOptions) -> Layout {
    layout_of(vec![GroupLayout { options: BTreeMap::from([(0, options)]), ..group("g", shards, Some(2)) }])
}

/// The number of shards that each member holds, in the view's order.
fn loads(view: &View) -> Vec<usize> {
    let load = |member: &Member| view.shards.iter().filter(|shard| shard.members.contains(&member.node)).count();
    view.members.iter().map(load).collect()
}

#[test]
fn pinned_members_hold_a_shard_first_and_others_if_these_are_too_few() {
    let layout = with_first(3, pinned(&[3, 4], false));
    let first = at_rest(&layout, &plain(1..=4), None);
    assert_eq!(places(&first)[0], [3, 4]);
    let one_gone = at_rest(&layout, &plain(1..=3), Some(&first));
    assert_eq!(places(&one_gone)[0].len(), 2);
    assert!(places(&one_gone)[0].contains(&3), "{:?}", places(&one_gone));
    let mut back = settled(&layout, &plain(1..=4), Some(&one_gone));
    assert_eq!(places(&back)[0].len(), 3, "the one that goes holds it until the pinned one does");
    back = settled(&layout, &plain(1..=4), Some(&back));
    assert_eq!(places(&back)[0], [3, 4]);
}

#[test]
fn a_shard_of_pinned_members_only_has_fewer_rather_than_others() {
    let layout = with_first(2, pinned(&[3, 4], true));
    let first = at_rest(&layout, &plain(1..=4), None);
    assert_eq!(places(&first)[0], [3, 4]);
    assert_eq!(places(&at_rest(&layout, &plain(1..=3), Some(&first)))[0], [3]);
    let all =
        layout_of(vec![GroupLayout { options: BTreeMap::from([(0, pinned(&[2, 4], true))]), ..group("g", 2, None) }]);
    assert_eq!(places(&at_rest(&all, &plain(1..=4), None)), [vec![2, 4], vec![1, 2, 3, 4]]);
    let none = settled(&layout, &plain(1..=2), None);
    assert_eq!(places(&none)[0], [1, 2], "a shard has members, whatever is said");
    let there = at_rest(&layout, &plain(1..=3), Some(&none));
    assert_eq!(places(&there)[0], [3]);
}

#[test]
fn a_shard_is_in_its_racks_first() {
    let racks = ["a", "a", "b", "b", "c"];
    let members: Vec<Member> = (1..).zip(racks).map(|(node, rack)| member(node, rack)).collect();
    let in_racks = |only| ShardOptions { racks: vec!["b".into()], only, ..ShardOptions::default() };
    for only in [false, true] {
        let first = at_rest(&with_first(2, in_racks(only)), &members, None);
        assert_eq!(places(&first)[0], [3, 4], "racks that are named go before racks that differ");
        let rest: Vec<Member> = members.iter().filter(|member| member.node != NodeId(4)).cloned().collect();
        let then = at_rest(&with_first(2, in_racks(only)), &rest, Some(&first));
        assert_eq!(places(&then)[0].len(), if only { 1 } else { 2 });
    }
}

#[test]
fn reserved_members_and_those_without_weight_hold_no_shard_that_has_a_limit() {
    let mut layout =
        layout_of(vec![GroupLayout { reserved: ids(&[2]), ..group("g", 4, Some(2)) }, group("h", 1, None)]);
    layout.weights = BTreeMap::from([(NodeId(3), 0)]);
    let first = at_rest(&layout, &plain(1..=5), None);
    assert_eq!(loads(&first)[1..3], [1, 1], "{:?}", places(&first));
    assert_eq!(places(&first)[4], [1, 2, 3, 4, 5]);
    let left = at_rest(&layout, &plain(2..=3), Some(&first));
    assert_eq!(loads(&left), [5, 5], "there is no other member");
}

#[test]
fn the_loads_are_in_proportion_to_the_weights() {
    let mut layout = layout_of(vec![group("g", 12, Some(1))]);
    layout.weights = BTreeMap::from([(NodeId(1), 3), (NodeId(2), 2)]);
    let first = at_rest(&layout, &plain(1..=3), None);
    assert_eq!(loads(&first), [6, 4, 2]);
    layout.weights = BTreeMap::from([(NodeId(3), 2)]);
    assert_eq!(loads(&at_rest(&layout, &plain(1..=3), Some(&first))), [3, 3, 6]);
}

#[test]
fn no_more_shards_move_to_a_member_at_a_time_than_the_limit_says() {
    let mut layout = layout_of(vec![group("g", 12, Some(1))]);
    layout.moves_at_once = 2;
    let mut current = settled(&layout, &plain(1..=2), None);
    for moved in [2, 4, 4] {
        let new: Vec<u32> = (1..=3).collect();
        let next = view(&layout, &plain(new), Some(&current), |shard, node| {
            current.shard(shard.shard).unwrap().complete.contains(&node)
        });
        let at_new = |shard: &&ShardView| shard.members.contains(&NodeId(3));
        assert_eq!(next.shards.iter().filter(at_new).count(), moved);
        let again =
            view(&layout, &plain(1..=3), Some(&next), |shard, node| next.shard(shard.shard).unwrap().is_complete(node));
        assert_eq!(places(&again), places(&next), "what is under way holds up the rest");
        current = next;
        current.shards.iter_mut().for_each(|shard| shard.complete = shard.members.clone());
    }
}

#[test]
fn a_member_from_which_a_shard_moves_goes_once_the_others_hold_it() {
    let layout = layout_of(vec![group("g", 3, Some(2))]);
    let first = settled(&layout, &plain(1..=3), None);
    let mut moving = settled(&layout, &plain(1..=4), Some(&first));
    assert_eq!(places(&moving), [vec![1, 2, 4], vec![1, 3], vec![2, 3]]);
    moving.shards[0].complete = ids(&[1, 2]);
    let going: Vec<Vec<NodeId>> = layout.going(&moving).into_values().collect();
    assert_eq!(going, [ids(&[1]), ids(&[]), ids(&[])]);
    let done = settled(&layout, &plain(1..=4), Some(&settled(&layout, &plain(1..=4), Some(&first))));
    assert!(layout.going(&done).values().all(Vec::is_empty), "{:?}", places(&done));
}

#[test]
fn a_suspended_shard_holds_up_no_moves() {
    let mut layout = layout_of(vec![group("g", 5, Some(1))]);
    layout.moves_at_once = 1;
    let mut lost = settled(&layout, &plain([1]), None);
    lost.shards[0].complete.clear();
    let member = &lost.members[0];
    let holder = Holder { node: member.node, voter: member.voter, since: OrderEnd::START };
    for last_holders in [Vec::new(), vec![holder]] {
        lost.shards[0].state = ShardState::Suspended { after: lost.epoch, last_holders, acknowledged: 0 };
        let next = view(&layout, &plain(1..=2), Some(&lost), |shard, node| shard.shard.0 > 0 && node == NodeId(1));
        let held: Vec<_> = next.shards[1..].iter().filter(|shard| shard.members.contains(&NodeId(2))).collect();
        assert_eq!(held.len(), 1, "{:?}", places(&next));
    }
}

#[test]
fn a_shard_that_works_does_not_stop_since_one_of_its_own_nodes_has_come() {
    let options = BTreeMap::from([(0, pinned(&[3, 4], true))]);
    let group = GroupLayout { min_replicas: 2, options, ..group("g", 1, Some(2)) };
    let layout = layout_of(vec![group]);
    let mut before = settled(&layout, &plain(1..=2), None);
    for members in [plain(1..=3), plain(1..=3), plain(1..=4), plain(1..=4)] {
        before = settled(&layout, &members, Some(&before));
        assert!(before.shards[0].complete.len() >= 2, "{:?}", places(&before));
    }
    assert_eq!(before.shards[0].members, ids(&[3, 4]));
}

#[test]
fn impossible_options_are_refused_with_what_to_do() {
    let refused = |options: ShardOptions, change: fn(&mut GroupLayout)| {
        let mut group = GroupLayout { options: BTreeMap::from([(1, options)]), ..group("g", 2, Some(3)) };
        change(&mut group);
        match layout_of(vec![group]).check() {
            Err(LayoutError::Shard { shard: 1, why, .. }) => why,
            other => format!("{other:?}"),
        }
    };
    let none = |_: &mut GroupLayout| {};
    let options = ShardOptions::default;
    assert_eq!(refused(pinned(&[1], false), none), "Ok(())");
    assert!(refused(options(), |group| group.shards = 1).contains("1 shards, numbered from 0"));
    assert!(refused(ShardOptions { min_replicas: Some(0), ..options() }, none).contains("give 1 to 64"));
    assert!(refused(ShardOptions { min_replicas: Some(4), ..options() }, none).contains("max_replicas is 3"));
    assert!(refused(ShardOptions { only: true, ..options() }, none).contains("neither `pinned` nor `racks`"));
    assert!(refused(pinned(&[1], false), |group| group.max_replicas = None).contains("all members hold it"));
    assert!(refused(pinned(&[1], false), |group| group.reserved = ids(&[1])).contains("node 1 is pinned"));
    assert!(refused(pinned(&[1], true), |group| group.min_replicas = 2).contains("only 1 members"));
    let check = |change: fn(&mut Layout)| {
        let mut layout = layout_of(vec![group("g", 1, None)]);
        change(&mut layout);
        layout.check()
    };
    let (node, weight) = (NodeId(1), 1001);
    let weighs = check(|layout| layout.weights = BTreeMap::from([(NodeId(1), 1001)]));
    assert_eq!(weighs, Err(LayoutError::Weight { node, weight }));
    assert_eq!(check(|layout| layout.moves_at_once = 0), Err(LayoutError::NoMoves));
}

/// The members that may hold a shard: those that hold it first, then others.
pub(crate) fn tiers(layout: &Layout, members: &[Member], shard: ShardLayout<'_>) -> Vec<BTreeSet<NodeId>> {
    let own = shard.own().cloned().unwrap_or_default();
    let all: BTreeSet<NodeId> = members.iter().map(|member| member.node).collect();
    let weight = |node: &NodeId| layout.weights.get(node).copied().unwrap_or(1);
    let is_free =
        |node: &NodeId| !shard.group.reserved.contains(node) && (weight(node) > 0 || shard.max_replicas().is_none());
    let free: BTreeSet<NodeId> = all.iter().copied().filter(is_free).collect();
    let is_near = |member: &&Member| free.contains(&member.node) && own.racks.contains(&member.rack);
    let near: BTreeSet<NodeId> = members.iter().filter(is_near).map(|member| member.node).collect();
    let pinned: BTreeSet<NodeId> = all.iter().copied().filter(|node| own.pinned.contains(node)).collect();
    let others = if own.only { BTreeSet::new() } else { free.clone() };
    let is_some = |tiers: &Vec<BTreeSet<NodeId>>| tiers.iter().any(|tier| !tier.is_empty());
    let is_in_racks = |member: &&Member| own.racks.contains(&member.rack);
    let in_racks = members.iter().filter(is_in_racks).map(|member| member.node).collect();
    [vec![pinned, near, others], vec![in_racks], vec![free], vec![all]].into_iter().find(is_some).unwrap()
}

/// The number of members that a shard has.
pub(crate) fn wanted(layout: &Layout, members: &[Member], shard: ShardLayout<'_>) -> usize {
    let all: BTreeSet<NodeId> = tiers(layout, members, shard).into_iter().flatten().collect();
    all.len().min(shard.max_replicas().unwrap_or(u32::MAX) as usize)
}

fn options() -> impl Strategy<Value = ShardOptions> {
    let pinned = prop::collection::btree_set((1..12u32).prop_map(NodeId), 0..4);
    let racks = prop::collection::btree_set(prop::sample::select(&["a", "b", "c"][..]).prop_map(str::to_owned), 0..3);
    let max = prop::option::of(1..5u32);
    (pinned, racks, max, any::<bool>()).prop_map(|(pinned, racks, max_replicas, only)| {
        let (pinned, racks): (Vec<_>, Vec<_>) = (pinned.into_iter().collect(), racks.into_iter().collect());
        let only = only && !(pinned.is_empty() && racks.is_empty());
        ShardOptions { max_replicas, pinned, racks, only, ..ShardOptions::default() }
    })
}

fn groups() -> impl Strategy<Value = Vec<GroupLayout>> {
    let options = prop::collection::btree_map(0..8u32, options(), 0..4);
    let reserved = prop::collection::btree_set((1..12u32).prop_map(NodeId), 0..3);
    let one = (1..8u32, prop::option::weighted(0.9, 1..5u32), options, reserved);
    prop::collection::vec(one, 1..3).prop_map(|groups| {
        let group = |(index, (shards, max, mut options, reserved)): (
            usize,
            (u32, _, BTreeMap<_, ShardOptions>, BTreeSet<_>),
        )| {
            options.retain(|number, _| *number < shards);
            options.values_mut().for_each(|own| own.pinned.retain(|node| !reserved.contains(node)));
            let named = |own: &ShardOptions| !own.pinned.is_empty() || !own.racks.is_empty();
            options
                .retain(|_, own| if own.only { named(own) } else { !named(own) || own.max_replicas.or(max).is_some() });
            let reserved = reserved.into_iter().collect();
            GroupLayout { reserved, options, ..group(&format!("{index}"), shards, max) }
        };
        groups.into_iter().enumerate().map(group).collect()
    })
}

fn weights() -> impl Strategy<Value = BTreeMap<NodeId, u32>> {
    prop::collection::btree_map((1..12u32).prop_map(NodeId), 0..5u32, 0..6)
}

pub(crate) fn layouts() -> impl Strategy<Value = Layout> {
    let layout = (groups(), weights(), 1..4u32);
    layout.prop_map(|(groups, weights, moves_at_once)| Layout { groups, weights, moves_at_once })
}

/// The numbers of shards whose state each member is to get.
fn fetches(view: &View) -> BTreeMap<NodeId, usize> {
    let mut all = BTreeMap::new();
    for shard in &view.shards {
        let lacks = |node: &&NodeId| !shard.complete.is_empty() && !shard.is_complete(**node);
        shard.members.iter().filter(lacks).for_each(|node| *all.entry(*node).or_default() += 1);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn through_any_changes_the_rules_hold(layout in layouts(), members in members(RACKS), changes in changes(RACKS)) {
        prop_assert_eq!(layout.check(), Ok(()));
        let last = through(&layout, members, changes, |members, shard| wanted(&layout, members, shard))?;
        let rest = at_rest(&layout, &last.members, Some(&last));
        for (view, (_, shard)) in rest.shards.iter().zip(layout.shards()) {
            prop_assert_eq!(view.members.len(), wanted(&layout, &last.members, shard), "{:?}", view);
            let mut left = view.members.len();
            let mut before = BTreeSet::new();
            for tier in tiers(&layout, &last.members, shard) {
                let tier: BTreeSet<NodeId> = tier.difference(&before).copied().collect();
                let chosen = view.members.iter().filter(|node| tier.contains(node)).count();
                prop_assert_eq!(chosen, tier.len().min(left), "those that go first hold it: {:?}", view);
                left -= chosen;
                before.extend(tier);
            }
        }
    }

    #[test]
    fn no_move_would_bring_the_loads_nearer_to_the_weights(
        shards in prop::collection::vec((1..12u32, 1..5u32), 1..3),
        weights in weights(),
        first in members(&[""]),
        others in members(&[""]),
    ) {
        let group = |(index, (shards, max)): (usize, &(u32, u32))| group(&format!("{index}"), *shards, Some(*max));
        let layout = Layout { weights, ..layout_of(shards.iter().enumerate().map(group).collect()) };
        let first = at_rest(&layout, &first, None);
        let rest = at_rest(&layout, &others, Some(&first));
        let weight = |rank: usize| layout.weights.get(&rest.members[rank].node).copied().unwrap_or(1) as usize;
        // Shards that all members hold do not count.
        let chosen = rest.shards.iter().filter(|shard| shard.members.len() < rest.members.len()).cloned().collect();
        let loads = loads(&View { shards: chosen, ..rest.clone() });
        let has_weight: Vec<usize> = (0..loads.len()).filter(|&rank| weight(rank) > 0).collect();
        for (&from, &to) in has_weight.iter().flat_map(|from| has_weight.iter().map(move |to| (from, to))) {
            let [giver, taker] = [from, to].map(|rank| rest.members[rank].node);
            let can = |shard: &ShardView| shard.members.contains(&giver) && !shard.members.contains(&taker);
            let nearer = loads[from] * weight(to) > (loads[to] + 1) * weight(from);
            prop_assert!(!nearer || !rest.shards.iter().any(can), "{from} to {to}: {loads:?} {rest:?}");
        }
    }

    #[test]
    fn members_that_come_get_no_more_at_a_time_than_the_limit_says(
        shards in 1..12u32, limit in 1..4u32, more in 1..4u32, weights in weights(),
    ) {
        let layout = Layout { weights, moves_at_once: limit, ..layout_of(vec![group("g", shards, Some(2))]) };
        let mut current = at_rest(&layout, &plain(1..=12), None);
        let members = plain(1..=12 + more);
        for _ in 0..100 {
            let held = |shard: &ShardView, node| current.shard(shard.shard).is_some_and(|old| old.is_complete(node));
            let mut next = view(&layout, &members, Some(&current), held);
            prop_assert!(fetches(&next).values().all(|&fetches| fetches <= limit as usize), "{next:?}");
            if next.shards == current.shards {
                return Ok(());
            }
            prop_assert!(new_replicas(&current, &next).iter().all(|node| node.0 > 12), "{current:?} {next:?}");
            next.shards.iter_mut().for_each(|shard| shard.complete = shard.members.clone());
            current = next;
        }
        prop_assert!(false, "it never comes to rest: {current:?}");
    }
}
