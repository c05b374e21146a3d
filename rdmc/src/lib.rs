//! RDMC: a reliable multicast of large messages, made of point-to-point transfers of blocks.
//!
//! (Behrens, Jha, Birman, Tremel: RDMC: A Reliable RDMA Multicast for Large Objects. DSN 2018.)
//!
//! A *group* has members in order of *ranks*; rank 0, the root, sends messages to all others. A message is cut into
//! blocks, which members pass on to each other as a [schedule] says, so that every member's link is used in both
//! directions. Many groups, with the same or other roots, may share a node's fabric.
//!
//! # How data flows
//!
//! ```text
//!   root                                 a receiver                                        others
//!   send ── block, "of k blocks" ──────▶ first-block memory ── Event::Incoming
//!                                        accept(memory): copies it to its place
//!        ◀── ready: receives posted ──── posts receives for the steps ahead ◀── ready ──
//!        ── block ─────────────────────▶ in place ── send ────────────────────▶
//!   Event::Released                      Event::Received, then Event::Released
//! ```
//!
//! - Before a block is sent, its target has posted a receive for it, and has announced it by a one-sided write of a
//!   counter. No block is ever refused, retried, or acknowledged.
//! - A block carries only the number of blocks of its message. Its index follows from the schedule.
//! - A receiver uses the message's memory, and one block besides, for a first block that comes before there is any. It
//!   may do without: then its senders wait until it has [provided](Group::provide) memory (rendezvous).
//!
//! # What is promised
//!
//! - Messages arrive whole and in order, or the group fails. [`Event::Destroyed`], at any member, says that every
//!   message has reached every member. [`Event::Failed`] comes once at each survivor, instead of it, and says what that
//!   member holds.
//! - A failure is what the fabric reports: a peer whose process ended, that can't be reached, or that breaks the rules.
//!   A peer that stands still delays all members. A member with heartbeats [leaves](Group::leave) the group and creates
//!   another.
//! - After a failure, [`Group::resume`] completes a message in a group of the members that are left. They tell each
//!   other which blocks they hold, and each block that is missing somewhere moves once, from any member that has it.
//!
//! # Use
//!
//! A [`Group`] is pure: it is stepped, posts to a [`Fabric`](squall_fabric::Fabric), and returns [`Event`]s. [`Rdmc`]
//! drives many of them. In the simulator:
//!
//! ```
//! use std::sync::Arc;
//! use squall_fabric::{Fabric, NodeId, Time, sim::{SimConfig, SimNet}};
//! use squall_rdmc::{Buffer, Event, GroupConfig, GroupId, Rdmc};
//!
//! let net = SimNet::new(SimConfig::fast(), 1);
//! let id = GroupId { group: 0, instance: 1 };
//! let mut nodes = Vec::new();
//! for node in 0..5 {
//!     let (mut fabric, mut rdmc) = (net.fabric(NodeId(node)), Rdmc::new());
//!     rdmc.create(
//!         &mut fabric,
//!         GroupConfig { block_bytes: 1000, ..GroupConfig::new(id, (0..5).map(NodeId).collect()) },
//!     )?;
//!     if node == 0 {
//!         let mut message = Buffer::register(&mut fabric, 10_500)?;
//!         message.fill(42);
//!         let root = rdmc.group(id).expect("was created");
//!         root.send(Arc::new(message), 10_500)?;
//!         root.destroy()?;
//!     }
//!     nodes.push((fabric, rdmc));
//! }
//!
//! let (mut received, mut destroyed) = (0, 0);
//! let (mut ready, mut completions, mut events) = (Vec::new(), Vec::new(), Vec::new());
//! while destroyed < 5 {
//!     let now = net.advance(Time::MAX, &mut ready);
//!     for node in ready.drain(..) {
//!         let (fabric, rdmc) = &mut nodes[node.0 as usize];
//!         fabric.poll(now, &mut completions);
//!         completions.drain(..).for_each(|completion| _ = rdmc.on_completion(fabric, &completion));
//!         while rdmc.step(fabric, &mut events) {
//!             for (id, event) in events.drain(..) {
//!                 match event {
//!                     Event::Incoming { message, max_bytes, .. } => {
//!                         let memory = Buffer::register(fabric, max_bytes)?;
//!                         rdmc.group(id).expect("is there").accept(message, memory)?;
//!                     }
//!                     Event::Received { buffer, len, .. } => {
//!                         assert!(len == 10_500 && buffer[..len].iter().all(|&byte| byte == 42));
//!                         received += 1;
//!                     }
//!                     Event::Destroyed => destroyed += 1,
//!                     Event::Failed(failure) => panic!("{failure:?}"),
//!                     Event::Connected | Event::Released { .. } => {}
//!                 }
//!             }
//!         }
//!     }
//! }
//! assert_eq!(received, 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod block;
mod block_set;
mod buffer;
pub mod bulk;
mod config;
mod control;
mod engine;
mod events;
pub mod graph;
mod group;
#[cfg(test)]
mod hostile_tests;
mod link;
mod message;
mod plan;
mod rdmc;
pub mod schedule;
mod step_source;

pub use block_set::BlockSet;
pub use buffer::Buffer;
pub use config::{CreateError, GroupConfig, GroupId, MAX_BLOCK_BYTES};
pub use engine::AcceptError;
pub use events::{Event, Failure, Hearsay, Interrupted, Progress};
pub use group::{Group, SendError};
pub use plan::{Lost, Plan};
pub use rdmc::Rdmc;
