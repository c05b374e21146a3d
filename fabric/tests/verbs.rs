//! Tests of the verbs backend beyond the contract, on an RDMA device.
//!
//! Without a device these tests are skipped, unless `SQUALL_VERBS=1` says that there must be one.
//! `tests/verbs-lab/fabric` runs them in a virtual machine with software RDMA.

#![cfg(feature = "verbs")]

#[path = "verbs/ends.rs"]
mod ends;
#[path = "verbs/limits.rs"]
mod limits;
#[path = "verbs/memory.rs"]
mod memory;
#[path = "verbs/waking.rs"]
mod waking;
#[path = "verbs/world.rs"]
mod world;
