//! Tests of the rules in a world of messages: shards whose clocks differ, messages that are lost, late, and answered to
//! nobody, coordinators that vanish, and replicas that are replaced.

mod coordinator;
mod nodes;
mod replica;
mod world;

use std::time::Duration;

use self::world::{Harm, World};
use crate::sim::{LedgerCounts, check_ledger};

/// The number of seeds.
const SEEDS: u64 = 200;

/// Plays a seed until all is settled, and checks its history. Returns the number of transactions that took effect.
fn play(seed: u64, harm: Harm) -> Result<(World, LedgerCounts), String> {
    let mut world = World::new(seed, harm);
    world.run(Duration::from_secs(2), true);
    // Messages may be late by a minute. Their transactions have expired then, and all is settled at the end.
    world.run(Duration::from_secs(240), false);
    // Clients whose clocks are an hour ahead have had refusals kept for that long.
    world.skip(Duration::from_secs(2 * 3600));
    world.run(Duration::from_secs(1), false);
    let writers = world.writers();
    check_ledger(&world.records(), &writers).map(|counts| (world, counts))
}

#[test]
fn histories_are_strictly_serializable_and_nothing_stays_locked() {
    let mut applied = 0;
    for seed in 0..SEEDS {
        let (world, counts) = play(seed, Harm::None).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert!(world.is_empty(), "seed {seed}: transactions are remembered though all are over: {:?}", world.tables());
        applied += counts.applied;
    }
    assert!(applied > 20 * SEEDS as usize, "only {applied} transactions took effect");
}

/// Whether the check notices what the harm does, in some seed.
fn is_noticed(harm: Harm) -> bool {
    (0..SEEDS).any(|seed| play(seed, harm).is_err())
}

#[test]
fn reads_that_are_not_locked_are_noticed() {
    assert!(is_noticed(Harm::UnlockedReads));
}

#[test]
fn votes_that_are_not_kept_are_noticed() {
    assert!(is_noticed(Harm::ForgottenVotes));
}

#[test]
fn a_shard_that_votes_twice_is_noticed() {
    assert!(is_noticed(Harm::LyingSettle));
}

#[test]
fn transactions_that_are_forgotten_too_early_are_noticed() {
    assert!(is_noticed(Harm::EarlyForget));
}
