//! Random clusters, traffic, clocks and failures, in all of which 1Pipe's promises hold.

use std::{ops::Range, panic};

use squall_fabric::sim::Sabotage;

use crate::{
    runner,
    world::plan::{self, Tally},
};

/// Runs these seeds, or those that the environment names.
fn runs(seeds: Range<u64>) {
    runner::run_all(runner::seeds_or(seeds), |seed| Ok(plan::run(seed, None)));
}

#[test]
fn a_hundred_seeds() {
    let first = fastrand::u64(..u64::MAX / 2);
    runs(first..first + 100);
}

/// A rank that was removed, and did not know it, delivered what it sent to itself.
#[test]
fn what_a_removed_rank_keeps_to_itself_is_no_fault() {
    plan::run(164217005383925, None);
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

/// In a flat group a rank that lies harms no other. In a hierarchy others may lose messages, and no more.
#[test]
fn a_rank_that_lies_breaks_no_promise_of_others() {
    let runs = runner::run_all(runner::seeds_or(0..300), |seed| Ok(plan::run_with_liar(seed)));
    let accused: usize = runs.iter().map(|(accusations, _)| accusations).sum();
    let delivered: usize = runs.iter().map(|(_, delivered)| delivered).sum();
    assert!(accused > runs.len() / 10 && delivered > 10 * runs.len(), "{accused} accusations, {delivered} delivered");
}

/// A check that never fails proves nothing: these do on networks that break what fabrics promise. (Writes that land
/// late harm no rank: nothing is read of a rank after its connection was closed.)
#[test]
fn what_breaks_the_contract_of_fabrics_is_noticed() {
    for sabotage in [Sabotage::WordFirst, Sabotage::Overtake, Sabotage::TornWord] {
        let breaks = |seed| panic::catch_unwind(|| plan::run(seed, Some(sabotage))).is_err();
        assert!((0..200).any(breaks), "{sabotage:?} is not noticed");
    }
}
