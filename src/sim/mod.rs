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
//! A sharded service with a client from outside, while a member loses power:
//!
//! ```
//! use std::{io, time::Duration};
//! use squall::{Config, Consistency, NodeId, ServeOptions, Snapshot, sim::{Cluster, Options, ViewLogKind}};
//!
//! #[derive(Default)]
//! struct Counter(u64);
//!
//! #[squall::service]
//! impl Counter {
//!     #[command]
//!     fn add(&mut self, number: u64) -> u64 {
//!         self.0 += number;
//!         self.0
//!     }
//!     #[query]
//!     fn sum(&self) -> u64 {
//!         self.0
//!     }
//!     #[snapshot]
//!     fn save(&self) -> Snapshot {
//!         Snapshot::of_bytes(self.0.to_le_bytes())
//!     }
//!     #[restore]
//!     fn load(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
//!         let mut bytes = [0; 8];
//!         from.read_exact(&mut bytes)?;
//!         self.0 = u64::from_le_bytes(bytes);
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::builder("demo", 1).members(1..=4).failure_timeout(Duration::from_millis(20));
//! let config = config.group("counters", |group| _ = group.shards(3).replicas(1, Some(2))).build()?;
//! let mut cluster = Cluster::new(config, Options { view_log: ViewLogKind::Raft, ..Options::default() }, 42);
//! for node in (1..=4).map(NodeId) {
//!     cluster.serve_sharded(node, "counters", |_shard| Counter::default(), ServeOptions::default());
//! }
//! let clients = cluster.clients_of_shards::<Counter>("counters");
//! cluster.start()?;
//! let limit = Duration::from_secs(10);
//! for round in 1..=4 {
//!     for client in &clients {
//!         let added = client.submit(&mut cluster, &CounterCommand::Add(1), limit);
//!         if round == 2 {
//!             cluster.crash(NodeId(3));
//!         }
//!         // Applied once, although it may have been sent to the member that crashed.
//!         let added = cluster.wait(limit, added).expect("in time")?;
//!         assert!(matches!(added, CounterReply::Add(sum) if sum == round));
//!         let sum = client.query(&mut cluster, Consistency::Linearizable, &CounterQuery::Sum, limit);
//!         let sum = cluster.wait(limit, sum).expect("in time")?;
//!         assert!(matches!(sum, CounterAnswer::Sum(sum) if sum == round));
//!     }
//! }
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
mod layout_policy;
mod ledger;
mod node;
mod options;
mod raft;
pub mod scenario;
mod transactions;
mod transfer;
mod view_log;
mod watch;

pub use client::Client;
pub use cluster::{Cluster, NotStarted};
pub use disks::DiskCopy;
pub use ledger::{
    Ledger, LedgerAnswer, LedgerCommand, LedgerCounts, LedgerFate, LedgerQuery, LedgerRecord, LedgerState, check_ledger,
};
pub use options::{Options, ViewLogKind};
pub use squall_fabric::{
    hostile::Hostility,
    sim::{SimConfig, SimNet},
};
pub use transactions::{TransactionEnd, Transactions};
pub use watch::{Begun, SimWatch, WatchFrom};
