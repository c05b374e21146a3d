//! Tests of members that come back with their disks: their reports, and the view that follows from these.

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_membership::{
    Applied, ClusterId, Counts, Entry, Epoch, Final, Finals, GroupLayout, HeldCopy, Incarnation, Layout, Member,
    OrderEnd, Proposal, Refused, ReturnReport, Seq, ShardId, ShardState, ShardView, Skipped, View, ViewLogState,
    VoterId, reopening, restart, successor,
};

const ALL: ShardId = ShardId(0);
const PAIR: ShardId = ShardId(1);

fn life(node: u32, incarnation: u64) -> Member {
    Member { voter: VoterId(node.into()), ..Member::new(NodeId(node), Incarnation(incarnation)) }
}

fn nodes(nodes: &[u32]) -> Vec<NodeId> {
    nodes.iter().copied().map(NodeId).collect()
}

/// One shard of all members, and one of two.
fn layout() -> Layout {
    let mut layout = Layout::of_all(["all".to_owned(), "pair".to_owned()]);
    layout.groups[1].max_replicas = Some(2);
    layout
}

/// Members 1 to 3, all complete; 1 and 2 have the second shard.
fn state() -> ViewLogState {
    let mut state = ViewLogState::default();
    let members = (1..=3).map(|node| life(node, 1)).collect();
    state.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members });
    assert_eq!(state.view().unwrap().shards[1].members, nodes(&[1, 2]));
    state
}

fn end(epoch: u64, seq: u64) -> OrderEnd {
    OrderEnd { epoch: Epoch(epoch), seq: Seq(seq) }
}

/// A copy that lacks nothing.
fn whole(end: OrderEnd) -> HeldCopy {
    let (acknowledged, trusted, skipped) = (0, false, Skipped::default());
    HeldCopy { end, complete: true, version: Some(end.seq.0), acknowledged, trusted, skipped }
}

/// A node's report of these shards, as one that was complete.
fn back(member: Member, epoch: u64, held: &[(ShardId, OrderEnd)]) -> ReturnReport {
    let held = held.iter().map(|&(shard, end)| (shard, whole(end))).collect();
    ReturnReport { member, epoch: Epoch(epoch), goes_on: false, held }
}

fn say(state: &mut ViewLogState, back: ReturnReport) {
    assert_eq!(state.apply(Entry::Return(back)), Applied::Returns);
}

fn last_holders(view: &View, shard: usize) -> Vec<NodeId> {
    match &view.shards[shard].state {
        ShardState::Suspended { last_holders, .. } => last_holders.iter().map(|holder| holder.node).collect(),
        state => panic!("{state:?}"),
    }
}

fn refusal(applied: Applied) -> String {
    let Applied::Refused(why) = applied else { panic!("it is refused, not {applied:?}") };
    why.to_string()
}

fn restarted(state: &ViewLogState, by: u32) -> Proposal {
    restart(state.last().unwrap(), state.layout(), NodeId(by), &state.returns())
}

fn decide(state: &mut ViewLogState, proposal: Proposal) -> Arc<View> {
    assert_eq!(state.apply(Entry::Successor(proposal.clone())), Applied::View(proposal.clone()));
    proposal.view
}

fn go_on(state: &mut ViewLogState) -> Arc<View> {
    let proposal = restarted(state, 1);
    decide(state, proposal)
}

/// All three have come back; node 2 has the longest log.
fn all_back() -> ViewLogState {
    let mut state = state();
    say(&mut state, back(life(1, 2), 1, &[(ALL, end(1, 10)), (PAIR, end(1, 7))]));
    say(&mut state, back(life(2, 2), 1, &[(ALL, end(1, 12)), (PAIR, end(1, 7))]));
    say(&mut state, back(life(3, 2), 1, &[(ALL, end(1, 11))]));
    state
}

#[test]
fn a_shard_that_counts_what_was_passed_begins_anew() {
    const PASSED: ShardId = ShardId(2);
    let mut layout = layout();
    layout.groups.push(GroupLayout { counts: Counts::Passed, ..GroupLayout::of_all("passed".into()) });
    let mut state = ViewLogState::default();
    let members = (1..=3).map(|node| life(node, 1)).collect();
    state.apply(Entry::First { cluster: ClusterId(1), layout, members });
    // Node 2 has never stopped.
    for (node, incarnation) in [(1, 2), (2, 1)] {
        let held = [(ALL, end(1, 10)), (PAIR, end(1, 7)), (PASSED, end(1, 5))];
        say(&mut state, back(life(node, incarnation), 1, &held));
    }
    let proposal = restarted(&state, 1);
    assert_eq!((proposal.trims.get(&PASSED), proposal.ends.get(&PASSED)), (None, None));
    assert_eq!(proposal.view.shards[2], ShardView::whole(PASSED, nodes(&[1, 2]), nodes(&[1, 2])));
    decide(&mut state, proposal);
}

#[test]
fn the_longest_log_wins_and_who_has_it_is_complete() {
    let mut state = all_back();
    let proposal = restarted(&state, 1);
    assert_eq!(proposal.ends, [(ALL, end(1, 12)), (PAIR, end(1, 7))].into());
    assert_eq!(proposal.trims, [(ALL, Seq(12)), (PAIR, Seq(7))].into());
    let view = decide(&mut state, proposal);
    assert_eq!(view.members, (1..=3).map(|node| life(node, 2)).collect::<Vec<_>>());
    assert_eq!((&view.joined, &view.left), (&nodes(&[1, 2, 3]), &nodes(&[1, 2, 3])));
    assert_eq!((&view.shards[0].complete, &view.shards[1].complete), (&nodes(&[2]), &nodes(&[1, 2])));
    assert_eq!(state.returns(), [], "they are of a view that is over");
}

#[test]
fn of_logs_that_reach_the_end_those_are_complete_that_skip_what_most_skip() {
    let skips = |last: u64| Skipped { commands: (last > 0).into(), last, digest: last };
    let life_of = |node, incarnation, end, skipped| {
        let mut back = back(life(node, incarnation), 1, &[(ALL, end), (PAIR, end)]);
        back.held.get_mut(&ALL).unwrap().skipped = skipped;
        back
    };
    let complete = |backs: &[ReturnReport]| {
        let mut state = state();
        backs.iter().for_each(|back| say(&mut state, back.clone()));
        go_on(&mut state).shards[0].complete.clone()
    };
    let at = end(1, 12);
    let with = |told: [Skipped; 3]| [1, 2, 3].map(|node| life_of(node, 2, at, told[node as usize - 1]));
    assert_eq!(complete(&with([skips(5), skips(5), skips(0)])), nodes(&[1, 2]));
    assert_eq!(complete(&with([skips(5), skips(0), skips(0)])), nodes(&[2, 3]));
    assert_eq!(complete(&with([skips(5), skips(5), skips(5)])), nodes(&[1, 2, 3]));
    assert_eq!(complete(&with([skips(5), skips(0), skips(5)])[..2]), nodes(&[1]), "an operator has said so at one");
    let short = life_of(3, 2, end(1, 3), skips(0));
    assert_eq!(
        complete(&[life_of(1, 2, at, skips(5)), short.clone(), life_of(2, 2, end(1, 4), skips(0))]),
        nodes(&[1])
    );
    let runs = life_of(2, 1, at, skips(0));
    assert_eq!(complete(&[life_of(1, 2, at, skips(5)), runs, short]), nodes(&[2]), "it shows its list to who runs");
}

#[test]
fn a_log_that_lacks_what_was_acknowledged_does_not_count_and_who_has_it_reopens_the_shard() {
    let mut state = state();
    let short = |acknowledged, version| HeldCopy { version: Some(version), acknowledged, ..whole(end(1, version)) };
    // Node 1 knows that 9 messages were acknowledged, and lacks the last one. Node 2 has fewer, and does not know it.
    for (node, held) in [(1, short(9, 8)), (2, short(3, 5))] {
        let mut back = back(life(node, 2), 1, &[]);
        back.held = [(ALL, held), (PAIR, held)].into();
        say(&mut state, back);
    }
    let view = go_on(&mut state);
    assert_eq!((last_holders(&view, 0), last_holders(&view, 1)), (nodes(&[1, 2, 3]), nodes(&[1, 2])));
    let again = |node| back(life(node, 2), view.epoch.0, &[]);
    let reopen = |node, held| ReturnReport { goes_on: true, held: [(ALL, held)].into(), ..again(node) };
    for (node, held) in [(1, short(9, 8)), (2, short(3, 5))] {
        let back = reopen(node, held);
        say(&mut state, back.clone());
        let why = back.falls_short(&view, ALL, &state.returns()).unwrap();
        assert!(why.contains("acknowledged, up to version 9"), "{why}");
    }
    // Its missing records were taken from a copy.
    say(&mut state, reopen(1, short(9, 9)));
    let next = follow(&state, &[1, 2], &[], &state.returns());
    assert_eq!(decide(&mut state, next).shards[0].complete, nodes(&[1]));
}

#[test]
fn only_who_was_complete_in_the_last_view_and_says_that_its_log_is_counts() {
    let mut state = state();
    // Node 1 joins anew, so it is incomplete in view 2.
    state.apply(Entry::Candidate(life(1, 2)));
    let view = state.view().unwrap().clone();
    let ends = |nodes: &[u32]| {
        nodes.iter().map(|&n| Final { node: NodeId(n), count: Seq(5), complete: true, on_disk: false }).collect()
    };
    let finals: Finals = [(ALL, ends(&[2, 3])), (PAIR, ends(&[2]))].into();
    let next = successor(&view, &layout(), NodeId(2), &nodes(&[2, 3]), &[life(1, 2)], &finals);
    decide(&mut state, next);
    say(&mut state, back(life(1, 3), 2, &[(ALL, end(2, 90)), (PAIR, end(2, 90))]));
    let mut third = back(life(3, 2), 2, &[(ALL, end(2, 80))]);
    third.held.get_mut(&ALL).unwrap().complete = false;
    say(&mut state, third);
    let proposal = restarted(&state, 1);
    assert_eq!(proposal.ends, [].into());
    assert_eq!(last_holders(&proposal.view, 0), nodes(&[2, 3]));
    assert_eq!(last_holders(&proposal.view, 1), nodes(&[2]));
    say(&mut state, back(life(2, 2), 2, &[(ALL, end(1, 5)), (PAIR, end(2, 0))]));
    let view = go_on(&mut state);
    assert_eq!((&view.shards[0].complete, &view.shards[1].complete), (&nodes(&[2]), &nodes(&[2])));
}

#[test]
fn members_that_still_run_count_as_those_who_stay_do() {
    let mut state = state();
    say(&mut state, back(life(1, 1), 1, &[(ALL, end(1, 20)), (PAIR, end(1, 20))]));
    say(&mut state, back(life(2, 2), 1, &[(ALL, end(1, 12)), (PAIR, end(1, 30))]));
    say(&mut state, back(life(3, 1), 1, &[(ALL, end(1, 17))]));
    let proposal = restarted(&state, 2);
    assert_eq!(proposal.ends[&ALL], end(1, 17), "the smallest of those who run");
    assert_eq!(proposal.ends[&PAIR], end(1, 30), "a disk that has more");
    let told = |node, count| Final { node: NodeId(node), count: Seq(count), complete: true, on_disk: false };
    assert_eq!(proposal.finals, [(ALL, vec![told(1, 20), told(3, 17)]), (PAIR, vec![told(1, 20)])].into());
    let view = decide(&mut state, proposal);
    assert_eq!((&view.shards[0].complete, &view.shards[1].complete), (&nodes(&[1, 3]), &nodes(&[2])));
    assert_eq!((&view.joined, &view.left), (&nodes(&[2]), &nodes(&[2])));
}

#[test]
fn what_a_restart_has_cut_off_does_not_count_at_the_next_one() {
    let mut state = state();
    say(&mut state, back(life(1, 2), 1, &[(ALL, end(1, 10))]));
    say(&mut state, back(life(3, 1), 1, &[(ALL, end(1, 10))]));
    go_on(&mut state);
    // Node 1 dies before it installs the view, and finds more on its disk than it had reported.
    say(&mut state, back(life(1, 3), 2, &[(ALL, end(1, 15))]));
    say(&mut state, back(life(3, 2), 2, &[(ALL, end(1, 10))]));
    let proposal = restarted(&state, 3);
    assert_eq!(proposal.ends[&ALL], end(1, 10));
    assert_eq!(proposal.trims.get(&ALL), None, "nothing of the last view is left");
    assert_eq!(proposal.view.shards[0].complete, nodes(&[1, 3]));
    assert!(matches!(proposal.view.shards[1].state, ShardState::Suspended { .. }));
    decide(&mut state, proposal);
}

#[test]
fn less_than_more_than_half_does_not_go_on() {
    let mut state = state();
    say(&mut state, back(life(1, 2), 1, &[]));
    let alone = restarted(&state, 1);
    assert!(refusal(state.apply(Entry::Successor(alone))).contains("of 3 members 1 are back"));
    say(&mut state, back(life(3, 2), 1, &[]));
    go_on(&mut state);
}

#[test]
fn an_epoch_has_one_successor_be_it_a_restart_or_not() {
    let mut state = all_back();
    let view = state.view().unwrap().clone();
    let told = |nodes: &[u32]| {
        nodes.iter().map(|&n| Final { node: NodeId(n), count: Seq(3), complete: true, on_disk: false }).collect()
    };
    let finals: Finals = [(ALL, told(&[1, 2])), (PAIR, told(&[1, 2]))].into();
    let stays = successor(&view, &layout(), NodeId(1), &nodes(&[1, 2]), &[], &finals);
    let returns = restarted(&state, 3);
    let mut other = state.clone();
    decide(&mut state, stays.clone());
    assert!(refusal(state.apply(Entry::Successor(returns.clone()))).contains("another view"));
    decide(&mut other, returns);
    assert!(refusal(other.apply(Entry::Successor(stays))).contains("another view"));
    assert!(refusal(other.apply(Entry::Return(back(life(1, 3), 1, &[])))).contains("another view"));
}

#[test]
fn each_rule_for_a_restart_broken_in_one_way_is_refused() {
    type Breaks = fn(&mut Proposal);
    let table: [(&str, Breaks); 9] = [
        ("another view", |p| Arc::make_mut(&mut p.view).epoch = Epoch(3)),
        ("has not said what it has", |p| p.by = NodeId(4)),
        ("less than half", |p| (p.restart, p.ends) = (false, [].into())),
        ("not the nodes that are back", |p| _ = Arc::make_mut(&mut p.view).members.pop()),
        ("not the nodes that are back", |p| Arc::make_mut(&mut p.view).members[0].incarnation = Incarnation(1)),
        ("makes", |p| _ = p.ends.insert(ALL, end(1, 11))),
        ("what follows", |p| Arc::make_mut(&mut p.view).members.swap(0, 1)),
        ("what follows", |p| Arc::make_mut(&mut p.view).shards[0].complete = nodes(&[1, 2])),
        ("what follows", |p| _ = p.trims.remove(&ALL)),
    ];
    for (says, breaks) in table {
        let mut state = all_back();
        let mut broken = restarted(&state, 1);
        breaks(&mut broken);
        let refused = refusal(state.apply(Entry::Successor(broken)));
        assert!(refused.contains(says), "{says:?} is expected, not {refused:?}");
    }
}

#[test]
fn each_rule_for_who_is_back_broken_in_one_way_is_refused() {
    let runs = |held: &[(ShardId, OrderEnd)]| back(life(1, 1), 1, held);
    let table = [
        ("another view", back(life(1, 2), 2, &[])),
        ("was no member", back(life(4, 2), 1, &[])),
        ("another directory", back(Member { voter: VoterId(9), ..life(1, 2) }, 1, &[])),
        ("as incarnation 0", back(life(1, 0), 1, &[])),
        ("as incarnation 1", back(Member { rack: "r".into(), ..life(1, 1) }, 1, &[])),
        ("knows of epoch 1 only", back(life(1, 2), 1, &[(ALL, end(2, 0))])),
        ("final count of shard 0", runs(&[(PAIR, end(1, 3))])),
        ("final count of shard 1", runs(&[(ALL, end(1, 3)), (PAIR, end(0, 3))])),
    ];
    for (says, back) in table {
        let refused = refusal(state().apply(Entry::Return(back)));
        assert!(refused.contains(says), "{says:?} is expected, not {refused:?}");
    }
    assert!(refusal(ViewLogState::default().apply(Entry::Return(runs(&[])))).contains("begun"));
}

#[test]
fn what_a_node_has_of_a_life_that_was_ended_is_left_out_and_the_node_is_back() {
    let mut before = state();
    let proposal = Proposal::clone(before.last().expect("there is a view"));
    let epoch = proposal.view.epoch.0;
    let (cluster, after, reason) = (ClusterId(9), ClusterId(1), "fire".into());
    let mut forced = ViewLogState::default();
    forced.apply(Entry::Force { cluster, after, earlier: Vec::new(), layout: layout(), proposal, reason });
    let log = back(life(1, 2), epoch, &[(ALL, end(epoch + 3, 7)), (PAIR, end(epoch, 1))]);
    assert!(matches!(before.apply(Entry::Return(log.clone())), Applied::Refused(Refused::Rule(_))));
    assert_eq!(forced.apply(Entry::Return(log)), Applied::Returns);
    assert_eq!(forced.returns()[0].held.keys().copied().collect::<Vec<_>>(), [PAIR]);
}

#[test]
fn a_later_life_of_a_node_says_what_counts() {
    let mut state = state();
    say(&mut state, back(life(1, 1), 1, &[(ALL, end(1, 30)), (PAIR, end(1, 3))]));
    let early = restarted(&state, 1);
    say(&mut state, back(life(1, 2), 1, &[(ALL, end(1, 20)), (PAIR, end(1, 3))]));
    assert!(
        refusal(state.apply(Entry::Return(back(life(1, 1), 1, &[(ALL, end(1, 30)), (PAIR, end(1, 3))]))))
            .contains("already as 2")
    );
    say(&mut state, back(life(3, 2), 1, &[(ALL, end(1, 10))]));
    assert!(refusal(state.apply(Entry::Successor(early))).contains("not the nodes that are back"));
    let proposal = restarted(&state, 1);
    assert_eq!(proposal.ends[&ALL], end(1, 20));
    decide(&mut state, proposal);
}

#[test]
fn who_goes_on_with_a_restart_asks_to_join_no_more() {
    let mut state = all_back();
    state.apply(Entry::Candidate(life(1, 2)));
    state.apply(Entry::Candidate(life(4, 1)));
    go_on(&mut state);
    assert_eq!(state.candidates(), [life(4, 1)]);
}

/// All went down, and neither 1 nor 2 came back with the second shard. In view 3 both are members.
fn suspended() -> ViewLogState {
    suspended_with(life(2, 2))
}

/// As [`suspended`], where node 2 comes as this member.
fn suspended_with(second: Member) -> ViewLogState {
    let mut state = state();
    say(&mut state, back(life(3, 2), 1, &[(ALL, end(1, 4))]));
    say(&mut state, back(life(1, 2), 1, &[(ALL, end(1, 4))]));
    let view = go_on(&mut state);
    assert_eq!(last_holders(&view, 1), nodes(&[1, 2]));
    state.apply(Entry::Candidate(second.clone()));
    let next = follow(&state, &[1, 3], &[second], &[]);
    decide(&mut state, next);
    state
}

/// The successor with these members that stay: all hold what they held, and have counted to 6.
fn follow(state: &ViewLogState, stay: &[u32], join: &[Member], backs: &[ReturnReport]) -> Proposal {
    let view = state.view().unwrap();
    let finals: Finals = view
        .shards
        .iter()
        .map(|shard| {
            let stays = shard.members.iter().filter(|node| stay.contains(&node.0));
            let end = |&node: &NodeId| Final { node, count: Seq(6), complete: shard.is_complete(node), on_disk: false };
            (shard.shard, stays.map(end).collect())
        })
        .collect();
    reopening(view, state.layout(), NodeId(stay[0]), &nodes(stay), join, &finals, backs)
}

/// The report of a member that goes on, and has the second shard.
fn reopen(node: u32, end: OrderEnd) -> ReturnReport {
    ReturnReport { goes_on: true, ..back(life(node, 2), 3, &[(PAIR, end)]) }
}

#[test]
fn a_suspended_shard_goes_on_where_a_last_holder_has_it() {
    let mut state = suspended();
    say(&mut state, reopen(2, end(1, 7)));
    let next = follow(&state, &[1, 3, 2], &[], &state.returns());
    assert_eq!(next.ends, [(PAIR, end(1, 7))].into());
    let view = decide(&mut state, next);
    assert_eq!(view.shards[1].complete, nodes(&[2]));
    assert_eq!(view.shards[1].state, ShardState::Active);
    assert_eq!(state.returns(), []);
}

#[test]
fn a_shard_is_not_reopened_by_one_that_does_not_stay_nor_where_nobody_has_it() {
    let mut state = suspended();
    say(&mut state, reopen(2, end(1, 7)));
    let without = follow(&state, &[1, 3], &[], &state.returns());
    assert!(matches!(without.view.shards[1].state, ShardState::Suspended { .. }));
    let ignored = follow(&state, &[1, 3, 2], &[], &[]);
    assert!(matches!(state.apply(Entry::Successor(ignored)), Applied::Refused(Refused::Rule(_))));
    let more = follow(&state, &[1, 3, 2], &[], &[reopen(2, end(1, 9))]);
    assert!(refusal(state.apply(Entry::Successor(more))).contains("reopened at"));
    decide(&mut state, without);
}

#[test]
fn of_two_last_holders_the_one_with_more_reopens_a_shard() {
    for (first, complete) in [(7, nodes(&[1, 2])), (8, nodes(&[1]))] {
        let mut state = suspended();
        say(&mut state, reopen(2, end(1, 7)));
        assert!(refusal(state.apply(Entry::Return(reopen(2, end(1, 7))))).contains("node 2 is back as incarnation 2"));
        say(&mut state, reopen(1, end(1, first)));
        let next = follow(&state, &[1, 3, 2], &[], &state.returns());
        assert_eq!(next.ends, [(PAIR, end(1, first))].into());
        assert_eq!(decide(&mut state, next).shards[1].complete, complete);
    }
}

/// The report of a copy in the memory of a process that has not stopped.
fn in_memory(node: u32, end: OrderEnd) -> ReturnReport {
    let held = HeldCopy { version: None, ..whole(end) };
    ReturnReport { held: [(PAIR, held)].into(), ..reopen(node, end) }
}

/// Nodes 1 and 2 are dropped from view 2, in which node 1 has become complete, and come back in view 4. View 1
/// delivered 5 messages of the second shard.
fn dropped() -> ViewLogState {
    let mut state = ViewLogState::default();
    let members = (1..=4).map(|node| life(node, 1)).collect();
    state.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members });
    let next = |state: &ViewLogState, stay: &[u32], join: &[Member], counts: &[u64]| {
        let view = state.view().unwrap();
        let finals = |shard: &ShardView| {
            let ends = shard.members.iter().zip(counts);
            let end = |(&node, &count): (&NodeId, &u64)| Final {
                node,
                count: Seq(count),
                complete: !shard.is_suspended(),
                on_disk: shard.is_complete(node),
            };
            (shard.shard, ends.map(end).filter(|end| stay.contains(&end.node.0)).collect())
        };
        let finals: Finals = view.shards.iter().map(finals).collect();
        successor(view, state.layout(), NodeId(stay[0]), &nodes(stay), join, &finals)
    };
    let second = next(&state, &[1, 2, 3, 4], &[], &[6, 5, 7, 7]);
    decide(&mut state, second);
    let third = next(&state, &[3, 4], &[], &[0, 0, 0, 0]);
    assert_eq!(last_holders(&decide(&mut state, third), 1), nodes(&[1, 2]));
    let again = [life(1, 2), life(2, 2)];
    again.iter().for_each(|member| _ = state.apply(Entry::Candidate(member.clone())));
    let fourth = next(&state, &[3, 4], &again, &[0, 0, 0, 0]);
    decide(&mut state, fourth);
    state
}

#[test]
fn a_shard_goes_on_from_the_memory_of_a_process_that_has_received_all_that_was_delivered() {
    let say = |node, end| ReturnReport { epoch: Epoch(4), ..in_memory(node, end) };
    let goes_on = |backs: &[ReturnReport]| {
        let mut state = dropped();
        backs.iter().for_each(|back| self::say(&mut state, back.clone()));
        let next = follow(&state, &[3, 4, 1, 2], &[], &state.returns());
        let complete = decide(&mut state, next.clone()).shards[1].complete.clone();
        (next.ends[&PAIR], complete)
    };
    assert_eq!(goes_on(&[say(1, end(2, 3))]), (end(2, 3), nodes(&[1])));
    assert_eq!(goes_on(&[say(1, end(2, 3)), say(2, end(2, 4))]), (end(2, 4), nodes(&[2])), "the one with more");
    assert_eq!(goes_on(&[say(1, end(2, 3)), say(2, end(2, 3))]), (end(2, 3), nodes(&[1, 2])));
    // It never installed view 2, so nothing was delivered in it. Beyond the trim of view 1 it has messages that were
    // sent again.
    assert_eq!(goes_on(&[say(1, end(1, 6))]), (end(1, 5), nodes(&[1])));
    let refused = |back: ReturnReport| refusal(dropped().apply(Entry::Return(back)));
    let reopens = |back: ReturnReport| {
        let mut state = dropped();
        self::say(&mut state, back);
        !follow(&state, &[3, 4, 1, 2], &[], &state.returns()).ends.is_empty()
    };
    assert!(!reopens(say(1, end(1, 4))), "it lacks what view 1 delivered");
    assert!(refused(say(1, end(3, 0))).contains("suspended after epoch 2"));
    let process = Member { voter: VoterId(9), ..life(1, 2) };
    assert!(refused(ReturnReport { member: process, ..say(1, end(2, 3)) }).contains("no member"));
    let incomplete = HeldCopy { complete: false, version: None, ..whole(end(2, 3)) };
    assert!(!reopens(ReturnReport { held: [(PAIR, incomplete)].into(), ..say(1, end(2, 3)) }));
    assert!(refused(ReturnReport { member: life(3, 1), ..say(3, end(2, 3)) }).contains("last holders"));
}

#[test]
fn a_restart_reopens_a_suspended_shard_with_what_is_back() {
    let mut state = suspended();
    let has = [(ALL, end(3, 0)), (PAIR, end(1, 7))];
    say(&mut state, reopen(2, end(1, 7)));
    say(&mut state, back(life(2, 3), 3, &has));
    say(&mut state, back(life(1, 3), 3, &has[..1]));
    let proposal = restarted(&state, 1);
    assert_eq!(proposal.ends[&PAIR], end(1, 7));
    let view = decide(&mut state, proposal);
    assert_eq!((&view.shards[1].complete, &view.shards[1].state), (&nodes(&[2]), &ShardState::Active));
}

#[test]
fn a_member_that_goes_on_does_not_count_in_a_restart() {
    let mut state = suspended();
    say(&mut state, reopen(2, end(1, 7)));
    say(&mut state, back(life(1, 3), 3, &[(ALL, end(3, 0))]));
    let proposal = restarted(&state, 1);
    assert!(refusal(state.apply(Entry::Successor(proposal))).contains("of 3 members 1 are back"));
}

#[test]
fn each_rule_for_reopening_broken_in_one_way_is_refused() {
    let (good, copy) = (reopen(2, end(1, 7)), whole(end(1, 7)));
    let table = [
        ("another view", ReturnReport { epoch: Epoch(2), ..good.clone() }),
        ("no member", ReturnReport { member: life(2, 1), ..good.clone() }),
        ("last holders", ReturnReport { member: life(3, 2), ..good.clone() }),
        ("not suspended", ReturnReport { held: [(ALL, copy)].into(), ..good.clone() }),
        ("which there is not", ReturnReport { held: [(ShardId(7), copy)].into(), ..good }),
        ("suspended after epoch 1", reopen(2, end(2, 0))),
    ];
    for (says, reopen) in table {
        let refused = refusal(suspended().apply(Entry::Return(reopen)));
        assert!(refused.contains(says), "{says:?} is expected, not {refused:?}");
    }
}

#[test]
fn a_last_holder_whose_disk_was_replaced_does_not_reopen_a_shard() {
    // Its new disk is empty; and node 2 held the shard from the first view on.
    let replaced = Member { voter: VoterId(9), ..life(2, 2) };
    let mut state = suspended_with(replaced.clone());
    let empty = ReturnReport { member: replaced, ..reopen(2, OrderEnd::START) };
    let refused = refusal(state.apply(Entry::Return(empty)));
    assert!(refused.contains("node 2 with the disk 9"), "{refused}");
    let refused = refusal(suspended_with(life(2, 3)).apply(Entry::Return(reopen(2, OrderEnd::START))));
    assert!(refused.contains("no member"), "{refused}");
}

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
    let joined =
        reopening(&view, state.layout(), view.members[0].node, &view.nodes(), &[member], &[ends(&view)].into(), &[]);
    let view = decide(state, joined);
    say(state, ReturnReport { epoch: view.epoch, goes_on: true, ..back });
    let finals = [ends(&view)].into();
    let next = reopening(&view, state.layout(), view.members[0].node, &view.nodes(), &[], &finals, &state.returns());
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
