//! Tests of members that come back with their disks: their reports, and the view that follows from these.

mod counted;
mod suspended;

use std::sync::Arc;

use squall_fabric::NodeId;
use squall_membership::{
    Applied, ClusterId, Counts, Entry, Epoch, Final, Finals, GroupLayout, HeldCopy, Incarnation, Layout, Member,
    OrderEnd, Proposal, Refused, ReturnReport, Seq, ShardId, ShardState, ShardView, Skipped, View, ViewLogState,
    VoterId, restart, successor,
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
    state.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members, preferred: Default::default() });
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
    restart(state.last().unwrap(), state.layout(), NodeId(by), &state.returns(), Default::default())
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
    state.apply(Entry::First { cluster: ClusterId(1), layout, members, preferred: Default::default() });
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
    assert_eq!(complete(&[life_of(1, 2, at, skips(5)), runs, short]), nodes(&[2]), "running nodes see its list");
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
    let next = suspended::follow(&state, &[1, 2], &[], &state.returns());
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
    assert_eq!(proposal.ends[&ALL], end(1, 17), "the smallest of the nodes that run");
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
