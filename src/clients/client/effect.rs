//! The calls that a client's protocol takes, and the actions that it asks for.

use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::error::ClientError;
use crate::{
    calls::session::SessionId,
    clients::wire::{Consistency, ToNode},
};

/// The name of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CallId(pub(crate) u64);

/// The request of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// A command, as bytes.
    Command(Vec<u8>),
    /// A query, as bytes.
    Query(Consistency, Vec<u8>),
    /// The number of the group's shards.
    Shards,
    /// A command, as bytes, to which each member of the shard answers.
    All(Vec<u8>),
    /// A query, as bytes, to this member.
    At(NodeId, Consistency, Vec<u8>),
    /// A query, as bytes, to the nearest member.
    Nearest(Consistency, Vec<u8>),
    /// The answer of one member to a request of a session, over a connection to it alone.
    Answer(SessionId, u64),
    /// A query that fails with the connection, so that it can be asked elsewhere.
    TryQuery(Consistency, Vec<u8>),
    /// The time to a member and back, in nanoseconds.
    Probe,
}

/// The call of a client for which it asks one member, over a connection to it alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberCall {
    Of(CallId),
    /// None: the way is measured.
    Probe,
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
    /// A command for all was sent, and these members are to answer.
    Sent(CallId, Vec<NodeId>),
    /// A member's answer to a command for all. Once all have come, the call is resolved.
    Reply(CallId, NodeId, Result<Vec<u8>, ClientError>),
    /// Ask this member over a [connection to it alone](ClientCore::pinned), and report the result with
    /// [`ClientCore::told_at`].
    AskAt { call: MemberCall, member: DialTarget, ask: Ask, deadline: Time },
    /// End the connection to this member alone, if there is one.
    Forget(NodeId),
}
