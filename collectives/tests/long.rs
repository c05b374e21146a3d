//! Broadcasts by RDMC, in a network that does the worst that the fabric's contract permits.

use std::collections::VecDeque;

use squall_collectives::{
    Algorithm, Builtin, Collective, CollectiveError, CommunicatorConfig, CreateCommunicatorError, Operation, Parameters,
};
use squall_fabric::{
    GroupTag,
    sim::{SimConfig, SimNet},
};
use squall_rdmc::{
    block::{Medium, Network},
    schedule::{Outer, Racks},
};

use crate::world::{World, config, long_config, seed};

/// The size of a block, in bytes.
const BLOCK: usize = 64;

/// A world whose broadcasts all go by RDMC.
fn world(sim: SimConfig, seed: u64, config: &CommunicatorConfig) -> World {
    let mut world = World::new(sim, seed, config);
    world.alive().for_each(|(_, rank)| rank.communicator.set_algorithm(Collective::Broadcast, Some(Algorithm::Rdmc)));
    world
}

fn bytes(len: usize, random: &mut fastrand::Rng) -> Vec<u8> {
    (0..len).map(|_| random.u8(..)).collect()
}

/// Broadcasts vectors of these lengths, each from a random root, and compares the results of all ranks.
fn broadcast_each(world: &mut World, lens: &[usize]) {
    let n = world.ranks.len();
    for &len in lens {
        let root = world.random.usize(0..n);
        let vector = bytes(len, &mut world.random);
        let given = |rank| if rank == root { vector.clone() } else { vec![0; len] };
        let results = world.run(|rank, fabric, c| c.start_broadcast(fabric, root, given(rank)));
        for (rank, result) in results.iter().enumerate() {
            assert!(*result == vector, "{len} bytes from {root} to {rank} of {n}");
        }
    }
}

#[test]
fn lengths_around_blocks_among_any_number() {
    let seed = seed();
    for n in (1..=16).chain([33, 64]) {
        eprintln!("{n} ranks");
        let mut world = world(SimConfig::fast(), seed.wrapping_add(n as u64), &long_config(n));
        let more = world.random.usize(0..40 * BLOCK);
        let lens = [1, 0, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 9 * BLOCK - 1, 9 * BLOCK, 9 * BLOCK + 1, more];
        broadcast_each(&mut world, &lens);
        world.close();
    }
}

#[test]
fn queues_may_be_shallow_and_all_writes_split() {
    let seed = seed();
    for n in [2, 3, 5, 8] {
        for turn in 0..3 {
            let mut world = world(SimConfig::nasty(), seed.wrapping_add(turn * 100 + n as u64), &long_config(n));
            broadcast_each(&mut world, &[1, BLOCK, 5 * BLOCK + 7, 20 * BLOCK, 0]);
            world.close();
        }
    }
}

#[test]
fn all_media_carry_them() {
    let seed = seed();
    let n = 6;
    let racks = Racks::new(&["a", "b", "a", "b", "b", "c"], Outer::Chain).expect("there are ranks");
    let racked = Network { racks: Some(racks), ..Network::rdma(12_500_000_000) };
    for medium in [Medium::SharedMemory, Medium::Network(Network::tcp(1_000_000_000)), Medium::Network(racked)] {
        for block_bytes in [None, Some(BLOCK), Some(1)] {
            let config = CommunicatorConfig { medium: medium.clone(), block_bytes, ..long_config(n) };
            let mut world = world(SimConfig::fast(), seed, &config);
            for root in 0..n {
                let vector = bytes(300, &mut world.random);
                let results = world.run(|_, fabric, c| c.start_broadcast(fabric, root, vector.clone()));
                assert!(results.iter().all(|result| *result == vector), "{medium:?} from {root}");
            }
            world.close();
        }
    }
}

#[test]
fn the_length_decides_from_the_threshold_on() {
    let seed = seed();
    for n in [2, 3, 7] {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(n as u64), &long_config(n));
        let parameters = Parameters { rdmc_bytes: 1000, ..Parameters::default() };
        for (_, rank) in world.alive() {
            rank.communicator.set_parameters(parameters);
            let choice = |bytes| rank.communicator.algorithm(Collective::Broadcast, bytes);
            assert_ne!(choice(999), Algorithm::Rdmc);
            assert_eq!(choice(1000), Algorithm::Rdmc);
        }
        broadcast_each(&mut world, &[999, 1000, 1001, 10, 2000, 999, 1000]);
        world.close();
    }
}

#[test]
fn several_of_one_root_are_matched_in_order() {
    let seed = seed();
    for n in [2, 3, 6] {
        for turn in 0..6 {
            let config = CommunicatorConfig { lanes: 4, ..long_config(n) };
            let mut world = world(SimConfig::fast(), seed.wrapping_add(turn * 100 + n as u64), &config);
            let root = world.random.usize(0..n);
            for _ in 0..4 {
                let vectors: Vec<Vec<u8>> = (0..4)
                    .map(|_| {
                        let len = world.random.usize(0..12 * BLOCK);
                        bytes(len, &mut world.random)
                    })
                    .collect();
                let mut operations: Vec<Vec<Option<Operation<u8>>>> = Vec::new();
                for vector in &vectors {
                    let given = |rank| if rank == root { vector.clone() } else { vec![0; vector.len()] };
                    operations.push(world.start(|rank, fabric, c| c.start_broadcast(fabric, root, given(rank))));
                }
                operations.iter().for_each(|each| world.wait(each));
                for (each, vector) in operations.into_iter().zip(&vectors) {
                    assert!(world.finish(each).iter().all(|result| result == vector));
                }
            }
            world.close();
        }
    }
}

#[test]
fn several_roots_and_short_operations_go_on_together() {
    let seed = seed();
    for n in [2, 4, 7] {
        for turn in 0..4 {
            let config = CommunicatorConfig { lanes: 4, ..long_config(n) };
            let mut world = world(SimConfig::fast(), seed.wrapping_add(turn * 100 + n as u64), &config);
            for _ in 0..6 {
                let len = world.random.usize(1..20 * BLOCK);
                let vector = bytes(len, &mut world.random);
                let roots = [0; 2].map(|_| world.random.usize(0..n));
                let barrier = world.start(|_, fabric, c| c.start_barrier(fabric));
                let casts =
                    roots.map(|root| world.start(|_, fabric, c| c.start_broadcast(fabric, root, vector.clone())));
                let sum = Builtin::Sum.into();
                let sums = world.start(|rank, fabric, c| c.start_allreduce(fabric, &sum, vec![rank as u64, 1]));
                world.wait(&sums);
                casts.iter().for_each(|cast| world.wait(cast));
                world.wait(&barrier);
                let ranks = n as u64;
                assert!(world.finish(sums).iter().all(|result| *result == [ranks * (ranks - 1) / 2, ranks]));
                for cast in casts {
                    assert!(world.finish(cast).iter().all(|result| *result == vector));
                }
            }
            world.close();
        }
    }
}

#[test]
fn ranks_may_be_far_apart() {
    let seed = seed();
    for n in [3, 5, 8] {
        for turn in 0..6 {
            let config = long_config(n);
            let mut world = world(SimConfig::fast(), seed.wrapping_add(turn * 100 + n as u64), &config);
            let late = world.random.usize(1..n);
            let blocks = [1, 2, 5][turn as usize % 3];
            let vectors: Vec<Vec<u8>> = (0..20).map(|_| bytes(blocks * BLOCK, &mut world.random)).collect();
            // All other ranks start as many as they can, with the root 0, before the late one starts any.
            let mut is_late = true;
            let mut under_way: Vec<VecDeque<Operation<u8>>> = (0..n).map(|_| VecDeque::new()).collect();
            let mut got: Vec<Vec<Vec<u8>>> = vec![Vec::new(); n];
            while got.iter().any(|results| results.len() < vectors.len()) {
                let mut busy = false;
                for (index, rank) in world.alive().filter(|(index, _)| !is_late || *index != late) {
                    let (under_way, got) = (&mut under_way[index], &mut got[index]);
                    while let Some(over) = under_way.pop_front_if(|oldest| rank.communicator.test(oldest) == Ok(true)) {
                        got.push(rank.communicator.finish(over).expect("it is over"));
                        busy = true;
                    }
                    if let Some(vector) = vectors.get(got.len() + under_way.len())
                        && under_way.len() < config.lanes
                    {
                        let given = if index == 0 { vector.clone() } else { vec![0; vector.len()] };
                        let started = rank.communicator.start_broadcast(&mut rank.fabric, 0, given);
                        under_way.push_back(started.expect("a lane is free"));
                        busy = true;
                    }
                }
                if !busy && !world.advance() {
                    assert!(is_late, "nothing is left to happen");
                    let ahead = got.iter().map(Vec::len).max().unwrap_or(0);
                    // A rank passes on at most as many vectors as it has lanes, to the next of at most four.
                    assert!(ahead <= 4 * config.lanes, "a rank is {ahead} vectors ahead of rank {late}");
                    is_late = false;
                }
            }
            assert!(got.iter().all(|results| *results == vectors));
            world.close();
        }
    }
}

#[test]
fn lengths_that_differ_harm_nothing_else() {
    let seed = seed();
    for (roots, others) in [(10 * BLOCK, BLOCK), (BLOCK, 10 * BLOCK), (10 * BLOCK, 0), (0, 10 * BLOCK)] {
        let mut world = world(SimConfig::fast(), seed, &long_config(3));
        let cast = world.start(|rank, fabric, c| {
            c.start_broadcast(fabric, 0, if rank == 0 { vec![1u8; roots] } else { vec![2; others] })
        });
        while world.advance() {}
        // A vector that is longer than a receiver's memory waits there.
        for (rank, operation) in cast.iter().enumerate().skip(1) {
            let communicator = &world.ranks[rank].as_ref().expect("it is alive").communicator;
            let over = communicator.test(operation.as_ref().expect("it was started"));
            assert_eq!(over, Ok(roots < others), "rank {rank}: {roots} bytes instead of {others}");
        }
        if roots < others {
            for result in &world.finish(cast)[1..] {
                assert!(result[..roots] == vec![1; roots] && result[roots..] == vec![2; others - roots]);
            }
        }
        let barrier = world.start(|_, fabric, c| c.start_barrier(fabric));
        world.wait(&barrier);
    }
}

#[test]
fn tags_that_name_no_groups_are_refused() {
    let net = SimNet::new(SimConfig::fast(), 1);
    let sound = config(3);
    let mut fabric = net.fabric(sound.ranks[0]);
    for tag in [
        GroupTag { layer: 256, ..sound.tag },
        GroupTag { group: 1 << 24, ..sound.tag },
        GroupTag { epoch: 1 << 48, ..sound.tag },
    ] {
        let config = CommunicatorConfig { tag, ..sound.clone() };
        let refused = squall_collectives::Communicator::create(&mut fabric, config).err();
        assert_eq!(refused, Some(CreateCommunicatorError::Tag { tag, ranks: 3 }));
    }
}

#[test]
fn blocks_that_are_impossible_are_refused() {
    let config = CommunicatorConfig { block_bytes: Some(0), ..config(2) };
    let mut world = world(SimConfig::fast(), 1, &config);
    let rank = world.ranks[0].as_mut().expect("it is alive");
    let refused = rank.communicator.start_broadcast(&mut rank.fabric, 0, vec![1u8]).err();
    assert_eq!(refused, Some(CollectiveError::Group(squall_rdmc::CreateError::BlockBytes(0))));
    // It was not started, and takes no lane.
    rank.communicator.set_algorithm(Collective::Broadcast, None);
    for _ in 0..2 {
        let _started = rank.communicator.start_broadcast(&mut rank.fabric, 0, vec![1u8]).expect("a short one");
    }
}
