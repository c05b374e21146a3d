//! Tests of logs on disks: their contents, and the fate of a node whose disk fails, or which dies while it writes.

use redb::StorageBackend;
use squall_fabric::NodeId;
use squall_membership::ViewLog;
use squall_view_log::{Failure, SimDisk};

use crate::world::{MS, World};

fn with_disks(ids: &[u32], seed: u64) -> World {
    let mut world = World::new(ids, seed);
    world.seed = Some(seed);
    for &id in ids {
        world.with_disk(id);
        world.start(id);
    }
    world
}

fn formed(ids: &[u32], seed: u64) -> World {
    let mut world = with_disks(ids, seed);
    world.run_until(3000 * MS, "a first view", |world| ids.iter().all(|&id| world.epoch(id) == Some(1)));
    world
}

fn disk(world: &mut World, id: u32) -> SimDisk {
    world.node(id).disk.clone().expect("it has one")
}

/// Decides one successor after the other, each proposed by another member.
fn views(world: &mut World, count: u64) {
    for _ in 0..count {
        let epoch = world.epoch(1).expect("a view") + 1;
        world.propose(1 + (epoch % 3) as u32, &[1, 2, 3]);
        world.run_until(1000 * MS, "a view", |world| (1..4).all(|id| world.epoch(id) == Some(epoch)));
    }
}

#[test]
fn a_log_does_not_grow_with_the_number_of_views() {
    let mut world = formed(&[1, 2, 3], 1);
    let bytes = |world: &mut World| (1..4).map(|id| disk(world, id).len().expect("a length")).max();
    views(&mut world, 600);
    let before = bytes(&mut world);
    views(&mut world, 1500);
    assert!(bytes(&mut world) <= before);
    // A node that was away meanwhile needs none of the purged entries.
    world.crash(3);
    world.start(3);
    world.run_until(4000 * MS, "a candidate", |world| world.candidates(1) == [3]);
    assert_eq!(world.epoch(3), world.epoch(1), "it is told of the current view alone");
}

#[test]
fn a_node_that_was_away_for_many_views_gets_them_at_once() {
    let mut world = formed(&[1, 2, 3, 4, 5], 2);
    world.crash(5);
    for epoch in 2..400 {
        world.propose(1, &[1, 2, 3, 4]);
        world.run_until(1000 * MS, "a view", |world| (1..5).all(|id| world.epoch(id) == Some(epoch)));
    }
    world.start(5);
    world.run_until(4000 * MS, "a candidate", |world| world.candidates(1) == [5]);
    world.propose(1, &[1, 2, 3, 4, 5]);
    world.run_until(1000 * MS, "a view", |world| world.members(5) == [1, 2, 3, 4, 5]);
}

#[test]
fn a_node_whose_disk_is_full_ends_and_says_so_and_the_others_go_on() {
    let mut world = formed(&[1, 2, 3], 3);
    disk(&mut world, 3).fail_after(0);
    world.propose(1, &[1, 2, 3]);
    let told = |world: &World| world.nodes[&3].log.as_ref().is_some_and(|log| log.failure().is_some());
    world.run_until(1000 * MS, "a failure", told);
    let failure = world.log(3).failure();
    let Some(Failure::Storage(why)) = &failure else { panic!("{failure:?}") };
    assert!(why.contains("no space left"), "{why}");
    world.crash(3);
    for id in [1, 2] {
        world.log(id).peer_gone(NodeId(3));
    }
    world.run_until(1000 * MS, "a view", |world| (1..3).all(|id| world.epoch(id) == Some(2)));
    world.propose(1, &[1, 2]);
    world.run_until(1000 * MS, "a view", |world| (1..3).all(|id| world.members(id) == [1, 2]));
}

/// The founder's disk fails after each of the writes in turn, and it starts again with what is there.
#[test]
fn a_group_forms_though_its_founder_dies_while_it_founds_it() {
    for writes in 0..40 {
        let mut world = with_disks(&[1, 2, 3], writes);
        disk(&mut world, 1).fail_after(writes);
        world.run(400 * MS);
        disk(&mut world, 1).fail_after(u64::MAX);
        world.crash(1);
        world.start(1);
        world.run_until(6000 * MS, "a first view", |world| [2, 3].iter().all(|&id| world.epoch(id).is_some()));
    }
}

/// The disk fails after each of the writes in turn: the node finds the old life or the new one, and never none.
#[test]
fn a_life_that_was_forced_is_begun_though_the_node_dies_meanwhile() {
    let mut begun = 0;
    for writes in 0..40 {
        let mut world = formed(&[1, 2, 3], writes);
        world.run(2000 * MS);
        let before = world.log(1).status().cluster;
        for id in [2, 3] {
            world.crash(id);
        }
        let proposal = world.successor(1, &[1]);
        disk(&mut world, 1).fail_after(writes);
        // The outcome is seen below.
        world.log(1).force(proposal, "test".into(), |_| {});
        world.run(2000 * MS);
        disk(&mut world, 1).fail_after(u64::MAX);
        world.crash(1);
        world.start(1);
        world.run(1000 * MS);
        let status = world.log(1).status();
        let is_forced = status.forced == ["test"];
        assert_eq!((status.epoch.map(|epoch| epoch.0), is_forced), (Some(1 + u64::from(is_forced)), is_forced));
        assert_eq!(status.cluster == before, !is_forced);
        begun += u64::from(is_forced);
    }
    assert!((1..40).contains(&begun), "{begun} of 40");
}
