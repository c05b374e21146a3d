//! The configuration with which a client finds its cluster.

use std::{ops::RangeInclusive, path::Path, time::Duration};

use squall_fabric::{NodeId, random};
use squall_services::{Caller, DialTarget};

use super::{core::SILENCE, error::ClientError};
use crate::{
    clients::{contacts::Contacts, wire::NODE_SILENCE},
    config::{Config, ConfigError, Security, carrier::Carrier},
    fabric::{FabricError, dial::network_caller},
};

/// The limits of [`ClientConfig::silence`]. A client pings three times in it, which must be far more often than a node
/// gives up a client that says nothing.
const SILENCES: RangeInclusive<Duration> = Duration::from_millis(100)..=NODE_SILENCE;

/// The way to a cluster, and the limits of a client's calls.
#[derive(Clone, Debug)]
pub struct ClientConfig {
    caller: Caller,
    contacts: Vec<DialTarget>,
    /// The time from a call to its deadline: 10 s.
    pub timeout: Duration,
    /// The number of calls that may wait at a time: 4096. As many commands for all members may wait besides.
    pub max_waiting: usize,
    /// The time of a member's silence after which the client goes to another one: 3 s. From 100 ms to 30 s, since after
    /// 30 s a member closes the connection of a silent client. The client pings a member that has been silent for a
    /// third of it.
    pub silence: Duration,
}

/// The reason for which a client's configuration can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientConfigError {
    /// The file can't be read, or is no configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The keys can't be used.
    #[error(transparent)]
    Keys(#[from] FabricError),
}

impl ClientConfig {
    /// The time from a call to its deadline, unless it is set.
    pub(super) const TIMEOUT: Duration = Duration::from_secs(10);

    /// Describes the cluster of a [configuration file](crate::config), which the environment overrides. Members' file
    /// will do, and so will one that has less:
    ///
    /// ```toml
    /// cluster = "bank"
    ///
    /// [addresses]
    /// 1 = "10.0.0.1:7700"
    /// 2 = "10.0.0.2:7700"
    ///
    /// [security]                      # made by `squall keys add --client web`
    /// ca = "keys/ca.pem"
    /// certificate = "keys/client-web.pem"
    /// key = "keys/client-web.key"
    /// ```
    ///
    /// It needs no `id`. Without addresses, the members run on this host. Fails if the file is no configuration, or if
    /// the keys that it names can't be used, or have `{id}` in their paths and there is no id.
    pub fn load(path: impl AsRef<Path>) -> Result<ClientConfig, ClientConfigError> {
        ClientConfig::described(&Config::load_for_client(path.as_ref(), None)?)
    }

    /// Describes the cluster of a file, as [`load`](ClientConfig::load) does, with the client's own keys instead of the
    /// file's.
    pub fn load_with(path: impl AsRef<Path>, security: Security) -> Result<ClientConfig, ClientConfigError> {
        ClientConfig::described(&Config::load_for_client(path.as_ref(), Some(security))?)
    }

    /// Describes the cluster of a configuration's text, as [`load`](ClientConfig::load) does. The environment does not
    /// override it, and paths in it are relative to the working directory.
    pub fn from_toml(text: &str) -> Result<ClientConfig, ClientConfigError> {
        ClientConfig::described(&Config::from_toml_for_client(text)?)
    }

    /// Describes a cluster whose nodes run on this host, over shared memory, as the same user. Some of the members
    /// suffice, if one of them runs.
    pub fn on_host(cluster: impl Into<String>, members: impl IntoIterator<Item = NodeId>) -> ClientConfig {
        let contacts = members.into_iter().map(DialTarget::on_host).collect();
        ClientConfig::new(Caller::on_host(cluster, NodeId::nameless()), contacts)
    }

    /// Describes a cluster on a network. `addresses` are those of some members, as `host:port`. With keys, the client
    /// has a certificate of the cluster's CA, which says what it may do (`squall keys add --client NAME`). Fails if
    /// the keys can't be used.
    pub fn on_network(
        cluster: impl Into<String>,
        addresses: impl IntoIterator<Item = impl Into<String>>,
        security: &Security,
    ) -> Result<ClientConfig, FabricError> {
        let contacts = addresses.into_iter().map(|address| DialTarget::at(address.into())).collect();
        Ok(ClientConfig::new(network_caller(cluster, security)?, contacts))
    }

    /// Describes the cluster of a configuration, with the members that it names. The client has the keys of the
    /// configuration's node. Fails if the keys that the configuration names can't be used, or are not those of its node
    /// and cluster.
    pub fn of(config: &Config) -> Result<ClientConfig, FabricError> {
        Ok(ClientConfig::new(config.caller()?, members_of(config)))
    }

    /// Describes the cluster of a configuration, as [`of`](ClientConfig::of) does, with keys of the client's own. Fails
    /// if these can't be used.
    pub fn of_with(config: &Config, security: &Security) -> Result<ClientConfig, FabricError> {
        Ok(ClientConfig::new(network_caller(config.cluster(), security)?, members_of(config)))
    }

    /// Describes a configuration's cluster to a client that is not the configuration's node.
    fn described(config: &Config) -> Result<ClientConfig, ClientConfigError> {
        Ok(match config.carrier() {
            Carrier::Shm => {
                ClientConfig::new(Caller::on_host(config.cluster(), NodeId::nameless()), members_of(config))
            }
            _ => ClientConfig::of_with(config, config.security())?,
        })
    }

    fn new(caller: Caller, contacts: Vec<DialTarget>) -> ClientConfig {
        let (timeout, silence) = (ClientConfig::TIMEOUT, SILENCE);
        ClientConfig { caller, contacts, timeout, max_waiting: 4096, silence }
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
        // Any turn is right: without a random number they are not spread.
        Contacts::new(self.contacts.clone(), random::number().unwrap_or_default() as usize)
    }

    /// Returns [`silence`](ClientConfig::silence), if it can be kept.
    pub(super) fn checked_silence(&self) -> Result<Duration, ClientError> {
        if SILENCES.contains(&self.silence) {
            return Ok(self.silence);
        }
        let (least, most) = (SILENCES.start(), SILENCES.end());
        Err(ClientError::Start(format!("its `silence` is {:?}: give {least:?} to {most:?}", self.silence)))
    }
}

fn members_of(config: &Config) -> Vec<DialTarget> {
    config.members().iter().map(|&member| config.contact(member)).chain(config.join_contacts()).collect()
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::fs;

    use super::*;

    fn load(text: &str) -> Result<ClientConfig, ClientConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("client.toml");
        fs::write(&path, format!("cluster = \"bank\"\n{text}")).unwrap();
        ClientConfig::load(path)
    }

    fn addresses(config: &ClientConfig) -> Vec<String> {
        config.contacts.iter().flat_map(|contact| contact.addresses.clone()).collect()
    }

    #[test]
    fn a_text_describes_a_cluster_as_a_file_does() {
        let text = "cluster = \"bank\"\nsecurity = \"none\"\n[addresses]\n7 = \"10.0.0.7:1\"\n";
        assert_eq!(addresses(&ClientConfig::from_toml(text).unwrap()), ["10.0.0.7:1"]);
        let error = ClientConfig::from_toml("cluster = \"bank\"\nmember = [1]\n").unwrap_err().to_string();
        assert!(error.contains("member") && error.contains('2'), "{error}");
    }

    #[test]
    fn a_client_needs_no_id_of_a_member() {
        let on_host = load("members = [3, 1, 2]\n").unwrap();
        assert_eq!(on_host.contacts, [1, 2, 3].map(|id| DialTarget::on_host(NodeId(id))));
        let remote = load("security = \"none\"\n[addresses]\n7 = \"10.0.0.7:1\"\n8 = \"10.0.0.8:1\"\n").unwrap();
        assert_eq!(addresses(&remote), ["10.0.0.7:1", "10.0.0.8:1"]);
        let contacts = load("security = \"none\"\njoin = [\"10.0.0.7:1\"]\n").unwrap();
        assert_eq!(addresses(&contacts), ["10.0.0.7:1"]);
    }

    #[test]
    fn keys_of_members_are_not_taken_for_a_clients() {
        let keys = "ca = \"ca.pem\"\ncertificate = \"node-{id}.pem\"\nkey = \"node-{id}.key\"\n";
        let error = load(&format!("addresses.1 = \"10.0.0.1:1\"\n[security]\n{keys}")).unwrap_err().to_string();
        assert!(error.contains("`security.certificate` has `{id}` in it"), "{error}");
        let error = load("addresses.1 = \"10.0.0.1:1\"\n").unwrap_err().to_string();
        assert!(error.contains("nothing protects it"), "{error}");
    }

    #[test]
    fn a_silence_is_below_that_of_nodes() {
        let mut config = ClientConfig::on_host("bank", [NodeId(1)]);
        assert_eq!(config.checked_silence().unwrap(), Duration::from_secs(3));
        for wrong in [Duration::ZERO, Duration::from_millis(99), Duration::from_millis(30_001)] {
            config.silence = wrong;
            assert!(matches!(config.checked_silence(), Err(ClientError::Start(_))), "{wrong:?}");
        }
    }
}
