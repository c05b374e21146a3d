//! Group communication in the line of Derecho: replicated services at the speed of the network.
//!
//! A *group* is a set of nodes that each hold a replica of a service. Commands that any of them submits are applied by all,
//! in one order, each once all members have received it; reads see the latest state, and cost no turn. Data moves by
//! RDMA-style one-sided writes, without a leader that all of it would have to pass.
//!
//! # How to use it
//!
//! 1. Implement [`Replicated`] for the state machine: what a command does to a replica, and what it replies.
//! 2. Make a [`Config`]: from a file, the environment, or code. Every node of the cluster lists the same members.
//! 3. Declare the groups with [`Node::builder`], and [start](NodeBuilder::start) the node, which waits for the others.
//! 4. Use the [`Group`] handles, from any thread or task: [`submit`](Group::submit), [`send`](Group::send),
//!    [`read`](Group::read), [`peek`](Group::peek).
//!
//! ```no_run
//! use squall::{Applied, Config, Node, Replicated};
//!
//! /// Counts.
//! struct Counter(i64);
//!
//! impl Replicated for Counter {
//!     type Command = i64;
//!     type Reply = i64;
//!
//!     fn apply(&mut self, add: &rkyv::Archived<i64>, _at: &Applied) -> i64 {
//!         self.0 += add.to_native();
//!         self.0
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Three processes run this, with SQUALL_ID=1, 2 and 3: of one host, or of three whose addresses the file has.
//! let config = Config::load("squall.toml")?;
//! let mut node = Node::builder(config);
//! let counter = node.group("counter", Counter(0));
//! let node = node.start()?;
//!
//! let after = counter.submit(&5).wait()?;
//! let now = counter.read(|counter| counter.0).wait()?;
//! assert!(now >= after);
//! node.shutdown();
//! # Ok(())
//! # }
//! ```
//!
//! # How data flows
//!
//! [`Group::submit`] serializes the command straight into the node's ring and wakes the node's *engine* thread, which writes
//! it to all other members, together with whatever else has accumulated. Each engine notices what has arrived by reading its
//! own memory, and tells the others in the shared state table. What all have received is applied, by the engine or by a
//! thread of the group's own, and the submitter gets its own replica's reply.
//!
//! # What is promised
//!
//! - Replicas apply the same commands in the same order. Those of one thread are applied in its order.
//! - A command that got its reply was received by every member. One that was accepted is applied once, by all members that
//!   stay, unless the group ends before: then [`SubmitError::Ended`] says what is known.
//! - A [`read`](Group::read) is linearizable.
//! - When a member fails, the group ends at the others too, and says so; one that was only stopped, or cut off, finds itself
//!   fenced off ([`EndReason::GivenUp`]). In this version the group is not rebuilt from the survivors: restart the nodes.

mod alarm;
mod blocking;
pub mod bulk;
mod clock;
pub mod config;
#[cfg(feature = "copy")]
pub mod copy;
mod custody;
mod delivery;
mod encode;
mod error;
mod fabric;
mod group;
mod intake;
#[cfg(feature = "keys")]
pub mod keys;
mod node;
mod node_core;
mod plan;
mod read;
mod replicated;
mod replies;
mod room;
mod runtime;
mod service;
pub mod sim;
mod status;
mod submit;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod transport;

pub use config::{Config, ConfigBuilder, ConfigError, Spin};
pub use error::{Outcome, ReadError, SubmitError};
pub use fabric::FabricError;
pub use group::Group;
pub use node::{Node, NodeBuilder, StartError};
pub use plan::PlanError;
pub use read::Read;
pub use replicated::{Applied, Command, Replicated};
#[doc(hidden)]
pub use service::{Invalid, Service};
pub use squall_fabric::{NodeId, Time};
pub use squall_membership::{EndReason, Epoch, Seq};
#[doc(hidden)]
pub use squall_ordered::Message;
pub use squall_ordered::Mode;
pub use squall_rdmc as rdmc;
pub use status::{BulkStatus, GroupCounts, GroupStatus, MemberStatus, Status};
pub use submit::{Sending, Submit};
pub use transport::Carrier;

/// The README's example must compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
