//! Access to groups and nodes for programs that are not members: clients, logs as a service, and operators.

pub mod admin;
pub(crate) mod ask;
pub(crate) mod asked_members;
pub(crate) mod changes;
pub mod client;
pub(crate) mod contacts;
pub mod log_service;
pub(crate) mod partition;
#[cfg(all(test, not(squall_loom)))]
mod protocol_page_tests;
pub(crate) mod query;
pub(crate) mod serve;
pub mod typed;
pub(crate) mod wire;
