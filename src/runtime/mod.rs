//! The threads that drive protocols: their waiting, their cores, and their clocks.

pub(crate) mod blocking;
pub mod bulk;
pub(crate) mod clock;
pub(crate) mod core_budget;
pub(crate) mod cores;
pub(crate) mod idle;
pub(crate) mod pace;
pub(crate) mod run_delay;
