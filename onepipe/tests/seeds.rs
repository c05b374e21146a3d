//! Random clusters, traffic, clocks and failures, in all of which 1Pipe's promises hold.

use std::{
    ops::Range,
    panic::{self, AssertUnwindSafe},
};

use squall_fabric::sim::Sabotage;

use crate::world::plan::{self, Tally};

/// Runs a seed. Fails with the broken rule, if there is one.
fn run(seed: u64, sabotage: Option<Sabotage>) -> Result<Tally, String> {
    panic::catch_unwind(AssertUnwindSafe(|| plan::run(seed, sabotage))).map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        text.or(payload.downcast_ref().copied()).unwrap_or("a panic").to_string()
    })
}

/// Runs these seeds, or those that the environment names.
fn runs(seeds: Range<u64>) -> Tally {
    let number = |text: &str| text.parse::<u64>().expect("a seed is a number");
    let seeds = match (std::env::var("SQUALL_SEED"), std::env::var("SQUALL_SEEDS")) {
        (Ok(seed), _) => number(&seed)..number(&seed) + 1,
        (_, Ok(range)) => {
            let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
            number(from)..number(to)
        }
        _ => seeds,
    };
    let mut tally = Tally::default();
    for seed in seeds {
        match run(seed, None) {
            Ok(had) => tally.add(had),
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    tally
}

#[test]
fn a_hundred_seeds() {
    let first = fastrand::u64(..u64::MAX / 2);
    runs(first..first + 100);
}

/// Run it with `cargo test --release -p squall-onepipe --test all seeds:: -- --ignored`.
#[test]
#[ignore = "takes a minute"]
fn a_thousand_seeds() {
    runs(0..1000);
}

#[test]
fn runs_are_not_tame() {
    let mut tally = Tally::default();
    (0..50).for_each(|seed| tally.add(plan::run(seed, None)));
    assert!(tally.delivered.into_iter().all(|count| count > 5_000), "{tally:?}");
    assert!(tally.given_back.into_iter().all(|count| count > 25), "{tally:?}");
    assert!(tally.removed > 25 && tally.full > 25, "{tally:?}");
}

/// A check that never fails proves nothing: these do on networks that break what fabrics promise. (Writes that land
/// late harm no rank: nothing is read of a rank after its connection was closed.)
#[test]
fn what_breaks_the_contract_of_fabrics_is_noticed() {
    for sabotage in [Sabotage::WordFirst, Sabotage::Overtake, Sabotage::TornWord] {
        assert!((0..200).any(|seed| run(seed, Some(sabotage)).is_err()), "{sabotage:?} is not noticed");
    }
}
