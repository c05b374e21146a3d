//! The conversation of source and receivers besides the contents.
//!
//! # The format
//!
//! A stream, in each direction: a greeting, then frames.
//!
//! ```text
//!  0        8         12
//! ┌────────┬─────────┐┌────────┬────────────────┐┌────────┬───
//! │squallcp│ version ││ length │ postcard value ││ length │ …
//! └────────┴─────────┘└────────┴────────────────┘└────────┴───
//!   8 bytes  u32 LE     u32 LE   `length` long, at most FRAME_BYTES
//! ```
//!
//! A value is a [`ToReceiver`] or a [`ToSource`], in a [frame](squall_services::frame). A frame that is too long, cut
//! off or invalid ends the conversation. Memory is allocated as bytes arrive, not by the announced length. A value
//! takes eight times as much memory as its frame, or some mebibytes, at most. For that, sequences whose elements can be
//! small in a frame have limits, and the mode and time of a manifest's entries have a fixed length there.
//!
//! # The conversation
//!
//! ```text
//! source                                  receiver
//!   Offer ──────────────────────────────▶   checks names, looks at what it has
//!   ◀─────────────── Ready (or Refused)     files that it lacks, or has another version of
//!   Chunks … ───────────────────────────▶   of those that it has another version of
//!   ◀─────────────────────── Missing …
//!   Plan  ──────────────────────────────▶   once all have answered; again when a receiver comes late
//!   Join  ──────────────────────────────▶   creates its part of the RDMC group
//!   Verdicts …                              contents come by RDMC
//!   ◀───────────────────── Progress …       once a second at least: also a sign of life
//!   ◀───────────────────────── Over         when the group is closed, or has failed
//!   Join …                                  the receiver that is named first sends, if the source is not
//!   EndGroup ───────────────────────────▶   of such a group, if it failed for a member, or nothing comes of it
//!   Files … ────────────────────────────▶   instead of plan and groups, on one host: the receiver copies
//!   ◀───────────────────────── Copied …     from the source's open files
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

pub(crate) use frame::FrameError;
#[cfg(test)]
pub(crate) use frame::{expect_greeting, greet, read, write};
pub(crate) use link::{ControlLink, Heard, refuse};
pub(crate) use message::{
    Address, HandedFile, Join, Layer, MAX_FILES, MAX_HANDED, MAX_VERDICTS, Offer, Over, Report, ToReceiver, ToSource,
};
pub use network::ReceiverNetwork;
pub(crate) use network::{Caller, open_receiver};
pub use rendezvous::RendezvousError;
pub(crate) use rendezvous::{dial, fabric_cluster, listen, node_id};
