//! Tests of a group that forms though nodes die and are started again meanwhile, or says in time which nodes are
//! missing.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_view_log::{Failure, Start, Timing};

use crate::{
    seeds::seeds,
    world::{MS, World},
};

/// Members 1 and 2 and witness 9, all of which vote.
fn with_witness(seed: u64) -> World {
    let mut world = World::new(&[1, 2], seed);
    world.seed = Some(seed);
    world.witnesses = vec![9];
    world.voters = Some(vec![NodeId(1), NodeId(2), NodeId(9)]);
    world
}

/// Starts all, lets the founder die at a time after the start, and starts it again a while later.
fn founder_dies(world: &mut World, after: Duration, pause: Duration) {
    [1, 2, 9].iter().for_each(|&id| world.start(id));
    world.run(after);
    world.crash(1);
    world.run(pause);
    world.start(1);
}

#[test]
fn a_group_with_a_witness_forms_though_its_founder_dies_while_it_founds_it() {
    for step in 0..80 {
        for pause in [0, 30, 1000] {
            let mut world = with_witness(step);
            founder_dies(&mut world, 19 * MS + Duration::from_micros(100 * step), MS * pause);
            world.run_until(12_000 * MS, "a first view", |world| world.epoch(2).is_some());
            world.run_until(12_000 * MS, "node 1 in it, or asking", |world| {
                world.members(1).contains(&1) || world.candidates(2) == [1]
            });
        }
    }
}

#[test]
fn a_group_with_a_witness_forms_at_random_moments_of_its_founders_death() {
    for seed in seeds(150) {
        let mut world = with_witness(seed);
        if seed % 3 == 1 {
            [1, 2, 9].iter().for_each(|&id| world.with_disk(id));
        }
        let after = Duration::from_micros(world.rng.u64(15_000..60_000));
        let pause = MS * world.rng.u32(0..1500);
        founder_dies(&mut world, after, pause);
        world.run_until(12_000 * MS, "a first view", |world| world.epoch(2).is_some());
        let is_in = |world: &World| world.members(1).contains(&1) || world.candidates(2) == [1];
        world.run_until(12_000 * MS, "node 1 in it, or asking", is_in);
    }
}

/// A timeout for a group's formation.
fn patience(ms: u32) -> Timing {
    Timing { formation: Some(MS * ms), ..Timing::default() }
}

#[test]
fn a_node_that_has_the_log_and_no_first_view_waits_no_longer_than_it_was_told() {
    let mut world = with_witness(3);
    let members = world.contacts(&[1, 2]);
    let witnesses = world.contacts(&[9]);
    for id in [1, 2] {
        let start = Start::List { members: members.clone(), witnesses: witnesses.clone() };
        world.start_as(id, start, patience(2000));
    }
    world.start(9);
    // The founder gives out the log, and no other node is left to decide with node 2.
    while world.log(2).eligibility().is_none_or(|eligibility| eligibility.voters().is_empty()) {
        world.run(Duration::from_micros(50));
    }
    assert_eq!(world.epoch(2), None);
    [1, 9].iter().for_each(|&id| world.crash(id));
    world.run(2500 * MS);
    let missing = vec![NodeId(1), NodeId(9)];
    assert_eq!(world.log(2).failure(), Some(Failure::NotFormed { waited_ms: 2000, missing }));
}

#[test]
fn a_joiner_of_a_group_that_forms_says_for_whom_it_waits() {
    let mut world = World::new(&[1, 2, 3], 4);
    [1, 2].iter().for_each(|&id| world.start(id));
    let contacts = world.contacts(&[1, 2]);
    world.start_as(4, Start::Join { contacts }, patience(2000));
    world.run(2100 * MS);
    let missing = vec![NodeId(3)];
    assert_eq!(world.log(4).failure(), Some(Failure::NotFormed { waited_ms: 2000, missing }));
}

/// One of three is left, which can decide nothing. Another node comes, which was one of them or was not.
#[test]
fn a_node_that_a_group_without_a_majority_can_not_take_in_waits_no_longer_than_it_was_told() {
    for (seed, comes) in [(1, 2), (2, 4)] {
        let mut world = World::formed(&[1, 2, 3], seed);
        [1, 2].iter().for_each(|&id| world.crash(id));
        world.run(500 * MS);
        let contacts = world.contacts(&[1, 2, 3]);
        let start = match comes {
            2 => Start::List { members: contacts, witnesses: Vec::new() },
            _ => Start::Join { contacts },
        };
        world.start_as(comes, start, patience(3000));
        world.run(4000 * MS);
        let silent = [1, 2].into_iter().filter(|&id| id != comes).map(NodeId).collect();
        assert_eq!(world.log(comes).failure(), Some(Failure::NotAdmitted { waited_ms: 3000, epoch: 1, silent }));
    }
}

#[test]
fn two_of_three_that_forgot_their_votes_and_the_third_say_so_at_once_and_wait_no_longer_than_they_were_told() {
    for seed in 0..20 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.seed = Some(seed);
        let lost: Vec<u32> = (1..4).filter(|&id| u64::from(id) != seed % 3 + 1).collect();
        let third = (1..4).find(|id| !lost.contains(id)).expect("one is left");
        lost.iter().for_each(|&id| world.crash(id));
        let pause = world.rng.u32(..3000);
        world.run(MS * pause);
        for &id in &lost {
            let start = Start::List { members: world.contacts(&[1, 2, 3]), witnesses: Vec::new() };
            world.start_as(id, start, patience(3000));
        }
        world.run_until(1000 * MS, "word of it at all three", |world| {
            (1..4).all(|id| world.nodes[&id].log.as_ref().is_some_and(|log| log.status().stuck.is_some()))
        });
        let says = world.log(third).status().stuck.expect("it was just there");
        assert!(says.contains("squall recover --force") && says.contains("storage"), "{says}");
        world.run(3000 * MS);
        for &id in &lost {
            let failure = world.log(id).failure();
            assert!(matches!(&failure, Some(Failure::Forgotten { nodes, .. }) if nodes.len() == 2), "{failure:?}");
        }
        assert_eq!(world.log(third).failure(), None, "it may be forced to go on");
    }
}

#[test]
fn one_of_three_that_forgot_its_vote_comes_back_as_another_part_of_the_log() {
    for seed in 0..20 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.seed = Some(seed);
        let victim = world.rng.u32(1..4);
        let before = world.log(victim).me().voter;
        world.crash(victim);
        world.start(victim);
        assert_ne!(world.log(victim).me().voter, before, "it never votes again as what it was");
        let other = if victim == 1 { 2 } else { 1 };
        world.run_until(8000 * MS, "a candidate", |world| world.candidates(other) == [victim]);
        assert!((1..4).all(|id| world.log(id).status().stuck.is_none()));
    }
}

#[test]
fn the_leader_of_a_life_that_is_over_comes_to_the_one_that_an_operator_forced() {
    for seed in 0..20 {
        let mut world = World::new(&[1, 2, 3], seed);
        world.seed = Some(seed);
        (1..4).for_each(|id| world.with_disk(id));
        (1..4).for_each(|id| world.start(id));
        world.run_until(3000 * MS, "a first view", |world| (1..4).all(|id| world.epoch(id) == Some(1)));
        let leader = world.log(1).status().leader.expect("a leader").0;
        let left = (1..4).find(|&id| id != leader).expect("another");
        (1..4).filter(|&id| id != left).for_each(|id| world.crash(id));
        world.force(left);
        world.start(leader);
        world.run_until(4000 * MS, "the old leader asks", |world| world.candidates(left) == [leader]);
    }
}
