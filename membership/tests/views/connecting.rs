//! Members whose hosts have little time: each connection takes long, and all of them much longer than a member may be
//! silent.

use squall_fabric::{NodeId, sim::SimConfig};
use squall_membership::Epoch;

use super::{
    faults::for_seeds,
    world::{CONNECT_TIMEOUT, World, ms},
};

/// A world of members to come, in which connecting takes long. Even the fewest members need more than a connect timeout
/// for a node's connections. Two connections of a node, one behind the other, come within one timeout, so that progress
/// differs from a standstill.
fn crowded(seed: u64, members: u32) -> World {
    let connect_time = ms(20 + seed % 20);
    assert!(connect_time * (members - 1) > CONNECT_TIMEOUT && connect_time * 5 < CONNECT_TIMEOUT * 2);
    World::new(seed, members, SimConfig { connect_time, ..SimConfig::fast() })
}

#[test]
fn the_first_view_comes_about_in_one_epoch_however_long_connecting_takes() {
    for_seeds(100, |seed| {
        let mut world = crowded(seed, 7 + seed as u32 % 3);
        while !world.all_in(Epoch::FIRST) {
            assert_eq!(world.log.history.len(), 1, "no member is given up: {}", world.describe());
            assert!(world.net.now().as_nanos() < 10_000_000_000, "{}", world.describe());
            // The members don't run all the time, either.
            let node = NodeId(world.rng.u32(1..=world.processes.len() as u32));
            let (runs, stands) = (world.rng.u64(0..20), world.rng.u64(0..8));
            world.run_for(ms(runs));
            world.net.pause(node);
            world.run_for(ms(stands));
            world.net.resume(node);
        }
    });
}

#[test]
fn one_that_never_comes_is_given_up_when_nobody_else_is_missing() {
    for_seeds(100, |seed| {
        let mut world = crowded(seed, 8);
        let victim = world.rng.u32(1..=8);
        world.crash(victim);
        world.run_until("the others have gone on without it", ms(10_000), World::has_gone_on);
        assert_eq!(world.log.history[1].view.left, [NodeId(victim)], "and no other member is given up");
        world.check();
    });
}

#[test]
fn one_that_dies_meanwhile_costs_one_more_epoch() {
    for_seeds(100, |seed| {
        let mut world = crowded(seed, 8);
        let (victim, after) = (world.rng.u32(1..=8), world.rng.u64(0..600));
        world.run_for(ms(after));
        world.crash(victim);
        world.run_until("the others have gone on without it", ms(10_000), World::has_gone_on);
        let left: Vec<NodeId> = world.log.history.iter().flat_map(|next| next.view.left.clone()).collect();
        assert_eq!(left, [NodeId(victim)], "no other member is given up: {}", world.describe());
        world.check();
    });
}
