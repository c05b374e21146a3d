//! Tests of storage that went back: an old copy of a node's directory is put in the place of a newer one. The node is
//! told, or the group.

use std::collections::BTreeMap;

use squall_fabric::NodeId;
use squall_membership::{Epoch, Layout, ReturnReport, ViewEvent, ViewLog, restart};
use squall_view_log::{Failure, SimDisk};

use crate::{
    seeds::seeds,
    world::{MS, Trouble, World},
};

/// The number of seeds that run unless the environment names others.
const SEEDS: u64 = 20;

fn formed(seed: u64) -> World {
    let mut world = World::new(&[1, 2, 3], seed);
    world.seed = Some(seed);
    for id in 1..4 {
        world.with_disk(id);
        world.start(id);
    }
    world.run_until(3000 * MS, "a first view", |world| (1..4).all(|id| world.epoch(id) == Some(1)));
    world
}

fn copy(world: &mut World, id: u32) -> SimDisk {
    world.node(id).disk.as_ref().expect("it has one").copy()
}

fn put_back(world: &mut World, id: u32, copy: &SimDisk) {
    world.node(id).disk = Some(copy.copy());
}

/// Decides some views, each proposed by one of these, which are their members.
fn views(world: &mut World, members: &[u32], count: u64) {
    for _ in 0..count {
        let epoch = world.epoch(members[0]).expect("a view") + 1;
        world.propose(members[(epoch % members.len() as u64) as usize], members);
        world.run_until(3000 * MS, "a view", |world| members.iter().all(|&id| world.epoch(id) == Some(epoch)));
    }
}

/// Starts a node again, and waits until it is a member as its new life.
fn comes_back(world: &mut World, id: u32) {
    let by = if id == 1 { 2 } else { 1 };
    world.crash(id);
    world.log(by).peer_gone(NodeId(id));
    world.start(id);
    let others: Vec<u32> = (1..4).filter(|other| *other != id).collect();
    views(world, &others, 1);
    world.run_until(6000 * MS, "a candidate", |world| world.candidates(by) == [id]);
    let mut members = others;
    members.push(id);
    world.propose(by, &members);
    world.run_until(3000 * MS, "a view", |world| {
        (1..4).all(|id| world.members(id).len() == 3 && world.epoch(id) == world.epoch(by))
    });
}

fn failure(world: &World, id: u32) -> Option<Failure> {
    world.nodes[&id].log.as_ref().and_then(|log| log.failure())
}

fn is_old(world: &World, id: u32) -> bool {
    matches!(failure(world, id), Some(Failure::OldStorage { .. }))
}

fn is_left_behind(world: &World, id: u32) -> bool {
    matches!(failure(world, id), Some(Failure::GroupWentBack { .. }))
}

#[test]
fn a_node_with_an_old_copy_of_its_storage_ends_and_the_others_go_on() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        let id = 1 + world.rng.u32(0..3);
        let old = copy(&mut world, id);
        comes_back(&mut world, id);
        world.crash(id);
        let others: Vec<u32> = (1..4).filter(|other| *other != id).collect();
        for &other in &others {
            world.log(other).peer_gone(NodeId(id));
        }
        put_back(&mut world, id, &old);
        world.start(id);
        world.run_until(1000 * MS, "an end with a reason", |world| is_old(world, id));
        views(&mut world, &others, 3);
        assert!(others.iter().all(|&other| failure(&world, other).is_none()));
    }
}

#[test]
fn an_old_copy_is_found_when_all_start_again_and_however_often_its_node_was_started_with_it() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        let id = 1 + world.rng.u32(0..3);
        let old = copy(&mut world, id);
        comes_back(&mut world, id);
        (1..4).for_each(|id| world.crash(id));
        put_back(&mut world, id, &old);
        // No node is there to tell it.
        for _ in 0..world.rng.u32(0..70) {
            world.start(id);
            world.crash(id);
        }
        let mut order = [1, 2, 3];
        world.rng.shuffle(&mut order);
        for id in order {
            world.start(id);
            let pause = world.rng.u32(0..300);
            world.run(pause * MS);
        }
        world.run_until(3000 * MS, "an end with a reason", |world| is_old(world, id));
        assert!((1..4).all(|other| other == id || failure(&world, other).is_none()));
    }
}

/// Its lives are the same: it has none after the copy. It lacks entries that it has acknowledged.
#[test]
fn a_copy_of_the_running_storage_is_found_by_who_leads() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        let leader = world.log(1).status().leader.expect("one leads").0;
        let id = (1..4).find(|id| *id != leader).expect("another");
        let old = copy(&mut world, id);
        views(&mut world, &[1, 2, 3], 5);
        world.crash(id);
        put_back(&mut world, id, &old);
        world.start(id);
        world.run_until(3000 * MS, "an end with a reason", |world| is_old(world, id));
        let others: Vec<u32> = (1..4).filter(|other| *other != id).collect();
        views(&mut world, &others, 2);
    }
}

/// Starts the others, most of the group, with old copies: the third is late, and knows what they have lost.
fn third_is_late(world: &mut World, late: u32, old: &[(u32, SimDisk)]) {
    (1..4).for_each(|id| world.crash(id));
    world.has_two_lives = true;
    let ids: Vec<u32> = old.iter().map(|(id, _)| *id).collect();
    for (id, copy) in old {
        put_back(world, *id, copy);
        world.start(*id);
    }
    let knows =
        |world: &World| ids.iter().all(|&id| world.epoch(id).is_some() && world.epoch(id) == world.epoch(ids[0]));
    world.run_until(9000 * MS, "the last view that they know", knows);
    let epoch = Epoch(world.epoch(ids[0]).expect("a view"));
    for &id in &ids {
        let member = world.log(id).me();
        world.log(id).report_return(ReturnReport { member, epoch, goes_on: false, held: BTreeMap::new() });
    }
    world.run_until(3000 * MS, "the nodes that are back", |world| backs(world, ids[0]).len() == 2);
    let last = world.last(ids[0]).expect("a view to follow");
    let layout = Layout::of_all(["group".into()]);
    let proposal = restart(&last, &layout, NodeId(ids[0]), &backs(world, ids[0]), Default::default());
    world.log(ids[0]).propose(proposal);
    let goes_on = |world: &World| ids.iter().all(|&id| world.epoch(id) == Some(epoch.0 + 1));
    world.run_until(3000 * MS, "a restart", goes_on);
    world.start(late);
    world.run_until(6000 * MS, "an end with a reason", |world| is_left_behind(world, late));
    let says =
        |world: &World, id: u32| world.nodes[&id].log.as_ref().is_some_and(|log| !log.status().went_back.is_empty());
    assert!(ids.iter().any(|&id| says(world, id)), "the group does not say that it has gone back");
    assert!(ids.iter().all(|&id| failure(world, id).is_none()));
}

/// The nodes that are back, as a node was told.
fn backs(world: &World, id: u32) -> Vec<ReturnReport> {
    let told = world.nodes[&id].events.iter().rev().find_map(|event| match event {
        ViewEvent::Returns(backs) => Some(backs.clone()),
        _ => None,
    });
    told.unwrap_or_default()
}

#[test]
fn a_group_that_goes_on_from_old_copies_is_told_so_by_who_knows_more_and_that_node_keeps_what_it_has() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        let late = 1 + world.rng.u32(0..3);
        let ids: Vec<u32> = (1..4).filter(|id| *id != late).collect();
        let old: Vec<(u32, SimDisk)> = ids.iter().map(|&id| (id, copy(&mut world, id))).collect();
        ids.iter().for_each(|&id| comes_back(&mut world, id));
        third_is_late(&mut world, late, &old);
    }
}

#[test]
fn copies_of_running_storage_that_most_go_on_from_are_found_by_what_was_decided_since() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        let late = 1 + world.rng.u32(0..3);
        let ids: Vec<u32> = (1..4).filter(|id| *id != late).collect();
        let old: Vec<(u32, SimDisk)> = ids.iter().map(|&id| (id, copy(&mut world, id))).collect();
        views(&mut world, &[1, 2, 3], 4);
        world.run(2000 * MS);
        third_is_late(&mut world, late, &old);
    }
}

/// The node that knows more comes in time: it tells the others before anything is lost.
#[test]
fn old_copies_of_most_end_if_the_third_is_there() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        let good = 1 + world.rng.u32(0..3);
        let ids: Vec<u32> = (1..4).filter(|id| *id != good).collect();
        let old: Vec<(u32, SimDisk)> = ids.iter().map(|&id| (id, copy(&mut world, id))).collect();
        ids.iter().for_each(|&id| comes_back(&mut world, id));
        (1..4).for_each(|id| world.crash(id));
        old.iter().for_each(|(id, copy)| put_back(&mut world, *id, copy));
        (1..4).for_each(|id| world.start(id));
        world.run_until(3000 * MS, "ends with a reason", |world| ids.iter().all(|&id| is_old(world, id)));
        assert!(failure(&world, good).is_none());
    }
}

/// The same node leads both lives by the same vote, and probes the other's log at a place up to which that was
/// acknowledged in the life that is over.
#[test]
fn a_node_that_comes_to_its_leaders_next_life_has_no_old_copy() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        world.has_two_lives = true;
        let leader = world.log(1).status().leader.expect("one leads").0;
        let mut others: Vec<u32> = (1..4).filter(|id| *id != leader).collect();
        let before = world.rng.u64(2..12);
        views(&mut world, &[1, 2, 3], before);
        others.iter().for_each(|&id| world.crash(id));
        world.force(leader);
        let since = world.rng.u64(0..30);
        views(&mut world, &[leader], since);
        world.rng.shuffle(&mut others);
        for id in others {
            world.start(id);
            world.run_until(6000 * MS, "a candidate", |world| world.candidates(leader).contains(&id));
        }
    }
}

/// Crashes, restarts and a network that delays and repeats messages are no old copies.
#[test]
fn no_storage_is_taken_for_an_old_copy_that_is_none() {
    for seed in seeds(SEEDS) {
        let mut world = formed(seed);
        world.trouble = Trouble { loss: 5, repeats: 20 };
        world.delay = 40 * MS;
        for _ in 0..30 {
            let id = 1 + world.rng.u32(0..3);
            match world.is_up(id) {
                true if world.rng.bool() => world.crash(id),
                true => {
                    let epoch = world.epoch(id);
                    if epoch.is_some() {
                        let members: Vec<u32> = world.members(id);
                        world.propose(id, &members);
                    }
                }
                false => world.start(id),
            }
            let pause = world.rng.u32(0..400);
            world.run(pause * MS);
            for id in 1..4 {
                assert!(failure(&world, id).is_none(), "seed {seed}: {:?}", failure(&world, id));
            }
        }
    }
}
