//! Groups as an application and its node use them: the handle, and the control of a group that lives.

pub(crate) mod control;
pub(crate) mod handle;
mod history;
pub(crate) mod log_source;
pub(crate) mod sharded;
