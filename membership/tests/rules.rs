//! Tests of the rules for a view's successor: each rule broken in one way.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_membership::{
    Applied, Began, ClusterId, Counts, Entry, Epoch, Final, Finals, Former, GroupLayout, Holder, Incarnation, Layout,
    MAX_MEMBERS, Member, OrderEnd, Proposal, Refused, Seq, ShardId, ShardOptions, ShardState, ShardView, View,
    ViewLogState, alone, check, successor,
};

const ALL: ShardId = ShardId(0);
const PAIR: ShardId = ShardId(1);

fn member(node: u32) -> Member {
    Member::new(NodeId(node), Incarnation(1))
}

fn holder(node: u32, since: OrderEnd) -> Holder {
    Holder { node: NodeId(node), voter: member(node).voter, since }
}

fn nodes(nodes: &[u32]) -> Vec<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

/// One shard of all members that needs two, in which nodes 1 to 3 may send, and one of at most two.
fn layout() -> Layout {
    let mut layout = Layout::of_all(["all".to_owned(), "pair".to_owned()]);
    layout.groups[0] = GroupLayout { min_replicas: 2, senders: Some(nodes(&[1, 2, 3])), ..layout.groups[0].clone() };
    layout.groups[1].max_replicas = Some(2);
    layout
}

/// Members 1 to 4; member 4 is new and holds nothing yet.
fn current() -> View {
    let mut view = View::first((1..=4).map(member).collect(), &layout(), Default::default());
    view.shards[0].complete = nodes(&[1, 2, 3]);
    view
}

fn candidates() -> Vec<Member> {
    (5..=8).map(member).collect()
}

/// Final counts of members that stay: node n has received 10·n, so that the lowest has least.
fn finals(view: &View, stay: &[u32]) -> Finals {
    let of = |shard: &ShardView| {
        let stays = shard.members.iter().filter(|node| stay.contains(&node.0));
        let end = |&node: &NodeId| Final {
            node,
            count: Seq(u64::from(10 * node.0)),
            complete: shard.is_complete(node),
            on_disk: false,
        };
        (shard.shard, stays.map(end).collect())
    };
    view.shards.iter().map(of).collect()
}

fn proposal(stay: &[u32], join: &[u32]) -> Proposal {
    let view = current();
    let join: Vec<Member> = join.iter().copied().map(member).collect();
    successor(&view, &layout(), NodeId(2), &nodes(stay), &join, &finals(&view, stay))
}

fn verdict(proposal: &Proposal) -> Result<(), Refused> {
    check(&current(), &layout(), &candidates(), proposal)
}

#[test]
fn what_successor_makes_is_accepted() {
    for (stay, join) in [(&[1, 2, 3, 4][..], &[][..]), (&[2, 3], &[5, 6]), (&[1, 4], &[]), (&[1, 2, 4], &[8, 5])] {
        assert_eq!(verdict(&proposal(stay, join)), Ok(()), "{stay:?} stay, {join:?} join");
    }
}

#[test]
fn a_shard_s_own_minimum_goes_before_its_group_s() {
    let mut layout = layout();
    let options = ShardOptions { min_replicas: Some(4), ..ShardOptions::default() };
    layout.groups[0].options.insert(0, options);
    let (view, stay) = (current(), [1, 2, 3, 4]);
    let next = successor(&view, &layout, NodeId(2), &nodes(&stay), &[], &finals(&view, &stay)).view;
    assert_eq!((next.shards[0].complete.len(), &next.shards[0].state), (3, &ShardState::Inadequate));
}

#[test]
fn the_trim_is_the_smallest_count_of_those_who_stay_and_hold_the_state() {
    assert_eq!(proposal(&[2, 3, 4], &[]).trims[&ALL], Seq(20), "node 1 does not stay");
    let view = current();
    let mut ends = finals(&view, &[2, 3, 4]);
    ends.get_mut(&ALL).unwrap()[2].count = Seq(5);
    let made = |ends: &Finals| successor(&view, &layout(), NodeId(2), &nodes(&[2, 3, 4]), &[], ends);
    assert_eq!(made(&ends).trims[&ALL], Seq(20), "node 4 does not hold the state");
    ends.get_mut(&ALL).unwrap()[2].complete = true;
    assert_eq!(made(&ends).trims[&ALL], Seq(5), "it has become complete");
    assert_eq!(verdict(&made(&ends)), Ok(()));
    assert_eq!(made(&ends).view.shards[0].complete, nodes(&[2, 3, 4]));
}

#[test]
fn only_who_holds_the_state_sends() {
    let next = proposal(&[1, 2, 4], &[5]).view;
    assert_eq!(next.shards[0].members, nodes(&[1, 2, 4, 5]));
    assert_eq!(next.shards[0].complete, nodes(&[1, 2]));
    assert_eq!(next.shards[0].senders, nodes(&[1, 2]));
    assert_eq!((&next.joined, &next.left), (&nodes(&[5]), &nodes(&[3])));
}

#[test]
fn with_too_few_who_hold_the_state_a_shard_is_inadequate_and_with_none_suspended() {
    let next = proposal(&[3, 4], &[]);
    assert_eq!(next.view.shards[0].state, ShardState::Inadequate);
    let view = current();
    let mut view = View { epoch: Epoch(7), ..view };
    view.shards[0].complete = nodes(&[1]);
    let next = successor(&view, &layout(), NodeId(2), &nodes(&[2, 3]), &[], &finals(&view, &[2, 3]));
    assert_eq!(next.trims.get(&ALL), None);
    let suspended =
        ShardState::Suspended { after: Epoch(7), last_holders: vec![holder(1, OrderEnd::START)], acknowledged: 0 };
    assert_eq!(next.view.shards[0].state, suspended);
    let later = successor(&next.view, &layout(), NodeId(2), &nodes(&[2]), &[], &finals(&next.view, &[2]));
    assert_eq!(later.view.shards[0].state, suspended, "until one of them is back with it");
}

#[test]
fn who_became_complete_during_the_view_is_among_the_last_holders() {
    let mut view = current();
    view.shards[0].complete = nodes(&[1]);
    let late = Final { node: NodeId(4), count: Seq(7), complete: true, on_disk: false };
    let mut ends = finals(&view, &[2, 3]);
    ends.get_mut(&ALL).unwrap().push(late);
    let next = successor(&view, &layout(), NodeId(2), &nodes(&[2, 3]), &[], &ends);
    let holders = |proposal: &Proposal| match &proposal.view.shards[0].state {
        ShardState::Suspended { last_holders, .. } => last_holders.clone(),
        other => panic!("{other:?}"),
    };
    // No other member knows whether node 4 has all on its disk.
    let unknown = OrderEnd { epoch: view.epoch, seq: Seq(u64::MAX) };
    let expected = vec![holder(1, OrderEnd::START), holder(4, unknown)];
    assert_eq!(holders(&next), expected);
    assert_eq!(next.finals, finals(&view, &[2, 3]), "only members that stay have a final count");
    let verdict = |holders: &[u32]| {
        let mut told = next.clone();
        let late = |node: &u32| holder(*node, if *node == 1 { OrderEnd::START } else { unknown });
        let last_holders = holders.iter().map(late).collect();
        edit(&mut told, |v| {
            v.shards[0].state = ShardState::Suspended { after: view.epoch, last_holders, acknowledged: 0 }
        });
        check(&view, &layout(), &[], &told).is_ok()
    };
    assert!(verdict(&[1, 4]) && verdict(&[1]), "a member that has seen it tells");
    assert!(!verdict(&[4]), "node 1 held it when the view began");
    assert!(!verdict(&[1, 9]), "node 9 is no member");
    assert!(!verdict(&[4, 1]), "not in the order of ranks");
    let later = successor(&next.view, &layout(), NodeId(2), &nodes(&[2]), &[], &finals(&next.view, &[2]));
    assert_eq!(holders(&later), expected);
}

#[test]
fn a_shard_that_counts_what_was_passed_ends_at_the_greatest_count_and_all_are_complete() {
    const PASSED: ShardId = ShardId(2);
    let mut layout = layout();
    layout.groups.push(GroupLayout { counts: Counts::Passed, ..GroupLayout::of_all("passed".into()) });
    let view = View::first((1..=4).map(member).collect(), &layout, Default::default());
    let ends = finals(&view, &[2, 3]);
    let mut next = successor(&view, &layout, NodeId(2), &nodes(&[2, 3]), &[member(5)], &ends);
    assert_eq!(next.trims[&PASSED], Seq(30), "node 4 does not stay");
    // There is no state to hold, so no member lacks any of it.
    let since = [(NodeId(5), OrderEnd::START)].into();
    let expected = ShardView { since, ..ShardView::whole(PASSED, nodes(&[2, 3, 5]), nodes(&[2, 3, 5])) };
    assert_eq!(next.view.shards[2], expected);
    let verdict = |next: &Proposal| check(&view, &layout, &candidates(), next);
    assert_eq!(verdict(&next), Ok(()));
    next.trims.insert(PASSED, Seq(20));
    assert!(verdict(&next).unwrap_err().to_string().contains("trims"), "node 3 may have gone further");
}

/// Every rule, broken in one way, with a part of the sentence that says so.
#[test]
fn each_rule_broken_in_one_way_is_refused() {
    type Breaks = fn(&mut Proposal);
    let table: [(&str, Breaks); 18] = [
        ("another view", |p| edit(p, |v| v.epoch = Epoch(3))),
        ("not a member", |p| p.by = NodeId(9)),
        ("less than half", |p| edit(p, |v| v.members = [1, 5].map(member).to_vec())),
        ("less than half", |p| edit(p, |v| v.members[0].incarnation = Incarnation(2))),
        ("in the order of their ranks", |p| edit(p, |v| v.members.swap(0, 1))),
        ("in the order of their ranks", |p| edit(p, |v| v.members[1] = v.members[0].clone())),
        ("more than these", |p| edit(p, |v| v.members = [1, 2, 5, 6, 7].map(member).to_vec())),
        ("did not ask", |p| edit(p, |v| v.members[3].node = NodeId(9))),
        ("did not ask", |p| edit(p, |v| v.members[3].incarnation = Incarnation(9))),
        ("in it twice", |p| edit(p, |v| v.members.push(member(5)))),
        ("final counts", |p| _ = p.finals.get_mut(&ALL).unwrap().pop()),
        ("final counts", |p| p.finals.get_mut(&ALL).unwrap().swap(0, 1)),
        ("final counts", |p| _ = p.finals.remove(&PAIR)),
        ("its final count says no", |p| p.finals.get_mut(&ALL).unwrap()[0].complete = false),
        ("its trims", |p| _ = p.trims.insert(ALL, Seq(30))),
        ("its trims", |p| _ = p.trims.remove(&ALL)),
        ("what follows from its members", |p| edit(p, |v| v.shards[0].senders.clear())),
        ("what follows from its members", |p| edit(p, |v| v.left.clear())),
    ];
    for (says, breaks) in table {
        let mut broken = proposal(&[1, 2, 3], &[5]);
        breaks(&mut broken);
        let refused = verdict(&broken).expect_err(says).to_string();
        assert!(refused.contains(says), "{says:?} is expected, not {refused:?}");
    }
}

fn edit(proposal: &mut Proposal, edit: impl FnOnce(&mut View)) {
    edit(Arc::make_mut(&mut proposal.view));
}

#[test]
fn nobody_recreates_the_state_of_a_suspended_shard() {
    let mut view = current();
    view.shards[0].complete.clear();
    view.shards[0].state =
        ShardState::Suspended { after: Epoch(1), last_holders: vec![holder(9, OrderEnd::START)], acknowledged: 0 };
    let mut ends = finals(&view, &[1, 2, 3]);
    ends.get_mut(&ALL).unwrap()[0].complete = true;
    let next = successor(&view, &layout(), NodeId(1), &nodes(&[1, 2, 3]), &[], &ends);
    let refused = check(&view, &layout(), &[], &next).expect_err("it can't hold it").to_string();
    assert!(refused.contains("suspended"), "{refused}");
}

fn log_state() -> ViewLogState {
    let mut log_state = ViewLogState::default();
    let members = (1..=3).map(member).collect();
    log_state.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members, preferred: Default::default() });
    log_state
}

fn follow(log_state: &ViewLogState, stay: &[u32], join: &[Member]) -> Proposal {
    let view = log_state.view().unwrap();
    let by = NodeId(stay[0]);
    successor(view, log_state.layout(), by, &nodes(stay), join, &finals(view, stay))
}

#[test]
fn an_epoch_has_one_successor() {
    let mut log_state = log_state();
    let [first, rival] = [follow(&log_state, &[1, 2], &[]), follow(&log_state, &[2, 3], &[])];
    assert_eq!(log_state.apply(Entry::Successor(first.clone())), Applied::View(first.clone()));
    let refused = Applied::Refused(Refused::NotCurrent { current: Epoch(2) });
    assert_eq!(log_state.apply(Entry::Successor(rival)), refused);
    assert_eq!(log_state.last(), Some(&first));
}

#[test]
fn who_was_a_member_comes_back_in_a_later_life_only() {
    let mut log_state = log_state();
    let dropped = follow(&log_state, &[1, 2], &[]);
    log_state.apply(Entry::Successor(dropped));
    assert_eq!(log_state.newest(NodeId(3)), Some(Incarnation(1)));
    assert!(matches!(log_state.apply(Entry::Candidate(member(3))), Applied::Refused(Refused::Rule(_))));
    let later = Member::new(NodeId(3), Incarnation(2));
    assert_eq!(log_state.apply(Entry::Candidate(later.clone())), Applied::Candidates);
    let taken_in = follow(&log_state, &[1, 2], std::slice::from_ref(&later));
    assert!(matches!(log_state.apply(Entry::Successor(taken_in)), Applied::View(_)));
    assert_eq!(log_state.candidates(), []);
}

#[test]
fn a_member_may_come_back_in_the_view_that_its_earlier_life_leaves() {
    let mut log_state = log_state();
    let later = Member::new(NodeId(2), Incarnation(2));
    log_state.apply(Entry::Candidate(later.clone()));
    let next = follow(&log_state, &[1, 3], &[later]);
    assert_eq!((&next.view.joined, &next.view.left), (&nodes(&[2]), &nodes(&[2])));
    assert!(matches!(log_state.apply(Entry::Successor(next)), Applied::View(_)));
}

#[test]
fn who_withdraws_is_no_candidate_and_may_ask_again() {
    let mut log_state = log_state();
    log_state.apply(Entry::Candidate(member(4)));
    assert_eq!(log_state.apply(Entry::Withdraw(NodeId(4), Incarnation(1))), Applied::Candidates);
    assert!(matches!(log_state.apply(Entry::Withdraw(NodeId(4), Incarnation(1))), Applied::Refused(_)));
    assert_eq!(log_state.apply(Entry::Candidate(member(4))), Applied::Candidates);
}

#[test]
fn a_cluster_begins_once_with_members_that_differ() {
    let first =
        |members| Entry::First { cluster: ClusterId(2), layout: layout(), members, preferred: Default::default() };
    assert_eq!(log_state().apply(first(vec![member(1)])), Applied::Refused(Refused::OutOfPlace));
    for members in [vec![], vec![member(1), member(1)], (0..65).map(member).collect()] {
        assert!(matches!(ViewLogState::default().apply(first(members)), Applied::Refused(Refused::Rule(_))));
    }
    let early = Entry::Candidate(member(1));
    assert_eq!(ViewLogState::default().apply(early), Applied::Refused(Refused::OutOfPlace));
}

#[test]
fn who_goes_on_alone_keeps_what_it_holds_and_starts_the_rest_anew() {
    let view = current();
    // Node 1 holds both shards, node 4 neither: it is not even a member of the second.
    for (survivor, starts_anew) in [(1, vec![]), (4, vec![ALL, PAIR])] {
        let (forced, anew) = alone(&view, &layout(), NodeId(survivor), &finals(&view, &[survivor]));
        assert_eq!((forced.view.epoch.0, forced.view.nodes(), anew), (2, nodes(&[survivor]), starts_anew));
        assert!(forced.view.shards.iter().all(|shard| shard.complete == nodes(&[survivor])));
        assert_eq!(forced.trims.contains_key(&ALL), survivor == 1, "what is delivered nowhere has no end");
        assert_eq!(forced.view.shards[0].state, ShardState::Inadequate, "it still needs two");
        assert_eq!(forced.view.shards[1].state, ShardState::Active);
        assert_eq!(forced.view.shards[0].senders, if survivor == 1 { nodes(&[1]) } else { vec![] });
        let (cluster, after, reason) = (ClusterId(7), ClusterId(6), "fire".into());
        let mut log_state = ViewLogState::default();
        let entry = Entry::Force { cluster, after, earlier: Vec::new(), layout: layout(), proposal: forced, reason };
        assert!(matches!(log_state.apply(entry), Applied::View(_)));
        assert_eq!(log_state.began(), Some(&Began { after, epoch: Epoch(2), earlier: Vec::new() }));
    }
}

#[test]
fn former_holders_are_named_until_the_disk_of_one_that_stays_complete_has_all_of_the_views_before() {
    let layout = layout();
    let after = |view: &View, stay: &[u32], on_disk: &[u32]| {
        let mut finals = finals(view, stay);
        finals.values_mut().flatten().for_each(|end| end.on_disk = on_disk.contains(&end.node.0));
        successor(view, &layout, NodeId(2), &nodes(stay), &[], &finals).view
    };
    let former = |view: &View| {
        let named = view.shards[0].former.iter().map(|one| (one.holder, one.last, one.began));
        named.collect::<Vec<_>>()
    };
    let (first, second) = (current(), after(&current(), &[2, 3, 4], &[]));
    let node_1 = (holder(1, OrderEnd::START), Epoch(1), OrderEnd::START);
    assert_eq!(former(&second), [node_1]);
    assert_eq!(former(&after(&first, &[2, 3, 4], &[3])), []);
    assert_eq!(former(&after(&first, &[2, 3, 4], &[4])), [node_1], "node 4 has become complete by no member's word");
    let third = after(&second, &[2, 4], &[]);
    let node_3 = (holder(3, OrderEnd::START), Epoch(2), OrderEnd { epoch: Epoch(1), seq: Seq(20) });
    assert_eq!(former(&third), [node_1, node_3]);
    assert_eq!(former(&after(&third, &[2, 4], &[2])), []);
    let suspended = after(&third, &[4], &[]);
    assert_eq!(former(&suspended), [node_1, node_3]);
    assert_eq!(suspended.shards[0].waits_for(), nodes(&[2, 1, 3]));
    let (forced, _) = alone(&third, &layout, NodeId(2), &finals(&third, &[2]));
    assert_eq!(former(&forced.view), [], "their logs may go on with what the life before decides");
}

#[test]
fn of_too_many_former_holders_the_oldest_are_forgotten() {
    let layout = layout();
    let mut view = current();
    let one = holder(9, OrderEnd::START);
    let former = |epoch| Former { holder: one, last: Epoch(epoch), began: OrderEnd::START, counts: false };
    view.shards[0].former = (1..=MAX_MEMBERS as u64).map(former).collect();
    let next = successor(&view, &layout, NodeId(2), &nodes(&[2, 3, 4]), &[], &finals(&view, &[2, 3, 4]));
    let named = &next.view.shards[0].former;
    assert_eq!((named.len(), named[0], named[MAX_MEMBERS - 1].holder.node), (MAX_MEMBERS, former(2), NodeId(1)));
}
