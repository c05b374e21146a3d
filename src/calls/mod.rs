//! The way of a call: from the application to the ring, and of its reply back. Reads, deadlines, and the sessions of
//! clients.

pub(crate) mod admission;
pub(crate) mod clock;
pub(crate) mod clock_bound;
pub(crate) mod deadline;
pub(crate) mod envelope;
pub(crate) mod error;
mod hazard_cell;
pub(crate) mod read;
pub(crate) mod reply_slots;
pub(crate) mod resubmit;
pub(crate) mod session;
pub(crate) mod submit;
