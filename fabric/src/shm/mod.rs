//! The shared-memory backend: nodes are processes of one user on one host.
//!
//! # How it works
//!
//! Regions are anonymous files that peers map. Bytes for [`Polled`](crate::RegionKind::Polled) regions are stored by
//! the poster, word by word, straight into the peer's memory. All else goes through a descriptor ring in shared memory,
//! one per endpoint and direction: the receiver, in its `poll`, pulls the bytes from a read-only mapping of the
//! sender's memory. Bulk memory, and what is lent, is therefore never written by a peer, and a peer that was stopped in
//! the middle of a copy can't resume it in memory that was given to the application (G6). Nor do bytes travel that a
//! buffer gets after its endpoint was closed: the ring says so to a process that pulls or reads, and bytes that were
//! copied then are not reported.
//!
//! ```text
//!   poster's thread                                    peer's thread
//!   post ── polled bytes ─────────────────────────▶ its memory ── read after each poll
//!        ── descriptor ──▶ ring ─────────────────────▶ poll: check, pull, complete
//!   poll ── count of news ────────────────────────▶ poll: which rings to look at
//!        ── doorbell, if the peer sleeps ──────────▶ wait
//!
//!   control thread ◀── one socket per pair of nodes ──▶ control thread
//!        greeting, memory and rings of endpoints, notice of death
//! ```
//!
//! `post` and `poll` make no system call and take no lock, with three exceptions: the first time that memory is sent
//! from, waking a peer that sleeps, and shared memory (below).
//!
//! Receivers may also be given the pages of one sealed copy in place of copies of their own: see
//! [`ShmFabric::share`], and [`SharedCopy`] for what they hold.
//!
//! # Trust
//!
//! Only processes of the same user get past the greeting. Data from nodes is checked before it is used: packets,
//! descriptors, sizes and seals of memory. A peer that breaks the rules breaks its endpoint, with a reason. A node
//! *can* still garble the polled memory that it was given, at any time until its process ends.
//!
//! # Limits
//!
//! A stopped process is not noticed: its peers wait (the layers above have heartbeats). Each region takes a file
//! descriptor, each region and endpoint one or two mappings, sealed memory and each copy of it one. A node has at most
//! 4096 regions and shares at a time that one peer may pull or take; beyond that the peer ends their link. Nodes meet
//! only within one network namespace, and where they see the same [directory of names](crate::local_name). Linux 5.1 or
//! later is needed.

mod config;
mod control;
mod copy;
pub(crate) mod doorbell;
mod due;
mod endpoint;
mod fabric;
mod graph;
mod memory;
mod news;
mod peer;
mod post;
mod pull;
mod ring;
mod share;
mod signals;
mod socket;
mod stats;
mod wire;

#[cfg(test)]
mod eventfd_tests;
#[cfg(test)]
mod exposure_tests;
#[cfg(test)]
mod hostile_tests;

pub use config::{CLUSTER_BYTES, MAX_QUEUE_DEPTH, ShmConfig, ShmError};
pub(crate) use control::LinkAttempt;
pub use fabric::ShmFabric;
pub use share::{SealError, SealedMemory, SharedCopy};
pub use stats::ShmStats;

/// The version of the protocol between nodes: the packets, the rings, and the doorbells with the news beside them.
pub(crate) const PROTOCOL: u32 = 4;
