//! Tests of collective operations: in the simulator, and over real shared memory.
//!
//! A test with random choices that fails prints its seed. `SQUALL_SEED=n` runs it with that seed.

#[path = "../../tests/support/exposed.rs"]
mod exposed;
mod failures;
mod long;
mod long_failures;
mod operations;
mod shm;
mod world;
