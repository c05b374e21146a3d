//! The atomics that several threads touch: loom's under `--cfg squall_loom`, else the standard ones.

#[cfg(squall_loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(squall_loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
