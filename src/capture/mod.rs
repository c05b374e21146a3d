//! A replica's state at a place of the order: its capture between two messages, and its form on disks and on the way.

pub(crate) mod exchange;
pub(crate) mod state;
