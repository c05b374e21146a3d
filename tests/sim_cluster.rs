//! Whole clusters from seeds: see `squall::sim::scenario` for what must hold.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual; `squall sim replay SEED` tells what happens in it.

use squall::sim::scenario;

/// How many seeds run here. The command `squall sim check --seeds N` runs as many as one likes.
const SEEDS: u64 = 1000;

fn seeds() -> Vec<u64> {
    match std::env::var("SQUALL_SEED") {
        Ok(seed) => vec![seed.parse().expect("SQUALL_SEED is a number")],
        Err(_) => match std::env::var("SQUALL_SEEDS") {
            Ok(range) => {
                let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
                (from.parse().expect("a number")..to.parse().expect("a number")).collect()
            }
            Err(_) => (0..SEEDS).collect(),
        },
    }
}

#[test]
fn every_scenario_keeps_order_and_promises() {
    let seeds = seeds();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<_> = std::thread::scope(|scope| {
        let share = |thread: usize| seeds.iter().copied().skip(thread).step_by(threads);
        let run = |thread| {
            move || {
                share(thread)
                    .filter_map(|seed| scenario::run(seed).err())
                    .map(|failed| failed.to_string())
                    .collect::<Vec<_>>()
            }
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("scenarios catch panics")).collect()
    });
    let told: Vec<&String> = failures.iter().take(20).collect();
    assert!(failures.is_empty(), "{} of {} seeds failed; the first: {told:#?}", failures.len(), seeds.len());
}

#[test]
fn a_seed_replays_to_the_last_step() {
    for seed in 0..30 {
        let first = scenario::run(seed);
        let second = scenario::replay(seed, false, &mut |_, _| {});
        assert_eq!(first, second, "seed {seed}");
    }
}
