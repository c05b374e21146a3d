//! A node: its declaration, the pure core that routes the layers' effects, the engine thread that drives the core, and
//! the services for other nodes and operators.

pub(crate) mod builder;
pub(crate) mod core;
pub(crate) mod engine;
mod group_slot;
pub(crate) mod handlers;
mod milestones;
pub mod onepipe;
pub(crate) mod operator;
pub(crate) mod placements;
pub(crate) mod plan;
mod rates;
mod report;
mod returning;
mod room_thread;
pub(crate) mod running;
mod scrub_thread;
pub(crate) mod start_error;
pub(crate) mod starting;
pub(crate) mod status;
pub(crate) mod view_log;
pub(crate) mod views;
mod waits;
pub(crate) mod watch;
pub(crate) mod witness;
