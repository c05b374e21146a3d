//! Tests of groups that operators force more than once, and of the lives to which nodes go over.

use squall_fabric::NodeId;
use squall_membership::ViewLog;
use squall_view_log::Failure;

use crate::world::{MS, World};

/// Of five members, node 1 was cut off before the others had their second view, and was forced; its life has node 5
/// since then. Of the others, node 2 alone still runs, and waits for a decision.
fn second_life(seed: u64) -> World {
    let mut world = World::formed(&[1, 2, 3, 4, 5], seed);
    world.has_two_lives = true;
    (2..=5).for_each(|id| world.cut.extend([(1, id), (id, 1)]));
    world.run(3000 * MS);
    world.propose(2, &[2, 3, 4, 5]);
    world.run_until(3000 * MS, "a view without node 1", |world| world.members(2) == [2, 3, 4, 5]);
    [3, 4, 5].into_iter().for_each(|id| world.crash(id));
    world.propose(2, &[2, 3]);
    world.force(1);
    world.cut.retain(|pair| ![(1, 5), (5, 1)].contains(pair));
    world.cut.extend([(2, 5), (5, 2)]);
    world.start(5);
    world.run_until(5000 * MS, "a candidate", |world| world.candidates(1) == [5]);
    world.propose(1, &[1, 5]);
    world.run_until(3000 * MS, "a view of both", |world| [1, 5].iter().all(|&id| world.members(id) == [1, 5]));
    world
}

#[test]
fn a_survivor_whose_view_is_of_no_life_before_stays_though_the_last_life_has_later_views() {
    for seed in 0..5 {
        let mut world = second_life(seed);
        world.crash(1);
        world.log(5).peer_gone(NodeId(1));
        world.force(5);
        assert!(world.epoch(5) > world.epoch(2), "it was forced twice, and counts on");
        world.cut.clear();
        world.run(9000 * MS);
        assert_eq!((world.members(2), world.log(2).failure()), (vec![2, 3, 4, 5], None), "seed {seed}");
        assert_eq!(world.log(2).status().other_life, Some(NodeId(5)), "operators are told");
    }
}

#[test]
fn a_life_that_is_none_before_the_last_one_ends_though_both_were_not_forced_from_the_same() {
    for seed in 0..5 {
        let mut world = second_life(seed);
        // A rival of node 1's life, which then is forced once more.
        world.cut.extend([(2, 1), (1, 2)]);
        world.force(2);
        world.crash(1);
        world.log(5).peer_gone(NodeId(1));
        world.force(5);
        let lives = [2, 5].map(|id| world.log(id).status().cluster);
        world.cut.clear();
        world.run(5000 * MS);
        let (ends, with) = if lives[0] < lives[1] { (2, 5) } else { (5, 2) };
        assert_eq!(world.log(ends).failure(), Some(Failure::Rival { with: NodeId(with) }), "seed {seed}");
        assert_eq!(world.log(with).failure(), None);
    }
}
