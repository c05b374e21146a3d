//! Streams between nodes beside the fabric. They carry what must not depend on tables, such as the view log's messages,
//! and what does not consist of messages, such as a replica's state or an operator's requests.
//!
//! A node offers numbered [services](Service). The caller, a node or a command, names the service, and both sides then
//! have a stream of bytes. The stream uses the cluster's own transport:
//!
//! ```text
//!  caller.dial(contact, service)                  Server: a thread for each stream, which calls the service's handler
//!        │ shm                  Unix socket of the node, same user only                          ▲
//!        │ tcp, verbs, mixed    the node's one port: handshake, TLS where the cluster has a CA   │
//!        └──── hello: version, service, from, to ──▶ ◀── hello: version, verdict, node ──────────┘
//! ```
//!
//! Streams are blocking, with timeouts: the encryption is shared by both halves, and does not report when it could
//! continue. So each reader has a thread of its own, and one that has nothing to read costs nothing.

mod caller;
mod descriptors;
mod error;
pub mod frame;
mod hello;
pub mod local;
mod messenger;
mod peer;
mod server;
mod stream;
#[cfg(test)]
mod tests;

use squall_fabric::net::ServiceId;

pub use self::{
    caller::{Caller, DialTarget},
    descriptors::{DescriptorReader, MOST_DESCRIPTORS},
    messenger::{MessageSender, Messenger},
    server::{Handler, Server},
    stream::{ControlStream, HangUp, StreamReader, StreamWriter},
};
pub use self::{error::ControlError, frame::FrameError};

/// The purpose of a stream. The numbers are those of [`ServiceId`]s.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Service {
    /// Messages of the view log.
    ViewLog = ServiceId::VIEW_LOG.0 as isize,
    /// A shard's state, for nodes that join.
    State = ServiceId::STATE.0 as isize,
    /// An operator's requests and orders.
    Admin = ServiceId::ADMIN.0 as isize,
    /// Commands and queries of clients, and of members that ask each other.
    Clients = ServiceId::CLIENTS.0 as isize,
    /// Durable groups' logs, for their readers.
    Log = ServiceId::LOG.0 as isize,
}

impl Service {
    const ALL: [Service; 5] = [Service::ViewLog, Service::State, Service::Admin, Service::Clients, Service::Log];

    /// Returns its number, whose form in messages is its name.
    pub fn id(self) -> ServiceId {
        ServiceId(self as u32)
    }

    fn of(number: u32) -> Option<Service> {
        Service::ALL.into_iter().find(|&service| service as u32 == number)
    }
}
