//! Every operation, in a network that does the worst that the fabric's contract permits, against a serial computation.

use squall_collectives::{Algorithm, Builtin, Collective, CollectiveError, Communicator, Element, Reduction};
use squall_fabric::sim::{Sabotage, SimConfig};

use crate::world::{World, config, seed};

const ALLREDUCE: [Algorithm; 8] = [
    Algorithm::Exchange,
    Algorithm::Tree { degree: 1 },
    Algorithm::Tree { degree: 3 },
    Algorithm::Tree { degree: 7 },
    Algorithm::Halving,
    Algorithm::Direct,
    Algorithm::Flat,
    Algorithm::Ring,
];

/// Elements of random bits; floats are small whole numbers, whose sums are exact.
trait Numbers: Element + PartialEq + std::fmt::Debug {
    fn random(random: &mut fastrand::Rng) -> Self;
}

macro_rules! numbers {
    ($($integer:ident)*; $($float:ident)*) => {
        $(impl Numbers for $integer {
            fn random(random: &mut fastrand::Rng) -> $integer {
                random.$integer(..)
            }
        })*
        $(impl Numbers for $float {
            fn random(random: &mut fastrand::Rng) -> $float {
                f32::from(random.i8(-4..4)) as $float
            }
        })*
    };
}

numbers!(u8 i32 u32 i64 u64; f32 f64);

fn vectors<T: Numbers>(n: usize, len: usize, random: &mut fastrand::Rng) -> Vec<Vec<T>> {
    (0..n).map(|_| (0..len).map(|_| T::random(random)).collect()).collect()
}

fn serial<T: Copy>(inputs: &[Vec<T>], combine: impl Fn(T, T) -> T) -> Vec<T> {
    (0..inputs[0].len()).map(|at| inputs.iter().map(|input| input[at]).reduce(&combine).expect("a rank")).collect()
}

fn set(world: &mut World, collective: Collective, algorithm: Option<Algorithm>) {
    world.alive().for_each(|(_, rank)| rank.communicator.set_algorithm(collective, algorithm));
}

/// Runs barriers, and all operations that move blocks.
fn moves<T: Numbers>(world: &mut World, len: usize) {
    let n = world.ranks.len();
    for algorithm in [Algorithm::Dissemination, Algorithm::Exchange, Algorithm::Flat] {
        set(world, Collective::Barrier, Some(algorithm));
        let barrier = world.start(|_, fabric, c| c.start_barrier(fabric));
        world.wait(&barrier);
    }
    let root = world.random.usize(0..n);
    let inputs: Vec<Vec<T>> = vectors(n, n * len, &mut world.random);
    let block = |of: usize, index: usize| inputs[of][index * len..(index + 1) * len].to_vec();
    for algorithm in [Algorithm::Binomial, Algorithm::Chain, Algorithm::Flat] {
        set(world, Collective::Broadcast, Some(algorithm));
        let results = world.run(|rank, fabric, c| c.start_broadcast(fabric, root, inputs[rank].clone()));
        assert!(results.iter().all(|result| *result == inputs[root]), "broadcast by {algorithm}");
    }
    let all: Vec<T> = (0..n).flat_map(|rank| block(rank, 0)).collect();
    let results = world.run(|rank, fabric, c| c.start_gather(fabric, root, block(rank, 0)));
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result, if rank == root { all.clone() } else { Vec::new() }, "gather at {rank}");
    }
    let results = world.run(|rank, fabric, c| {
        c.start_scatter(fabric, root, if rank == root { inputs[root].clone() } else { block(rank, 0) })
    });
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result, block(root, rank), "scatter at {rank}");
    }
    for algorithm in [Algorithm::Dissemination, Algorithm::Ring, Algorithm::Flat] {
        set(world, Collective::Allgather, Some(algorithm));
        let results = world.run(|rank, fabric, c| c.start_allgather(fabric, block(rank, 0)));
        assert!(results.iter().all(|result| *result == all), "allgather by {algorithm}");
    }
    let results = world.run(|rank, fabric, c| c.start_all_to_all(fabric, inputs[rank].clone()));
    for (rank, result) in results.into_iter().enumerate() {
        let expected: Vec<T> = (0..n).flat_map(|from| block(from, rank)).collect();
        assert_eq!(result, expected, "all-to-all at {rank}");
    }
}

/// Runs all operations that combine, by one reduction.
fn reductions<T: Numbers>(world: &mut World, len: usize, reduction: &Reduction<T>, combine: impl Fn(T, T) -> T) {
    let n = world.ranks.len();
    let root = world.random.usize(0..n);
    let inputs: Vec<Vec<T>> = vectors(n, n * len, &mut world.random);
    let expected = serial(&inputs, combine);
    for algorithm in ALLREDUCE {
        set(world, Collective::Allreduce, Some(algorithm));
        let results = world.run(|rank, fabric, c| c.start_allreduce(fabric, reduction, inputs[rank].clone()));
        assert!(
            results.iter().all(|result| *result == expected),
            "allreduce by {algorithm}, {reduction:?}, {}",
            T::NAME
        );
    }
    for degree in [1, 3] {
        set(world, Collective::Reduce, Some(Algorithm::Tree { degree }));
        let results = world.run(|rank, fabric, c| c.start_reduce(fabric, root, reduction, inputs[rank].clone()));
        for (rank, result) in results.into_iter().enumerate() {
            let expected = if rank == root { expected.clone() } else { Vec::new() };
            assert_eq!(result, expected, "reduce by {reduction:?} at {rank}");
        }
    }
    let results = world.run(|rank, fabric, c| c.start_reduce_scatter(fabric, reduction, inputs[rank].clone()));
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result, expected[rank * len..(rank + 1) * len], "reduce-scatter by {reduction:?} at {rank}");
    }
}

fn integers<T: Numbers>(world: &mut World, len: usize, operations: [fn(T, T) -> T; 7]) {
    use Builtin::{And, Max, Min, Or, Product, Sum, Xor};
    moves::<T>(world, len);
    for (builtin, combine) in [Sum, Product, Min, Max, And, Or, Xor].into_iter().zip(operations) {
        reductions(world, len, &builtin.into(), combine);
    }
}

macro_rules! integer {
    ($world:expr, $len:expr, $type:ident) => {
        integers::<$type>(
            $world,
            $len,
            [
                $type::wrapping_add,
                $type::wrapping_mul,
                |a, b| a.min(b),
                |a, b| a.max(b),
                |a, b| a & b,
                |a, b| a | b,
                |a, b| a ^ b,
            ],
        )
    };
}

macro_rules! float {
    ($world:expr, $len:expr, $type:ident) => {
        moves::<$type>($world, $len);
        // Products of few small whole numbers are exact.
        reductions::<$type>($world, $len, &Builtin::Sum.into(), |a, b| a + b);
        reductions::<$type>($world, $len, &Builtin::Product.into(), |a, b| a * b);
        reductions::<$type>($world, $len, &Builtin::Min.into(), |a, b| a.min(b));
        reductions::<$type>($world, $len, &Builtin::Max.into(), |a, b| a.max(b));
    };
}

#[test]
fn all_operations_on_all_types_among_few() {
    let seed = seed();
    for n in 1..=9 {
        let mut world = World::new(SimConfig::fast(), seed + n as u64, &config(n));
        let len = world.random.usize(0..20);
        eprintln!("{n} ranks, {len} elements in a block");
        integer!(&mut world, len, u8);
        integer!(&mut world, len, i32);
        integer!(&mut world, len, u32);
        integer!(&mut world, len, i64);
        integer!(&mut world, len, u64);
        float!(&mut world, len, f32);
        float!(&mut world, len, f64);
        world.close();
    }
}

#[test]
fn all_operations_among_any_number() {
    let seed = seed();
    for n in 1..=64 {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(n as u64), &config(n));
        eprintln!("{n} ranks");
        moves::<i32>(&mut world, 3);
        reductions::<u8>(&mut world, 2, &Builtin::Max.into(), |a, b| a.max(b));
        reductions::<i64>(&mut world, 1, &Builtin::Sum.into(), i64::wrapping_add);
        world.close();
    }
}

#[test]
fn queues_and_slots_may_be_as_few_as_they_can() {
    let seed = seed();
    for n in [2, 3, 5, 8] {
        let mut config = config(n);
        (config.slots, config.slot_bytes, config.lanes) = (1, 8, 1);
        let mut world = World::new(SimConfig::nasty(), seed.wrapping_add(n as u64), &config);
        moves::<u8>(&mut world, 3);
        reductions::<u64>(&mut world, 2, &Builtin::Sum.into(), u64::wrapping_add);
        world.close();
    }
}

#[test]
fn messages_too_long_for_inline_go_through_registered_memory() {
    let seed = seed();
    for n in [2, 3, 6] {
        let mut config = config(n);
        (config.slots, config.slot_bytes) = (2, 1024);
        let mut world = World::new(SimConfig::nasty(), seed.wrapping_add(n as u64), &config);
        moves::<u8>(&mut world, 5003);
        reductions::<f64>(&mut world, 700, &Builtin::Sum.into(), |a, b| a + b);
        world.close();
    }
}

#[test]
fn counters_wrap() {
    let seed = seed();
    for n in [2, 5, 8] {
        for first_message in [u64::MAX - 5, u64::MAX - 1, u64::MAX, 1 << 63] {
            let mut config = config(n);
            config.first_message = first_message;
            let mut world = World::new(SimConfig::fast(), seed.wrapping_add(n as u64), &config);
            for _ in 0..4 {
                moves::<i32>(&mut world, 10);
            }
            reductions::<i64>(&mut world, 10, &Builtin::Sum.into(), i64::wrapping_add);
            world.close();
        }
    }
}

#[test]
fn several_operations_are_under_way_at_a_time() {
    let seed = seed();
    for n in [2, 4, 7] {
        let mut config = config(n);
        config.lanes = 4;
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(n as u64), &config);
        for _ in 0..5 {
            let inputs: Vec<Vec<u64>> = vectors(n, 100, &mut world.random);
            let sum = Builtin::Sum.into();
            let barrier = world.start(|_, fabric, c| c.start_barrier(fabric));
            let reduced = world.start(|rank, fabric, c| c.start_allreduce(fabric, &sum, inputs[rank].clone()));
            let cast = world.start(|rank, fabric, c| c.start_broadcast(fabric, n - 1, inputs[rank].clone()));
            let gathered = world.start(|rank, fabric, c| c.start_allgather(fabric, inputs[rank][..2].to_vec()));
            world.wait(&gathered);
            world.wait(&cast);
            world.wait(&reduced);
            world.wait(&barrier);
            let expected = serial(&inputs, u64::wrapping_add);
            assert!(world.finish(reduced).iter().all(|result| *result == expected));
            assert!(world.finish(cast).iter().all(|result| *result == inputs[n - 1]));
            let expected: Vec<u64> = inputs.iter().flat_map(|input| input[..2].to_vec()).collect();
            assert!(world.finish(gathered).iter().all(|result| *result == expected));
        }
        world.close();
    }
}

#[test]
fn nobody_leaves_a_barrier_before_the_last_has_entered() {
    let seed = seed();
    for (n, algorithm) in [(2, Algorithm::Dissemination), (6, Algorithm::Dissemination), (6, Algorithm::Exchange)] {
        let mut world = World::new(SimConfig::fast(), seed, &config(n));
        set(&mut world, Collective::Barrier, Some(algorithm));
        for _ in 0..50 {
            let late = world.random.usize(0..n);
            let barriers: Vec<_> = world
                .alive()
                .map(|(index, rank)| {
                    (index != late).then(|| rank.communicator.start_barrier(&mut rank.fabric).expect("a barrier"))
                })
                .collect();
            while world.advance() {
                for (index, rank) in world.alive().filter(|(index, _)| *index != late) {
                    let entered = barriers[index].as_ref().expect("it has entered");
                    assert_eq!(rank.communicator.test(entered), Ok(false), "rank {index} left without rank {late}");
                }
            }
            let last = world.ranks[late].as_mut().expect("it is alive");
            let entered = last.communicator.start_barrier(&mut last.fabric).expect("a barrier");
            let mut barriers = barriers;
            barriers[late] = Some(entered);
            world.wait(&barriers);
        }
    }
}

#[test]
fn operations_of_the_users_combine_in_rank_order() {
    let seed = seed();
    // The first operand that is not 0: an associative operation, not commutative.
    let first = Reduction::user(false, |a: u32, b: u32| if a == 0 { b } else { a });
    for n in [1, 2, 3, 8, 13] {
        let mut world = World::new(SimConfig::fast(), seed.wrapping_add(n as u64), &config(n));
        let inputs: Vec<Vec<u32>> = (0..n as u32).map(|rank| vec![rank, rank + 1, 0, 7 * rank]).collect();
        let expected = serial(&inputs, |a, b| if a == 0 { b } else { a });
        for algorithm in [None].into_iter().chain(ALLREDUCE[..5].iter().copied().map(Some)) {
            set(&mut world, Collective::Allreduce, algorithm);
            let results = world.run(|rank, fabric, c| c.start_allreduce(fabric, &first, inputs[rank].clone()));
            assert!(results.iter().all(|result| *result == expected), "{algorithm:?} among {n}");
        }
        set(&mut world, Collective::Allreduce, Some(Algorithm::Ring));
        for (_, rank) in world.alive() {
            let refused = rank.communicator.start_allreduce(&mut rank.fabric, &first, vec![0]);
            assert_eq!(refused.err(), Some(CollectiveError::Order));
        }
    }
}

#[test]
fn reproducible_sums_have_the_same_bits_every_time() {
    let seed = seed();
    for n in [2, 3, 4, 7, 8] {
        let mut config = config(n);
        config.reproducible = true;
        let mut random = fastrand::Rng::with_seed(seed);
        let inputs: Vec<Vec<f64>> =
            (0..n).map(|_| (0..50).map(|_| (random.f64() - 0.5) * 10f64.powi(random.i32(-9..9))).collect()).collect();
        let mut expected: Option<Vec<u64>> = None;
        let mut world = World::new(SimConfig::fast(), seed, &config);
        for turn in 0..1000 {
            set(&mut world, Collective::Allreduce, Some(ALLREDUCE[turn % 5]));
            let sum = Builtin::Sum.into();
            for result in world.run(|rank, fabric, c| c.start_allreduce(fabric, &sum, inputs[rank].clone())) {
                let bits: Vec<u64> = result.into_iter().map(f64::to_bits).collect();
                assert_eq!(*expected.get_or_insert_with(|| bits.clone()), bits, "{n} ranks, turn {turn}");
            }
        }
        set(&mut world, Collective::Allreduce, Some(Algorithm::Ring));
        let rank = world.ranks[0].as_mut().expect("it is alive");
        let refused = rank.communicator.start_allreduce(&mut rank.fabric, &Builtin::Sum.into(), vec![0.0]);
        assert_eq!(refused.err(), Some(CollectiveError::Order));
    }
}

/// The error that rank 0 of two gets when it starts an operation that is refused.
fn refused<T>(
    start: impl FnOnce(&mut squall_fabric::sim::SimFabric, &mut Communicator) -> Result<T, CollectiveError>,
) -> CollectiveError {
    let mut world = World::new(SimConfig::fast(), 1, &config(2));
    let rank = world.ranks[0].as_mut().expect("it is alive");
    start(&mut rank.fabric, &mut rank.communicator).err().expect("it is refused")
}

#[test]
fn what_makes_no_sense_is_refused() {
    assert_eq!(
        refused(|fabric, c| c.start_allreduce(fabric, &Builtin::Xor.into(), vec![1.0f32])),
        CollectiveError::Undefined { builtin: Builtin::Xor, element: "f32" }
    );
    assert_eq!(
        refused(|fabric, c| c.start_broadcast(fabric, 2, vec![1u8])),
        CollectiveError::Root { rank: 2, ranks: 2 }
    );
    assert_eq!(
        refused(|fabric, c| c.start_all_to_all(fabric, vec![1u8; 3])),
        CollectiveError::Blocks { collective: Collective::AllToAll, len: 3, ranks: 2 }
    );
    for (collective, algorithm) in [
        (Collective::Reduce, Algorithm::Rdmc),
        (Collective::Broadcast, Algorithm::Ring),
        (Collective::Allreduce, Algorithm::Tree { degree: 2 }),
        (Collective::Allreduce, Algorithm::Tree { degree: 0 }),
    ] {
        let refusal = refused(|fabric, c| {
            c.set_algorithm(collective, Some(algorithm));
            match collective {
                Collective::Broadcast => c.start_broadcast(fabric, 0, vec![1u8]),
                Collective::Reduce => c.start_reduce(fabric, 0, &Builtin::Sum.into(), vec![1u8]),
                _ => c.start_allreduce(fabric, &Builtin::Sum.into(), vec![1u8]),
            }
        });
        assert_eq!(refusal, CollectiveError::Algorithm { collective, algorithm });
    }
    let busy = refused(|fabric, c| (0..3).try_for_each(|_| c.start_barrier(fabric).map(drop)));
    assert_eq!(busy, CollectiveError::Busy { lanes: 2 });
    let not_over = refused(|fabric, c| {
        let operation = c.start_broadcast(fabric, 1, vec![1u8])?;
        c.finish(operation)
    });
    assert_eq!(not_over, CollectiveError::NotOver);
}

#[test]
fn a_result_stays_until_its_lane_is_used_again() {
    let mut world = World::new(SimConfig::fast(), 1, &config(1));
    let rank = world.ranks[0].as_mut().expect("it is alive");
    let (fabric, c) = (&mut rank.fabric, &mut rank.communicator);
    let first = c.start_broadcast(fabric, 0, vec![1u8]).expect("started");
    let second = c.start_broadcast(fabric, 0, vec![2u8]).expect("started");
    let _third = c.start_broadcast(fabric, 0, vec![3u8]).expect("started");
    assert_eq!(c.finish(first), Err(CollectiveError::Dropped { lanes: 2 }));
    assert_eq!(c.finish(second), Ok(vec![2]));
}

#[test]
fn words_that_come_before_their_bytes_are_caught() {
    let wrong = |seed| {
        let sim = SimConfig { sabotage: Some(Sabotage::WordFirst), ..SimConfig::nasty() };
        let mut world = World::new(sim, seed, &config(4));
        let inputs: Vec<Vec<u64>> = vectors(4, 200, &mut world.random);
        let expected = serial(&inputs, u64::wrapping_add);
        let sum = Builtin::Sum.into();
        let results = world.run(|rank, fabric, c| c.start_allreduce(fabric, &sum, inputs[rank].clone()));
        results.iter().any(|result| *result != expected)
    };
    assert!((0..20).any(wrong), "the network breaks its contract, and no rank notices");
}
