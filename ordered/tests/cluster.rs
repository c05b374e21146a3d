//! Clusters of shards in virtual time.

use std::time::Duration;

use fastrand::Rng;
use squall_fabric::{
    Time,
    sim::{Sabotage, SimConfig, SimNet},
};
use squall_membership::Epoch;
use squall_ordered::{Mode, ShardConfig, create};

use crate::{
    exposed::Exposed,
    world::{Fault, Plan, SHARD, World, ending, for_seeds, is_noticed, node, view},
};

#[test]
fn all_members_deliver_one_sequence_without_gap_or_duplicate() {
    for_seeds(300, |seed| World::new(Plan::random(Mode::Ordered, &mut Rng::with_seed(seed)), seed).run());
}

#[test]
fn unordered_members_deliver_each_senders_messages_in_their_order() {
    for_seeds(300, |seed| World::new(Plan::random(Mode::Unordered, &mut Rng::with_seed(seed)), seed).run());
}

#[test]
fn a_view_ends_everywhere_at_the_trim() {
    for_seeds(400, |seed| World::new(ending(Mode::Ordered, &mut Rng::with_seed(seed)), seed).run());
}

#[test]
fn views_follow_each_other_and_no_message_is_lost_or_comes_twice() {
    for_seeds(60, |seed| {
        let rng = &mut Rng::with_seed(seed);
        let mut plan = Plan::random(Mode::Ordered, rng);
        plan.messages = plan.messages.iter().map(|messages| messages * 5).collect();
        World::new(plan, seed).run_views(1 + seed % 6)
    });
}

#[test]
fn an_unordered_view_ends_with_what_has_arrived() {
    for_seeds(300, |seed| World::new(ending(Mode::Unordered, &mut Rng::with_seed(seed)), seed).run());
}

/// The smallest rings, the largest messages, the shallowest queues: senders find no room, and no message is lost or
/// stuck.
#[test]
fn full_rings_and_full_queues_hold_up_and_let_go() {
    let mut full = 0;
    for_seeds(60, |seed| {
        let mut plan = Plan::new(2 + seed as usize % 4);
        plan.messages.fill(60);
        plan.max_bytes = 256;
        plan.pace = Duration::from_micros(1);
        plan.delivery_delay = Duration::from_micros(50);
        plan.net = SimConfig { queue_depth: 1, ..SimConfig::nasty() };
        plan.mode = if seed.is_multiple_of(3) { Mode::Unordered } else { Mode::Ordered };
        let mut world = World::new(plan, seed);
        world.run()?;
        full += world.members.iter().map(|member| member.full).sum::<usize>();
        Ok(())
    });
    assert!(full > 1000 || std::env::var("SQUALL_SEED").is_ok(), "the rings were full only {full} times");
}

/// One member sends, of any rank. The others give up their turns at once, and no more turns than needed.
#[test]
fn silent_senders_delay_nobody() {
    let latency = Duration::from_micros(10);
    for talker in 0..5 {
        let mut plan = Plan::new(5);
        plan.net = SimConfig::ideal(12_500_000_000, latency);
        plan.messages = (0..5).map(|member| if member == talker { 1 } else { 0 }).collect();
        plan.pace = Duration::ZERO;
        plan.delivery_delay = Duration::ZERO;
        let mut world = World::new(plan, 0);
        world.run_for(Duration::from_millis(1)).expect("they connect");
        world.run_to_rest().expect("the first message");
        for _ in 0..20 {
            world.run_for(Duration::from_micros(100)).expect("a pause");
            let start = world.now;
            world.members[talker].send_more(1);
            world.run_to_rest().unwrap_or_else(|wrong| panic!("talker {talker}: {wrong}"));
            // One way each for the message, the nulls, and the news that all have received both; and the time that
            // engines take.
            let took = world.now.since(start);
            assert!(took < latency * 3 + latency / 2, "talker {talker}: {took:?}");
        }
        world.run_for(Duration::from_millis(1)).expect("a pause");
        assert_eq!(world.net.next_event(), None, "nothing goes on when no member sends");
        for member in 0..5 {
            let sent = world.members[member].row().sent;
            let needed = if member < talker { 21 } else { 20 + u64::from(member == talker) };
            assert_eq!(sent, needed, "turns of member {member} while {talker} sent 21 messages");
        }
    }
}

/// A sender that accepts nothing more is a silent sender, until the view ends.
#[test]
fn a_closed_sender_delays_nobody() {
    for_seeds(20, |seed| {
        let mut world = World::new(Plan::new(3), seed);
        world.run_for(Duration::from_micros(seed * 20))?;
        world.members[1].close();
        world.run_to_rest()
    });
}

/// Reads cost no turns, and need no writes.
#[test]
fn reads_are_answered_when_nobody_writes() {
    for_seeds(50, |seed| {
        let mut plan = Plan::new(2 + seed as usize % 5);
        plan.messages.fill(0);
        plan.reads = 10;
        let mut world = World::new(plan, seed);
        world.run()?;
        assert!((0..world.plan.members).all(|member| world.members[member].row().sent == 0));
        Ok(())
    });
}

#[test]
fn a_member_alone_delivers_and_reads() {
    for mode in [Mode::Ordered, Mode::Unordered] {
        let mut plan = Plan::new(1);
        plan.mode = mode;
        plan.reads = if mode == Mode::Ordered { 10 } else { 0 };
        World::new(plan, 1).run().unwrap_or_else(|wrong| panic!("{wrong}"));
    }
}

#[test]
fn a_shard_without_senders_rests() {
    let mut plan = Plan::new(3);
    plan.senders.clear();
    plan.reads = 5;
    let mut world = World::new(plan, 1);
    world.run().unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(world.now < Time::MAX);
}

/// Shows that the checks work: each of these worlds breaks a rule, and is found out.
#[test]
fn what_breaks_the_rules_is_noticed() {
    for fault in [Fault::TrimMax, Fault::TrimShort, Fault::WedgeLate] {
        let plan = |rng: &mut Rng| Plan { fault: Some(fault), ..ending(Mode::Ordered, rng) };
        assert!(is_noticed(plan), "{fault:?} was not noticed");
    }
    // Counters that arrive before the messages that they announce.
    let overtake = |rng: &mut Rng| {
        let mut plan = Plan::random(Mode::Ordered, rng);
        plan.net.sabotage = Some(Sabotage::Overtake);
        plan
    };
    assert!(is_noticed(overtake), "writes that overtake others were not noticed");
}

/// A member that writes wherever it can writes no more than its own row, and its own ring.
#[test]
fn no_two_members_are_given_the_same_memory() {
    let members = [0, 1, 2, 3];
    let others = [1, 2, 3].map(node);
    for mode in [Mode::Ordered, Mode::Unordered, Mode::Durable] {
        let mut fabric = Exposed::new(SimNet::new(SimConfig::fast(), 1).fabric(node(0)));
        let config = ShardConfig { mode, ..ShardConfig::default() };
        let view = view(Epoch::FIRST, &members, &members, &members);
        create(&mut fabric, &view, SHARD, &config).expect("a valid shard");
        assert_eq!(fabric.shared(&others), 0, "{mode:?}");
    }
}
