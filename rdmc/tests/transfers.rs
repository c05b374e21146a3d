//! Whole transfers in the simulator, which does the worst that the fabric's contract permits.

use std::time::Duration;

use squall_fabric::{Fabric, MIN_RECV_DEPTH, NodeId, sim::SimConfig};
use squall_rdmc::{
    Buffer, CreateError, GroupConfig, Progress, Rdmc, SendError,
    schedule::{Algorithm, Outer, Racks},
};

use crate::world::{World, config, content};

fn any_algorithm(rng: &mut fastrand::Rng, n: usize) -> Algorithm {
    match rng.u8(..7) {
        0 => Algorithm::Sequential,
        1 => Algorithm::Interleaved,
        2 => Algorithm::Chain,
        3 => Algorithm::BinomialTree,
        4 => {
            let racks = rng.usize(1..=n);
            let rack_of: Vec<usize> = (0..n).map(|rank| if rank == 0 { 0 } else { rng.usize(..racks) }).collect();
            let outer = if rng.bool() { Outer::Chain } else { Outer::BinomialPipeline };
            Algorithm::Hybrid(Racks::new(&rack_of, outer).expect("there is a root"))
        }
        _ => Algorithm::BinomialPipeline,
    }
}

/// Runs one group of random members, algorithm, block size, windows and messages, and compares all bytes.
fn random_transfer(seed: u64, shallow: bool) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let n = rng.usize(1..=12);
    let block_bytes = [1, 7, 64, 1000, 4096, 10_000][rng.usize(..6)];
    let config = GroupConfig {
        algorithm: any_algorithm(&mut rng, n),
        block_bytes,
        receives_ahead: rng.usize(1..=9),
        sends_in_flight: rng.usize(1..=5),
        steps_ahead: [1, 2, u64::MAX][rng.usize(..3)],
        ..config(n)
    };
    let mut sim = if rng.bool() { SimConfig::fast() } else { SimConfig::nasty() };
    if shallow {
        // No member is woken by chance either.
        sim.spurious_chance = 0.0;
        (sim.queue_depth, sim.recv_depth) = (rng.usize(1..=2), rng.usize(MIN_RECV_DEPTH..=MIN_RECV_DEPTH + 1));
    }
    let what = format!("seed {seed}: {config:?}");
    let mut world = World::new(sim, seed, &config);
    for member in world.members.iter_mut().flatten() {
        if member.fabric.node() != NodeId(0) && rng.bool() {
            for _ in 0..rng.usize(1..4) {
                let buffer = Buffer::register(&mut member.fabric, rng.usize(1..=20 * block_bytes)).expect("memory");
                member.group().provide(buffer);
            }
        }
    }
    let lens: Vec<usize> = (0..rng.usize(1..=4))
        .map(|_| match rng.u8(..4) {
            0 => 0,
            1 => rng.usize(..=block_bytes),
            _ => rng.usize(..=16 * block_bytes),
        })
        .collect();
    for &len in &lens {
        world.send(len);
    }
    world.root().group().destroy().expect("the root may");
    world.run();
    for (rank, member) in world.alive().enumerate() {
        assert!(member.failures.is_empty(), "{what}: {:?} at rank {rank}", member.failures);
        assert_eq!(member.destroyed, 1, "{what}: rank {rank}");
        assert!(member.released.iter().copied().eq(0..lens.len() as u64), "{what}: rank {rank}");
        if rank == 0 {
            assert!(member.received.is_empty(), "{what}: the root receives nothing");
            continue;
        }
        let got: Vec<(u64, usize)> = member.received.iter().map(|(number, _, len)| (*number, *len)).collect();
        assert!(got.iter().copied().eq((0..).zip(lens.iter().copied())), "{what}: {got:?} instead of {lens:?}");
        for (number, buffer, len) in &member.received {
            assert!(buffer[..*len] == content(*number, *len), "{what}: message {number} differs at rank {rank}");
        }
    }
}

#[test]
fn transfers_are_byte_exact_over_a_thousand_seeds() {
    (0..1000).for_each(|seed| random_transfer(seed, false));
}

#[test]
fn queues_that_are_full_all_the_time_delay_nothing_for_ever() {
    (0..1000).for_each(|seed| random_transfer(seed, true));
}

#[test]
fn a_large_group_with_one_receive_ahead_and_one_send_in_flight_gets_through() {
    for algorithm in [Algorithm::BinomialPipeline, Algorithm::Chain, Algorithm::BinomialTree] {
        let config = GroupConfig { algorithm, block_bytes: 100, receives_ahead: 1, sends_in_flight: 1, ..config(100) };
        let mut world = World::new(SimConfig::fast(), 1, &config);
        world.send(5000);
        world.send(77);
        world.root().group().destroy().expect("the root may");
        world.run();
        assert!(world.alive().all(|member| member.destroyed == 1));
        assert!(world.alive().skip(1).all(|member| member.received.len() == 2));
    }
}

/// Members that have no memory of their own for first blocks provide some for each message, at random times.
fn random_rendezvous(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let n = rng.usize(2..=12);
    let block_bytes = [1, 64, 1000][rng.usize(..3)];
    let config = GroupConfig {
        algorithm: any_algorithm(&mut rng, n),
        block_bytes,
        receives_ahead: rng.usize(1..=4),
        steps_ahead: [1, 2, u64::MAX][rng.usize(..3)],
        first_block_memory: false,
        ..config(n)
    };
    let what = format!("seed {seed}: {config:?}");
    let sim = if rng.bool() { SimConfig::fast() } else { SimConfig::nasty() };
    let mut world = World::new(sim, seed, &config);
    let lens: Vec<usize> = (0..rng.usize(1..=4)).map(|_| rng.usize(..=12 * block_bytes)).collect();
    for &len in &lens {
        world.send(len);
    }
    world.run_dry();
    for member in world.members.iter_mut().flatten().skip(1) {
        assert_eq!(member.group().progress(), Progress::default(), "{what}: something came before there was memory");
    }
    let mut provided: Vec<Vec<*const u8>> = vec![Vec::new(); n];
    while provided.iter().skip(1).any(|each| each.len() < lens.len()) {
        let rank = rng.usize(1..n);
        if let Some(len) = lens.get(provided[rank].len()) {
            let member = world.members[rank].as_mut().expect("alive");
            // A member may expect more blocks than there are.
            let blocks = len.div_ceil(block_bytes).max(1) + [0, 0, 1, 3][rng.usize(..4)];
            let buffer = Buffer::register(&mut member.fabric, blocks * block_bytes).expect("memory");
            provided[rank].push(buffer.as_ptr());
            member.group().provide(buffer);
        }
        world.kick();
        (0..rng.u32(..30)).for_each(|_| _ = world.step());
    }
    world.root().group().destroy().expect("the root may");
    world.run();
    for (rank, member) in world.alive().enumerate().skip(1) {
        assert_eq!((member.destroyed, member.received.len()), (1, lens.len()), "{what}: rank {rank}");
        for ((number, buffer, len), at) in member.received.iter().zip(&provided[rank]) {
            assert!(buffer[..*len] == content(*number, *len), "{what}: message {number} differs at rank {rank}");
            assert_eq!(buffer.as_ptr(), *at, "{what}: message {number} lies elsewhere at rank {rank}");
        }
    }
}

#[test]
fn without_first_block_memory_messages_wait_for_what_is_provided_and_lie_there() {
    (0..500).for_each(random_rendezvous);
}

#[test]
fn until_memory_is_given_the_message_waits_and_nothing_is_lost() {
    let config = GroupConfig { block_bytes: 64, ..config(3) };
    let mut world = World::new(SimConfig::fast(), 5, &config);
    world.send(1000);
    world.run_dry();
    // The world's members answer at once; so it has arrived, and a message that does not wait for memory can't be
    // accepted.
    let member = world.members[2].as_mut().expect("alive");
    assert_eq!(member.received.len(), 1);
    let buffer = Buffer::register(&mut member.fabric, 10).expect("memory");
    let refused = member.group().accept(0, buffer).unwrap_err().to_string();
    assert_eq!(refused, "message 0 does not wait for memory: it has some, or the group has failed");
}

#[test]
fn a_group_without_its_end_stays_open_and_its_destruction_means_that_all_have_all() {
    let mut world = World::new(SimConfig::nasty(), 9, &GroupConfig { block_bytes: 100, ..config(5) });
    world.send(2000);
    world.run_dry();
    assert!(world.alive().all(|member| !member.has_ended() && member.connected == 1));
    // All members have all messages, whichever is destroyed first.
    world.send(50);
    world.root().group().destroy().expect("the root may");
    world.kick();
    while world.alive().all(|member| member.destroyed == 0) {
        assert!(world.step(), "a group is destroyed");
    }
    assert!(world.alive().skip(1).all(|member| member.received.len() == 2));
    world.run();
    assert!(world.alive().all(|member| member.destroyed == 1));
}

#[test]
fn a_frozen_member_holds_up_the_end_and_nothing_is_lost_when_it_goes_on() {
    let mut world = World::new(SimConfig::fast(), 11, &GroupConfig { block_bytes: 1000, ..config(6) });
    world.send(40_000);
    world.root().group().destroy().expect("the root may");
    world.kick();
    (0..40).for_each(|_| _ = world.step());
    world.net.pause(NodeId(3));
    world.run_dry();
    assert!(world.alive().all(|member| !member.has_ended()), "no member may say that all have all");
    world.net.resume(NodeId(3));
    world.run();
    assert!(world.alive().all(|member| member.destroyed == 1));
}

#[test]
fn only_the_root_sends_and_only_what_lies_in_a_buffer() {
    let mut world = World::new(SimConfig::fast(), 3, &GroupConfig { block_bytes: 100, ..config(2) });
    let member = world.members[1].as_mut().expect("alive");
    let buffer = std::sync::Arc::new(Buffer::register(&mut member.fabric, 10).expect("memory"));
    assert!(matches!(member.group().send(buffer.clone(), 10), Err(SendError::NotTheRoot(_))));
    assert!(member.group().destroy().is_err());
    let root = world.root();
    assert_eq!(root.group().send(buffer, 11), Err(SendError::Buffer { len: 11, capacity: 10 }));
    root.group().destroy().expect("the root may");
    world.run();
    let root = world.root();
    let buffer = std::sync::Arc::new(Buffer::register(&mut root.fabric, 10).expect("memory"));
    assert_eq!(root.group().send(buffer, 1), Err(SendError::Closed));
}

#[test]
fn members_that_disagree_refuse_each_other() {
    let net = squall_fabric::sim::SimNet::new(SimConfig::fast(), 1);
    let mut failures = Vec::new();
    let mut nodes: Vec<_> = [1000, 2000]
        .into_iter()
        .zip(0..)
        .map(|(block_bytes, node)| {
            let (mut fabric, mut rdmc) = (net.fabric(NodeId(node)), Rdmc::new());
            rdmc.create(&mut fabric, GroupConfig { block_bytes, ..config(2) }).expect("sound by itself");
            (fabric, rdmc)
        })
        .collect();
    let mut ready = Vec::new();
    while net.next_event().is_some() {
        let now = net.advance(squall_fabric::Time::MAX, &mut ready);
        for id in ready.drain(..) {
            let (fabric, rdmc) = &mut nodes[id.0 as usize];
            let (mut completions, mut events) = (Vec::new(), Vec::new());
            fabric.poll(now, &mut completions);
            completions.iter().for_each(|completion| assert!(rdmc.on_completion(fabric, completion)));
            rdmc.step(fabric, &mut events);
            failures.extend(events.into_iter().filter_map(|(_, event)| match event {
                squall_rdmc::Event::Failed(failure) => Some(failure.reason),
                _ => None,
            }));
        }
    }
    assert_eq!(failures.len(), 2);
    assert!(failures.iter().any(|reason| reason.contains("configuration of the group differs")), "{failures:?}");
}

#[test]
fn impossible_configurations_are_refused_with_a_reason() {
    let net = squall_fabric::sim::SimNet::new(SimConfig::fast(), 1);
    let mut fabric = net.fabric(NodeId(9));
    let mut create = |config| squall_rdmc::Group::create(&mut fabric, config).unwrap_err().to_string();
    assert_eq!(create(config(3)), "node 9 is no member of the group");
    let members = |ids: &[u32]| ids.iter().copied().map(NodeId).collect::<Vec<_>>();
    let twice = GroupConfig { members: members(&[9, 4, 4]), ..config(0) };
    assert_eq!(create(twice), "node 4 is named twice among the group's members");
    let sound = GroupConfig { members: members(&[9, 4]), ..config(0) };
    assert!(create(GroupConfig { block_bytes: 0, ..sound.clone() }).starts_with("blocks of 0 bytes"));
    assert!(create(GroupConfig { sends_in_flight: 0, ..sound.clone() }).contains("at least one"));
    let mut rdmc = Rdmc::new();
    rdmc.create(&mut fabric, sound.clone()).expect("a sound configuration");
    assert_eq!(rdmc.create(&mut fabric, sound.clone()), Err(CreateError::Exists(sound.id)));
}

#[test]
fn a_slow_link_delays_nothing_for_ever() {
    let config = GroupConfig { block_bytes: 1000, ..config(8) };
    let mut world = World::new(SimConfig::ideal(1_000_000_000, Duration::from_micros(1)), 4, &config);
    let slow = squall_fabric::sim::LinkProperties { bytes_per_s: Some(1_000_000), latency: None };
    world.net.set_link(NodeId(2), NodeId(3), slow);
    world.send(64_000);
    world.root().group().destroy().expect("the root may");
    world.run();
    assert!(world.alive().all(|member| member.destroyed == 1));
}
