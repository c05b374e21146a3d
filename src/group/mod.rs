//! Groups as an application uses them: the handles, the replica's trait, and the way of a message from a call to the
//! ring and of its reply back.

pub(crate) mod admission;
pub(crate) mod clock;
pub(crate) mod clock_bound;
pub(crate) mod deadline;
pub(crate) mod envelope;
pub(crate) mod error;
pub(crate) mod handle;
mod hazard_cell;
pub(crate) mod read;
pub(crate) mod replicated;
pub(crate) mod reply_slots;
pub(crate) mod resubmit;
pub(crate) mod schema;
pub(crate) mod service;
pub(crate) mod session;
pub(crate) mod sharded;
pub(crate) mod submit;
