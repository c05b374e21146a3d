//! Serving clients: programs that use a group and are not members of it.
//!
//! ```text
//!   client ── stream ──▶ connection (reads) ──▶ group: a message with a trailer, to all members
//!                                                  │ delivered, at every member
//!   client ◀── stream ── connection (writes) ◀─── Served::take: the table of sessions, the application
//!                        its outbox, if the client
//!                        is connected here
//! ```
//!
//! A node knows only the connection of a client to which its answers go. All else is in the [table of
//! sessions](crate::calls::session), which is replicated. When a node fails, its clients go to another one, send again
//! what was not answered, and get the same answers.

#[cfg(all(test, not(squall_loom)))]
mod all_tests;
mod backend;
mod budget;
mod change_hub;
mod clients;
mod connection;
mod handle;
mod history;
#[cfg(all(test, not(squall_loom)))]
mod json_tests;
mod options;
mod outbox;
#[cfg(all(test, not(squall_loom)))]
mod overload_tests;
mod served;
mod server;
#[cfg(all(test, not(squall_loom)))]
mod sharded_tests;
#[cfg(all(test, not(squall_loom)))]
mod tests;
mod watch_limit;
mod watch_signal;
#[cfg(all(test, not(squall_loom)))]
mod watch_tests;
mod watching;

pub(crate) use self::{
    backend::ask,
    clients::Clients,
    server::{ServedEntry, Server},
};
#[cfg(feature = "sim")]
pub(crate) use self::{
    connection::{ConnectedClient, Passing},
    outbox::Outbox,
};
pub use self::{options::ServeOptions, served::Served};
