//! Groups whose majority is lost, and that an operator forces to go on from one survivor, in virtual time: each life of the group
//! keeps what was acknowledged in it, and every node of an ended life becomes a member again or says the reason why not.
//!
//! `SQUALL_SEED` runs one seed alone and tells what happens in it, `SQUALL_SEEDS=FROM..TO` others than usual.

mod books;
mod operator;
mod schedules;
mod world;

use std::panic::{self, AssertUnwindSafe};

use world::World;

/// The number of seeds that run here.
const SEEDS: u64 = 40;

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("SQUALL_SEED") {
        return vec![seed.parse().expect("SQUALL_SEED is a number")];
    }
    let Ok(range) = std::env::var("SQUALL_SEEDS") else { return (0..SEEDS).collect() };
    let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
    (from.parse().expect("a number")..to.parse().expect("a number")).collect()
}

/// Runs a seed. Returns the number of lives that the group had, and what went wrong.
fn run(seed: u64) -> (u64, usize, Option<String>) {
    let mut world = World::new(seed, std::env::var("SQUALL_SEED").is_ok());
    // A failed assertion of the protocols counts as what it is.
    let played = panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    let played = played.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", words.unwrap_or("without a word")))
    });
    (seed, world.lives(), played.err())
}

#[test]
fn a_forced_life_keeps_what_it_acknowledged_and_takes_in_every_node_of_the_one_before() {
    let seeds = seeds();
    let mut runs: Vec<(u64, usize, Option<String>)> = std::thread::scope(|scope| {
        let share = |half: usize| seeds.iter().copied().skip(half).step_by(2).collect::<Vec<_>>();
        let halves = [0, 1].map(|half| scope.spawn(move || share(half).into_iter().map(run).collect::<Vec<_>>()));
        halves.into_iter().flat_map(|half| half.join().expect("panics are caught")).collect()
    });
    runs.sort_unstable();
    let failed = runs.iter().filter_map(|(seed, _, failed)| Some(format!("seed {seed}: {}", failed.as_ref()?)));
    let failures: Vec<String> = failed.collect();
    let told = &failures[..failures.len().min(5)];
    assert!(failures.is_empty(), "{} of {} seeds failed; the first: {told:#?}", failures.len(), seeds.len());
    if seeds.len() >= SEEDS as usize {
        let had = |lives: usize| runs.iter().filter(|(_, had, _)| *had >= lives).count();
        assert!(
            2 * had(2) > seeds.len() && had(3) > 0,
            "{} groups had a second life, and {} a third one",
            had(2),
            had(3)
        );
    }
}
