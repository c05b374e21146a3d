//! The settings of a node's port, and the errors of opening one.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use super::identity::Identity;
use crate::NodeId;

/// The protection of a node's port.
#[derive(Clone, Debug, Default)]
pub enum Security {
    /// No keys, and so the node listens on loopback addresses only, and dials no others. Only processes of the same
    /// user are trusted: the kernel tells whose they are.
    #[default]
    LoopbackOnly,
    /// No protection, on any address: any process that reaches the port can join, read and write. For networks without
    /// other users.
    None,
    /// TLS 1.3; both sides show a certificate of the cluster's CA, whose owner may do what [its role](super::Role) may.
    Tls(Identity),
}

impl Security {
    /// The id under which the owner of the certificate introduces itself, if there is one.
    pub fn node(&self) -> Option<NodeId> {
        match self {
            Security::Tls(identity) => Some(identity.node()),
            Security::LoopbackOnly | Security::None => None,
        }
    }

    /// Whether it is enough for connections with that address.
    pub(super) fn permits(&self, address: SocketAddr) -> bool {
        !matches!(self, Security::LoopbackOnly) || address.ip().to_canonical().is_loopback()
    }
}

/// The reason for which an address is not dialed that the node's protection does not permit.
pub(super) const UNPROTECTED: &str = "it is not dialed without protection: configure a CA, or write \
     `security = \"none\"` if only this cluster is on that network; to a command give --keys DIR or --security none";

/// The settings of a node's port.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NetConfig {
    /// The cluster's name, 1 to 64 bytes. Nodes of different clusters never meet.
    pub cluster: String,
    /// This node's id, unique in its cluster.
    pub node: NodeId,
    /// The addresses to listen at, as `host:port`; port 0 takes a free one. None: this node dials all others, and no
    /// node can dial it.
    pub listen: Vec<String>,
    /// The addresses of the peers, as `host:port`, in the order in which they are tried.
    pub peers: BTreeMap<NodeId, Vec<String>>,
    /// The protection of the port.
    pub security: Security,
    /// The time after which a peer that nothing was heard of is given up; heartbeats go four times as often.
    pub failure_timeout: Duration,
    /// The time within which a connection's other end must say which node it is.
    pub handshake_timeout: Duration,
    /// The number of connections that may be in that state; one more closes the oldest of the address with the most.
    pub max_pending_peers: usize,
    /// The version of the protocol that is spoken, for tests.
    #[doc(hidden)]
    pub protocol: u32,
}

/// The version of the protocol.
pub(super) const PROTOCOL: u32 = 2;

/// The longest cluster name, in bytes.
pub const CLUSTER_BYTES: usize = 64;

impl NetConfig {
    /// The defaults, for a node of a cluster: it listens nowhere, knows no peers, and has no protection.
    pub fn new(cluster: impl Into<String>, node: NodeId) -> NetConfig {
        NetConfig {
            cluster: cluster.into(),
            node,
            listen: Vec::new(),
            peers: BTreeMap::new(),
            security: Security::LoopbackOnly,
            failure_timeout: Duration::from_secs(1),
            handshake_timeout: Duration::from_secs(8),
            max_pending_peers: 256,
            protocol: PROTOCOL,
        }
    }

    pub(super) fn check(&self) -> Result<(), NetError> {
        check_cluster(&self.cluster)?;
        if self.node == NodeId(u32::MAX) {
            return Err(NetError::NodeId);
        }
        let timeouts = MIN_TIMEOUT..=MAX_TIMEOUT;
        if !timeouts.contains(&self.failure_timeout) || !timeouts.contains(&self.handshake_timeout) {
            return Err(NetError::Timeout);
        }
        if let Security::Tls(identity) = &self.security {
            check_identity(identity, &self.cluster, self.node)?;
        }
        Ok(())
    }
}

/// The shortest timeout: a shorter one would be over before a busy machine has looked once.
const MIN_TIMEOUT: Duration = Duration::from_millis(20);

/// The longest timeout: times in so far a future are still known to the clocks.
pub(super) const MAX_TIMEOUT: Duration = Duration::from_hours(24);

pub(super) fn check_cluster(cluster: &str) -> Result<(), NetError> {
    match cluster.len() {
        1..=CLUSTER_BYTES => Ok(()),
        bytes => Err(NetError::ClusterName { bytes }),
    }
}

pub(super) fn check_identity(identity: &Identity, cluster: &str, node: NodeId) -> Result<(), NetError> {
    if identity.node() != node {
        return Err(NetError::OtherNode { named: identity.node(), node });
    }
    if !identity.is_for(cluster) {
        return Err(NetError::OtherCluster { cluster: cluster.to_owned() });
    }
    Ok(())
}

/// The reason for which a node's port could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// The cluster's name is empty or too long.
    #[error("a cluster name of {bytes} bytes can't be used: take 1 to {CLUSTER_BYTES}")]
    ClusterName {
        /// The name's length.
        bytes: usize,
    },
    /// The number is reserved, and can't be a node's id.
    #[error("{} can't be a node's id: take a smaller number", u32::MAX)]
    NodeId,
    /// A timeout is too short or too long.
    #[error("the failure timeout and the handshake timeout must be at least 20 ms, and a day at most")]
    Timeout,
    /// The address is not one, or can't be listened at.
    #[error("it is not possible to listen at {address:?}: {cause}; write `host:port` or `[IPv6 address]:port`")]
    ListenAddress {
        /// The address that was asked for.
        address: String,
        /// The system's message.
        cause: String,
    },
    /// Another socket has the address.
    #[error("the address {address} is in use: stop the process that listens there, or listen at another port")]
    AddressInUse {
        /// The address.
        address: SocketAddr,
    },
    /// The address belongs to another host.
    #[error("{address} is not an address of this host: listen at one that `ip address` shows, or at 0.0.0.0")]
    NotLocal {
        /// The address.
        address: SocketAddr,
    },
    /// An address that is not loopback, at which a node without protection does not listen.
    #[error(
        "listening at {address} without protection is refused, for every program that reaches it could join, read and write: \
         configure a CA (`squall keys init` makes one), or write `security = \"none\"` if only this cluster is on that network"
    )]
    NotLoopback {
        /// The address.
        address: SocketAddr,
    },
    /// The certificate is another node's.
    #[error("the certificate names {named}, but this is {node}: give the certificate of this node")]
    OtherNode {
        /// The certificate's node.
        named: NodeId,
        /// This node.
        node: NodeId,
    },
    /// The certificate is for another cluster.
    #[error(
        "the certificate is not for cluster {cluster:?}: make one with `squall keys add` for this cluster, or correct its name"
    )]
    OtherCluster {
        /// This node's cluster.
        cluster: String,
    },
    /// The system refused something that the port can't do without.
    #[error("the node's port could not be opened: it was not possible to {attempt}: {cause}")]
    System {
        /// The attempt that failed.
        attempt: &'static str,
        /// The system's message.
        cause: String,
    },
}
