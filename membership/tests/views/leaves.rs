//! Members that leave: one, several at once, and all of a group.

use std::time::Duration;

use squall_fabric::NodeId;
use squall_membership::{EndReason, Epoch, Input, ShardId};

use super::world::{FAILURE_TIMEOUT, World, ms};

#[test]
fn who_leaves_delivers_and_nobody_waits_for_a_timeout() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3);
        let began = world.net.now();
        let who = 1 + seed as u32 % 3;
        world.leave(who);
        world.run_until("the others go on", ms(500), World::has_gone_on);
        let took = world.net.now().since(began);
        assert!(took < FAILURE_TIMEOUT, "it took {took:?}");
        world.run_until("it has left", ms(100), |world| world.ended(who) == Some(&EndReason::Left));
        assert!(world.process(who).cleaned_up.is_some());
        world.check();
    }
}

#[test]
fn all_may_leave_at_once() {
    for seed in 0..50 {
        let members = 1 + seed as u32 % 6;
        let mut world = World::formed(seed, members);
        (1..=members).for_each(|node| world.leave(node));
        world.run_until("all have left", ms(500), |world| world.alive().is_empty());
        assert!((1..=members).all(|node| has_left(&world, node)));
        world.check();
    }
}

fn has_left(world: &World, node: u32) -> bool {
    world.ended(node) == Some(&EndReason::Left)
}

/// Members that leave first take their votes with them, so nothing can be decided for the last ones.
#[test]
fn all_may_leave_one_soon_after_the_other_though_nothing_is_decided_any_more() {
    for seed in 0..200 {
        let members = 2 + seed as u32 % 4;
        let mut world = World::formed(seed, members);
        (1..=members).for_each(|node| world.reach(NodeId(node), false));
        let mut order: Vec<u32> = (1..=members).collect();
        world.rng.shuffle(&mut order);
        for node in order {
            let gap = Duration::from_micros(world.rng.u64(0..3000));
            world.run_for(gap);
            world.leave(node);
        }
        world.run_until("all have left", ms(4000), |world| world.alive().is_empty());
        assert!((1..=members).all(|node| has_left(&world, node)), "seed {seed}");
        world.check();
    }
}

/// A member stops between two views, of which the second has the last two. Nothing is decided any more, since the
/// others have left.
#[test]
fn who_said_that_it_leaves_is_not_waited_for_where_it_never_comes_to_the_next_view() {
    let mut waited = 0;
    for seed in 0..50 {
        let mut world = World::formed(seed, 3);
        (1..=3).for_each(|node| world.leave(node));
        world.run_until("a view is decided", ms(500), |world| world.log.view().members.len() == 2);
        let [node, stops] = world.log.view().nodes()[..] else { panic!("two are left") };
        world.net.pause(stops);
        world.run_until("one is in it", ms(500), |world| {
            world.processes[&node].view.as_ref().is_some_and(|view| view.epoch == Epoch(2))
        });
        world.reach(node, false);
        world.run_until("it has left", ms(4000), |world| has_left(world, node.0));
        waited += u32::from(world.processes[&stops].view.as_ref().is_some_and(|view| view.epoch == Epoch::FIRST));
        world.net.resume(stops);
        world.run_until("so has the other", ms(4000), |world| has_left(world, stops.0));
        world.check();
    }
    assert!(waited > 10, "only {waited} have not come to it");
}

/// Some members hear later than others that a node asks to join, or that it has joined. If it was taken in, it gets the
/// state before the last of them ends.
#[test]
fn a_node_that_joins_while_all_others_leave_goes_on_with_their_state() {
    let mut gone_on = 0;
    for seed in 0..200 {
        let members = 2 + seed as u32 % 3;
        let mut world = World::formed(seed, members);
        let deaf: Vec<u32> = (1..=members).filter(|_| world.rng.bool()).collect();
        deaf.iter().for_each(|&node| world.reach(NodeId(node), false));
        world.join(9);
        let gap = world.rng.u64(0..20_000);
        world.run_for(Duration::from_micros(gap));
        (1..=members).for_each(|node| world.leave(node));
        let delay = world.rng.u64(0..=FAILURE_TIMEOUT.as_micros() as u64);
        world.run_for(Duration::from_micros(delay));
        deaf.iter().for_each(|&node| world.reach(NodeId(node), true));
        world.run_until("all members have left", ms(5000), |world| (1..=members).all(|node| has_left(world, node)));
        if world.log.view().nodes().contains(&NodeId(9)) {
            gone_on += 1;
            world.run_until("node 9 goes on alone", ms(1000), World::is_settled);
            let shards = &world.log.view().shards;
            assert!(shards.iter().all(|shard| shard.complete == [NodeId(9)]), "seed {seed}: {shards:?}");
        }
        world.check();
    }
    assert!(gone_on > 20, "only {gone_on} groups have gone on");
}

#[test]
fn one_member_may_end_the_group_for_all_and_those_who_fail_meanwhile_hold_nobody_up() {
    for seed in 0..200 {
        let members = 2 + seed as u32 % 4;
        let mut world = World::formed(seed, members);
        let [who, victim] = [0; 2].map(|_| world.rng.u32(1..=members));
        world.process(who).leaving = true;
        world.process(who).input(Input::Close);
        if victim != who && world.rng.bool() {
            let gap = Duration::from_micros(world.rng.u64(0..200));
            world.run_for(gap);
            world.crash(victim);
        }
        world.run_until("all have ended", ms(2000), |world| world.alive().is_empty());
        let ran = (1..=members).filter(|node| !world.processes[&NodeId(*node)].crashed);
        assert!(ran.into_iter().all(|node| has_left(&world, node)), "seed {seed}");
        world.check();
    }
}

#[test]
fn who_alone_holds_the_state_leaves_only_when_another_has_it() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 1);
        world.join(2);
        world.run_until("node 2 is a member", ms(200), |world| world.log.view().members.len() == 2);
        world.leave(1);
        world.run_until("node 1 has left", ms(500), |world| world.ended(1) == Some(&EndReason::Left));
        world.run_until("node 2 goes on alone", ms(500), World::is_settled);
        assert_eq!(world.log.view().shards[0].complete, [NodeId(2)]);
        world.check();
    }
}

#[test]
fn who_alone_has_the_state_on_its_disk_leaves_only_when_another_has_it_there() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 2);
        let shards: Vec<ShardId> = world.log.view().shards.iter().map(|shard| shard.shard).collect();
        let on_disk = |world: &mut World, node| {
            shards.iter().for_each(|&shard| world.process(node).input(Input::Complete(shard)));
        };
        on_disk(&mut world, 1);
        world.run_for(ms(5));
        world.leave(1);
        world.run_for(ms(200));
        assert_eq!((world.ended(1), world.log.view().members.len()), (None, 2), "seed {seed}");
        on_disk(&mut world, 2);
        world.run_until("node 1 has left", ms(500), |world| world.ended(1) == Some(&EndReason::Left));
        world.check();
    }
}

#[test]
fn of_those_who_hold_the_state_one_stays_until_another_has_it_though_all_leave() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 2);
        [3, 4].into_iter().for_each(|node| world.join(node));
        world.run_until("3 and 4 are members", ms(200), |world| world.log.view().members.len() == 4);
        [1, 2].into_iter().for_each(|node| world.leave(node));
        world.run_until("1 and 2 have left", ms(500), |world| world.alive().len() == 2);
        world.run_until("3 and 4 go on", ms(500), World::is_settled);
        assert!(world.log.view().shards[0].complete.iter().all(|node| node.0 > 2));
        world.check();
    }
}
