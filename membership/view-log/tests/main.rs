//! Tests of logs of views: in virtual time, and on threads.
//!
//! Random runs come from seeds. `SQUALL_SEED=n` runs that seed alone, `SQUALL_SEEDS=n` runs n seeds.

mod disks;
mod elections;
mod forced;
mod forming;
mod lives;
mod restarts;
mod simulated;
mod threads;
mod went_back;
mod world;
