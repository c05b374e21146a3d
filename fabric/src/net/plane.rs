//! The seam between the control thread and a fabric's polling thread.

use std::net::TcpStream;

use super::tls::Session;
use crate::{BreakReason, EndpointId, GroupTag, NodeId, control::Untaken};

/// The most that a set-up holds.
pub(crate) const SET_UP_BYTES: usize = 128 << 10;

/// The most that one [`Command::Tell`] carries.
pub(crate) const TELL_BYTES: usize = 4 << 10;

/// The fabric that an endpoint belongs to. Both sides of a connection are of the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Plane {
    /// TCP: each pair of endpoints gets a stream.
    Tcp = 0,
    /// RDMA verbs: the set-ups are all that is exchanged.
    Verbs = 1,
    /// A choice between the fabrics of nodes that have several: only set-ups are exchanged, and what is told.
    Choice = 2,
}

/// A request of a polling thread.
pub(crate) enum Command {
    /// Has an endpoint meet its counterpart.
    Connect(Connect),
    /// Gives the counterpart of a paired endpoint these bytes (at most [`TELL_BYTES`]), in order, before a later
    /// `Close`.
    Tell { endpoint: EndpointId, bytes: Vec<u8> },
    /// An endpoint is no more; its counterpart shall learn the reason: `PeerClosed` for a plain disconnect.
    Close { endpoint: EndpointId, reason: BreakReason },
}

/// This side's part of a connection.
pub(crate) struct Connect {
    pub(crate) endpoint: EndpointId,
    pub(crate) peer: NodeId,
    pub(crate) tag: GroupTag,
    /// The fabric's message to the counterpart, at most [`SET_UP_BYTES`].
    pub(crate) set_up: Vec<u8>,
}

/// News for a polling thread.
pub(crate) enum Event {
    /// A connection that both sides have asked for.
    Paired(Box<Paired>),
    /// Bytes that the counterpart has told.
    Told { endpoint: EndpointId, bytes: Vec<u8>, _untaken: Untaken },
    /// The endpoint is no more. Nothing follows for it, nor for one that was closed here, except events on their way.
    Broken { endpoint: EndpointId, reason: BreakReason },
}

/// A connection that has come about.
pub(crate) struct Paired {
    pub(crate) endpoint: EndpointId,
    /// The message of the counterpart's fabric.
    pub(crate) set_up: Vec<u8>,
    /// The connection of its own, in the `tcp` plane.
    pub(crate) stream: Option<DataStream>,
}

/// A connection that passed the handshake.
pub(crate) struct DataStream {
    /// Non-blocking, without Nagle's delay.
    pub(crate) socket: TcpStream,
    pub(crate) tls: Option<Session>,
    /// Bytes that were read behind the handshake, as they came (encrypted, where there is TLS).
    pub(crate) early: Vec<u8>,
}
