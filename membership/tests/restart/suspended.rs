//! Suspended shards, which a last holder reopens.

use squall_fabric::NodeId;
use squall_membership::{
    Applied, ClusterId, Entry, Epoch, Final, Finals, HeldCopy, Member, OrderEnd, Proposal, Refused, ReturnReport, Seq,
    ShardId, ShardState, ShardView, ViewLogState, VoterId, reopening, successor,
};

use super::{
    ALL, PAIR, back, decide, end, go_on, last_holders, layout, life, nodes, refusal, restarted, say, state, whole,
};

/// All went down, and neither 1 nor 2 came back with the second shard. In view 3 both are members.
pub(crate) fn suspended() -> ViewLogState {
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
pub(crate) fn follow(state: &ViewLogState, stay: &[u32], join: &[Member], backs: &[ReturnReport]) -> Proposal {
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
    reopening(view, state.layout(), NodeId(stay[0]), (&nodes(stay), join), &finals, backs, Default::default())
}

/// The report of a member that goes on, and has the second shard.
pub(crate) fn reopen(node: u32, end: OrderEnd) -> ReturnReport {
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
    state.apply(Entry::First { cluster: ClusterId(1), layout: layout(), members, preferred: Default::default() });
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
