//! Single events: failures, joins, and the times for which members wait.

use std::time::Duration;

use squall_fabric::{BreakReason, NodeId};
use squall_membership::{Epoch, Input, StallLimits, WaitsFor};

use super::world::{CONNECT_TIMEOUT, FAILURE_TIMEOUT, READ_LEASE, World, ms};

#[test]
fn a_view_that_is_decided_is_installed() {
    for seed in 0..50 {
        World::formed(seed, 1 + seed as u32 % 7);
    }
}

#[test]
fn the_others_go_on_without_a_member_that_crashed() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3 + seed as u32 % 4);
        let victim = 1 + seed as u32 % 3;
        world.crash(victim);
        world.run_until("the others go on", ms(200), World::has_gone_on);
        assert_eq!(world.log.history[1].view.left, [NodeId(victim)]);
        world.check();
    }
}

#[test]
fn two_of_five_that_crash_at_once_are_both_dropped() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 5);
        world.crash(1);
        world.crash(2 + seed as u32 % 4);
        world.run_until("the others go on", ms(300), World::is_settled);
        assert_eq!(world.log.view().members.len(), 3);
        world.check();
    }
}

#[test]
fn leaders_that_crash_one_after_the_other() {
    for seed in 0..200 {
        let mut world = World::formed(seed, 7);
        world.crash(7);
        for leader in 1..=2 {
            let a_moment = Duration::from_secs_f64(world.rng.f64() * 0.03);
            world.run_for(a_moment);
            world.crash(leader);
        }
        world.run_until("the others go on", ms(500), World::is_settled);
        assert_eq!(world.log.view().nodes(), [3, 4, 5, 6].map(NodeId));
        world.check();
    }
}

#[test]
fn a_member_that_stands_still_is_dropped_after_the_timeout_and_comes_back_by_itself() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3);
        world.net.pause(NodeId(3));
        let began = world.net.now();
        world.run_until("the others go on", ms(200), |world| world.log.view().epoch == Epoch(2));
        let took = world.net.now().since(began);
        assert!(took >= FAILURE_TIMEOUT && took < 3 * FAILURE_TIMEOUT, "it took {took:?}");
        assert_eq!(world.log.view().left, [NodeId(3)]);
        world.net.resume(NodeId(3));
        world.run_until("it is back", ms(500), World::is_settled);
        assert_eq!((world.process(3).dropped, world.process(1).dropped, world.process(2).dropped), (1, 0, 0));
        assert_eq!(world.process(3).membership.me().incarnation.0, 2);
        world.check();
    }
}

/// The view that is being decided at that moment may have it, since the proposer has not heard of it.
#[test]
fn a_member_that_an_operator_suspects_is_dropped_whatever_is_decided_meanwhile() {
    for seed in 0..200 {
        let mut world = World::formed(seed, 3);
        world.join(4);
        let a_moment = Duration::from_secs_f64(world.rng.f64() * 0.01);
        world.run_for(a_moment);
        let by = world.rng.u32(1..=2);
        world.process(by).input(Input::Suspect(NodeId(3)));
        world.run_until("it is dropped, and back", ms(500), |world| {
            world.processes[&NodeId(3)].dropped == 1 && world.is_settled()
        });
        assert!(world.log.view().nodes().contains(&NodeId(4)));
        world.check();
    }
}

/// Cuts a node off from all others for a while, and heals.
fn flap(world: &mut World, node: u32) {
    let others: Vec<NodeId> = world.processes.keys().copied().filter(|other| other.0 != node).collect();
    others.iter().for_each(|&other| world.net.cut(NodeId(node), other));
    world.reach(NodeId(node), false);
    world.run_for(FAILURE_TIMEOUT * 2);
    others.iter().for_each(|&other| world.net.heal(NodeId(node), other));
    world.reach(NodeId(node), true);
    world.run_for(FAILURE_TIMEOUT * 2);
}

#[test]
fn a_member_whose_link_flaps_comes_back_at_once_then_less_and_less_often_and_the_others_work_meanwhile() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 5);
        flap(&mut world, 3);
        world.run_until("the first time it is back at once", FAILURE_TIMEOUT * 2, |world| world.is_in_view(3));
        (0..20).for_each(|_| flap(&mut world, 3));
        // 80 failure timeouts, of which it waits 2 + 4 + 8 + 16 + 16 + ..
        let dropped = world.process(3).dropped;
        assert!((3..=7).contains(&dropped), "seed {seed}: it was dropped {dropped} times");
        let others = [1, 2, 4, 5];
        assert!(others.iter().all(|&node| world.process(node).dropped == 0));
        let waits = world.process(3).membership.rejoins_at();
        let in_time = FAILURE_TIMEOUT * 20;
        world.run_until("it is back", in_time, World::is_settled);
        assert!(waits.is_none_or(|at| world.net.now() >= at), "it did not wait");
        world.check();
    }
}

#[test]
fn short_pauses_harm_nobody() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 3);
        for round in 0..10 {
            let node = NodeId(1 + round % 3);
            world.net.pause(node);
            world.run_for(FAILURE_TIMEOUT / 4);
            world.net.resume(node);
        }
        world.run_for(FAILURE_TIMEOUT);
        assert!(world.all_in(Epoch::FIRST));
    }
}

#[test]
fn a_link_that_breaks_costs_one_of_the_two_since_nobody_accuses_on_anothers_word() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 5);
        world.net.cut(NodeId(1), NodeId(2));
        world.reach(NodeId(2), false);
        world.run_until("the others go on", ms(200), |world| world.log.view().epoch == Epoch(2));
        assert_eq!(world.log.view().left, [NodeId(2)]);
        world.check();
    }
}

#[test]
fn who_is_cut_off_from_all_does_not_accuse_more_than_half() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 5);
        (2..=5).for_each(|node| world.net.cut(NodeId(1), NodeId(node)));
        world.reach(NodeId(1), false);
        world.run_until("the others go on", ms(200), World::has_gone_on);
        assert_eq!(world.process(1).gone.len(), 2, "three of five must be left to it");
        world.check();
    }
}

#[test]
fn when_the_leader_cannot_reach_the_view_log_the_next_in_rank_proposes() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 5);
        world.reach(NodeId(1), false);
        world.crash(5);
        world.run_until("it is decided", ms(200), |world| world.log.view().epoch == Epoch(2));
        let by = world.log.log_state.last().map(|last| last.by);
        assert_eq!((by, world.log.reports), (Some(NodeId(2)), 0));
        assert_eq!(world.log.view().left, [NodeId(5)], "node 1 stays, whoever proposes");
        world.check();
    }
}

#[test]
fn an_operators_word_drops_a_member() {
    let mut world = World::formed(1, 3);
    world.process(2).input(Input::Suspect(NodeId(1)));
    world.run_until("the others go on", ms(200), |world| world.log.view().epoch == Epoch(2));
    assert_eq!(world.log.view().left, [NodeId(1)]);
}

#[test]
fn who_joins_is_taken_in_gets_the_state_and_then_sends() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 2);
        world.join(3);
        world.run_until("node 3 is a complete member", ms(500), World::is_settled);
        assert_eq!(world.log.view().nodes(), [1, 2, 3].map(NodeId));
        assert_eq!(world.log.view().shards[0].senders.len(), 3);
        world.check();
    }
}

#[test]
fn many_join_at_once() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 1);
        (2..=9).for_each(|node| world.join(node));
        world.run_until("all are members", ms(2000), World::is_settled);
        assert_eq!(world.log.view().members.len(), 9);
        world.check();
    }
}

#[test]
fn one_that_dies_as_it_joins_is_dropped_again() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 2);
        world.join(3);
        world.run_until("it is decided that it joins", ms(100), |world| world.log.view().members.len() == 3);
        world.crash(3);
        world.run_until("the others go on", CONNECT_TIMEOUT + ms(100), World::is_settled);
        assert_eq!(world.log.view().nodes(), [1, 2].map(NodeId));
        world.check();
    }
}

#[test]
fn who_takes_long_to_deliver_the_rest_of_a_view_is_waited_for() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 4);
        world.process(3).slow_ms = 500.0;
        world.crash(4);
        world.run_until("the others go on", ms(1000), World::is_settled);
        assert_eq!(world.log.view().epoch, Epoch(2));
        world.check();
    }
}

/// The given limit for a disk or an application, and none for the other.
fn limits(waits_for: WaitsFor, limit: Duration) -> StallLimits {
    match waits_for {
        WaitsFor::Disk => StallLimits { disk: limit, application: Duration::MAX },
        _ => StallLimits { disk: Duration::MAX, application: limit },
    }
}

#[test]
fn who_hangs_while_it_delivers_the_rest_of_a_view_is_given_up_by_the_limit_of_what_it_waits_for() {
    const LIMIT: Duration = ms(60);
    for seed in 0..20 {
        for waits_for in [WaitsFor::Disk, WaitsFor::Application] {
            for hung in [&[2][..], &[2, 3]] {
                let mut world = World::impatient(seed, 5, limits(waits_for, LIMIT));
                for &node in hung {
                    (world.process(node).slow_ms, world.process(node).slow_for) = (1e12, waits_for);
                }
                world.crash(5);
                // Though they hang, they learn that they have no part any more.
                let are_dropped = |world: &World| hung.iter().all(|&node| world.processes[&NodeId(node)].dropped > 0);
                world.run_until("they are given up", FAILURE_TIMEOUT + LIMIT + ms(80), are_dropped);
                hung.iter().for_each(|&node| world.process(node).slow_ms = 2.0);
                world.run_until("they are back", ms(1000), World::is_settled);
                assert_eq!(world.log.view().members.len(), 4);
                world.check();
            }
        }
    }
}

#[test]
fn who_takes_long_is_waited_for_by_the_limit_of_what_it_waits_for() {
    for seed in 0..20 {
        let mut world = World::impatient(seed, 4, limits(WaitsFor::Disk, ms(60)));
        world.process(3).slow_ms = 500.0;
        world.crash(4);
        world.run_until("the others go on", ms(1000), World::is_settled);
        assert_eq!(world.log.view().epoch, Epoch(2));
        world.check();
    }
}

#[test]
fn where_most_hang_while_they_deliver_the_rest_of_a_view_nobody_is_given_up() {
    for seed in 0..20 {
        let mut world = World::impatient(seed, 5, limits(WaitsFor::Disk, ms(60)));
        for node in 2..5 {
            (world.process(node).slow_ms, world.process(node).slow_for) = (1e12, WaitsFor::Disk);
        }
        world.crash(5);
        world.run_for(ms(500));
        assert_eq!(world.log.view().epoch, Epoch(2));
        world.check();
    }
}

#[test]
fn a_member_that_starts_anew_takes_the_place_of_its_earlier_life() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3);
        world.crash(2);
        world.join(2);
        world.run_until("it is back", ms(500), World::is_settled);
        assert_eq!(world.log.view().nodes(), [1, 3, 2].map(NodeId));
        world.check();
    }
}

#[test]
fn the_smaller_side_of_a_cut_says_so_and_comes_back_when_it_heals() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 5);
        for small in [4, 5] {
            (1..=3).for_each(|node| world.net.cut(NodeId(node), NodeId(small)));
            world.reach(NodeId(small), false);
        }
        world.run_until("the larger side goes on", ms(300), World::has_gone_on);
        world.run_until("the others say that they can't", ms(300), |world| {
            [4, 5].iter().all(|node| world.processes[&NodeId(*node)].stalled)
        });
        assert!((1..=3).all(|node| !world.processes[&NodeId(node)].stalled));
        world.heal_all();
        world.run_until("they are back", ms(1000), World::is_settled);
        world.check();
    }
}

#[test]
fn when_every_link_broke_and_healed_reports_bring_all_together_again() {
    for seed in 0..50 {
        let mut world = World::formed(seed, 3);
        let pairs = [(1, 2), (1, 3), (2, 3)].map(|(a, b)| (NodeId(a), NodeId(b)));
        pairs.iter().for_each(|&(a, b)| world.net.cut(a, b));
        world.run_for(FAILURE_TIMEOUT);
        pairs.iter().for_each(|&(a, b)| world.net.heal(a, b));
        world.run_until("all are together", ms(1000), |world| {
            world.log.view().epoch > Epoch::FIRST && world.is_settled()
        });
        world.check();
    }
}

#[test]
fn who_was_away_for_many_views_begins_anew() {
    let mut world = World::formed(1, 3);
    world.net.pause(NodeId(3));
    world.reach(NodeId(3), false);
    world.run_until("the others go on", ms(200), World::has_gone_on);
    for _ in 0..3 {
        world.join(4);
        world.run_until("node 4 is there", ms(500), |world| world.log.view().members.len() == 3 && world.is_in_view(4));
        world.leave(4);
        world.run_until("node 4 has left", ms(500), |world| world.ended(4).is_some());
        world.net.crash(NodeId(4));
    }
    world.process(4).crashed = true;
    world.net.resume(NodeId(3));
    world.reach(NodeId(3), true);
    world.run_until("node 3 is back", ms(500), World::is_settled);
    assert_eq!((world.process(3).dropped, world.process(3).knows_trims), (1, false));
    world.check();
}

/// Drops the last of members 1 to 3, for which 1 and 2 have vouched, after they were told to suspect it for `reason`.
/// Returns the times after the suspicion, and after the decision, at which member 1 goes on.
fn waits_for_the_lease(seed: u64, reason: BreakReason, wedges: bool) -> [Duration; 2] {
    let mut world = World::formed(seed, 3);
    for id in [1, 2] {
        world.process(id).leased = vec![NodeId(3)];
        if !wedges {
            world.net.cut(NodeId(id), NodeId(3));
        }
    }
    let suspected = world.net.now();
    world.process(1).input(Input::Broken(NodeId(3), reason));
    world.run_until("it is decided", ms(100), |world| world.log.view().epoch == Epoch(2));
    let decided = world.net.now();
    world.run_until("member 1 goes on", ms(100), |world| world.processes[&NodeId(1)].cleaned_up.is_some());
    [suspected, decided].map(|time| world.net.now().since(time))
}

#[test]
fn nobody_goes_on_while_one_that_was_dropped_may_read() {
    let late = READ_LEASE + READ_LEASE / 5;
    for seed in 0..20 {
        let [waited, _] = waits_for_the_lease(seed, BreakReason::Unreachable, false);
        assert!(waited > late && waited < late + ms(8), "it waited {waited:?}");
        let [_, waited] = waits_for_the_lease(seed, BreakReason::ProcessGone, false);
        assert!(waited < ms(8), "a member that is gone does not read: {waited:?}");
        let [_, waited] = waits_for_the_lease(seed, BreakReason::Unreachable, true);
        assert!(waited < ms(8), "a member that is wedged does not read: {waited:?}");
    }
}

/// A thread may stand still between its look at the clock and the rest of that step: then its shards echo, after that
/// look, what they find. The wait begins when they have wedged, not at the clock of the step in which they were asked
/// to.
#[test]
fn the_wait_for_a_lease_begins_after_the_last_echo_even_if_the_clock_was_read_long_before() {
    for seed in 0..20 {
        let mut world = World::formed(seed, 3);
        for id in [1, 2] {
            world.process(id).leased = vec![NodeId(3)];
        }
        let read = world.net.now();
        world.net.pause(NodeId(1));
        world.run_for(FAILURE_TIMEOUT / 2);
        world.net.resume(NodeId(1));
        for id in [1, 2] {
            world.net.cut(NodeId(id), NodeId(3));
        }
        // As `NodeCore::step` does: completions, then the shards (which echo here and now), then membership, then the
        // wedge.
        let echoed = world.net.now();
        world.process(1).input(Input::Broken(NodeId(3), BreakReason::Unreachable));
        world.step_at(1, read);
        world.run_until("member 1 goes on", ms(200), |world| world.processes[&NodeId(1)].cleaned_up.is_some());
        let waited = world.net.now().since(echoed);
        assert!(waited > READ_LEASE + READ_LEASE / 5, "seed {seed}: it went on {waited:?} after its last echo");
    }
}
