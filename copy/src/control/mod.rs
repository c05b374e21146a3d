//! The conversation of source and receivers besides the contents.
//!
//! # The format
//!
//! A stream, in each direction: a greeting, then frames.
//!
//! ```text
//!  0        8         12
//! ┌────────┬─────────┐┌───────┬─────────────┐┌───────┬───
//! │squallcp│ version ││ bytes │ rkyv archive ││ bytes │ …
//! └────────┴─────────┘└───────┴─────────────┘└───────┴───
//!   8 bytes  u32 LE     u32 LE   `bytes` long, at most FRAME_BYTES
//! ```
//!
//! An archive is a [`ToReceiver`] or a [`ToSource`]. It is validated before anything in it is used, and a frame that is
//! too long, cut off or invalid ends the conversation. Memory is allocated as bytes arrive, not by the announced
//! length.
//!
//! # The conversation
//!
//! ```text
//! source                                  receiver
//!   Offer ──────────────────────────────▶   checks names, looks at what it has
//!   ◀─────────────── Ready (or Refused)
//!   Join  ──────────────────────────────▶   creates its part of the RDMC group
//!   Verdicts …                              contents come by RDMC
//!   ◀───────────────────── Progress …       once a second at least: also a sign of life
//!   ◀───────────────────────── Over         when the group is closed, or has failed
//!   Join …
//!   Finish ─────────────────────────────▶
//!   ◀───────────────────────── Done
//! ```
//!
//! Either side may end the conversation: the source with `Abort`, or both by closing the connection. Received contents
//! are kept.

mod frame;
mod link;
mod message;
mod network;
mod rendezvous;
mod stream;

pub(crate) use frame::FrameError;
#[cfg(test)]
pub(crate) use frame::{expect_greeting, greet, read, write};
pub(crate) use link::{ControlLink, Heard, refuse};
pub(crate) use message::{Address, Holding, Join, Layer, Offer, Over, Report, ToReceiver, ToSource};
pub use network::ReceiverNetwork;
pub(crate) use network::{Caller, open_receiver};
pub use rendezvous::RendezvousError;
pub(crate) use rendezvous::{Listener, dial, fabric_cluster, node_id};
pub(crate) use stream::Stream;
