//! The seeds that a test runs: the first few by default, or the one in `SQUALL_SEED`, or those in
//! `SQUALL_SEEDS=FROM..TO`.

// Each test uses only a part of this module.
#![allow(dead_code)]

use std::{
    any::Any,
    env, iter,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

/// The seeds that the environment names, or the first `usual` ones.
pub(crate) fn seeds(usual: u64) -> Range<u64> {
    seeds_or(0..usual)
}

/// The seeds that the environment names, or the `usual` ones.
pub(crate) fn seeds_or(usual: Range<u64>) -> Range<u64> {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    if let Ok(seed) = env::var("SQUALL_SEED") {
        return number(&seed)..number(&seed) + 1;
    }
    let Ok(range) = env::var("SQUALL_SEEDS") else { return usual };
    let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
    number(from)..number(to)
}

/// Calls `run` with each of these seeds, on a thread for each core, and returns the results, in any order. After an
/// error or a panic no other seed is begun, and this panics with that of the lowest seed.
pub(crate) fn run_all<T: Send>(seeds: Range<u64>, run: impl Fn(u64) -> Result<T, String> + Sync) -> Vec<T> {
    let run = |seed| {
        let result = catch_unwind(AssertUnwindSafe(|| run(seed))).unwrap_or_else(|why| Err(sentence(&*why)));
        result.map_err(|what| (seed, what))
    };
    let (next, failed) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let next = || {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        (seeds.contains(&seed) && !failed.load(Ordering::Relaxed)).then_some(seed)
    };
    let run = |seed| run(seed).inspect_err(|_| failed.store(true, Ordering::Relaxed));
    let share = || iter::from_fn(next).map(run).collect::<Vec<_>>();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let results: Vec<Result<T, (u64, String)>> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(share)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("panics are caught")).collect()
    });
    if let Some((seed, what)) = results.iter().filter_map(|result| result.as_ref().err()).min() {
        panic!("seed {seed}: {what}");
    }
    results.into_iter().filter_map(Result::ok).collect()
}

/// The message of a panic.
fn sentence(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| why.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}
