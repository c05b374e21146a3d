//! Shards at the nodes that the application's policy prefers.

use std::collections::BTreeSet;

use proptest::prelude::*;
use squall_fabric::NodeId;
use squall_membership::{
    Applied, ClusterId, Entry, Final, Layout, LayoutPolicy, Member, Preferred, Proposal, Seq, ShardId, ShardLayout,
    View, ViewLogState, check, successor,
};

use crate::{
    layout::{RACKS, at_rest, changes, group, layout_of, members, places, plain, settled, through_preferring},
    pins_and_weights::{layouts, tiers, wanted},
};

/// Two shards of two members each.
fn two_by_two() -> Layout {
    layout_of(vec![group("g", 2, Some(2))])
}

fn preferred(of: &[(u32, &[u32])]) -> Preferred {
    of.iter().map(|(shard, nodes)| (ShardId(*shard), nodes.iter().map(|&node| NodeId(node)).collect())).collect()
}

#[test]
fn shards_lie_at_the_nodes_that_they_prefer_and_move_there_one_at_a_time() {
    let layout = two_by_two();
    let wishes = preferred(&[(0, &[3, 4]), (1, &[1])]);
    let first = View::first(plain(1..=4), &layout, wishes);
    assert_eq!(places(&first), [[3, 4], [1, 2]]);
    // Another policy moves them, and none leaves before the other has its state.
    let mut view = View { preferred: preferred(&[(0, &[1, 2])]), ..first };
    let mut seen = Vec::new();
    while seen.last() != Some(&places(&view)) {
        seen.push(places(&view));
        view = settled(&layout, &view.members, Some(&view));
    }
    let moves: Vec<Vec<u32>> = seen.into_iter().map(|mut places| places.swap_remove(0)).collect();
    assert_eq!(moves, [vec![3, 4], vec![1, 3, 4], vec![1, 2, 3, 4], vec![1, 2]]);
}

#[test]
fn what_a_policy_can_t_say_is_left_out() {
    let (layout, members) = (two_by_two(), plain(1..=3));
    let said = |policy: LayoutPolicy| policy.preferred(&layout, &members);
    let good = preferred(&[(1, &[2])]);
    assert_eq!(
        said(LayoutPolicy::new({
            let good = good.clone();
            move |_| good.clone()
        })),
        good
    );
    assert_eq!(said(LayoutPolicy::default()), Preferred::new());
    for bad in [preferred(&[(2, &[1])]), preferred(&[(0, &[4])]), preferred(&[(0, &[1, 1])])] {
        assert!(layout.check_preferred(&members, &bad).is_err(), "{bad:?}");
        assert_eq!(said(LayoutPolicy::new(move |_| bad.clone())), Preferred::new());
    }
    assert_eq!(said(LayoutPolicy::new(|_| panic!("a fault of the application"))), Preferred::new());
}

#[test]
fn a_view_that_prefers_what_is_not_there_is_refused() {
    let layout = two_by_two();
    let first = |preferred| {
        let (layout, members) = (layout.clone(), plain(1..=3));
        ViewLogState::default().apply(Entry::First { cluster: ClusterId(1), layout, members, preferred })
    };
    assert!(matches!(first(preferred(&[(7, &[1])])), Applied::Refused(_)));
    let Applied::View(proposal) = first(preferred(&[(0, &[2, 3])])) else { panic!("it may be") };
    let view = &*proposal.view;
    assert_eq!(places(view)[0], [2, 3]);
    let finals = view.shards.iter().map(|shard| {
        let end = |&node: &NodeId| Final { node, count: Seq(0), complete: true, on_disk: true };
        (shard.shard, shard.members.iter().map(end).collect())
    });
    let next = successor(view, &layout, NodeId(1), &view.nodes(), &[], &finals.collect());
    assert_eq!(next.view.preferred, view.preferred);
    assert_eq!(check(view, &layout, &[], &next), Ok(()));
    let forge = |preferred| {
        let other = View { preferred, ..(*next.view).clone() };
        check(view, &layout, &[], &Proposal { view: other.into(), ..next.clone() })
    };
    assert!(forge(preferred(&[(0, &[4])])).is_err());
    assert!(forge(preferred(&[(0, &[1])])).is_err(), "its shards are not what follows");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn through_any_changes_the_rules_hold_and_those_preferred_go_before_others(
        layout in layouts(), members in members(RACKS), changes in changes(RACKS),
        wishes in prop::collection::btree_map(0..12u32, prop::collection::btree_set(1..12u32, 0..4), 0..8),
    ) {
        let shards = layout.shards().count() as u32;
        let wishes: Preferred = wishes
            .into_iter()
            .filter(|(shard, _)| *shard < shards)
            .map(|(shard, nodes)| (ShardId(shard), nodes.into_iter().map(NodeId).collect()))
            .collect();
        let want = |members: &[Member], shard: ShardLayout<'_>| wanted(&layout, members, shard);
        let last = through_preferring(&layout, members, changes, want, &wishes)?;
        let rest = at_rest(&layout, &last.members, Some(&last));
        for (view, (id, shard)) in rest.shards.iter().zip(layout.shards()) {
            prop_assert_eq!(view.members.len(), wanted(&layout, &last.members, shard), "{:?}", view);
            let mut tiers = tiers(&layout, &last.members, shard);
            let all: BTreeSet<NodeId> = tiers.iter().flatten().copied().collect();
            let wished = wishes.get(&id).into_iter().flatten().copied().filter(|node| all.contains(node)).collect();
            let behind_pinned = usize::from(tiers.len() == 3);
            tiers.insert(behind_pinned, wished);
            let (mut left, mut before) = (view.members.len(), BTreeSet::new());
            for tier in tiers {
                let tier: BTreeSet<NodeId> = tier.difference(&before).copied().collect();
                let chosen = view.members.iter().filter(|node| tier.contains(node)).count();
                prop_assert_eq!(chosen, tier.len().min(left), "those that go first hold it: {:?}", view);
                left -= chosen;
                before.extend(tier);
            }
        }
    }
}
