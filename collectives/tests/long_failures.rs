//! A rank that is lost during broadcasts by RDMC ends them on all others, with its name.

use std::time::Duration;

use squall_collectives::{Algorithm, Collective, CollectiveError, Operation};
use squall_fabric::{Time, sim::SimConfig};

use crate::world::{World, long_config, seed};

/// The time within which operations end after a break: the failure timeout of the network, and some more.
const BREAK: Duration = Duration::from_millis(40);

/// The time within which they end where a rank has left: for some time, others may name the cause.
const LEAVE: Duration = Duration::from_millis(140);

/// A world whose broadcasts all go by RDMC, in blocks of 64 bytes.
fn world(n: usize, seed: u64) -> World {
    world_of(SimConfig::fast(), n, seed)
}

fn world_of(sim: SimConfig, n: usize, seed: u64) -> World {
    let mut world = World::new(sim, seed, &long_config(n));
    world.alive().for_each(|(_, rank)| rank.communicator.set_algorithm(Collective::Broadcast, Some(Algorithm::Rdmc)));
    world
}

/// Two broadcasts, of one root or two.
fn cast(world: &mut World) -> [Vec<Option<Operation<u64>>>; 2] {
    let n = world.ranks.len();
    let first = world.random.usize(0..n);
    let second = if world.random.bool() { first } else { world.random.usize(0..n) };
    [first, second].map(|root| world.start(|_, fabric, c| c.start_broadcast(fabric, root, vec![1; 200])))
}

/// Waits until all ranks but the lost one know the lost rank, and nothing is under way there. Returns the number of
/// operations that had no result.
fn all_name(world: &mut World, lost: usize, bound: Duration, operations: &[Vec<Option<Operation<u64>>>]) -> usize {
    let limit = world.net.now() + bound;
    world.until("a failure", |world| {
        world.alive().filter(|(index, _)| *index != lost).all(|(_, rank)| rank.communicator.failed().is_some())
    });
    assert!(world.net.now() <= limit, "it took until {}", world.net.now());
    let failed = CollectiveError::Failed { rank: lost };
    let mut caught = 0;
    for (index, rank) in world.alive().filter(|(index, _)| *index != lost) {
        for operation in operations.iter().filter_map(|each| each[index].as_ref()) {
            let end = rank.communicator.test(operation);
            // A rank may have received all that it needed before.
            assert!(end == Ok(true) || end == Err(failed.clone()), "rank {index} ends with {end:?}");
            caught += usize::from(end.is_err());
        }
        let later = rank.communicator.start_broadcast(&mut rank.fabric, 0, vec![1u8]);
        assert_eq!(later.err().as_ref(), Some(&failed), "rank {index} starts another");
    }
    caught
}

#[test]
fn a_rank_that_dies_during_a_long_broadcast_is_named_to_all() {
    let seed = seed();
    let mut caught = 0;
    for n in [2, 3, 4, 5, 8] {
        for turn in 0..12 {
            for victim in 0..n {
                let mut world = world(n, seed.wrapping_add(turn * 100 + victim as u64));
                world.connect();
                if world.random.bool() {
                    // The groups are there already in half of the cases.
                    let operations = cast(&mut world);
                    operations.iter().for_each(|each| world.wait(each));
                }
                let operations = cast(&mut world);
                world.some(150);
                world.crash(victim);
                caught += all_name(&mut world, victim, BREAK, &operations);
                world.close();
            }
        }
    }
    assert!(caught > 300, "only {caught} were caught in their midst");
}

#[test]
fn a_rank_that_dies_before_it_starts_ends_the_broadcast() {
    let seed = seed();
    for n in [2, 3, 6] {
        for victim in 0..n {
            let mut world = world(n, seed.wrapping_add(victim as u64));
            world.connect();
            let root = world.random.usize(0..n);
            let operations: Vec<Option<Operation<u64>>> = (0..n)
                .map(|rank| {
                    let start = |world: &mut World| {
                        world.start_one(rank, |fabric, c| c.start_broadcast(fabric, root, vec![1; 200]))
                    };
                    (rank != victim).then(|| start(&mut world))
                })
                .collect();
            world.some(100);
            world.crash(victim);
            all_name(&mut world, victim, BREAK, &[operations]);
            world.close();
        }
    }
}

#[test]
fn a_group_that_breaks_first_names_the_same_rank() {
    let seed = seed();
    let mut caught = 0;
    for n in [2, 3, 5, 8] {
        for victim in 0..n {
            for turn in 0..4 {
                let mut world = world(n, seed.wrapping_add(turn * 100 + victim as u64));
                world.connect();
                for (_, rank) in world.alive() {
                    // The reports of the communicator's own connections never come.
                    rank.deaf = rank.connected.clone();
                }
                let root = world.random.usize(0..n);
                // A connection that was never made does not break.
                let first = world.start(|_, fabric, c| c.start_broadcast(fabric, root, vec![1; 200]));
                world.wait(&first);
                while world.advance() {}
                let mut operations = Vec::new();
                for _ in 0..2 {
                    operations.push(world.start(|_, fabric, c| c.start_broadcast(fabric, root, vec![1; 200])));
                }
                world.some(100);
                world.crash(victim);
                // If no rank needs the victim any more, none has to see it go.
                let over = |world: &mut World| {
                    world.alive().all(|(index, rank)| {
                        operations
                            .iter()
                            .filter_map(|each| each[index].as_ref())
                            .all(|operation| rank.communicator.test(operation) == Ok(true))
                    })
                };
                if !over(&mut world) {
                    caught += all_name(&mut world, victim, BREAK, &operations);
                }
            }
        }
    }
    assert!(caught > 100, "only {caught} were caught in their midst");
}

#[test]
fn a_failure_that_one_is_told_of_ends_the_broadcasts_of_all() {
    let seed = seed();
    for turn in 0..20 {
        let n = 5;
        let mut world = world(n, seed.wrapping_add(turn));
        world.connect();
        let operations = cast(&mut world);
        world.some(100);
        let (lost, teller) = (3, world.random.usize(0..3));
        let rank = world.ranks[teller].as_mut().expect("it is alive");
        rank.communicator.fail(&mut rank.fabric, lost);
        all_name(&mut world, lost, BREAK, &operations);
        // The rank that was given up is alive.
        world.close();
    }
}

#[test]
fn who_leaves_because_of_a_failure_is_not_taken_for_its_cause() {
    let seed = seed();
    for turn in 0..40 {
        let n = [3, 4, 6][turn as usize % 3];
        let mut world = world(n, seed.wrapping_add(turn));
        world.connect();
        let victim = world.random.usize(0..n);
        let operations = cast(&mut world);
        world.some(100);
        world.crash(victim);
        world.until("leaving", |world| {
            world.alive().fold(true, |all, (_, rank)| {
                all & (rank.communicator.failed().is_some() && rank.communicator.close(&mut rank.fabric))
            })
        });
        for (index, rank) in world.alive() {
            assert_eq!(rank.communicator.failed(), Some(victim), "rank {index}");
            for operation in operations.iter().filter_map(|each| each[index].as_ref()) {
                let end = rank.communicator.test(operation);
                assert!(end == Ok(true) || end == Err(CollectiveError::Failed { rank: victim }), "{end:?}");
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_in_the_midst_is_named_after_the_grace() {
    let seed = seed();
    let n = 5;
    for leaver in 0..n {
        let mut world = world(n, seed.wrapping_add(leaver as u64));
        world.connect();
        let operations = cast(&mut world);
        let last = world.random.usize(0..n);
        // An operation that the leaver does not take part in.
        let mut more: Vec<Option<Operation<u64>>> = (0..n).map(|_| None).collect();
        operations.iter().for_each(|each| world.wait(each));
        for rank in (0..n).filter(|&rank| rank != leaver) {
            more[rank] = Some(world.start_one(rank, |fabric, c| c.start_broadcast(fabric, last, vec![1; 200])));
        }
        world.some(50);
        let left = world.net.now();
        let rank = world.ranks[leaver].as_mut().expect("it is alive");
        rank.communicator.disconnect(&mut rank.fabric);
        all_name(&mut world, leaver, LEAVE, &[more]);
        assert!(world.net.now() >= left + long_config(n).grace, "at {}", world.net.now());
    }
}

#[test]
fn leaving_in_good_order_is_no_failure() {
    let seed = seed();
    for turn in 0..40 {
        let n = [2, 3, 5, 8][turn as usize % 4];
        let mut world = world(n, seed.wrapping_add(turn));
        let operations = cast(&mut world);
        // No rank waits for its own operation before it closes.
        world.close();
        while world.net.now() < Time::ZERO + Duration::from_millis(300) && world.advance() {}
        for (index, rank) in world.alive() {
            for operation in operations.iter().filter_map(|each| each[index].as_ref()) {
                assert_eq!(rank.communicator.test(operation), Ok(true), "rank {index}");
            }
            assert_eq!(rank.communicator.failed(), None, "rank {index}");
        }
    }
}

/// Whether a rank has the results of all operations.
fn has_all(world: &World, rank: usize, operations: &[Vec<Option<Operation<u64>>>]) -> bool {
    let communicator = &world.ranks[rank].as_ref().expect("it is alive").communicator;
    let mut own = operations.iter().filter_map(|each| each[rank].as_ref());
    own.all(|operation| communicator.test(operation) == Ok(true))
}

#[test]
fn a_rank_that_dies_while_all_are_closing_leaves_nobody_waiting() {
    let seed = seed();
    // A send is often complete here long before it arrives, so a rank that has said farewell takes it along.
    let sim =
        SimConfig { early_fetch_chance: 0.5, early_done_chance: 1.0, rare_delay_chance: 0.2, ..SimConfig::fast() };
    for n in [2, 3, 5, 8] {
        for turn in 0..60 {
            let mut world = world_of(sim.clone(), n, seed.wrapping_add(turn * 100 + n as u64));
            world.connect();
            let operations = cast(&mut world);
            // A rank that has all results dies while another has not, which may have needed it.
            let closing = |world: &mut World| {
                world.alive().for_each(|(_, rank)| _ = rank.communicator.close(&mut rank.fabric));
                world.advance()
            };
            while (0..n).all(|rank| !has_all(&world, rank, &operations)) {
                assert!(closing(&mut world), "nothing is left to happen");
            }
            for _ in 0..world.random.u32(0..40) {
                closing(&mut world);
            }
            let ready: Vec<usize> = (0..n).filter(|&rank| has_all(&world, rank, &operations)).collect();
            let victim = ready[world.random.usize(0..ready.len())];
            world.crash(victim);
            // A rank that is done with its own operations closes connections that others still needed; it is not to be
            // blamed.
            let limit = world.net.now() + LEAVE;
            world.close();
            assert!(world.net.now() <= limit, "it took until {}", world.net.now());
            let failed = Err(CollectiveError::Failed { rank: victim });
            for (index, rank) in world.alive() {
                for operation in operations.iter().filter_map(|each| each[index].as_ref()) {
                    let end = rank.communicator.test(operation);
                    assert!(end == Ok(true) || end == failed, "rank {index} of {n} ends with {end:?}");
                }
            }
        }
    }
}

#[test]
fn ranks_whose_lengths_differ_so_much_that_blocks_do_are_not_left_waiting() {
    for n in [2, 4] {
        let mut config = long_config(n);
        config.block_bytes = None;
        let mut world = World::new(SimConfig::fast(), 1, &config);
        world.connect();
        let limit = world.net.now() + LEAVE;
        let operations = world.start(|rank, fabric, c| {
            c.set_algorithm(Collective::Broadcast, Some(Algorithm::Rdmc));
            c.start_broadcast(fabric, 1, vec![1u8; if rank == 0 { 100 } else { 1 << 20 }])
        });
        world.until("a failure", |world| world.alive().all(|(_, rank)| rank.communicator.failed().is_some()));
        assert!(world.net.now() <= limit, "it took until {}", world.net.now());
        for (index, rank) in world.alive() {
            let failed = CollectiveError::Failed { rank: rank.communicator.failed().expect("it has failed") };
            let end = rank.communicator.test(operations[index].as_ref().expect("it was started"));
            assert_eq!(end, Err(failed), "rank {index}");
        }
        world.close();
    }
}
