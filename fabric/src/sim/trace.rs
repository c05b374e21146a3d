//! The events of a run, for its reader.

use std::fmt;

use crate::{BreakReason, EndpointId, NodeId, Time};

/// An event in a simulated network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A node posted work.
    Posted {
        /// The poster.
        node: NodeId,
        /// The node that the work goes to.
        peer: NodeId,
        /// The poster's endpoint.
        endpoint: EndpointId,
        /// The operation.
        op: &'static str,
        /// Its size in bytes.
        bytes: usize,
    },
    /// An operation, or a part of it, took effect at its target.
    Landed {
        /// The poster.
        from: NodeId,
        /// The target.
        to: NodeId,
        /// The target's endpoint.
        endpoint: EndpointId,
        /// The operation.
        op: &'static str,
        /// The number of bytes that landed now.
        bytes: usize,
        /// Whether it is complete.
        whole: bool,
    },
    /// A node is told that an endpoint is connected.
    Connected {
        /// The node.
        node: NodeId,
        /// Its peer.
        peer: NodeId,
        /// Its endpoint.
        endpoint: EndpointId,
    },
    /// An endpoint broke.
    Broke {
        /// The node.
        node: NodeId,
        /// Its peer.
        peer: NodeId,
        /// Its endpoint.
        endpoint: EndpointId,
        /// The reason.
        reason: BreakReason,
    },
    /// A node closed an endpoint.
    Disconnected {
        /// The node.
        node: NodeId,
        /// Its peer.
        peer: NodeId,
        /// Its endpoint.
        endpoint: EndpointId,
    },
    /// A node started, for the first time or again.
    Started {
        /// The node.
        node: NodeId,
    },
    /// A node's process died.
    Crashed {
        /// The node.
        node: NodeId,
    },
    /// A node's process stopped running for a while.
    Paused {
        /// The node.
        node: NodeId,
    },
    /// A node's process goes on.
    Resumed {
        /// The node.
        node: NodeId,
    },
    /// One direction between two nodes was cut.
    Cut {
        /// The node whose operations do not arrive.
        from: NodeId,
        /// The node that they do not reach.
        to: NodeId,
    },
    /// One direction between two nodes works again.
    Healed {
        /// The node whose operations arrive again.
        from: NodeId,
        /// The node that they reach.
        to: NodeId,
    },
}

impl fmt::Display for TraceEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceEvent::Posted { node, peer, endpoint, op, bytes } => {
                write!(f, "{node} posts {op} of {bytes} bytes to {peer} (endpoint {})", endpoint.0)
            }
            TraceEvent::Landed { from, to, endpoint, op, bytes, whole } => {
                let how = if *whole { "ends" } else { "goes on" };
                write!(f, "{to} gets {bytes} bytes, {op} of {from} {how} (endpoint {})", endpoint.0)
            }
            TraceEvent::Connected { node, peer, endpoint } => {
                write!(f, "{node} is connected to {peer} (endpoint {})", endpoint.0)
            }
            TraceEvent::Broke { node, peer, endpoint, reason } => {
                write!(f, "{node} loses {peer}: {reason} (endpoint {})", endpoint.0)
            }
            TraceEvent::Disconnected { node, peer, endpoint } => {
                write!(f, "{node} disconnects from {peer} (endpoint {})", endpoint.0)
            }
            TraceEvent::Started { node } => write!(f, "{node} starts"),
            TraceEvent::Crashed { node } => write!(f, "{node} crashes"),
            TraceEvent::Paused { node } => write!(f, "{node} stops running"),
            TraceEvent::Resumed { node } => write!(f, "{node} runs again"),
            TraceEvent::Cut { from, to } => write!(f, "{from} no longer reaches {to}"),
            TraceEvent::Healed { from, to } => write!(f, "{from} reaches {to} again"),
        }
    }
}

/// A function that takes the events of a run as they happen. It must not call the network.
pub type Tracer = Box<dyn FnMut(Time, &TraceEvent)>;
