//! The client of Squall's groups as a C library, `libsquall_client`, of which libraries for other languages are made.
//!
//! `include/squall_client.h` is made of the documentation of [`api`] by `.ci/header`. All unsafe code is in that
//! module. It checks what comes from C, and hands values to `client`.

pub mod api;
mod client;
mod completions;
mod result;

pub use result::{SquallApplied, SquallCode, SquallResult};
