//! Tests of shards in virtual time and on threads, and of logs.
//!
//! Random choices come from seeds, which a failure prints. `SQUALL_SEED=n` runs that seed alone,
//! `SQUALL_SEEDS=FROM..TO` others than usual.

mod cluster;
mod durable;
#[path = "../../tests/support/exposed.rs"]
mod exposed;
mod liars;
mod log;
mod owed;
#[path = "../../tests/support/seeds.rs"]
mod seeds;
mod threads;
mod world;
