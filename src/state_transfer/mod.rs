//! The transfer of a replica's state, or of the end of its log, to a member that lacks it.

pub(crate) mod control;
pub(crate) mod fetcher;
pub(crate) mod install;
pub(crate) mod offer;
mod remote_log;
pub(crate) mod wire;

#[cfg(all(test, not(squall_loom)))]
mod tests;
