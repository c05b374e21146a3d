//! Random clusters, traffic, clocks and failures: what 1Pipe promises holds in all of them.

mod world;

use world::{
    plan::{self, Tally},
    seed,
};

fn runs(count: u64) -> Tally {
    let first = seed();
    let mut tally = Tally::default();
    for turn in 0..count {
        let seed = first.wrapping_add(turn);
        eprintln!("run {turn}: SQUALL_SEED={seed}");
        tally.add(plan::run(seed));
    }
    tally
}

#[test]
fn a_hundred_seeds() {
    let tally = runs(100);
    assert!(tally.delivered.into_iter().all(|count| count > 10_000), "{tally:?}");
    assert!(tally.given_back.into_iter().all(|count| count > 50), "{tally:?}");
    assert!(tally.removed > 50 && tally.full > 50, "{tally:?}");
}

/// `cargo test --release -p squall-onepipe --test seeds -- --ignored`
#[test]
#[ignore = "takes a minute"]
fn a_thousand_seeds() {
    runs(1000);
}
