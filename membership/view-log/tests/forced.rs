//! Tests of survivors that operators force to go on alone.

use std::sync::mpsc;

use squall_fabric::NodeId;
use squall_membership::{ViewEvent, ViewLog};
use squall_view_log::{Failure, NotForced, Start, Timing};

use crate::world::{MS, World};

#[test]
fn what_is_left_goes_on_when_it_is_forced_and_others_come_to_it() {
    let mut world = World::formed(&[1, 2, 3], 9);
    world.cut = vec![(1, 2), (2, 1), (1, 3), (3, 1)];
    world.decided.clear();
    force(&mut world, 1);
    world.run_until(3000 * MS, "a view", |world| world.members(1) == [1]);
    assert_eq!(world.log(1).status().forced, ["test"]);
    world.cut.clear();
    world.crash(3);
    world.start(3);
    world.crash(2);
    world.start_as(2, Start::Join { contacts: world.contacts(&[1]) }, Timing::default());
    world.run_until(4000 * MS, "candidates", |world| world.candidates(1).len() == 2);
}

/// Lets an operator force a node to go on alone. The outcome comes in time.
fn force(world: &mut World, id: u32) -> mpsc::Receiver<Result<(), NotForced>> {
    let (done, answer) = mpsc::channel();
    let proposal = world.successor(id, &[id]);
    // The caller may have gone.
    world.log(id).force(proposal, "test".into(), move |result| _ = done.send(result));
    answer
}

/// Five members, of which 3, 4 and 5 are lost. The others wait for a decision.
fn two_of_five(seed: u64) -> World {
    let mut world = World::formed(&[1, 2, 3, 4, 5], seed);
    [3, 4, 5].into_iter().for_each(|id| world.crash(id));
    for id in [1, 2] {
        world.propose(id, &[1, 2, 3]);
    }
    world.run_until(9000 * MS, "an end of their patience", |world| {
        [1, 2].iter().all(|id| world.nodes[id].events.contains(&ViewEvent::NoQuorum))
    });
    world
}

#[test]
fn another_survivor_goes_over_to_the_life_that_was_forced_by_itself() {
    for seed in 0..5 {
        let mut world = two_of_five(seed);
        let answer = force(&mut world, 1);
        world.run_until(5000 * MS, "news of it at node 2", |world| world.members(2) == [1]);
        assert_eq!(answer.try_recv(), Ok(Ok(())));
        assert_eq!(world.log(2).failure(), None);
        let me = world.log(2).me();
        world.log(2).join(me);
        world.run_until(3000 * MS, "a candidate", |world| world.candidates(1) == [2]);
        world.propose(1, &[1, 2]);
        world.run_until(3000 * MS, "a view of both", |world| [1, 2].iter().all(|&id| world.members(id) == [1, 2]));
        assert_eq!(world.log(2).status().forced, ["test"], "it is recorded");
    }
}

#[test]
fn a_survivor_that_knows_of_a_later_view_than_the_forced_life_has_stays() {
    let mut world = World::formed(&[1, 2, 3, 4, 5], 3);
    (2..=5).for_each(|id| world.cut.extend([(1, id), (id, 1)]));
    world.run(3000 * MS);
    world.propose(2, &[2, 3, 4, 5]);
    world.run_until(3000 * MS, "a view without node 1", |world| world.members(2) == [2, 3, 4, 5]);
    [3, 4, 5].into_iter().for_each(|id| world.crash(id));
    world.has_two_lives = true;
    let answer = force(&mut world, 1);
    world.run_until(5000 * MS, "a view", |world| world.members(1) == [1]);
    assert_eq!(answer.try_recv(), Ok(Ok(())), "it can't know of the view without it");
    world.propose(2, &[2, 3]);
    world.cut.clear();
    world.run(9000 * MS);
    assert_eq!((world.members(2), world.log(2).failure()), (vec![2, 3, 4, 5], None));
    assert_eq!(world.log(2).status().other_life, Some(NodeId(1)), "operators are told");
}

#[test]
fn of_two_survivors_that_are_forced_at_once_the_first_goes_on_and_the_other_is_told() {
    for pause in [0, 100, 400, 900, 1100, 3000] {
        let mut world = two_of_five(u64::from(pause));
        let first = force(&mut world, 2);
        world.run(MS * pause);
        let second = (world.members(1) == [1, 2, 3, 4, 5]).then(|| force(&mut world, 1));
        world.run(5000 * MS);
        let results = (first.try_recv(), second.map(|second| second.try_recv()));
        let expected = match pause {
            0..1000 => (Ok(Err(NotForced::AtOnce { with: NodeId(1) })), Some(Ok(Ok(())))),
            1000..2000 => (Ok(Ok(())), Some(Ok(Err(NotForced::Begun { with: NodeId(2) })))),
            _ => (Ok(Ok(())), None),
        };
        assert_eq!(results, expected, "{pause} ms between them");
        assert_eq!([world.log(1).failure(), world.log(2).failure()], [None, None]);
        assert_eq!(world.members(1), world.members(2), "there is one group");
    }
}

#[test]
fn of_two_survivors_that_are_forced_and_can_not_reach_each_other_one_ends_when_they_can() {
    let mut world = two_of_five(4);
    world.has_two_lives = true;
    world.cut = vec![(1, 2), (2, 1)];
    let answers = [force(&mut world, 1), force(&mut world, 2)];
    world.run_until(5000 * MS, "two groups", |world| world.members(1) == [1] && world.members(2) == [2]);
    assert_eq!(answers.map(|answer| answer.try_recv()), [Ok(Ok(())), Ok(Ok(()))]);
    world.cut.clear();
    world.run(5000 * MS);
    let failures = [world.log(1).failure(), world.log(2).failure()];
    let [first, second] = [Failure::Rival { with: NodeId(2) }, Failure::Rival { with: NodeId(1) }];
    assert!(failures == [Some(first), None] || failures == [None, Some(second)], "{failures:?}");
}
