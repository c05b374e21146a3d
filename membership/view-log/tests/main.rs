//! Tests of logs of views: in virtual time, and on threads.
//!
//! Random runs come from seeds. `SQUALL_SEED=n` runs that seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

mod disks;
mod elections;
mod forced;
mod forming;
mod late_messages;
mod lives;
mod restarts;
#[path = "../../../tests/support/seeds.rs"]
mod seeds;
mod simulated;
mod threads;
mod went_back;
mod world;
