//! The dialing of nodes as a configuration says.

use squall_fabric::NodeId;
use squall_services::{Caller, DialTarget};

use super::{FabricError, net_config};
use crate::config::{self, Config, carrier::Carrier};

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
