//! Simulated clusters, in virtual time: all events follow from a seed.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

mod clocks;
mod commands_for_all;
mod damaged_logs;
mod durable_shards;
mod follow_ups;
mod forced_lives;
mod hostile;
mod layout_policy;
mod leases;
mod memory_shards;
#[path = "../support/numbers.rs"]
mod numbers;
mod onepipe_views;
mod padded;
mod poison;
mod room;
mod scenarios;
mod scrub;
#[path = "../support/seeds.rs"]
mod seeds;
mod sessions;
#[path = "../support/shards.rs"]
mod shards;
mod stalls;
mod stop_all;
#[path = "../support/sum.rs"]
mod sum;
mod suspicion;
mod timers;
mod transactions;
mod views;
mod watchers;
mod wrong_directories;
