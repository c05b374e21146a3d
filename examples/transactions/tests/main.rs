//! Tests of the transactional store: its members, its checkers, and clusters in the simulated network.
//!
//! Of the random clusters, `SQUALL_SEED=7` runs one seed, `SQUALL_SEEDS=0..1000` a range of them.

mod planted;
#[path = "../../../tests/support/seeds.rs"]
mod seeds;
mod serial;
mod simulated;
mod store;
