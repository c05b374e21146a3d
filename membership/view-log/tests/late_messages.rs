//! Messages that come late: the life of the node or of the cluster is another one by then, or the matter is decided.

use squall_membership::{Incarnation, Layout, Member, ViewEvent, ViewLog};

use crate::world::{MS, World};

/// A member was cut off, and asked what became of the group. One of its questions comes late: when it has been dropped,
/// and asks to join in a later life. The answer to the question is of the earlier life, so it begins no third one.
#[test]
fn a_dropped_member_joins_in_one_later_life_though_an_earlier_question_is_answered_late() {
    for seed in 0..10 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.seed = Some(seed);
        world.cut = vec![(3, 1), (1, 3), (2, 3)];
        world.held = vec![(3, 2)];
        world.propose(1, &[1, 2]);
        world.run(5000 * MS);
        world.cut.clear();
        world.run_until(3000 * MS, "the view without node 3", |world| world.members(3) == [1, 2]);
        let me = Member { incarnation: Incarnation(2), ..world.log(3).me() };
        world.log(3).join(me);
        world.run_until(3000 * MS, "a candidate", |world| (1..3).all(|id| world.candidates(id) == [3]));
        world.held.clear();
        world.run(500 * MS);
        assert_eq!(world.log(3).me().incarnation, Incarnation(2));
        world.propose(1, &[1, 2, 3]);
        world.run_until(3000 * MS, "a view of all", |world| (1..4).all(|id| world.members(id) == [1, 2, 3]));
        world.run(3000 * MS);
        assert!((1..4).all(|id| world.candidates(id).is_empty()), "no later life of node 3 asks");
    }
}

/// A node was refused for its configuration. One of the answers comes when it was started again with the right one.
#[test]
fn a_refusal_that_comes_late_does_not_end_the_next_process_of_its_node() {
    for seed in 0..10 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.seed = Some(seed);
        world.held = (1..4).map(|id| (id, 4)).collect();
        world.layout = Layout::of_all(["another".into()]);
        world.start(4);
        world.run(100 * MS);
        world.crash(4);
        world.layout = Layout::of_all(["group".into()]);
        world.start(4);
        world.held.clear();
        world.run_until(3000 * MS, "a candidate", |world| (1..4).all(|id| world.candidates(id) == [4]));
        assert_eq!(world.log(4).failure(), None);
    }
}

/// A node knows that a group lacks what it has, and tells all of it. A node that joins is no member: its own storage is
/// not meant.
#[test]
fn a_node_that_joins_does_not_take_word_of_its_group_s_old_storage_for_its_own() {
    for seed in 0..10 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.seed = Some(seed);
        world.start(4);
        world.run_until(3000 * MS, "a candidate", |world| (1..4).all(|id| world.candidates(id) == [4]));
        world.log(2).say_went_back();
        world.run(500 * MS);
        assert_eq!(world.log(4).failure(), None);
        assert_eq!(world.log(1).status().went_back.len(), 1, "members tell operators");
    }
}

/// The owner of a log proposes, and has not taken the news yet that another member's proposal was decided.
#[test]
fn what_is_proposed_or_reported_after_its_epoch_s_decision_waits_for_nothing() {
    for seed in 0..10 {
        let mut world = World::formed(&[1, 2, 3], seed);
        world.seed = Some(seed);
        let (late, first) = (world.successor(2, &[1, 2]), std::sync::Arc::clone(&world.last(2).expect("a view").view));
        world.propose(1, &[1, 2, 3]);
        world.run_until(1000 * MS, "a view", |world| (1..4).all(|id| world.epoch(id) == Some(2)));
        world.run(1000 * MS);
        world.log(2).propose(late);
        let report = squall_membership::Report {
            epoch: first.epoch,
            member: first.members[1].clone(),
            finals: Default::default(),
        };
        world.log(2).report(&first, report);
        let before = world.sent;
        world.run(10_000 * MS);
        assert!(!world.nodes[&2].events.contains(&ViewEvent::NoQuorum), "nothing waits for a decision");
        assert!(world.sent - before < 100, "{} messages", world.sent - before);
    }
}

/// Node 3 was forced to go on alone, while 1 and 2 go on, too, and have later views.
fn two_lives(seed: u64) -> World {
    let mut world = World::formed(&[1, 2, 3], seed);
    (world.seed, world.has_two_lives) = (Some(seed), true);
    (1..3).for_each(|id| world.cut.extend([(3, id), (id, 3)]));
    world.run(3000 * MS);
    world.propose(1, &[1, 2]);
    world.run_until(3000 * MS, "a view without node 3", |world| (1..3).all(|id| world.members(id) == [1, 2]));
    world.force(3);
    for _ in 0..4 {
        world.propose(1, &[1, 2]);
        world.run(200 * MS);
    }
    assert!(world.epoch(1) > world.epoch(3));
    world
}

/// Node 4 is told of views of 1 and 2 before the forced life, whose epochs are earlier, takes it in: it is told of that
/// life's views all the same.
#[test]
fn who_was_told_of_a_later_view_of_another_life_is_told_of_those_of_its_own() {
    for seed in 0..10 {
        let mut world = two_lives(seed);
        // The leader of the life of 1 and 2 does not reach node 4, and node 3 hears of it later.
        let leader = world.log(1).status().leader.expect("a leader").0;
        world.cut.push((leader, 4));
        world.held = vec![(4, 3)];
        world.start(4);
        world.run_until(1000 * MS, "news", |world| world.epoch(4) == world.epoch(1));
        world.cut.extend([(1, 4), (2, 4)]);
        world.held.clear();
        world.run_until(5000 * MS, "a candidate", |world| world.candidates(3) == [4]);
        world.propose(3, &[3, 4]);
        world.run_until(1000 * MS, "a view of both", |world| [3, 4].iter().all(|&id| world.members(id) == [3, 4]));
    }
}

/// The leaders of two lives call node 4, which has nothing of any log, in one moment. It takes part in one of them.
#[test]
fn who_is_called_by_two_lives_at_once_has_the_log_of_one() {
    for seed in 0..40 {
        let mut world = two_lives(seed);
        let leader = world.log(1).status().leader.expect("a leader").0;
        world.held = vec![(leader, 4), (3, 4)];
        world.start(4);
        let wait = world.rng.u32(20..400);
        world.run(wait * MS);
        world.held.clear();
        world.run_until(6000 * MS, "a candidate", |world| world.candidates(1) == [4] || world.candidates(3) == [4]);
        world.run(1000 * MS);
        assert_eq!(world.log(4).failure(), None);
        assert!((1..4).all(|id| world.log(id).status().went_back.is_empty()), "no log contradicts itself");
    }
}
