//! How nodes on a network find and trust each other: one port per node, and what is agreed there before any data moves.
//!
//! The fabrics for networks (`tcp`, `verbs`) share this. Between two nodes there is one *link*, a connection over which
//! endpoints meet and heartbeats go; an endpoint of the `tcp` fabric then gets a connection of its own. All of them come in
//! by the node's one port, pass the same handshake (TLS where the cluster has a CA, then a greeting), and are sorted by
//! what they are for. A thread of its own does all this, so that whoever polls a fabric never waits for a socket.
//!
//! ```text
//!   polling thread                         control thread
//!   Command::Connect { tag, set_up } ────▶ dials the peer, or waits for it ◀── link ──▶ the peer's
//!   Event::Paired { set_up, stream } ◀──── both sides have asked for the tag
//!   Command::Close ──────────────────────▶ the peer's Event::Broken
//!   Event::Broken ◀─────────────────────── nothing was heard for the failure timeout, or the peer closed
//! ```

#![allow(dead_code, unused_imports)] // Until the fabrics use it.

mod config;
mod identity;
mod plane;
mod tls;

pub use config::{NetConfig, Security};
pub use identity::Identity;
pub(crate) use plane::{Command, Connect, DataStream, Event, Paired, Plane};
