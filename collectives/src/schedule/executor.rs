//! Schedules carried out without a fabric, against a serial computation.

use std::{cell::RefCell, collections::VecDeque, ops::Range, rc::Rc};

use super::{Action, CollectiveCall, Cursor, Port, Schedule, plan};
use crate::{
    Algorithm, Builtin, Collective, Element, Reduction,
    element::Vector,
    memory::{Memory, Temps},
    reduction::Operator,
};

const CHUNK_BYTES: usize = 16;

/// The limit on the messages that are on their way.
#[derive(Clone, Copy, Debug)]
enum Limit {
    /// A number of messages to each other rank.
    Slots(usize),
    /// A limit of as many messages to all together as there are other ranks: the blocks that a rank can lend.
    Blocks,
}

/// Channels between all pairs.
struct Channels {
    ranks: usize,
    limit: Limit,
    messages: Vec<VecDeque<Vec<u8>>>,
    signals: Vec<usize>,
}

struct ExecutedRank {
    me: usize,
    channels: Rc<RefCell<Channels>>,
    vector: Vector,
    temps: Temps,
    operator: Option<Operator>,
}

impl Port for ExecutedRank {
    fn attempt(&mut self, action: &Action, chunk: Range<usize>) -> bool {
        let mut channels = self.channels.borrow_mut();
        let n = channels.ranks;
        let of = |range: &Range<usize>| range.start + chunk.start..range.start + chunk.end;
        let mut memory = Memory { vector: &mut self.vector, temps: &mut self.temps, operator: self.operator.as_ref() };
        match action {
            Action::Signal { to } => channels.signals[self.me * n + to] += 1,
            Action::Await { from } => {
                let Some(left) = channels.signals[from * n + self.me].checked_sub(1) else { return false };
                channels.signals[from * n + self.me] = left;
            }
            Action::Send { to, range } => {
                let sent = match channels.limit {
                    Limit::Slots(slots) => channels.messages[self.me * n + to].len() < slots,
                    Limit::Blocks => {
                        channels.messages[self.me * n..(self.me + 1) * n].iter().map(VecDeque::len).sum::<usize>()
                            < n - 1
                    }
                };
                if !sent {
                    return false;
                }
                channels.messages[self.me * n + to].push_back(memory.vector.bytes()[of(range)].to_vec());
            }
            Action::Recv { from, range, into } => {
                let Some(message) = channels.messages[from * n + self.me].pop_front() else { return false };
                memory.place(*into, of(range)).copy_from_slice(&message);
            }
            Action::Combine { from, range, into, order } => {
                let Some(message) = channels.messages[from * n + self.me].pop_front() else { return false };
                assert_eq!(message.len(), chunk.len(), "both sides cut alike");
                // Aligned, as the bytes of a slot are.
                let mut words = vec![0u64; message.len().div_ceil(8)];
                let aligned = &mut bytemuck::cast_slice_mut(&mut words)[..message.len()];
                aligned.copy_from_slice(&message);
                memory.combine(*into, of(range), aligned, *order);
            }
            Action::Merge { temp, range, into, order } => memory.merge(*temp, *into, of(range), *order),
            Action::Fold { into, with } => memory.fold(of(into), of(with)),
        }
        true
    }
}

/// Carries out `call` on all ranks, in a random order, and returns their results.
fn execute<T: Element>(
    call: CollectiveCall,
    limit: Limit,
    inputs: &[Vec<T>],
    reduction: Option<&Reduction<T>>,
    random: &mut fastrand::Rng,
) -> Vec<Vec<T>> {
    let n = call.ranks;
    let channels = Channels { ranks: n, limit, messages: vec![VecDeque::new(); n * n], signals: vec![0; n * n] };
    let channels = Rc::new(RefCell::new(channels));
    let mut ranks: Vec<(Schedule, Cursor, ExecutedRank)> = (0..n)
        .map(|me| {
            let schedule = plan(&CollectiveCall { rank: me, ..call }).expect("a sound call");
            let mut temps = Temps::new(CHUNK_BYTES);
            temps.reserve(schedule.temps);
            let operator = reduction.map(|reduction| reduction.operator().expect("defined"));
            let vector = T::wrap(inputs[me].clone());
            (schedule, Cursor::default(), ExecutedRank { me, channels: Rc::clone(&channels), vector, temps, operator })
        })
        .collect();
    let mut under_way: Vec<usize> = (0..n).collect();
    let mut rounds = 0;
    while !under_way.is_empty() {
        random.shuffle(&mut under_way);
        under_way.retain(|&me| {
            let (schedule, cursor, rank) = &mut ranks[me];
            !cursor.run(schedule, CHUNK_BYTES, rank)
        });
        rounds += 1;
        assert!(rounds < 10_000, "{call:?} with {limit:?} stands still at ranks {under_way:?}");
    }
    let channels = channels.borrow();
    assert!(channels.messages.iter().all(VecDeque::is_empty), "{call:?} leaves messages");
    assert!(channels.signals.iter().all(|&left| left == 0), "{call:?} leaves signals");
    let size = size_of::<T>();
    ranks
        .into_iter()
        .map(|(schedule, _, rank)| {
            let vector = T::unwrap(rank.vector).expect("the type that went in");
            vector[schedule.output.start / size..schedule.output.end / size].to_vec()
        })
        .collect()
}

fn random() -> fastrand::Rng {
    let seed = std::env::var("SQUALL_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    eprintln!("SQUALL_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

fn call(collective: Collective, algorithm: Algorithm, ranks: usize, root: usize, bytes: usize) -> CollectiveCall {
    CollectiveCall { collective, algorithm, ranks, rank: 0, root, bytes }
}

/// Numbers that differ between ranks and places.
fn inputs(ranks: usize, len: usize) -> Vec<Vec<u64>> {
    (0..ranks as u64).map(|rank| (0..len as u64).map(|at| rank << 32 | at).collect()).collect()
}

const LIMITS: [Limit; 3] = [Limit::Slots(1), Limit::Slots(usize::MAX), Limit::Blocks];
/// Elements of 8 bytes: none, less than a chunk, and more than 64 ranks, in several chunks.
const LENGTHS: [usize; 4] = [0, 1, 5, 67];

#[test]
fn nobody_leaves_a_barrier_before_all_have_entered() {
    for algorithm in [Algorithm::Dissemination, Algorithm::Exchange, Algorithm::Flat] {
        for n in 1..=64 {
            for late in 0..n {
                let channels = Channels {
                    ranks: n,
                    limit: Limit::Slots(1),
                    messages: vec![VecDeque::new(); n * n],
                    signals: vec![0; n * n],
                };
                let channels = Rc::new(RefCell::new(channels));
                let mut ranks: Vec<(Schedule, Cursor, ExecutedRank)> = (0..n)
                    .map(|me| {
                        let call = CollectiveCall { rank: me, ..call(Collective::Barrier, algorithm, n, 0, 0) };
                        let (vector, temps) = (u8::wrap(Vec::new()), Temps::new(CHUNK_BYTES));
                        let channels = Rc::clone(&channels);
                        let rank = ExecutedRank { me, channels, vector, temps, operator: None };
                        (plan(&call).expect("a sound call"), Cursor::default(), rank)
                    })
                    .collect();
                for _ in 0..n {
                    for (me, (schedule, cursor, rank)) in ranks.iter_mut().enumerate() {
                        let left = me != late && cursor.run(schedule, CHUNK_BYTES, rank);
                        assert!(!left, "{algorithm}: rank {me} of {n} left without rank {late}");
                    }
                }
            }
            let barrier = call(Collective::Barrier, algorithm, n, 0, 0);
            execute::<u8>(barrier, LIMITS[0], &vec![Vec::new(); n], None, &mut random());
        }
    }
}

#[test]
fn a_barrier_takes_as_many_steps_as_is_said() {
    let steps = |algorithm, n| {
        (0..n)
            .map(|rank| {
                let call = CollectiveCall { rank, ..call(Collective::Barrier, algorithm, n, 0, 0) };
                let schedule = plan(&call).expect("a sound call");
                schedule.actions().filter(|action| matches!(action, Action::Await { .. })).count()
            })
            .max()
            .expect("a rank")
    };
    for n in 1..=64usize {
        assert_eq!(steps(Algorithm::Dissemination, n), n.next_power_of_two().ilog2() as usize);
        // A rank waits in one of the two more steps where n is no power of two.
        let excess = usize::from(!n.is_power_of_two());
        assert_eq!(steps(Algorithm::Exchange, n), n.ilog2() as usize + excess);
    }
}

#[test]
fn a_broadcast_gives_all_the_vector_of_the_root() {
    let mut random = random();
    for n in 1..=64 {
        for algorithm in [Algorithm::Binomial, Algorithm::Chain, Algorithm::Flat] {
            for (limit, len) in LIMITS.into_iter().flat_map(|limit| LENGTHS.map(|len| (limit, len))) {
                let root = random.usize(0..n);
                let inputs = inputs(n, len);
                let call = call(Collective::Broadcast, algorithm, n, root, 8 * len);
                let results = execute(call, limit, &inputs, None, &mut random);
                assert!(results.iter().all(|result| *result == inputs[root]), "{call:?}");
            }
        }
    }
}

#[test]
fn blocks_go_where_they_belong() {
    let mut random = random();
    for n in 1..=64 {
        for (limit, len) in LIMITS.into_iter().flat_map(|limit| [0, 1, 5].map(|len| (limit, len))) {
            let root = random.usize(0..n);
            let all = inputs(n, n * len);
            let block = |of: usize, index: usize| all[of][index * len..(index + 1) * len].to_vec();
            let own: Vec<u64> = (0..n).flat_map(|rank| block(rank, rank)).collect();
            let mut run = |collective, algorithm, inputs: &[Vec<u64>]| {
                execute(call(collective, algorithm, n, root, 8 * len), limit, inputs, None, &mut random)
            };

            let short: Vec<_> =
                (0..n).map(|rank| if rank == root { all[root].clone() } else { block(rank, rank) }).collect();
            let gathered = run(Collective::Gather, Algorithm::Flat, &short);
            for (rank, result) in gathered.iter().enumerate() {
                assert_eq!(*result, if rank == root { own.clone() } else { Vec::new() }, "gather at {rank} of {n}");
            }

            let scattered = run(Collective::Scatter, Algorithm::Flat, &short);
            for (rank, result) in scattered.iter().enumerate() {
                assert_eq!(*result, block(root, rank), "scatter at {rank} of {n}");
            }

            for algorithm in [Algorithm::Ring, Algorithm::Dissemination, Algorithm::Flat] {
                let gathered = run(Collective::Allgather, algorithm, &all);
                assert!(gathered.iter().all(|result| *result == own), "allgather by {algorithm} among {n}");
            }

            let swapped = run(Collective::AllToAll, Algorithm::Pairwise, &all);
            for (rank, result) in swapped.iter().enumerate() {
                let expected: Vec<u64> = (0..n).flat_map(|from| block(from, rank)).collect();
                assert_eq!(*result, expected, "all-to-all at {rank} of {n}");
            }
        }
    }
}

const IN_ORDER: [Algorithm; 7] = [
    Algorithm::Tree { degree: 1 },
    Algorithm::Tree { degree: 3 },
    Algorithm::Tree { degree: 15 },
    Algorithm::Exchange,
    Algorithm::Halving,
    Algorithm::Direct,
    Algorithm::Flat,
];

/// An associative operation, not commutative: the maps x → ax + b (mod 2^32), one after another.
fn after(f: u64, g: u64) -> u64 {
    let split = |map: u64| ((map >> 32) as u32, map as u32);
    let ((a, b), (c, d)) = (split(f), split(g));
    u64::from(a.wrapping_mul(c)) << 32 | u64::from(b.wrapping_mul(c).wrapping_add(d))
}

#[test]
fn reductions_combine_in_rank_order() {
    let mut random = random();
    let compose = Reduction::user(false, after);
    for n in 1..=64 {
        for (limit, len) in LIMITS.into_iter().flat_map(|limit| LENGTHS.map(|len| (limit, len))) {
            let inputs: Vec<Vec<u64>> = (0..n).map(|_| (0..len).map(|_| random.u64(..)).collect()).collect();
            let serial: Vec<u64> =
                (0..len).map(|at| inputs.iter().map(|input| input[at]).reduce(after).expect("a rank")).collect();
            for algorithm in IN_ORDER {
                let call = call(Collective::Allreduce, algorithm, n, 0, 8 * len);
                let results = execute(call, limit, &inputs, Some(&compose), &mut random);
                assert!(results.iter().all(|result| *result == serial), "{call:?}");
            }
            for degree in [1, 3, 7] {
                let root = random.usize(0..n);
                let call = call(Collective::Reduce, Algorithm::Tree { degree }, n, root, 8 * len);
                let results = execute(call, limit, &inputs, Some(&compose), &mut random);
                for (rank, result) in results.iter().enumerate() {
                    assert_eq!(*result, if rank == root { serial.clone() } else { Vec::new() }, "{call:?} at {rank}");
                }
            }
            let sums: Vec<u64> =
                (0..len).map(|at| inputs.iter().fold(0, |sum: u64, input| sum.wrapping_add(input[at]))).collect();
            let call = call(Collective::Allreduce, Algorithm::Ring, n, 0, 8 * len);
            let results = execute(call, limit, &inputs, Some(&Builtin::Sum.into()), &mut random);
            assert!(results.iter().all(|result| *result == sums), "{call:?}");
        }
    }
}

#[test]
fn reduce_scatter_gives_each_rank_its_block_of_the_result() {
    let mut random = random();
    let compose = Reduction::user(false, after);
    for n in 1..=64 {
        for (limit, len) in LIMITS.into_iter().flat_map(|limit| [0, 1, 5].map(|len| (limit, len))) {
            let inputs: Vec<Vec<u64>> = (0..n).map(|_| (0..n * len).map(|_| random.u64(..)).collect()).collect();
            let call = call(Collective::ReduceScatter, Algorithm::Pairwise, n, 0, 8 * len);
            let results = execute(call, limit, &inputs, Some(&compose), &mut random);
            for (rank, result) in results.iter().enumerate() {
                let serial: Vec<u64> = (rank * len..(rank + 1) * len)
                    .map(|at| inputs.iter().map(|input| input[at]).reduce(after).expect("a rank"))
                    .collect();
                assert_eq!(*result, serial, "{call:?} at {rank}");
            }
        }
    }
}

#[test]
fn floats_combine_by_one_tree_whatever_the_algorithm() {
    let mut random = random();
    for n in 1..=64 {
        let inputs: Vec<Vec<f64>> =
            (0..n).map(|_| (0..67).map(|_| (random.f64() - 0.5) * 10f64.powi(random.i32(-9..9))).collect()).collect();
        let mut run = |algorithm| {
            let call = call(Collective::Allreduce, algorithm, n, 0, 8 * 67);
            execute(call, Limit::Slots(2), &inputs, Some(&Builtin::Sum.into()), &mut random)
        };
        let expected = run(IN_ORDER[0]).swap_remove(0);
        for algorithm in IN_ORDER {
            for result in run(algorithm) {
                let same = result.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{algorithm} among {n}");
            }
        }
    }
}
