//! A simulated network: virtual time, one thread, everything drawn from one seed.
//!
//! It is the weakest fabric that G1–G7 permit. The bytes of one write land in pieces, in any order. Bytes from a region
//! are fetched at any time until the local completion, word by word. Local completions come before or after the bytes
//! are at the target. Every endpoint is delayed on its own, and the two sides of a connection hear of it at different
//! times. Code that assumes more than the contract says fails here, and fails again with the same seed.
//!
//! # A driver's loop
//!
//! A [`SimNet`] moves bytes; the nodes themselves are stepped by the caller, whenever the network has something for
//! them or one of their timers is due:
//!
//! ```
//! use squall_fabric::{Fabric, GroupTag, NodeId, Op, RegionKind, Source, Target, Time, Token};
//! use squall_fabric::{Completion, sim::{SimConfig, SimFabric, SimNet}};
//!
//! struct Node { fabric: SimFabric, timer: Time, greeted: bool }
//! impl Node {
//!     /// Polls, reacts, posts; then sets the timer. Posts go out by themselves or at the next poll.
//!     fn step(&mut self, now: Time) {
//!         let mut completions = Vec::new();
//!         self.fabric.poll(now, &mut completions);
//!         for completion in completions {
//!             if let Completion::Connected { endpoint, remote, .. } = completion {
//!                 let target = Target { region: remote[0].key, offset: 8 * self.fabric.node().0 as usize };
//!                 let write = Op::Write { source: Source::Inline(&7u64.to_ne_bytes()), target };
//!                 self.fabric.post(endpoint, write, Token::UNSIGNALED).unwrap();
//!                 self.greeted = true;
//!             }
//!         }
//!         self.timer = Time::MAX;
//!     }
//! }
//!
//! let net = SimNet::new(SimConfig::fast(), 42);
//! let tag = GroupTag { layer: 0, group: 0, epoch: 1 };
//! let mut tables = Vec::new();
//! let mut nodes: Vec<Node> = (0..2).map(|id| {
//!     let mut fabric = net.fabric(NodeId(id));
//!     let table = fabric.register(RegionKind::Polled, 16).unwrap();
//!     fabric.connect(NodeId(1 - id), tag, &[table.clone()], b"");
//!     tables.push(table);
//!     Node { fabric, timer: Time::ZERO, greeted: false }
//! }).collect();
//!
//! let mut ready = Vec::new();
//! while tables[0].load(8) != 7 || tables[1].load(0) != 7 {
//!     let timer = nodes.iter().map(|node| node.timer).min().unwrap();
//!     let now = net.advance(timer, &mut ready);
//!     for id in ready.drain(..) {
//!         nodes[id.0 as usize].step(now);
//!     }
//!     for node in nodes.iter_mut().filter(|node| node.timer <= now) {
//!         node.step(now); // a node that is paused or has crashed is not stepped: see `SimNet::runs`
//!     }
//!     assert!(net.next_event().is_some(), "nothing is left to happen");
//! }
//! ```

mod breakage;
mod complete;
mod config;
mod connect;
mod endpoint;
mod fabric;
mod graph;
mod landing;
mod net;
mod path;
mod payload;
mod post;
mod queue;
mod read;
mod sabotage;
mod trace;
mod world;

#[doc(hidden)]
pub use config::Sabotage;
pub use config::{Racks, SimConfig};
pub use fabric::SimFabric;
pub use net::SimNet;
pub use path::LinkProperties;
pub use trace::{TraceEvent, Tracer};
