//! All kinds of trouble at once: whatever happens, views follow one another as they must. Once it is over, the members
//! are together again.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use squall_fabric::{NodeId, sim::SimConfig};
use squall_membership::{EndReason, Input};

use super::world::{World, ms};
use crate::seeds::seeds;

/// The time within which all are together again, once nothing more happens to them.
const SETTLES_WITHIN: Duration = ms(3000);

pub(crate) fn for_seeds(usual: u64, run: impl Fn(u64)) {
    for seed in seeds(usual) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
            eprintln!("failed with SQUALL_SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

pub(crate) fn network(seed: u64) -> SimConfig {
    if seed % 5 == 1 { SimConfig::nasty() } else { SimConfig::fast() }
}

/// The members of the current view that can act.
fn good(world: &World) -> Vec<NodeId> {
    let members = world.log.view().members.iter();
    let stays = |node: &NodeId| world.processes[node].ended.is_none() && !world.processes[node].leaving;
    let acts = |node: &NodeId| world.net.runs(*node) && stays(node);
    let is_itself = members.filter(|m| world.processes[&m.node].membership.me() == *m);
    is_itself.map(|member| member.node).filter(acts).collect()
}

/// Whether the view goes on without one more of its members.
fn may_lose_one(world: &World) -> bool {
    2 * (good(world).len() - 1) > world.log.view().members.len()
}

fn nap(world: &mut World) {
    let longest = if world.rng.bool() { 5.0 } else { 80.0 };
    let nap = Duration::from_secs_f64(world.rng.f64() * longest / 1e3);
    world.run_for(nap);
}

fn settle(world: &mut World) {
    world.heal_all();
    world.log.loss = 0.0;
    world.run_until("all are together again", SETTLES_WITHIN, World::is_settled);
    world.check();
}

fn any(world: &mut World, of: &[NodeId]) -> Option<NodeId> {
    (!of.is_empty()).then(|| of[world.rng.usize(..of.len())])
}

fn one_thing_happens(world: &mut World, started: &mut u32) {
    let good = good(world);
    let crashed: Vec<NodeId> = world.processes.iter().filter(|(_, p)| p.crashed).map(|(node, _)| *node).collect();
    match world.rng.u32(0..8) {
        0 | 1 if may_lose_one(world) => {
            if let Some(node) = any(world, &good) {
                world.crash(node.0);
            }
        }
        2 | 3 => {
            if let Some(node) = any(world, &crashed) {
                world.join(node.0);
            }
        }
        4 if *started < 9 => {
            *started += 1;
            world.join(*started);
        }
        5 if may_lose_one(world) && good.len() > 2 => {
            if let Some(node) = any(world, &good) {
                world.leave(node.0);
            }
        }
        6 if may_lose_one(world) => {
            if let Some(node) = any(world, &good) {
                world.net.pause(node);
                nap(world);
                world.net.resume(node);
            }
        }
        7 if may_lose_one(world) => {
            let (by, whom) = (any(world, &good), any(world, &good));
            if let Some((by, whom)) = by.zip(whom) {
                world.process(by.0).input(Input::Suspect(whom));
            }
        }
        _ => {}
    }
}

#[test]
fn crashes_joins_leaves_and_pauses() {
    for_seeds(1000, |seed| {
        let members = 2 + seed as u32 % 5;
        let mut world = World::formed_on(seed, members, network(seed));
        let mut started = members;
        world.log.loss = if seed % 3 == 0 { 0.2 } else { 0.0 };
        world.log.delay_ms = if seed % 4 == 0 { 30.0 } else { 2.0 };
        for _ in 0..6 {
            one_thing_happens(&mut world, &mut started);
            nap(&mut world);
        }
        settle(&mut world);
    });
}

#[test]
fn a_member_that_can_not_bring_its_view_to_the_end_comes_back_if_others_are_left() {
    for_seeds(300, |seed| {
        let members = 2 + seed as u32 % 4;
        let mut world = World::formed_on(seed, members, network(seed));
        world.process(1).is_spoiled = true;
        nap(&mut world);
        world.crash(2);
        let is_over = |world: &World| world.processes[&NodeId(1)].dropped == 1 || world.ended(1).is_some();
        world.run_until("it has dropped out, or ended", ms(10_000), is_over);
        if members == 2 {
            assert!(matches!(world.ended(1), Some(EndReason::Incompatible { .. })), "{:?}", world.ended(1));
        } else {
            settle(&mut world);
            assert_eq!(world.ended(1), None);
        }
    });
}

#[test]
fn partitions_and_links_that_come_and_go() {
    for_seeds(1000, |seed| {
        let members = 2 + seed as u32 % 5;
        let mut world = World::formed_on(seed, members, network(seed));
        let node = |world: &mut World| NodeId(world.rng.u32(1..=members));
        for _ in 0..8 {
            let (a, b) = (node(&mut world), node(&mut world));
            match world.rng.u32(0..7) {
                0 | 1 if a != b => world.net.cut(a, b),
                2 if a != b => world.net.cut_one_way(a, b),
                3 if a != b => world.net.heal(a, b),
                4 => world.reach(a, false),
                5 => world.reach(a, true),
                6 => world.net.pause(a),
                _ => world.net.resume(a),
            }
            nap(&mut world);
        }
        settle(&mut world);
    });
}

#[test]
fn a_cut_in_two() {
    for_seeds(300, |seed| {
        let members = 3 + seed as u32 % 5;
        let mut world = World::formed_on(seed, members, network(seed));
        let side = members.div_ceil(2).max(2);
        for a in 1..=side {
            (side + 1..=members).for_each(|b| world.net.cut(NodeId(a), NodeId(b)));
        }
        (side + 1..=members).for_each(|node| world.reach(NodeId(node), false));
        world.run_until("the larger side goes on", ms(500), |world| {
            let view = world.log.view();
            view.members.len() == side as usize && world.all_in(view.epoch)
        });
        settle(&mut world);
    });
}
