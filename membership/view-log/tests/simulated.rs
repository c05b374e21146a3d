//! Tests of clusters of logs in virtual time.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{Incarnation, Member, Parameters, ViewEvent, ViewLog};
use squall_view_log::{Failure, Start, Timing};

use crate::{
    seeds::seeds,
    world::{MS, Trouble, World, successor},
};

#[test]
fn all_of_a_list_form_one_group_in_any_order_of_starting() {
    for seed in 0..20 {
        let list = [1, 2, 3, 4, 5];
        let mut world = World::new(&list, seed);
        let mut order = list;
        world.rng.shuffle(&mut order);
        for id in order {
            world.start(id);
            let pause = world.rng.u32(..300);
            world.run(MS * pause);
        }
        world.run_until(3000 * MS, "a first view", |world| list.iter().all(|&id| world.members(id) == list));
    }
}

#[test]
fn a_group_that_can_not_form_says_who_is_missing() {
    let mut world = World::new(&[1, 2, 3], 1);
    world.start(1);
    let members = world.contacts(&[1, 2, 3]);
    let timing = Timing { formation: Some(MS * 500), ..Timing::default() };
    world.start_as(2, Start::List { members, witnesses: Vec::new() }, timing);
    world.run(600 * MS);
    let missing = vec![NodeId(3)];
    assert_eq!(world.log(2).failure(), Some(Failure::NotFormed { waited_ms: 500, missing }));
}

#[test]
fn a_group_forms_though_its_founder_dies_while_it_founds_it_and_remembers_nothing() {
    for step in 0..60 {
        let mut world = World::new(&[1, 2, 3], step);
        world.seed = Some(step);
        (1..4).for_each(|id| world.start(id));
        world.run(19 * MS + Duration::from_micros(100 * step));
        world.crash(1);
        world.start(1);
        world.run_until(8000 * MS, "a first view", |world| [2, 3].iter().all(|&id| world.epoch(id).is_some()));
    }
}

#[test]
fn a_node_joins_and_is_a_member_when_that_is_proposed() {
    let mut world = World::formed(&[1, 2, 3], 1);
    world.start(4);
    world.run_until(1000 * MS, "a candidate", |world| (1..4).all(|id| world.candidates(id) == [4]));
    world.propose(2, &[1, 2, 3, 4]);
    world.run_until(1000 * MS, "a view", |world| (1..5).all(|id| world.members(id) == [1, 2, 3, 4]));
    assert_eq!(world.epoch(4), Some(2), "a joiner is told of no view before it came");
}

#[test]
fn a_joiner_that_goes_away_is_a_candidate_no_more() {
    let mut world = World::formed(&[1, 2, 3], 2);
    world.start(4);
    world.run_until(1000 * MS, "a candidate", |world| (1..4).all(|id| world.candidates(id) == [4]));
    world.crash(4);
    world.run_until(6000 * MS, "no candidate", |world| (1..4).all(|id| world.candidates(id).is_empty()));
}

#[test]
fn a_leader_that_is_gone_is_not_waited_for() {
    for seed in 0..20 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.run(500 * MS);
        let leader = world.log(1).status().leader.expect("a leader").0;
        let left: Vec<u32> = (1..4).filter(|id| *id != leader).collect();
        world.crash(leader);
        for &id in &left {
            world.log(id).peer_gone(NodeId(leader));
        }
        world.propose(left[0], &left);
        let took = world.run_until(1000 * MS, "a view", |world| left.iter().all(|&id| world.members(id) == left));
        assert!(took < 10 * MS, "seed {seed}: {took:?}");
    }
}

#[test]
fn a_leader_that_nobody_knows_to_be_gone_is_replaced_all_the_same() {
    for seed in 0..20 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.run(20_000 * MS);
        let leader = world.log(1).status().leader.expect("a leader").0;
        let left: Vec<u32> = (1..4).filter(|id| *id != leader).collect();
        world.crash(leader);
        world.propose(left[0], &left);
        world.run_until(6000 * MS, "a view", |world| left.iter().all(|&id| world.members(id) == left));
    }
}

/// Until the change ends, most of the old voters and most of the new ones must agree: more than are left in the end.
#[test]
fn a_change_of_voters_is_ended_though_the_leader_dies_in_the_middle_of_it() {
    for step in 0..20 {
        let mut world = World::formed(&[1, 2, 3], step);
        world.seed = Some(step);
        let all = [1, 2, 3, 4, 5];
        [4, 5].iter().for_each(|&id| world.start(id));
        world.run_until(1000 * MS, "candidates", |world| world.candidates(1).len() == 2);
        world.propose(1, &all);
        world.run_until(1000 * MS, "a view", |world| world.epoch(1) == Some(2));
        world.run(Duration::from_micros(100 * step));
        let mut old = vec![1, 2, 3];
        let leader = world.log(1).status().leader.expect("a leader").0;
        world.crash(leader);
        world.run(10_000 * MS);
        old.retain(|&id| id != leader);
        world.crash(old[0]);
        let left: Vec<u32> = all.into_iter().filter(|&id| id != leader && id != old[0]).collect();
        world.propose(old[1], &left);
        world.run_until(8000 * MS, "a view", |world| left.iter().all(|&id| world.epoch(id) == Some(3)));
    }
}

/// A heartbeat and its answer, for each of the others.
#[test]
fn while_nothing_happens_little_is_said() {
    let mut world = World::formed(&[1, 2, 3], 12);
    world.run(5000 * MS);
    let (before, term) = (world.sent, world.log(1).status().term);
    world.run(60_000 * MS);
    let beats = (world.sent - before) / 4;
    assert!((60..70).contains(&beats), "{beats} heartbeats in a minute");
    assert_eq!(world.log(1).status().term, term, "no node doubts the leader");
}

#[test]
fn what_was_refused_may_be_right_once_a_candidate_is_there() {
    let mut world = World::formed(&[1, 2, 3], 13);
    world.run(500 * MS);
    let joiner = Member { voter: squall_membership::VoterId(7), ..Member::new(NodeId(4), Incarnation(1)) };
    let last = world.last(1).unwrap();
    let early = successor(&last.view, 1, &[1, 2, 3, 4], &[joiner]);
    world.log(1).propose(early);
    world.run(500 * MS);
    assert_eq!(world.epoch(1), Some(1), "no node knows of the joiner");
    world.start(4);
    world.run_until(1000 * MS, "a candidate", |world| (1..4).all(|id| world.candidates(id) == [4]));
    world.propose(1, &[1, 2, 3, 4]);
    world.run_until(1000 * MS, "a view", |world| (1..5).all(|id| world.members(id) == [1, 2, 3, 4]));
}

/// Parameters, one of which has this value.
fn parameters(value: u32) -> Parameters {
    let mut parameters = Parameters::default();
    parameters.set("ring_bytes", value);
    parameters
}

#[test]
fn a_node_with_other_parameters_is_refused_before_it_is_a_candidate_and_both_ends_know_why() {
    for seed in 0..20 {
        let mut world = World::new(&[1, 2, 3], seed);
        world.seed = Some(seed);
        // Now and then the witness leads, which has no parameters to compare.
        world.witnesses = vec![9];
        world.voters = Some(vec![NodeId(1), NodeId(2), NodeId(9)]);
        world.parameters = (1..=3).map(|id| (id, parameters(1))).collect();
        world.with_disk(3);
        [1, 2, 3, 9].iter().for_each(|&id| world.start(id));
        world.run_until(3000 * MS, "a first view", |world| (1..4).all(|id| world.epoch(id) == Some(1)));
        if seed % 2 == 1 {
            world.crash(3);
            world.parameters.insert(3, parameters(2));
            world.start(3);
        } else {
            world.parameters.insert(4, parameters(2));
            world.start(4);
        }
        let other = if seed % 2 == 1 { 3 } else { 4 };
        world.run_until(3000 * MS, "a refusal", |world| world.nodes[&other].log.as_ref().unwrap().failure().is_some());
        let Some(Failure::Mismatch { why, .. }) = world.log(other).failure() else { panic!("another failure") };
        assert!(why.contains("ring_bytes is 1 at node") && why.contains(&format!("2 at node {other}")), "{why}");
        world.run(2000 * MS);
        assert!((1..3).all(|id| world.candidates(id).is_empty() && world.epoch(id) == Some(1)), "it cost nothing");
        let others = [1, 2, 9].into_iter().filter(|&id| world.is_up(id) && world.log(id).failure().is_none());
        assert_eq!(others.count(), 3, "no other node has ended");
        // Configured as the others, it is welcome.
        world.crash(other);
        world.parameters.insert(other, parameters(1));
        world.start(other);
        world.run_until(5000 * MS, "a candidate", |world| world.candidates(1) == [other]);
    }
}

#[test]
fn a_whole_group_may_be_started_again_with_other_parameters() {
    let mut world = World::new(&[1, 2, 3], 15);
    (1..=3).for_each(|id| {
        world.with_disk(id);
        world.parameters.insert(id, parameters(1));
        world.start(id);
    });
    world.run_until(3000 * MS, "a first view", |world| (1..4).all(|id| world.epoch(id) == Some(1)));
    (1..=3).for_each(|id| world.crash(id));
    (1..=3).for_each(|id| {
        world.parameters.insert(id, parameters(2));
        world.start(id);
    });
    world.run(5000 * MS);
    assert!((1..=3).all(|id| world.log(id).failure().is_none() && world.epoch(id) == Some(1)));
}

#[test]
fn a_refusal_shows_that_there_is_a_quorum() {
    let mut world = World::formed(&[1, 2, 3], 14);
    let mut wrong = world.successor(1, &[1, 2, 3]);
    wrong.finals.clear();
    for _ in 0..4 {
        world.log(1).propose(wrong.clone());
        world.run(1000 * MS);
    }
    assert!(!world.nodes[&1].events.contains(&ViewEvent::NoQuorum));
}

#[test]
fn a_founder_that_comes_back_without_memory_joins() {
    let mut world = World::formed(&[1, 2, 3], 4);
    world.crash(1);
    world.start(1);
    for id in [2, 3] {
        world.log(id).peer_gone(NodeId(1));
    }
    world.run_until(4000 * MS, "a candidate", |world| [2, 3].iter().all(|&id| world.candidates(id) == [1]));
    world.propose(2, &[2, 3, 1]);
    world.run_until(1000 * MS, "a view", |world| (1..4).all(|id| world.members(id) == [2, 3, 1]));
    world.run(2000 * MS);
    assert_eq!(world.log(2).status().voters.len(), 3);
}

#[test]
fn who_was_dropped_while_cut_off_learns_of_it_and_rejoins_with_a_later_incarnation() {
    let mut world = World::formed(&[1, 2, 3], 5);
    world.cut = vec![(3, 1), (1, 3), (3, 2), (2, 3)];
    world.propose(1, &[1, 2]);
    world.run_until(1000 * MS, "a view", |world| world.members(1) == [1, 2]);
    world.run(7000 * MS);
    assert_eq!(world.epoch(3), Some(1));
    world.cut.clear();
    world.run_until(5000 * MS, "the news", |world| world.members(3) == [1, 2]);
    let me = world.log(3).me();
    world.log(3).join(me);
    world.run_until(2000 * MS, "a candidate", |world| world.candidates(1) == [3]);
    world.propose(1, &[1, 2, 3]);
    world.run_until(1000 * MS, "a view", |world| world.members(3) == [1, 2, 3]);
    assert!(world.last(3).unwrap().view.members[2].incarnation > Incarnation(1));
}

#[test]
fn an_incarnation_that_was_used_is_raised() {
    let mut world = World::formed(&[1, 2, 3], 6);
    world.crash(3);
    world.node(3).lives = 0;
    world.start(3);
    world.run_until(4000 * MS, "a candidate", |world| world.candidates(1) == [3]);
    assert_eq!(world.log(3).me().incarnation, Incarnation(2));
}

#[test]
fn without_a_quorum_a_proposer_is_told_so() {
    let mut world = World::formed(&[1, 2, 3], 7);
    world.crash(2);
    world.crash(3);
    world.log(1).peer_gone(NodeId(2));
    world.log(1).peer_gone(NodeId(3));
    let proposal = world.successor(1, &[1, 2]);
    world.log(1).propose(proposal);
    let told = |world: &World| world.nodes[&1].events.contains(&ViewEvent::NoQuorum);
    world.run_until(3000 * MS, "word of it", told);
}

#[test]
fn two_members_and_a_witness_survive_the_loss_of_any_one() {
    for victim in 1..3 {
        let mut world = World::new(&[1, 2], 8);
        world.witnesses = vec![9];
        world.voters = Some(vec![NodeId(1), NodeId(2), NodeId(9)]);
        for id in [1, 2, 9] {
            world.start(id);
        }
        world.run_until(3000 * MS, "a first view", |world| (1..3).all(|id| world.members(id) == [1, 2]));
        world.run(1000 * MS);
        let left = 3 - victim;
        assert_eq!(world.log(left).status().voters.len(), 3);
        world.crash(victim);
        world.log(left).peer_gone(NodeId(victim));
        world.propose(left, &[left]);
        world.run_until(3000 * MS, "a view", |world| world.members(left) == [left]);
    }
}

#[test]
fn a_node_with_a_disk_comes_back_as_the_same_part_of_the_log() {
    let mut world = World::new(&[1, 2, 3], 10);
    for id in 1..4 {
        world.with_disk(id);
        world.start(id);
    }
    world.run_until(3000 * MS, "a first view", |world| (1..4).all(|id| world.epoch(id) == Some(1)));
    let voter = world.log(3).me().voter;
    world.crash(3);
    world.start(3);
    assert_eq!(world.log(3).me().voter, voter);
    world.run_until(4000 * MS, "a candidate", |world| world.candidates(1) == [3]);
}

/// Nodes crash, messages are lost, and rivals propose. Each epoch has one successor all the same (the world checks it),
/// and when the trouble is over, something is decided.
#[test]
fn whatever_happens_each_epoch_has_one_successor() {
    for seed in seeds(40) {
        let list = [1, 2, 3, 4, 5];
        let mut world = World::new(&list, seed);
        world.seed = Some(seed);
        for id in list {
            if seed % 2 == 0 {
                world.with_disk(id);
            }
            world.start(id);
        }
        world.run_until(3000 * MS, "a first view", |world| list.iter().all(|&id| world.epoch(id) == Some(1)));
        world.trouble = Trouble { loss: 20, repeats: 5 };
        for _ in 0..15 {
            match world.rng.u32(..4) {
                0 => {
                    let pair = (world.rng.u32(1..6), world.rng.u32(1..6));
                    world.cut = vec![pair];
                }
                // With disks any may crash; without, a majority that forgets is beyond what a log can survive.
                1 if seed % 2 == 0 => {
                    let id = world.rng.u32(1..6);
                    world.crash(id);
                    let pause = world.rng.u32(..500);
                    world.run(MS * pause);
                    world.start(id);
                }
                _ => {
                    for _ in 0..2 {
                        rival(&mut world);
                    }
                }
            }
            let pause = world.rng.u32(..400);
            world.run(MS * pause);
        }
        (world.trouble, world.cut) = (Trouble::default(), Vec::new());
        world.run(4000 * MS);
        let epoch = world.decided.keys().last().expect("a view").0;
        let by = (1..6).find(|&id| world.epoch(id) == Some(epoch) && world.members(id).contains(&id));
        let Some(by) = by else { continue };
        // The log does not care whether the members still run: some of them may have come back as candidates.
        let (last, members) = (world.last(by).unwrap(), world.members(by));
        world.log(by).propose(successor(&last.view, by, &members, &[]));
        world.run_until(5000 * MS, "a successor", |world| world.decided.keys().last().unwrap().0 > epoch);
    }
}

/// Lets some member propose that most of the members that it knows go on.
fn rival(world: &mut World) {
    let by = world.rng.u32(1..6);
    let members = world.members(by);
    if !members.contains(&by) {
        return;
    }
    let mut stay = members;
    if stay.len() > 3 {
        let out = world.rng.usize(..stay.len());
        if stay[out] != by {
            stay.remove(out);
        }
    }
    for candidate in world.candidates(by) {
        stay.retain(|id| *id != candidate);
        stay.push(candidate);
    }
    world.propose(by, &stay);
}

#[test]
fn a_member_reports_to_those_who_can_hear_it() {
    let mut world = World::formed(&[1, 2, 3], 11);
    let view = std::sync::Arc::clone(&world.last(1).unwrap().view);
    let member: Member = view.members[0].clone();
    let report = squall_membership::Report { epoch: view.epoch, member, finals: Default::default() };
    world.log(1).report(&view, report.clone());
    let heard = |world: &World| (2..4).all(|id| world.nodes[&id].events.contains(&ViewEvent::Reported(report.clone())));
    world.run_until(100 * MS, "reports", heard);
}
