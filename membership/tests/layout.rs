//! Tests of the placement of shards, through members that come and go.

use std::collections::BTreeSet;

use proptest::{prelude::*, sample::Index, test_runner::TestCaseError};
use squall_fabric::NodeId;
use squall_membership::{
    ClusterId, Epoch, GroupLayout, Holder, Incarnation, Layout, LayoutError, Member, OrderEnd, Preferred, ShardLayout,
    ShardState, ShardView, View, VoterId,
};

pub(crate) fn group(name: &str, shards: u32, max_replicas: Option<u32>) -> GroupLayout {
    GroupLayout { shards, max_replicas, ..GroupLayout::of_all(name.into()) }
}

pub(crate) fn layout_of(groups: Vec<GroupLayout>) -> Layout {
    Layout { groups, ..Layout::default() }
}

pub(crate) fn member(node: u32, rack: &str) -> Member {
    Member { rack: rack.into(), ..Member::new(NodeId(node), Incarnation(1)) }
}

/// A view with these members, in which each shard is complete at the nodes that `complete` names.
pub(crate) fn view(
    layout: &Layout,
    members: &[Member],
    before: Option<&View>,
    complete: impl Fn(&ShardView, NodeId) -> bool,
) -> View {
    let preferred = before.map(|before| before.preferred.clone()).unwrap_or_default();
    let assigned = layout.assign(members, before, &preferred);
    let shards = layout.shards().zip(assigned).map(|((shard, _), nodes)| {
        let mut view = ShardView::whole(shard, nodes, Vec::new());
        let holders = view.members.iter().copied().filter(|&node| complete(&view, node)).collect();
        view.complete = holders;
        view
    });
    View {
        life: ClusterId(1),
        epoch: Epoch(before.map_or(1, |before| before.epoch.0 + 1)),
        shards: shards.collect(),
        members: members.to_vec(),
        joined: Vec::new(),
        left: Vec::new(),
        preferred,
    }
}

/// The view that follows when all members of shards have got their state.
pub(crate) fn settled(layout: &Layout, members: &[Member], before: Option<&View>) -> View {
    view(layout, members, before, |_, _| true)
}

/// The view at which views that follow one another change no more.
pub(crate) fn at_rest(layout: &Layout, members: &[Member], before: Option<&View>) -> View {
    let mut current = settled(layout, members, before);
    for _ in 0..200 {
        let next = settled(layout, members, Some(&current));
        if next.shards == current.shards {
            return current;
        }
        current = next;
    }
    panic!("it never comes to rest: {current:?}");
}

/// The shard's members as numbers, for tables.
pub(crate) fn places(view: &View) -> Vec<Vec<u32>> {
    view.shards.iter().map(|shard| shard.members.iter().map(|node| node.0).collect()).collect()
}

pub(crate) fn plain(nodes: impl IntoIterator<Item = u32>) -> Vec<Member> {
    nodes.into_iter().map(|node| member(node, "")).collect()
}

/// The least and the most of the limited shards that any member holds.
fn loads(view: &View) -> (usize, usize) {
    let load = |member: &Member| view.shards.iter().filter(|shard| shard.members.contains(&member.node)).count();
    let loads = view.members.iter().map(load);
    (loads.clone().min().unwrap_or(0), loads.max().unwrap_or(0))
}

/// The replicas of a view that another does not have.
pub(crate) fn new_replicas(old: &View, new: &View) -> Vec<NodeId> {
    let of = |(old, new): (&ShardView, &ShardView)| {
        let is_new = |node: &NodeId| !old.members.contains(node);
        new.members.iter().copied().filter(is_new).collect::<Vec<_>>()
    };
    old.shards.iter().zip(&new.shards).flat_map(of).collect()
}

#[test]
fn the_examples_of_the_documentation_hold() {
    let all = layout_of(vec![group("g", 2, None)]);
    assert_eq!(places(&settled(&all, &plain(1..=3), None)), [[1, 2, 3], [1, 2, 3]]);

    let two = layout_of(vec![group("g", 2, Some(2))]);
    assert_eq!(places(&settled(&two, &plain(1..=4), None)), [[1, 2], [3, 4]]);
    let racks = [member(1, "a"), member(2, "a"), member(3, "b"), member(4, "b")];
    assert_eq!(places(&settled(&two, &racks, None)), [[1, 3], [2, 4]]);

    let three = layout_of(vec![group("g", 3, Some(2))]);
    let first = settled(&three, &plain(1..=3), None);
    assert_eq!(places(&first), [[1, 2], [1, 3], [2, 3]]);
    let moving = settled(&three, &plain(1..=4), Some(&first));
    assert_eq!(places(&moving), [vec![1, 2, 4], vec![1, 3], vec![2, 3]]);
    assert_eq!(places(&settled(&three, &plain(1..=4), Some(&moving))), [[2, 4], [1, 3], [2, 3]]);
    assert_eq!(places(&settled(&three, &plain(1..=2), Some(&first))), [[1, 2], [1, 2], [1, 2]]);

    let mut single = settled(&layout_of(vec![group("g", 2, Some(1))]), &plain([1, 3]), None);
    assert_eq!(places(&single), [[1], [3]]);
    single = settled(&layout_of(vec![group("g", 2, Some(1))]), &plain(1..=3), Some(&single));
    assert_eq!(places(&single), [[1], [3]]);
}

#[test]
fn who_holds_the_state_stays_until_the_new_replica_holds_it() {
    let layout = layout_of(vec![group("g", 2, Some(1))]);
    let alone = settled(&layout, &plain([1]), None);
    let mut members = plain([1, 2]);
    let holds = |_: &ShardView, node: NodeId| node == NodeId(1);
    let mut moving = view(&layout, &members, Some(&alone), holds);
    assert_eq!(places(&moving), [vec![1, 2], vec![1]]);
    moving = view(&layout, &members, Some(&moving), holds);
    assert_eq!(places(&moving), [vec![1, 2], vec![1]], "it has not got the state yet");
    members.push(member(3, ""));
    moving = view(&layout, &members, Some(&moving), holds);
    assert_eq!(places(&moving), [vec![1, 2], vec![1]], "what is under way goes on");
    moving.shards[0].complete = vec![NodeId(1), NodeId(2)];
    assert_eq!(places(&settled(&layout, &members, Some(&moving))), [[2], [1]]);
}

#[test]
fn the_last_holders_of_a_suspended_shard_are_its_members_when_they_return() {
    let layout = layout_of(vec![group("g", 1, Some(2))]);
    let mut lost = view(&layout, &plain([3, 4, 5]), None, |_, _| false);
    let holder = |node| Holder { node: NodeId(node), voter: VoterId(0), since: OrderEnd::START };
    lost.shards[0].state =
        ShardState::Suspended { after: Epoch(1), last_holders: vec![holder(1), holder(2)], acknowledged: 0 };
    assert_eq!(places(&lost), [[3, 4]]);
    let back = view(&layout, &plain([3, 4, 5, 2]), Some(&lost), |_, _| false);
    assert!(places(&back)[0].contains(&2), "{:?}", places(&back));
}

#[test]
fn impossible_layouts_are_refused_with_what_to_do() {
    let check = |change: fn(&mut GroupLayout)| {
        let mut group = group("g", 1, Some(3));
        change(&mut group);
        layout_of(vec![group]).check()
    };
    let name = || "g".to_string();
    assert_eq!(check(|_| ()), Ok(()));
    assert_eq!(check(|g| g.shards = 0), Err(LayoutError::NoShards { name: name() }));
    assert_eq!(check(|g| g.shards = 5000), Err(LayoutError::TooManyShards { shards: 5000 }));
    assert_eq!(check(|g| g.min_replicas = 0), Err(LayoutError::NoReplicas { name: name() }));
    assert_eq!(check(|g| g.min_replicas = 4), Err(LayoutError::MinAboveMax { name: name(), min: 4, max: 3 }));
    assert_eq!(
        check(|g| (g.min_replicas, g.max_replicas) = (65, None)),
        Err(LayoutError::TooManyReplicas { name: name(), min: 65 })
    );
    assert_eq!(check(|g| g.senders = Some(Vec::new())), Err(LayoutError::NoSenders { name: name() }));
    assert_eq!(check(|g| g.name.clear()), Err(LayoutError::NoName));
    let twice = layout_of(vec![group("g", 1, None), group("g", 1, None)]);
    assert_eq!(twice.check(), Err(LayoutError::Order { name: name(), other: name() }));
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop::collection::vec((1..12u32, 1..5u32), 1..3).prop_map(|groups| {
        let group = |(index, &(shards, max)): (usize, &(u32, u32))| group(&format!("{index}"), shards, Some(max));
        layout_of(groups.iter().enumerate().map(group).collect())
    })
}

pub(crate) fn members(racks: &'static [&'static str]) -> impl Strategy<Value = Vec<Member>> {
    prop::collection::vec(prop::sample::select(racks), 1..12)
        .prop_map(|racks| (1..).zip(racks).map(|(node, rack)| member(node, rack)).collect())
}

/// An event between two views: a member goes or comes, or shards get their state; some of them.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Goes(Index),
    Comes(&'static str),
    Completes(u64),
}

pub(crate) fn changes(racks: &'static [&'static str]) -> impl Strategy<Value = Vec<Change>> {
    let change = prop_oneof![
        any::<Index>().prop_map(Change::Goes),
        prop::sample::select(racks).prop_map(Change::Comes),
        any::<u64>().prop_map(Change::Completes),
    ];
    prop::collection::vec(change, 0..12)
}

/// Goes from view to view, and checks that each shard has as many members as are `wanted`, in the view's order, and
/// that none that holds its state is dropped before all others hold it.
pub(crate) fn through(
    layout: &Layout,
    members: Vec<Member>,
    changes: Vec<Change>,
    wanted: impl Fn(&[Member], ShardLayout<'_>) -> usize,
) -> Result<View, TestCaseError> {
    through_preferring(layout, members, changes, wanted, &Preferred::new())
}

/// Does what [`through`] does, with nodes that shards prefer.
pub(crate) fn through_preferring(
    layout: &Layout,
    mut members: Vec<Member>,
    changes: Vec<Change>,
    wanted: impl Fn(&[Member], ShardLayout<'_>) -> usize,
    preferred: &Preferred,
) -> Result<View, TestCaseError> {
    let mut current = View { preferred: preferred.clone(), ..settled(layout, &members, None) };
    let mut node = 100;
    for change in changes {
        match change {
            Change::Goes(who) if members.len() > 1 => {
                let index = who.index(members.len());
                members.remove(index);
            }
            Change::Goes(_) => {}
            Change::Comes(rack) => {
                members.push(member(node, rack));
                node += 1;
            }
            Change::Completes(some) => {
                for shard in current.shards.iter_mut().filter(|shard| some >> shard.shard.0 & 1 == 1) {
                    shard.complete = shard.members.clone();
                }
            }
        }
        let held = |shard: &ShardView, node| current.shard(shard.shard).is_some_and(|old| old.is_complete(node));
        let next = view(layout, &members, Some(&current), held);
        for ((old, new), (_, shard)) in current.shards.iter().zip(&next.shards).zip(layout.shards()) {
            prop_assert!(new.members.len() >= wanted(&members, shard) && !new.members.is_empty());
            let ranks: Vec<_> = new.members.iter().map(|&node| next.rank_of(node)).collect();
            let is_in_order = ranks.windows(2).all(|pair| pair[0] < pair[1]);
            prop_assert!(is_in_order && ranks.iter().all(Option::is_some), "in the view's order, each once");
            let dropped = old.complete.iter().any(|&node| next.rank_of(node).is_some() && !new.members.contains(&node));
            prop_assert!(!dropped || new.members == new.complete, "{old:?} becomes {new:?}");
        }
        prop_assert_eq!(
            layout.assign(&members, Some(&current), &current.preferred),
            layout.assign(&members.clone(), Some(&current.clone()), &current.preferred)
        );
        current = next;
    }
    Ok(current)
}

pub(crate) const RACKS: &[&str] = &["", "a", "b", "c"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_load_is_even(layout in layouts(), members in members(&[""]), others in members(&[""])) {
        let first = settled(&layout, &members, None);
        let (least, most) = loads(&first);
        prop_assert!(most - least <= 1, "{first:?}");
        let then = at_rest(&layout, &others, Some(&first));
        let (least, most) = loads(&then);
        prop_assert!(most - least <= 1, "{then:?}");
    }

    #[test]
    fn a_member_that_comes_gets_its_share_and_nothing_else_moves(layout in layouts(), mut members in members(&[""])) {
        let first = settled(&layout, &members, None);
        let all_held = |view: &View| view.shards.iter().all(|shard| shard.members.len() == view.members.len());
        members.push(member(100, ""));
        let then = at_rest(&layout, &members, Some(&first));
        let new = new_replicas(&first, &then);
        prop_assert!(new.iter().all(|&node| node == NodeId(100)), "{first:?} {then:?}");
        let replicas: usize = then.shards.iter().map(|shard| shard.members.len()).sum();
        if !all_held(&first) {
            // Shards that had fewer members than they should have get the newcomer as well.
            let lacking = first.shards.iter().zip(&then.shards).filter(|(old, new)| old.members.len() < new.members.len()).count();
            prop_assert!(new.len() <= lacking.max(replicas.div_ceil(members.len())), "{first:?} {then:?}");
        }
    }

    #[test]
    fn if_a_member_goes_what_it_held_moves_and_at_most_as_much_again(layout in layouts(), members in members(&[""]), who in any::<Index>()) {
        if members.len() == 1 {
            return Ok(());
        }
        let first = settled(&layout, &members, None);
        let gone = members[who.index(members.len())].node;
        let held = first.shards.iter().filter(|shard| shard.members.contains(&gone)).count();
        let rest: Vec<_> = members.iter().filter(|member| member.node != gone).cloned().collect();
        let then = at_rest(&layout, &rest, Some(&first));
        prop_assert!(new_replicas(&first, &then).len() <= 2 * held, "{first:?} {then:?}");
    }

    #[test]
    fn racks_differ_where_they_can(layout in layouts(), members in members(&["a", "b", "c"]), others in members(&["a", "b", "c"])) {
        let first = at_rest(&layout, &members, None);
        for view in [&first, &at_rest(&layout, &others, Some(&first))] {
            let rack = |node: &NodeId| view.members.iter().find(|member| member.node == *node).unwrap().rack.as_str();
            let racks: BTreeSet<&str> = view.members.iter().map(|member| member.rack.as_str()).collect();
            for shard in &view.shards {
                let used: BTreeSet<&str> = shard.members.iter().map(rack).collect();
                prop_assert_eq!(used.len(), racks.len().min(shard.members.len()), "{:?}", view);
            }
        }
    }

    #[test]
    fn through_any_changes_no_shard_is_empty_and_no_state_is_dropped_too_early(
        layout in layouts(), members in members(RACKS), changes in changes(RACKS),
    ) {
        let wanted = |members: &[Member], shard: ShardLayout<'_>| members.len().min(shard.max_replicas().unwrap_or(u32::MAX) as usize);
        through(&layout, members, changes, wanted)?;
    }
}
