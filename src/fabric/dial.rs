//! The dialing of nodes as a configuration says.

use squall_fabric::{NodeId, net};
use squall_services::{Caller, DialTarget};

use super::{FabricError, net_config};
use crate::config::{self, Config, Security, carrier::Carrier};

/// A caller of a cluster's ports with keys of its own, which need not be a node.
pub(crate) fn network_caller(cluster: impl Into<String>, security: &Security) -> Result<Caller, FabricError> {
    let (cluster, loaded) = (cluster.into(), security.load()?);
    if let (net::Security::Tls(identity), Security::Tls(keys)) = (&loaded, security)
        && !identity.is_for(&cluster)
    {
        return Err(FabricError::OtherCluster { certificate: keys.certificate.display().to_string(), cluster });
    }
    Ok(Caller::on_network(cluster, loaded.node().unwrap_or_else(NodeId::nameless), loaded))
}

impl Config {
    /// Returns the identity with which the node dials others.
    pub(crate) fn caller(&self) -> Result<Caller, FabricError> {
        let (cluster, node) = (self.cluster(), self.id());
        match self.carrier() {
            Carrier::Shm => Ok(Caller::on_host(cluster, node)),
            Carrier::Tcp | Carrier::Verbs | Carrier::Mixed => {
                Ok(Caller::on_network(cluster, node, net_config(self)?.security))
            }
        }
    }

    /// Returns what this configuration says of a node's addresses.
    pub fn contact(&self, node: NodeId) -> DialTarget {
        DialTarget { node: Some(node), addresses: self.addresses(node).iter().map(ToString::to_string).collect() }
    }

    /// Returns the nodes that this node asks when it joins.
    pub fn join_contacts(&self) -> Vec<DialTarget> {
        let contact = |to: &config::Contact| match to {
            config::Contact::Node(node) => self.contact(*node),
            config::Contact::Address(address) => DialTarget::at(address),
        };
        self.join().iter().map(contact).collect()
    }
}
