//! Whole clusters in virtual time, for tests of your own service and of Squall itself.
//!
//! A [`Cluster`] runs real services over the real protocols, on a network that does the worst that the fabric's
//! contract permits. It runs in one thread and from one seed: a run with the same seed does the same, to the last step.
//!
//! ```
//! use std::time::Duration;
//! use squall::{Applied, Config, Replicated, sim::{Cluster, Options}};
//!
//! #[derive(Default)]
//! struct Counter(i64);
//!
//! impl Replicated for Counter {
//!     type Command = i64;
//!     type Reply = i64;
//!     fn apply(&mut self, add: &rkyv::Archived<i64>, _at: &Applied) -> i64 {
//!         self.0 += add.to_native();
//!         self.0
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::builder("demo", 1).members([1, 2, 3]).build()?;
//! let mut cluster = Cluster::new(config, Options::default(), 42);
//! let counters = cluster.group("counter", |_node| Counter::default());
//! cluster.start()?;
//! let limit = Duration::from_secs(1);
//! let added = cluster.wait(limit, counters[0].submit(&5)).expect("it resolves in time")?;
//! let seen = cluster.wait(limit, counters[2].read(|counter| counter.0)).expect("it resolves in time")?;
//! assert_eq!((added, seen), (5, 5));
//! # Ok(())
//! # }
//! ```
//!
//! Views are decided by a script, or by Raft as in a real cluster: [`Options::view_log`]. Durable groups need
//! [`ViewLogKind::RaftOnDisks`]. As a test asks for, the disks lose what was not synced, tear what was being written,
//! fill up, fail and rot. Nodes start again with what is left.
//!
//! Squall itself is tested with [`scenario`]: random clusters, loads and faults, and what must hold after each.

pub mod bulk;
mod check;
mod client;
mod clock;
mod cluster;
mod decided;
mod disks;
mod flow;
mod full_disks;
mod harm;
mod held_up;
mod node;
mod options;
mod raft;
pub mod scenario;
mod transfer;
mod view_log;

pub use client::Client;
pub use cluster::{Cluster, NotStarted};
pub use disks::DiskCopy;
pub use options::{Options, ViewLogKind};
pub use squall_fabric::{
    hostile::Hostility,
    sim::{SimConfig, SimNet},
};
