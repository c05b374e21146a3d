//! Tests of the verbs backend beyond the contract, on an RDMA device.
//!
//! Without a device these tests are skipped, unless `SQUALL_VERBS=1` says that there must be one.
//! `tests/verbs-lab/fabric` runs them in a virtual machine with software RDMA.

#![cfg(feature = "verbs")]

mod ends;
mod limits;
mod memory;
mod waking;
mod world;
