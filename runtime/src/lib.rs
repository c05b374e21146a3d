//! The threads that drive protocols: their waiting, their cores, and the delay of the host.
//!
//! Protocols neither wait nor know of threads. A thread that drives one takes a step. If the step found nothing, the
//! thread asks its [`Backoff`] for the way to wait. That depends on what the program wants ([`Spin`]), on the kind of
//! thread, and on the cores that the host can spare ([`CoreBudget`]).

mod backoff;
pub mod blocking;
mod core_budget;
pub mod cores;
mod run_delay;

pub use backoff::{Backoff, BackoffProfile, Rest, Spin};
pub use core_budget::CoreBudget;
pub use run_delay::RunDelay;
