//! The TCP backend: nodes on any network, one connection per endpoint.
//!
//! # How it works
//!
//! Posted work becomes frames of one stream: a header, and the bytes. A poll gives each socket the work that was posted
//! since the last one, as far as the socket takes it, and takes from each the bytes that have come, up to a number. So
//! many small posts leave with one system call, and arrive with one. Bytes of bulk regions go from their region to the
//! socket and from the socket to their region, and are not copied in between; with TLS, a record at a time is copied
//! and then sealed, and opening it is another copy. Bytes of polled regions are read and stored word by word.
//!
//! ```text
//!   polling thread                                         peer's polling thread
//!   post ─▶ frames of an endpoint                          its memory, receives
//!   poll ─▶ sends them ─────── one connection ───────────▶ poll: check, place, complete
//!        ◀─ an endpoint's reads, answered by the peer's poll ─
//!
//!   control thread ◀────────── one link per pair of nodes ─────▶ control thread
//!        endpoints meet, heartbeats, why an endpoint broke
//! ```
//!
//! A thread that waits sleeps on the sockets themselves: a peer that writes to it needs no doorbell.
//!
//! # Trust
//!
//! Peers are the nodes that [`net`](crate::net) lets in. Every frame is checked before a byte of it is placed: a peer
//! that breaks the rules breaks its endpoint, on both sides, with a reason. Bytes are placed by this process alone, so
//! once an endpoint is broken or closed, nothing that it exposed changes any more (G6).
//!
//! # Limits
//!
//! Writes and reads are carried out by the peer's polls: a peer that does not poll takes nothing, and after a while the
//! system's buffers are full and work waits here, until the queue is full. Each endpoint takes a socket. Linux 5.1 or
//! later.

mod config;
mod core;
mod data;
mod endpoint;
mod fabric;
mod frame;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod graph;
mod memory;
mod post;
mod receive;
mod send;
mod set_up;
mod socket;
mod stats;
mod timer_fd;

#[cfg(test)]
mod tests;

use rustix::io::Errno;

pub use config::{MAX_QUEUE_DEPTH, TcpConfig, TcpError};
pub use fabric::TcpFabric;
pub use stats::TcpStats;

/// An operator's remedy for a refusal of the system, as the rest of a sentence.
fn hint(cause: Errno) -> &'static str {
    match cause {
        Errno::MFILE => " (raise this process's limit of open files: `ulimit -n`)",
        Errno::NFILE => " (raise the host's limit of open files: `sysctl fs.file-max`)",
        Errno::NOMEM => " (free memory, or raise the limit of mappings: `sysctl vm.max_map_count`)",
        _ => "",
    }
}
