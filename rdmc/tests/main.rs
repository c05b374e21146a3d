//! Tests of groups and their transfers: in the simulator, and over real shared memory.

mod ends;
#[path = "../../tests/support/exposed.rs"]
mod exposed;
mod failures;
mod graph;
mod hearsay;
mod member;
mod schedules;
mod shm;
mod timing;
mod transfers;
mod world;
