//! A lost rank ends every operation on all others, with its name.

use std::time::Duration;

use squall_collectives::{
    Builtin, CollectiveError, Communicator, CommunicatorConfig, CreateCommunicatorError, Operation,
};
use squall_fabric::{
    Time,
    sim::{SimConfig, SimFabric, SimNet},
};

use crate::{
    exposed::Exposed,
    world::{Rank, World, config, seed},
};

type Start = fn(usize, &mut SimFabric, &mut Communicator) -> Result<Operation<u64>, CollectiveError>;

/// All operations, long enough to be caught half-way, with rank 1 as the root.
const OPERATIONS: [(&str, Start); 8] = [
    ("broadcast", |_, fabric, c| c.start_broadcast(fabric, 1, vec![1; 400])),
    ("reduce", |_, fabric, c| c.start_reduce(fabric, 1, &Builtin::Sum.into(), vec![1; 400])),
    ("allreduce", |_, fabric, c| c.start_allreduce(fabric, &Builtin::Sum.into(), vec![1; 400])),
    ("reduce-scatter", |_, fabric, c| c.start_reduce_scatter(fabric, &Builtin::Sum.into(), vec![1; 400])),
    ("gather", |_, fabric, c| c.start_gather(fabric, 1, vec![1; 100])),
    ("scatter", |rank, fabric, c| c.start_scatter(fabric, 1, vec![1; if rank == 1 { 400 } else { 100 }])),
    ("allgather", |_, fabric, c| c.start_allgather(fabric, vec![1; 100])),
    ("all-to-all", |_, fabric, c| c.start_all_to_all(fabric, vec![1; 400])),
];

const RANKS: usize = 4;

/// The time within which operations end after a failure: the failure timeout of the network, and some more.
const BOUND: Duration = Duration::from_millis(150);

/// Waits until all ranks but the lost one know the lost rank, and nothing is under way there.
fn all_name<T>(world: &mut World, lost: usize, operations: &[Option<Operation<T>>], what: &str) {
    let limit = world.net.now() + BOUND;
    world.until(what, |world| {
        world.alive().filter(|(index, _)| *index != lost).all(|(_, rank)| rank.communicator.failed().is_some())
    });
    assert!(world.net.now() <= limit, "{what}: it took until {}", world.net.now());
    for (index, rank) in world.alive().filter(|(index, _)| *index != lost) {
        let failed = CollectiveError::Failed { rank: lost };
        if let Some(operation) = &operations[index] {
            // A rank may have received all that it needed before.
            let end = rank.communicator.test(operation);
            assert!(end == Ok(true) || end == Err(failed.clone()), "{what}: rank {index} ends with {end:?}");
        }
        let later = rank.communicator.start_barrier(&mut rank.fabric);
        assert_eq!(later.err(), Some(failed), "{what}: rank {index} starts another");
    }
}

/// Starts a barrier at all ranks but one.
fn barriers_without(world: &mut World, without: usize) -> Vec<Option<Operation>> {
    let start = |rank: &mut Rank| rank.communicator.start_barrier(&mut rank.fabric).expect("a barrier");
    world.alive().map(|(index, rank)| (index != without).then(|| start(rank))).collect()
}

/// All ranks that are alive end their operations with the name of the lost one.
fn all_fail(world: &mut World, lost: usize, operations: &[Option<Operation>]) {
    for (index, rank) in world.alive() {
        let end = rank.communicator.test(operations[index].as_ref().expect("it was started"));
        assert_eq!(end, Err(CollectiveError::Failed { rank: lost }), "rank {index}");
    }
}

#[test]
fn a_rank_that_dies_during_an_operation_is_named_to_all() {
    let seed = seed();
    let mut caught = 0;
    for (name, start) in OPERATIONS {
        for turn in 0..40 {
            let mut world = World::new(SimConfig::fast(), seed.wrapping_add(turn), &config(RANKS));
            let victim = world.random.usize(0..RANKS);
            world.connect();
            let operations = world.start(start);
            for _ in 0..world.random.u32(0..150) {
                world.advance();
            }
            world.crash(victim);
            all_name(&mut world, victim, &operations, name);
            caught += world
                .alive()
                .filter(|(index, rank)| rank.communicator.test(operations[*index].as_ref().expect("started")).is_err())
                .count();
        }
    }
    assert!(caught > 100, "only {caught} were caught in their midst");
}

#[test]
fn a_rank_that_dies_before_it_enters_ends_a_barrier() {
    let seed = seed();
    for turn in 0..40 {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(turn), &config(RANKS));
        let victim = world.random.usize(0..RANKS);
        let operations = barriers_without(&mut world, victim);
        world.connect();
        world.crash(victim);
        all_name(&mut world, victim, &operations, "barrier");
        all_fail(&mut world, victim, &operations);
    }
}

#[test]
fn a_failure_that_one_is_told_of_is_named_by_all() {
    let seed = seed();
    for turn in 0..40 {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(turn), &config(RANKS));
        world.connect();
        let (lost, teller) = (3, world.random.usize(0..3));
        let operations = barriers_without(&mut world, lost);
        let rank = world.ranks[teller].as_mut().expect("it is alive");
        rank.communicator.fail(&mut rank.fabric, lost);
        all_name(&mut world, lost, &operations, "told");
        // The rank that was given up is alive, and may hear of it.
        world.close();
        for (index, rank) in world.alive() {
            let failed = rank.communicator.failed();
            assert!(failed == Some(lost) || (index == lost && failed.is_none()), "rank {index} names {failed:?}");
        }
    }
}

#[test]
fn who_leaves_because_of_a_failure_is_not_taken_for_its_cause() {
    let seed = seed();
    for turn in 0..40 {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(turn), &config(RANKS));
        world.connect();
        let victim = world.random.usize(0..RANKS);
        let operations = barriers_without(&mut world, victim);
        world.crash(victim);
        world.until("leaving", |world| {
            world.alive().fold(true, |all, (_, rank)| {
                all & (rank.communicator.failed().is_some() && rank.communicator.close(&mut rank.fabric))
            })
        });
        all_fail(&mut world, victim, &operations);
    }
}

#[test]
fn a_rank_that_leaves_in_the_midst_is_named_after_the_grace() {
    let seed = seed();
    let mut config = config(RANKS);
    config.grace = Duration::from_millis(50);
    let mut world = World::new(SimConfig::fast(), seed, &config);
    world.connect();
    let operations = barriers_without(&mut world, 2);
    let left = world.net.now();
    let rank = world.ranks[2].as_mut().expect("it is alive");
    rank.communicator.disconnect(&mut rank.fabric);
    all_name(&mut world, 2, &operations, "leaving");
    assert!(world.net.now() >= left + config.grace, "at {}", world.net.now());
}

#[test]
fn leaving_in_good_order_is_no_failure() {
    let seed = seed();
    for turn in 0..40 {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(turn), &config(5));
        let barrier = world.start(|_, fabric, c| c.start_barrier(fabric));
        // No rank waits for its own operation before it closes.
        world.close();
        while world.net.now() < Time::ZERO + Duration::from_millis(200) && world.advance() {}
        for (index, rank) in world.alive() {
            let started = barrier[index].as_ref().expect("it was started");
            assert_eq!(rank.communicator.test(started), Ok(true));
            assert_eq!(rank.communicator.failed(), None);
            let later = rank.communicator.start_barrier(&mut rank.fabric);
            assert_eq!(later.err(), Some(CollectiveError::Disconnected));
        }
    }
}

#[test]
fn a_rank_with_another_configuration_is_refused() {
    let config = config(2);
    let net = SimNet::new(SimConfig::fast(), 1);
    let ranks = [64, 128].map(|slot_bytes| {
        let config = CommunicatorConfig { slot_bytes, ..config.clone() };
        let mut fabric = net.fabric(config.ranks[usize::from(slot_bytes == 128)]);
        let communicator = Communicator::create(&mut fabric, config).expect("a sound configuration");
        Some(Rank::new(fabric, communicator))
    });
    let mut world = World { net, ranks: ranks.into(), random: fastrand::Rng::with_seed(1) };
    world.until("refusing", |world| world.alive().all(|(_, rank)| rank.communicator.failed().is_some()));
    let refused: Vec<_> = world.alive().map(|(_, rank)| rank.communicator.failed()).collect();
    assert_eq!(refused, [Some(1), Some(0)]);
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let net = SimNet::new(SimConfig::fast(), 1);
    let sound = config(3);
    let mut fabric = net.fabric(sound.ranks[0]);
    let mut create = |change: fn(&mut CommunicatorConfig)| {
        let mut config = sound.clone();
        change(&mut config);
        Communicator::create(&mut fabric, config).err()
    };
    let node = sound.ranks[0];
    assert_eq!(
        create(|config| config.ranks.push(config.ranks[1])),
        Some(CreateCommunicatorError::Ranks { node, ranks: 4 })
    );
    assert_eq!(create(|config| config.ranks.truncate(0)), Some(CreateCommunicatorError::Ranks { node, ranks: 0 }));
    let sizes = |lanes, slots, slot_bytes| Some(CreateCommunicatorError::Sizes { lanes, slots, slot_bytes });
    assert_eq!(create(|config| config.lanes = 0), sizes(0, 2, 64));
    assert_eq!(create(|config| config.slots = 3), sizes(2, 3, 64));
    assert_eq!(create(|config| config.slot_bytes = 12), sizes(2, 2, 12));
    assert_eq!(create(|config| config.slot_bytes = 0), sizes(2, 2, 0));
}

/// All ranks may name a failed one, in one word, and only fetch what is lent. Whatever else a rank writes is its own.
#[test]
fn ranks_may_write_one_word_in_common_and_no_more() {
    let config = config(4);
    let mut fabric = Exposed::new(SimNet::new(SimConfig::fast(), 1).fabric(config.ranks[0]));
    Communicator::create(&mut fabric, config.clone()).expect("a sound configuration");
    assert_eq!(fabric.shared(&config.ranks[1..]), 1);
}
