//! Streams between nodes beside the fabric: for what must not depend on tables, as the view log's messages, and for what is
//! not made of messages, as a replica's state or an operator's questions.
//!
//! A node offers numbered [services](Service). Who dials one, a node or a command, names the service, and both have a stream
//! of bytes. It is carried by what carries the cluster:
//!
//! ```text
//!  caller.dial(contact, service)                  Server: a thread for each stream, which calls the service's handler
//!        │ shm                  abstract Unix socket of the node, same user only                 ▲
//!        │ tcp, verbs, mixed    the node's one port: handshake, TLS where the cluster has a CA   │
//!        └──── hello: version, service, from, to ──▶ ◀── hello: version, verdict, node ──────────┘
//! ```
//!
//! Streams are blocking, with timeouts: what encrypts them is shared by both halves, and does not say when it could go on. So
//! who reads has a thread of its own, and one that has nothing to read costs nothing.

mod caller;
mod error;
pub(crate) mod frame;
mod hello;
pub(crate) mod local;
mod messenger;
mod peer;
mod server;
mod stream;
#[cfg(all(test, not(squall_loom)))]
mod tests;
pub(crate) mod transfer;

pub(crate) use self::{
    caller::{Caller, Contact},
    messenger::Messenger,
    server::{Handler, Server},
    stream::{ControlStream, HangUp, StreamReader, StreamWriter},
};
pub use self::{error::ControlError, frame::FrameError};

/// What a stream is for. The numbers are those of [`ServiceId`](squall_fabric::net::ServiceId)s; 1 is `squall cp`'s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Service {
    /// Messages of the view log.
    ViewLog = 2,
    /// A shard's state, for those who join.
    State = 3,
    /// An operator's questions and orders.
    Admin = 4,
    /// Commands and queries of clients, and of members that ask each other.
    Clients = 5,
    /// Durable groups' logs, for those who read them.
    Log = 6,
}

impl Service {
    const ALL: [Service; 5] = [Service::ViewLog, Service::State, Service::Admin, Service::Clients, Service::Log];

    fn of(number: u32) -> Option<Service> {
        Service::ALL.into_iter().find(|&service| service as u32 == number)
    }

    /// How many streams of it a node has at once; one more is told to come again.
    fn limit(self) -> usize {
        match self {
            // Two for each of the most members that there may be.
            Service::ViewLog => 128,
            Service::State => 4,
            Service::Admin => 16,
            Service::Clients => 1024,
            Service::Log => 256,
        }
    }
}
