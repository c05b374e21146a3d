//! How a node's port is opened, and why it may not be.

use std::{collections::BTreeMap, time::Duration};

use super::identity::Identity;
use crate::NodeId;

/// What protects a node's port.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// Nothing, and so the node listens on loopback addresses only.
    #[default]
    LoopbackOnly,
    /// Nothing, on any address: whoever reaches the port can join, read and write. For networks that nobody else is on.
    None,
    /// TLS 1.3; both sides show a certificate of the cluster's CA that names their node.
    Tls(Identity),
}

/// The settings of a node's port.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NetConfig {
    /// The cluster's name, 1 to 64 bytes. Nodes of different clusters never meet.
    pub cluster: String,
    /// This node's id, unique in its cluster.
    pub node: NodeId,
    /// Where to listen, as `host:port`; port 0 takes a free one. None: this node dials all others and nobody can dial it.
    pub listen: Vec<String>,
    /// Where the peers listen, as `host:port`, in the order in which they are tried.
    pub peers: BTreeMap<NodeId, Vec<String>>,
    /// What protects the port.
    pub security: Security,
    /// A peer that nothing was heard of for so long is given up; heartbeats go four times as often.
    pub failure_timeout: Duration,
    /// How long a connection may take to say who it is.
    pub handshake_timeout: Duration,
    /// How many connections may be in that state; one more closes the oldest.
    pub max_strangers: usize,
    /// The version of the protocol that is spoken, for tests.
    #[doc(hidden)]
    pub protocol: u32,
}
