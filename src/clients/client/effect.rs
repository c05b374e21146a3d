//! The calls and watches that a client's protocol takes, and the actions that it asks for.

use squall_fabric::{NodeId, Time};
use squall_services::DialTarget;

use super::error::ClientError;
use crate::{
    calls::session::SessionId,
    clients::{
        changes::ChangePlace,
        wire::{Consistency, ToNode, ToldChange, WatchStart},
    },
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

/// The name of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WatchId(pub(crate) u64);

/// A watch that the application asks for.
#[derive(Clone, Debug)]
pub(crate) struct WatchRequest {
    pub(crate) prefix: Vec<u8>,
    pub(crate) start: WatchStart,
    /// The bytes of changes that may wait for the application. One change may exceed them.
    pub(crate) window: u64,
    /// The time by which it must have begun.
    pub(crate) begin_by: Time,
}

/// An event of a watch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum WatchEvent {
    /// The watch has begun behind this place, with the answer to its query. It comes once.
    Began(ChangePlace, Option<Vec<u8>>),
    /// Changes up to this place.
    Changes(ChangePlace, Vec<ToldChange>),
    /// The last event.
    Ended(ClientError),
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
    /// Something has happened to a watch.
    Watch(WatchId, WatchEvent),
}

impl Ask {
    /// Tells whether it is a command to which each member answers.
    pub(super) fn is_for_all(&self) -> bool {
        matches!(self, Ask::All(_))
    }

    /// Returns the effect that asks a query, if it is one.
    pub(super) fn query(&self, id: CallId) -> Option<ClientEffect> {
        let (Ask::Query(consistency, query) | Ask::TryQuery(consistency, query)) = self else { return None };
        let (number, consistency, query) = (id.0, *consistency, query.clone());
        Some(ClientEffect::Send(ToNode::Query { number, consistency, query }))
    }
}
