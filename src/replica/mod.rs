//! The application's replica: the traits that it implements, what it is given, and the cell that holds it.

pub(crate) mod command;
pub(crate) mod poison;
pub(crate) mod replica_cell;
pub(crate) mod replicated;
pub(crate) mod schema;
pub(crate) mod service;
pub(crate) mod snapshot;
pub(crate) mod sync;
pub(crate) mod view_change;
