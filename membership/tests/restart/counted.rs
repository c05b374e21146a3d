//! Copies of a shard, and the place from which each counts.

use squall_fabric::NodeId;
use squall_membership::{
    ClusterId, Entry, Epoch, Final, Finals, HeldCopy, Layout, Member, OrderEnd, ReturnReport, Seq, ShardState,
    ShardView, View, ViewLogState, reopening, successor,
};

use super::{
    ALL, PAIR, back, decide, end, life, nodes, restarted, say, state,
    suspended::{follow, reopen, suspended},
    whole,
};

/// Node 1 went on alone, as 2 died and 3 left; in view 3 both join it. In that view they become complete, up to (3, 5),
/// and view 4 has all three as complete.
fn joined() -> ViewLogState {
    let mut state = state();
    let follow = |state: &ViewLogState, stay: &[u32], join: &[Member], complete: &[u32], count| {
        let view = state.view().unwrap();
        let finals = |shard: &ShardView| {
            let stays = shard.members.iter().filter(|node| stay.contains(&node.0));
            let complete = |node: &NodeId| complete.contains(&node.0);
            let end = |&node: &NodeId| Final { node, count: Seq(count), complete: complete(&node), on_disk: false };
            (shard.shard, stays.map(end).collect())
        };
        let finals: Finals = view.shards.iter().map(finals).collect();
        successor(view, state.layout(), NodeId(1), &nodes(stay), join, &finals)
    };
    let next = follow(&state, &[1, 2], &[], &[1, 2], 5);
    decide(&mut state, next);
    let next = follow(&state, &[1], &[], &[1], 7);
    decide(&mut state, next);
    for (members, node) in [(vec![1], 2), (vec![1, 2], 3)] {
        state.apply(Entry::Candidate(life(node, 2)));
        let next = follow(&state, &members, &[life(node, 2)], &[1], 9);
        decide(&mut state, next);
    }
    let next = follow(&state, &[1, 2, 3], &[], &[1, 2, 3], 12);
    assert_eq!(next.view.epoch, Epoch(6));
    decide(&mut state, next);
    state
}

#[test]
fn a_joiner_s_log_counts_from_where_the_view_began_that_has_it_as_complete() {
    let state = joined();
    let since = &state.view().unwrap().shards[0].since;
    assert_eq!(*since, [(NodeId(2), end(5, 12)), (NodeId(3), end(5, 12))].into(), "node 1 always was");
    let goes_on = |second: OrderEnd, third: OrderEnd| {
        let mut state = state.clone();
        say(&mut state, back(life(2, 3), 6, &[(ALL, second)]));
        say(&mut state, back(life(3, 3), 6, &[(ALL, third)]));
        restarted(&state, 2).ends.get(&ALL).copied()
    };
    assert_eq!(goes_on(end(1, 5), end(1, 5)), None, "others may have acknowledged more");
    assert_eq!(goes_on(end(5, 11), OrderEnd::START), None);
    assert_eq!(goes_on(end(5, 11), end(5, 12)), Some(end(5, 12)), "all of the view in which it became complete");
    assert_eq!(goes_on(end(6, 0), end(5, 20)), Some(end(6, 0)));
    assert_eq!(goes_on(end(5, 11), end(5, 20)), Some(end(5, 12)), "what lies beyond is void");
    let mut state = state.clone();
    say(&mut state, back(life(2, 3), 6, &[(ALL, end(5, 11))]));
    say(&mut state, back(life(1, 3), 6, &[(ALL, end(4, 3))]));
    assert_eq!(restarted(&state, 2).ends.get(&ALL), Some(&end(4, 3)), "nothing is acknowledged that it lacks");
}

#[test]
fn one_that_is_complete_without_a_break_counts_from_where_it_began_to_be() {
    let mut state = joined();
    for epoch in 6..9 {
        let view = state.view().unwrap().clone();
        assert_eq!(view.epoch, Epoch(epoch));
        let next = follow(&state, &[1, 2, 3], &[], &[]);
        decide(&mut state, next);
    }
    let view = state.view().unwrap();
    assert_eq!((view.shards[0].began, view.shards[0].since[&NodeId(2)]), (end(8, 6), end(5, 12)));
}

#[test]
fn one_whose_copy_does_not_count_tells_what_was_acknowledged_all_the_same() {
    let has = |node, version, acknowledged, complete| {
        let held = HeldCopy { complete, acknowledged, ..whole(end(1, version)) };
        ReturnReport { held: [(PAIR, held)].into(), ..reopen(node, held.end) }
    };
    let ends = |state: &ViewLogState| follow(state, &[1, 3, 2], &[], &state.returns()).ends;
    // Node 1 is damaged at 5, and knows that 7 messages were acknowledged; node 2 has 6, and does not know it.
    let mut state = suspended();
    say(&mut state, has(1, 5, 7, false));
    say(&mut state, has(2, 6, 4, true));
    assert!(ends(&state).is_empty());
    let why = |back: ReturnReport| back.falls_short(state.view().unwrap(), PAIR, &state.returns()).unwrap();
    assert!(why(has(1, 5, 7, false)).contains("is damaged"));
    assert!(why(has(2, 6, 4, true)).contains("up to version 7"));
    let next = follow(&state, &[1, 3, 2], &[], &state.returns());
    let view = decide(&mut state, next);
    assert!(matches!(view.shards[1].state, ShardState::Suspended { acknowledged: 7, .. }), "{:?}", view.shards[1]);
    let again = |back: ReturnReport| ReturnReport { epoch: view.epoch, ..back };
    say(&mut state, again(has(2, 6, 4, true)));
    assert!(ends(&state).is_empty(), "the view keeps it in mind");
    say(&mut state, again(has(2, 7, 4, true)));
    assert_eq!(ends(&state), [(PAIR, end(1, 7))].into());
}

/// One shard of all, which node 1 alone held up to (2, 5). Nodes 2 and 3 follow each other. Each becomes complete in
/// the view before it is alone, whose order ends after 5 messages, and has told nothing of its disk.
fn handed_on(to: &[u32]) -> ViewLogState {
    let mut state = ViewLogState::default();
    state.apply(Entry::First {
        cluster: ClusterId(1),
        layout: Layout::of_all(["all".into()]),
        members: vec![life(1, 1)],
        preferred: Default::default(),
    });
    let mut source = 1;
    for &node in to {
        state.apply(Entry::Candidate(life(node, 1)));
        let told = |node, on_disk| Final { node: NodeId(node), count: Seq(5), complete: true, on_disk };
        let next = |state: &ViewLogState, stays: u32, join: &[Member], on_disk| {
            let finals: Finals = [(ALL, vec![told(stays, on_disk)])].into();
            let view = state.view().unwrap();
            successor(view, state.layout(), NodeId(stays), &nodes(&[stays]), join, &finals)
        };
        let joined = next(&state, source, &[life(node, 1)], false);
        decide(&mut state, joined);
        let alone = next(&state, node, &[], false);
        decide(&mut state, alone);
        source = node;
    }
    state
}

/// A node returns alone, or to a view of a node that came before, and reports its disk. Returns whether it is complete
/// then.
fn come_back(state: &mut ViewLogState, node: u32, held: HeldCopy) -> bool {
    let (view, member) = (state.view().unwrap().clone(), life(node, 9));
    let back = ReturnReport { member: member.clone(), epoch: view.epoch, goes_on: false, held: [(ALL, held)].into() };
    if view.rank_of(member.node).is_some() {
        say(state, back);
        let next = restarted(state, node);
        return decide(state, next).shards[0].is_complete(member.node);
    }
    state.apply(Entry::Candidate(member.clone()));
    let ends = |view: &View| {
        (
            ALL,
            view.nodes()
                .into_iter()
                .map(|node| Final { node, count: Seq(0), complete: false, on_disk: false })
                .collect(),
        )
    };
    let joined = reopening(
        &view,
        state.layout(),
        view.members[0].node,
        (&view.nodes(), &[member]),
        &[ends(&view)].into(),
        &[],
        Default::default(),
    );
    let view = decide(state, joined);
    say(state, ReturnReport { epoch: view.epoch, goes_on: true, ..back });
    let finals = [ends(&view)].into();
    let next = reopening(
        &view,
        state.layout(),
        view.members[0].node,
        (&view.nodes(), &[]),
        &finals,
        &state.returns(),
        Default::default(),
    );
    decide(state, next).shards[0].is_complete(NodeId(node))
}

#[test]
fn a_former_copy_counts_where_a_later_holder_s_disk_never_reached_its_first_view() {
    let mut state = handed_on(&[2]);
    let shard = &state.view().unwrap().shards[0];
    assert_eq!((shard.complete.clone(), shard.since[&NodeId(2)]), (nodes(&[2]), end(2, 5)));
    assert_eq!(shard.former.iter().map(|one| (one.holder.node, one.last)).collect::<Vec<_>>(), [(NodeId(1), Epoch(2))]);
    assert!(!come_back(&mut state, 2, whole(end(2, 3))));
    let shard = &state.view().unwrap().shards[0];
    assert_eq!((shard.waits_for(), shard.former[0].counts), (nodes(&[2, 1]), true));
    assert!(come_back(&mut state, 1, whole(end(2, 4))));
    let last = state.last().unwrap();
    assert_eq!((last.ends[&ALL], &last.view.shards[0].former), (end(2, 4), &Vec::new()));
}

#[test]
fn a_former_copy_counts_only_if_it_is_known_that_nothing_was_acknowledged_since() {
    let short = whole(end(2, 3));
    let damaged = HeldCopy { complete: false, ..short };
    let knows_of_more = HeldCopy { acknowledged: 4, ..short };
    for told in [damaged, knows_of_more] {
        let mut state = handed_on(&[2]);
        assert!(!come_back(&mut state, 2, told));
        assert!(!come_back(&mut state, 1, whole(end(2, 4))), "{told:?}");
    }
    let trusted = HeldCopy { trusted: true, ..short };
    assert!(come_back(&mut handed_on(&[2]), 2, trusted));
    // The former holder lacks what it, or the later one, knows to have been acknowledged.
    for (later, former) in [(HeldCopy { acknowledged: 3, ..short }, 2), (short, 2)] {
        let mut state = handed_on(&[2]);
        assert!(!come_back(&mut state, 2, later));
        let held = HeldCopy { acknowledged: if later.acknowledged == 0 { 3 } else { 0 }, ..whole(end(2, former)) };
        assert!(!come_back(&mut state, 1, held), "{held:?}");
    }
}

#[test]
fn of_several_former_copies_one_counts_once_all_later_ones_are_known_to_fall_short() {
    let mut state = handed_on(&[2, 3]);
    let former = |state: &ViewLogState| {
        let former = state.view().unwrap().shards[0].former.clone();
        former.into_iter().map(|one| (one.holder.node.0, one.counts)).collect::<Vec<_>>()
    };
    assert_eq!(former(&state), [(1, false), (2, false)]);
    assert!(!come_back(&mut state, 3, whole(end(3, 0))));
    assert_eq!(former(&state), [(1, false), (2, true)]);
    assert!(!come_back(&mut state.clone(), 1, whole(end(2, 4))), "node 2 may have had more acknowledged");
    assert!(!come_back(&mut state, 2, whole(end(2, 3))));
    assert_eq!(former(&state), [(1, true), (2, true)]);
    assert!(come_back(&mut state, 1, whole(end(2, 4))));
}
