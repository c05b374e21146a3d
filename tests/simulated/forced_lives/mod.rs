//! Groups whose majority is lost, and that an operator forces to go on from one survivor, in virtual time. Each life of
//! the group keeps the numbers that were acknowledged in it, and every node of an ended life becomes a member again or
//! gives the reason why not.
//!
//! `SQUALL_SEED` runs one seed alone and prints its events, `SQUALL_SEEDS=FROM..TO` others than usual.

mod books;
mod operator;
mod schedules;
mod world;

use std::{
    panic::{self, AssertUnwindSafe},
    sync::Mutex,
};

use world::World;

use crate::seeds;

/// The number of seeds that run here.
const SEEDS: u64 = 40;

/// Runs a seed, and takes note of the number of lives that its group had.
fn run(seed: u64, lives: &Mutex<Vec<usize>>) -> Result<(), String> {
    let mut world = World::new(seed, std::env::var("SQUALL_SEED").is_ok());
    // A failed assertion of the protocols counts as a failure of the seed.
    let played = panic::catch_unwind(AssertUnwindSafe(|| world.run()));
    lives.lock().expect("no thread panics with it").push(world.lives());
    played.unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", words.unwrap_or("without a word")))
    })
}

#[test]
fn a_forced_life_keeps_what_it_acknowledged_and_takes_in_every_node_of_the_one_before() {
    let (seeds, lives) = (seeds::seeds(SEEDS), Mutex::default());
    seeds::run_all(seeds.clone(), |seed| run(seed, &lives));
    let seeds = seeds.count();
    if seeds >= SEEDS as usize {
        let lives = lives.into_inner().expect("no thread panics with it");
        let had = |count: usize| lives.iter().filter(|had| **had >= count).count();
        assert!(2 * had(2) > seeds && had(3) > 0, "{} groups had a second life, and {} a third one", had(2), had(3));
    }
}
