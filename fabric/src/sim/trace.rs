//! The events of a run, for its reader.

use crate::{BreakReason, EndpointId, NodeId, Time};

/// An event in a simulated network.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum TraceEvent {
    /// A node posted work.
    #[display("{node} posts {op} of {bytes} bytes to {peer} (endpoint {})", endpoint.0)]
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
    #[display(
        "{to} gets {bytes} bytes, {op} of {from} {} (endpoint {})", if *whole { "ends" } else { "goes on" }, endpoint.0
    )]
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
    #[display("{node} is connected to {peer} (endpoint {})", endpoint.0)]
    Connected {
        /// The node.
        node: NodeId,
        /// Its peer.
        peer: NodeId,
        /// Its endpoint.
        endpoint: EndpointId,
    },
    /// An endpoint broke.
    #[display("{node} loses {peer}: {reason} (endpoint {})", endpoint.0)]
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
    #[display("{node} disconnects from {peer} (endpoint {})", endpoint.0)]
    Disconnected {
        /// The node.
        node: NodeId,
        /// Its peer.
        peer: NodeId,
        /// Its endpoint.
        endpoint: EndpointId,
    },
    /// A node started, for the first time or again.
    #[display("{_0} starts")]
    Started(NodeId),
    /// A node's process died.
    #[display("{_0} crashes")]
    Crashed(NodeId),
    /// A node's process stopped running for a while.
    #[display("{_0} stops running")]
    Paused(NodeId),
    /// A node's process goes on.
    #[display("{_0} runs again")]
    Resumed(NodeId),
    /// One direction between two nodes was cut.
    #[display("{from} no longer reaches {to}")]
    Cut {
        /// The node whose operations do not arrive.
        from: NodeId,
        /// The node that they do not reach.
        to: NodeId,
    },
    /// One direction between two nodes works again.
    #[display("{from} reaches {to} again")]
    Healed {
        /// The node whose operations arrive again.
        from: NodeId,
        /// The node that they reach.
        to: NodeId,
    },
}

/// A function that takes the events of a run as they happen. It must not call the network.
pub type Tracer = Box<dyn FnMut(Time, &TraceEvent)>;
