//! The configuration with which a client finds its cluster.

use std::time::Duration;

use squall_fabric::{NodeId, net::Security};
use squall_services::{Caller, DialTarget};

use crate::{clients::contacts::Contacts, config::Config, fabric::FabricError};

/// The way to a cluster, and the limits of a client's calls.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    caller: Caller,
    contacts: Vec<DialTarget>,
    /// The time from a call to its deadline: 10 s.
    pub timeout: Duration,
    /// The number of calls that may wait at a time: 4096.
    pub max_waiting: usize,
}

impl ClientConfig {
    /// The time from a call to its deadline, unless it is set.
    pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

    /// Describes a cluster whose nodes run on this host, over shared memory, as the same user. Some of the members
    /// suffice, if one of them runs.
    pub fn on_host(cluster: impl Into<String>, members: impl IntoIterator<Item = NodeId>) -> ClientConfig {
        let contacts = members.into_iter().map(DialTarget::on_host).collect();
        ClientConfig::new(Caller::on_host(cluster, NodeId::nameless()), contacts)
    }

    /// Describes a cluster on a network. `addresses` are those of some members, as `host:port`. With keys, the client
    /// has a certificate of the cluster's CA, which says what it may do (`squall keys add --client NAME`).
    pub fn on_network(
        cluster: impl Into<String>,
        addresses: impl IntoIterator<Item = impl Into<String>>,
        security: Security,
    ) -> ClientConfig {
        let contacts = addresses.into_iter().map(|address| DialTarget::at(address.into())).collect();
        let node = security.node().unwrap_or_else(NodeId::nameless);
        ClientConfig::new(Caller::on_network(cluster, node, security), contacts)
    }

    /// Describes the cluster of a configuration, with the members that it names. The client has the keys of the
    /// configuration's node. Fails if the keys that the configuration names can't be used, or are not those of its node
    /// and cluster.
    pub fn of(config: &Config) -> Result<ClientConfig, FabricError> {
        Ok(ClientConfig::new(config.caller()?, members_of(config)))
    }

    /// Describes the cluster of a configuration, as [`of`](ClientConfig::of) does, with keys of the client's own.
    pub fn of_with(config: &Config, security: Security) -> ClientConfig {
        let node = security.node().unwrap_or_else(NodeId::nameless);
        ClientConfig::new(Caller::on_network(config.cluster(), node, security), members_of(config))
    }

    fn new(caller: Caller, contacts: Vec<DialTarget>) -> ClientConfig {
        ClientConfig { caller, contacts, timeout: ClientConfig::TIMEOUT, max_waiting: 4096 }
    }

    /// Sets the time from a call to its deadline.
    pub fn with_timeout(mut self, timeout: Duration) -> ClientConfig {
        self.timeout = timeout;
        self
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    pub(crate) fn contacts(&self) -> Contacts {
        Contacts::new(self.contacts.clone(), fastrand::usize(..))
    }
}

fn members_of(config: &Config) -> Vec<DialTarget> {
    config.members().iter().map(|&member| config.contact(member)).chain(config.join_contacts()).collect()
}
