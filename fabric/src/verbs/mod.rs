//! The RDMA backend: nodes are processes on hosts with RDMA devices, of InfiniBand, RoCE or software (`rdma_rxe`).
//!
//! # How it works
//!
//! An endpoint is a queue pair of a reliable connection (RC). Writes, reads and sends go straight to the device; its
//! order and its acknowledgements are those of G1 and G4. Before that, one side must know the other's queue pair (its
//! number and address), and the regions that it exposes with their keys. This travels over the node's control plane,
//! [`net`](crate::net), which is authenticated if the cluster's is, notices dead peers, and carries the reason when an
//! endpoint breaks.
//!
//! ```text
//!   polling thread
//!   post ── requests are staged; bytes up to the device's limit are captured, longer ones fetched
//!   poll ── hands them to the device together, the last one signaled; takes completions in
//!   wait ◀─ completion channel ◀── messages, acknowledgements        (device)
//!        ◀─ doorbell ◀── wakers, control thread ◀── link ──▶ peer's control thread
//! ```
//!
//! - Both sides bring their queue pair up when they have met, and then say so over the control plane. A side that
//!   reports `Connected` finds its peer ready, and a message that finds no receive is a breach (the device does not try
//!   again).
//! - Receives are posted to the device at once, so that those posted with `connect` are in place before a peer can
//!   send.
//! - A queue never overflows: a post beyond the depth is [`Full`](crate::PostError::Full), work that takes several
//!   requests waits for room, and each queue pair has entries in its completion queue for all its requests.
//! - Writes and reads beyond the device's longest message are split. A send can't be: a longer one breaks its endpoint.
//! - A poll looks at the completion queues, which are few, and at endpoints that have work or completions; those that
//!   rest cost nothing.
//! - A thread that sleeps is woken by peers that have written its polled memory: see `watch.rs` and `bell.rs`.
//! - When an endpoint ends, its queue pair is destroyed before that is reported: no late write reaches its memory (G6).
//!   If the device does not destroy it, the memory that it may still use is never used again.
//! - What the device or the system refuses breaks its endpoint with the next poll, whatever is outstanding.
//!
//! # Trust
//!
//! Keys and bounds are checked by the poster against the regions that the peer exposed. The device checks them again:
//! its keys are those of memory windows, each of one endpoint and one region, and end with the endpoint. A peer that
//! breaks the rules reaches what was exposed to it, and no more: see `window.rs`.
//!
//! # Limits
//!
//! Registered memory is locked: `ulimit -l` must allow for it. A region of this fabric takes whole pages. The device
//! must have memory windows of type 2, as `rdma_rxe` has, and cards of several vendors. Where the nodes' ports reach
//! each other and their devices don't, that shows when something is sent. iWARP is not supported.

mod address;
mod attachment;
mod bell;
#[cfg(test)]
mod bell_tests;
mod completions;
mod config;
mod connect;
mod device;
#[cfg(test)]
mod device_tests;
mod endpoint;
mod events;
mod fabric;
mod graph;
mod memory;
mod post;
mod queue;
mod sending;
mod setup;
mod stats;
mod wait;
mod watch;
mod window;

pub use config::{MAX_QUEUE_DEPTH, VerbsConfig, VerbsDevice, VerbsError};
pub use fabric::VerbsFabric;
pub use stats::VerbsStats;
