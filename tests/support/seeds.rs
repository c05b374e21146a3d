//! The seeds that a test runs: the first few by default, or the one in `SQUALL_SEED`, or those in
//! `SQUALL_SEEDS=FROM..TO`.

// Each test uses only a part of this module.
#![allow(dead_code)]

use std::{env, ops::Range, thread};

/// The seeds that the environment names, or the first `usual` ones.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(seed) = env::var("SQUALL_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    let Ok(range) = env::var("SQUALL_SEEDS") else { return 0..usual };
    let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
    number(from)..number(to)
}

/// Calls `run` with each of these seeds, on a thread for each core. Panics with the errors, if there are any.
pub(crate) fn run_all(seeds: Range<u64>, run: impl Fn(u64) -> Result<(), String> + Sync) {
    let run = |seed| run(seed).err().map(|what| format!("seed {seed}: {what}"));
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<String> = thread::scope(|scope| {
        let share = |thread| seeds.clone().skip(thread).step_by(threads);
        let run = |thread| scope.spawn(move || share(thread).filter_map(run).collect::<Vec<_>>());
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a run ends")).collect()
    });
    let told: Vec<&String> = failures.iter().take(5).collect();
    assert!(failures.is_empty(), "{} of {} seeds failed; the first: {told:#?}", failures.len(), seeds.count());
}
