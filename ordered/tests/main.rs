//! Tests of shards in virtual time and on threads, and of logs.
//!
//! Random choices come from seeds, which a failure prints. `SQUALL_SEED=n` runs that seed alone, `SQUALL_SEEDS=n` runs
//! n seeds.

mod cluster;
mod durable;
mod log;
mod threads;
mod world;
