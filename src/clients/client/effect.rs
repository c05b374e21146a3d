//! The calls that a client's protocol takes, and the actions that it asks for.

use squall_services::DialTarget;

use super::error::ClientError;
use crate::clients::wire::{Consistency, ToNode};

/// The name of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallId(pub(crate) u64);

/// The request of a call.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// A command, as bytes.
    Command(Vec<u8>),
    /// A query, as bytes.
    Query(Consistency, Vec<u8>),
    /// The number of the group's shards.
    Shards,
}

/// An action for the client's threads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ClientEffect {
    /// Connect to a member, and report the outcome with [`ClientCore::connected`] or [`ClientCore::broken`].
    Dial(DialTarget),
    /// Send this message on the connection.
    Send(ToNode),
    /// End the connection, or the attempt. It may report nothing after that.
    HangUp,
    /// A call is resolved.
    Resolve(CallId, Result<Vec<u8>, ClientError>),
}
