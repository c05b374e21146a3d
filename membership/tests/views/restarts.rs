//! Members whose processes end, all or more than half of them, and come back with their disks.

use std::time::Duration;

use squall_fabric::{NodeId, sim::SimConfig};
use squall_membership::{Epoch, ShardState};

use super::{
    faults::{for_seeds, network},
    world::{CONNECT_TIMEOUT, RESTART_WAIT, World, ms},
};

const SETTLES_WITHIN: Duration = ms(4000);

fn formed(seed: u64, members: u32) -> World {
    World::durable(seed, members, SimConfig::fast())
}

fn a_while(world: &mut World, most_ms: f64) {
    let time = Duration::from_secs_f64(world.rng.f64() * most_ms / 1e3);
    world.run_for(time);
}

#[test]
fn all_that_crash_at_once_go_on_together_without_a_wait_once_all_are_back() {
    for seed in 0..50 {
        let members = 1 + seed as u32 % 5;
        let mut world = formed(seed, members);
        world.run_for(ms(40));
        (1..=members).for_each(|node| world.crash(node));
        world.run_for(ms(200));
        (1..=members).for_each(|node| world.restart(node));
        let began = world.net.now();
        world.run_until("they go on", SETTLES_WITHIN, World::has_gone_on);
        assert!(members == 1 || world.net.now().since(began) < RESTART_WAIT);
        assert_eq!(world.log.view().nodes(), (1..=members).map(NodeId).collect::<Vec<_>>());
        assert!(world.log.history[1].restart);
        world.run_until("all have caught up", SETTLES_WITHIN, World::is_settled);
        world.check();
    }
}

#[test]
fn one_that_is_not_back_is_named_and_waited_for_but_not_for_ever() {
    for seed in 0..50 {
        let mut world = formed(seed, 3);
        world.run_for(ms(40));
        (1..=3).for_each(|node| world.crash(node));
        [3, 1].into_iter().for_each(|node| world.restart(node));
        let began = world.net.now();
        world.run_until("they go on", SETTLES_WITHIN, World::has_gone_on);
        assert!(world.net.now().since(began) >= RESTART_WAIT);
        assert_eq!(world.process(1).waits_for, [NodeId(2)]);
        let view = &world.log.history[1].view;
        assert_eq!((view.nodes(), &view.left), ([1, 3].map(NodeId).to_vec(), &[1, 2, 3].map(NodeId).to_vec()));
        world.restart(2);
        world.run_until("the last one joins them", SETTLES_WITHIN, World::is_settled);
        world.check();
    }
}

#[test]
fn half_of_them_wait() {
    for seed in 0..20 {
        let mut world = formed(seed, 4);
        world.run_for(ms(40));
        (1..=4).for_each(|node| world.crash(node));
        [4, 2].into_iter().for_each(|node| world.restart(node));
        world.run_for(RESTART_WAIT * 5);
        assert_eq!(world.log.view().epoch, Epoch::FIRST);
        assert_eq!(world.process(4).waits_for, [1, 3].map(NodeId));
        world.restart(3);
        world.run_until("a third one is enough", SETTLES_WITHIN, World::is_settled);
        world.check();
    }
}

#[test]
fn one_that_never_stopped_takes_part_with_what_it_holds_in_memory() {
    for seed in 0..50 {
        let mut world = formed(seed, 3);
        world.run_for(ms(40));
        let survivor = 1 + seed as u32 % 3;
        let others: Vec<u32> = (1..=3).filter(|&node| node != survivor).collect();
        others.iter().for_each(|&node| world.crash(node));
        a_while(&mut world, 300.0);
        others.iter().for_each(|&node| world.restart(node));
        world.run_until("they go on", SETTLES_WITHIN, World::is_settled);
        assert_eq!(world.process(survivor).dropped, 0);
        let restart = world.log.history.iter().find(|next| next.restart).expect("more than half were gone");
        assert!(restart.view.shards[0].is_complete(NodeId(survivor)), "all that was delivered it has received");
        assert_eq!(restart.ends[&restart.view.shards[0].shard].epoch, Epoch::FIRST);
        world.check();
    }
}

#[test]
fn those_who_keep_half_go_on_and_who_is_back_joins_them() {
    for seed in 0..50 {
        let mut world = formed(seed, 5);
        world.run_for(ms(40));
        [1, 2].into_iter().for_each(|node| world.crash(node));
        [1, 2].into_iter().for_each(|node| world.restart(node));
        world.run_until("they go on", SETTLES_WITHIN, World::is_settled);
        assert!(world.log.history.iter().all(|next| !next.restart));
        world.check();
    }
}

/// The second shard has three members: if none of them is back it waits for them, and the first does not.
#[test]
fn a_shard_none_of_whose_holders_is_back_is_suspended_until_one_is() {
    for seed in 0..50 {
        let mut world = formed(seed, 7);
        world.run_for(ms(40));
        let holders = world.log.view().shards[1].members.clone();
        (1..=7).for_each(|node| world.crash(node));
        let others: Vec<u32> = (1..=7).filter(|&node| !holders.contains(&NodeId(node))).collect();
        others.iter().for_each(|&node| world.restart(node));
        world.run_until("the others go on", SETTLES_WITHIN, World::has_gone_on);
        let ShardState::Suspended { last_holders, .. } = &world.log.view().shards[1].state else {
            panic!("none of its holders is back")
        };
        assert!(last_holders.iter().map(|holder| holder.node).eq(holders.iter().copied()));
        let first = holders[seed as usize % 3];
        world.restart(first.0);
        world.run_until("it brings the state", SETTLES_WITHIN, |world| {
            world.is_settled() && world.log.view().shards[1].complete.contains(&first)
        });
        for holder in holders.into_iter().filter(|&holder| holder != first) {
            world.restart(holder.0);
        }
        world.run_until("the rest is back", SETTLES_WITHIN, World::is_settled);
        world.check();
    }
}

#[test]
fn whose_disk_is_empty_joins_the_others() {
    for seed in 0..50 {
        let mut world = formed(seed, 3);
        world.run_for(ms(40));
        (1..=3).for_each(|node| world.crash(node));
        let empty = 1 + seed as u32 % 3;
        for node in 1..=3 {
            if node == empty { world.join(node) } else { world.restart(node) }
        }
        world.run_until("they go on", SETTLES_WITHIN, World::is_settled);
        assert!(!world.log.history[1].view.nodes().contains(&NodeId(empty)));
        world.check();
    }
}

#[test]
fn one_that_dies_as_the_others_go_on_with_it_is_dropped() {
    for seed in 0..50 {
        let mut world = formed(seed, 3);
        world.run_for(ms(40));
        (1..=3).for_each(|node| world.crash(node));
        (1..=3).for_each(|node| world.restart(node));
        world.run_until("a restart is decided", SETTLES_WITHIN, |world| world.log.view().epoch == Epoch(2));
        let victim = 1 + seed as u32 % 3;
        world.crash(victim);
        world.run_until("the others go on", CONNECT_TIMEOUT * 10, World::is_settled);
        world.restart(victim);
        world.run_until("it is back", SETTLES_WITHIN, World::is_settled);
        world.check();
    }
}

/// Restarts the nodes that are down, each after a while of its own; some not at all, if enough others come.
fn come_back(world: &mut World, all: bool) {
    let mut down: Vec<u32> = world.processes.iter().filter(|(_, p)| p.crashed).map(|(node, _)| node.0).collect();
    world.rng.shuffle(&mut down);
    let members = world.log.view().members.len();
    let dispensable = if all || world.rng.bool() { 0 } else { world.rng.usize(0..=(members - 1) / 2) };
    let members_down = |node: &u32| world.log.view().rank_of(NodeId(*node)).is_some();
    let stay_away: Vec<u32> = down.iter().copied().filter(members_down).take(dispensable).collect();
    for node in down.into_iter().filter(|node| !stay_away.contains(node)) {
        let most_ms = if world.rng.bool() { 3.0 } else { 80.0 };
        a_while(world, most_ms);
        world.restart(node);
    }
}

fn settle(world: &mut World) {
    world.heal_all();
    world.log.loss = 0.0;
    world.run_until("all are together again", SETTLES_WITHIN, |world| world.is_settled() || waits_for_more(world));
    world.check();
}

/// Whether no more than half of the current view's members are there, in whatever life.
fn waits_for_more(world: &World) -> bool {
    let (members, alive) = (world.log.view().nodes(), world.alive());
    2 * members.iter().filter(|node| alive.contains(node)).count() <= members.len()
}

#[test]
fn crashes_of_all_at_any_moment() {
    for_seeds(500, |seed| {
        let members = 2 + seed as u32 % 5;
        let mut world = World::durable(seed, members, network(seed));
        world.log.loss = if seed % 3 == 0 { 0.2 } else { 0.0 };
        world.log.delay_ms = if seed % 4 == 0 { 30.0 } else { 2.0 };
        for _ in 0..3 {
            a_while(&mut world, 150.0);
            let up: Vec<u32> = world.alive().iter().map(|node| node.0).collect();
            for node in up {
                if world.rng.bool() {
                    a_while(&mut world, 5.0);
                }
                world.crash(node);
            }
            come_back(&mut world, false);
        }
        settle(&mut world);
        come_back(&mut world, true);
        settle(&mut world);
    });
}

#[test]
fn crashes_of_any_at_any_moment_and_cuts() {
    for_seeds(500, |seed| {
        let members = 2 + seed as u32 % 5;
        let mut world = World::durable(seed, members, network(seed));
        world.log.loss = if seed % 3 == 0 { 0.2 } else { 0.0 };
        world.log.delay_ms = if seed % 4 == 0 { 30.0 } else { 2.0 };
        for _ in 0..20 {
            a_while(&mut world, 40.0);
            let node = world.rng.u32(1..=members);
            let other = world.rng.u32(1..=members);
            match world.rng.u32(0..8) {
                0..=2 if !world.process(node).crashed => world.crash(node),
                3..=5 if world.process(node).crashed => world.restart(node),
                6 if node != other => world.net.cut(NodeId(node), NodeId(other)),
                7 if node != other => world.net.heal(NodeId(node), NodeId(other)),
                _ => {}
            }
        }
        come_back(&mut world, true);
        settle(&mut world);
    });
}
