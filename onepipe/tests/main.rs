//! Tests of 1Pipe: in the simulator, and over real shared memory.
//!
//! Of the random runs, `SQUALL_SEED=n` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

mod corners;
#[path = "../../tests/support/exposed.rs"]
mod exposed;
#[path = "../../tests/support/seeds.rs"]
mod runner;
mod seeds;
mod shm;
mod world;
