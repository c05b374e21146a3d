//! The dialing of a node's services.

use std::time::Duration;

use squall_fabric::{
    NodeId,
    name::check_name,
    net::{DialError, Security, ServiceDial, dial_service},
};

use super::{
    ControlError, ControlStream, Service, hello,
    local::{self, LocalError},
};

/// The prefix of a node's name on its host.
pub(super) const KIND: &str = "squall-node";

/// Returns a node's name on its host.
pub(super) fn name(cluster: &str, node: NodeId) -> String {
    format!("{cluster}/{}", node.0)
}

/// A node to dial, with its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DialTarget {
    /// The node; None for any node of the cluster that listens at the addresses.
    pub node: Option<NodeId>,
    /// The addresses, as `host:port`, in the order in which they are tried; none on one host.
    pub addresses: Vec<String>,
}

impl DialTarget {
    /// Names a node of this host, or one whose addresses are not known.
    pub fn on_host(node: NodeId) -> DialTarget {
        DialTarget { node: Some(node), addresses: Vec::new() }
    }

    /// Names the node that listens at an address, whichever that is.
    pub fn at(address: impl ToString) -> DialTarget {
        DialTarget { node: None, addresses: vec![address.to_string()] }
    }
}

/// The identity with which a process dials, and its security.
#[derive(Clone, Debug)]
pub struct Caller {
    cluster: String,
    node: NodeId,
    /// The protection of streams over a network; None if all nodes are on this host.
    security: Option<Security>,
}

impl Caller {
    /// Makes a caller of nodes that share this host's memory.
    pub fn on_host(cluster: impl Into<String>, node: NodeId) -> Caller {
        Caller { cluster: cluster.into(), node, security: None }
    }

    /// Makes a caller of nodes at their ports.
    pub fn on_network(cluster: impl Into<String>, node: NodeId, security: Security) -> Caller {
        Caller { cluster: cluster.into(), node, security: Some(security) }
    }

    /// Returns the identity of the caller.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Tells whether a node can be dialed at all, with what the contact says of it.
    pub(super) fn can_dial(&self, to: &DialTarget) -> bool {
        match self.security {
            None => to.node.is_some(),
            Some(_) => !to.addresses.is_empty(),
        }
    }

    /// Opens a stream to a service. It waits for about `timeout` at most; the stream itself has no timeout. Fails if
    /// the cluster's name or the keys can't be used, if the node is not found or does not answer in time, or if it
    /// refuses the service.
    pub fn dial(&self, to: &DialTarget, service: Service, timeout: Duration) -> Result<ControlStream, ControlError> {
        self.dial_within(to, service, timeout, timeout).map_err(|error| match error {
            // Members that dial again and again are spared the look at all sockets of the host.
            ControlError::Absent { node, .. } if local::another_user_has(KIND, &name(&self.cluster, node)) => {
                ControlError::OtherUser { node }
            }
            error => error,
        })
    }

    /// Opens a stream as [`dial`](Caller::dial) does, but waits no longer than `connect_timeout` for a node that is not
    /// there. Fails as `dial` does.
    pub fn dial_within(
        &self,
        to: &DialTarget,
        service: Service,
        connect_timeout: Duration,
        timeout: Duration,
    ) -> Result<ControlStream, ControlError> {
        let cluster = &self.cluster;
        check_name(cluster).map_err(|rule| ControlError::Name { cluster: cluster.clone(), rule })?;
        let cut = |cause| ControlError::Cut { node: to.node, cause };
        let mut stream = match &self.security {
            None => self.dial_host(to.node.ok_or(ControlError::NoNode)?)?,
            Some(_) if to.addresses.is_empty() => return Err(ControlError::NoAddress { node: to.node }),
            Some(security) => ControlStream::port(
                dial_service(&ServiceDial {
                    addresses: &to.addresses,
                    peer: to.node,
                    cluster,
                    node: self.node,
                    security,
                    service: service.id(),
                    connect_timeout,
                    timeout,
                })
                .map_err(|error| match (error, to.node) {
                    (DialError::Busy { service, .. }, Some(node)) => ControlError::Busy { node, service },
                    (error, _) => error.into(),
                })?,
            ),
        };
        stream.set_timeout(Some(timeout)).map_err(cut)?;
        hello::call(&mut stream, self.node, service)?;
        stream.set_timeout(None).map_err(cut)?;
        Ok(stream)
    }

    fn dial_host(&self, node: NodeId) -> Result<ControlStream, ControlError> {
        let socket = local::dial(KIND, &name(&self.cluster, node)).map_err(|error| match error {
            LocalError::OtherUser => ControlError::OtherUser { node },
            LocalError::System(cause) => ControlError::Cut { node: Some(node), cause },
            LocalError::Absent | LocalError::Taken => ControlError::Absent { node, cluster: self.cluster.clone() },
        })?;
        Ok(ControlStream::local(node, socket))
    }
}
