//! Opening the fabric that a configuration asks for.

pub(crate) mod dial;

use std::time::Duration;

use squall_fabric::{
    Fabric, NodeId,
    mixed::{MixedFabric, Transport},
    net::{
        DialError, Identity, IdentityError, NetConfig, Role, Security as NetSecurity, ServiceDial, ServiceId,
        dial_service,
    },
    shm::{ShmConfig, ShmError, ShmFabric},
    tcp::{TcpConfig, TcpError, TcpFabric},
};
use squall_membership::Member;

#[cfg(feature = "verbs")]
use squall_fabric::verbs::{VerbsConfig, VerbsDevice, VerbsError};

#[cfg(feature = "verbs")]
use crate::config::VerbsOptions;
use crate::config::{Address, Config, Security, carrier::Carrier};

/// The reason for which a node has no fabric.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// Shared memory could not be opened.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// Sockets could not be opened.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// RDMA could not be opened.
    #[cfg(feature = "verbs")]
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The node can't prove its identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The node's certificate is that of another node, of a client or an operator.
    #[error(
        "{certificate} is the certificate of {found}, but this is {node}: give this node's own, or put `{{id}}` in place of \
         the number in its path"
    )]
    OtherOwner {
        /// The certificate's file.
        certificate: String,
        /// The owner that it names.
        found: String,
        /// This node.
        node: NodeId,
    },
    /// The certificate of a witness, at a node that is to be a member.
    #[error(
        "{certificate} makes {node} a witness, which only votes, but its configuration makes it a member: make it one of a \
         member (`squall keys add --node {}`), or list it among the `witnesses`",
        node.0
    )]
    OnlyVotes {
        /// The certificate's file.
        certificate: String,
        /// The node.
        node: NodeId,
    },
    /// The node's certificate is for another cluster.
    #[error(
        "{certificate} is not for the cluster {cluster:?}: make one with the keys of this cluster (`squall keys add`), or \
         correct the cluster's name"
    )]
    OtherCluster {
        /// The certificate's file.
        certificate: String,
        /// This node's cluster.
        cluster: String,
    },
    /// A member could not be greeted.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// RDMA was asked for by a program that was built without it.
    #[error("this program was built without RDMA: build it with squall's feature `verbs`, which needs libibverbs")]
    NoVerbs,
}

/// A fabric that carries a node of a cluster.
pub(crate) trait NodeFabric: Fabric {
    /// Learns the addresses of a node that its configuration may not name.
    fn learn(&mut self, member: &Member);

    /// Returns the transport to a peer, in words, if it is known by now; and the reason for which that is not shared
    /// memory, though both are on one host.
    fn transport(&self, peer: NodeId) -> (Option<String>, Option<String>);
}

impl NodeFabric for MixedFabric {
    fn learn(&mut self, member: &Member) {
        self.learn(member.node, &member.addresses);
    }

    fn transport(&self, peer: NodeId) -> (Option<String>, Option<String>) {
        let (transport, unshared) = self.transport(peer);
        (transport.map(|transport| transport.to_string()), unshared.map(str::to_owned))
    }
}

#[cfg(feature = "sim")]
impl NodeFabric for squall_fabric::sim::SimFabric {
    fn learn(&mut self, _member: &Member) {}

    fn transport(&self, _peer: NodeId) -> (Option<String>, Option<String>) {
        (None, None)
    }
}

#[cfg(feature = "sim")]
impl<F: NodeFabric> NodeFabric for squall_fabric::hostile::HostileFabric<F> {
    fn learn(&mut self, member: &Member) {
        self.inner_mut().learn(member);
    }

    fn transport(&self, peer: NodeId) -> (Option<String>, Option<String>) {
        self.inner().transport(peer)
    }
}

/// The network configuration: the node's port, and its peers' addresses.
pub(crate) fn net_config(config: &Config) -> Result<NetConfig, FabricError> {
    let texts = |list: &[Address]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let mut net = NetConfig::new(config.cluster(), config.id());
    net.listen = texts(config.listen());
    let peers = config.members().iter().filter(|&&member| member != config.id());
    net.peers = peers.map(|&peer| (peer, texts(config.addresses(peer)))).filter(|(_, list)| !list.is_empty()).collect();
    net.failure_timeout = config.failure_timeout();
    net.security = match config.security() {
        Security::LoopbackOnly => NetSecurity::LoopbackOnly,
        Security::None => NetSecurity::None,
        Security::Tls(_) => NetSecurity::Tls(identity(config)?.expect("there are keys")),
    };
    Ok(net)
}

impl Config {
    /// Opens what [`carrier`](Config::carrier) says, as a node does: shared memory, sockets, RDMA, or several of them,
    /// each with the members that it reaches. For programs that use a fabric themselves, as [`Bulk`](crate::bulk::Bulk)
    /// does. Fails if one of them can't be opened, or if the keys that the configuration names can't be used.
    pub fn open_fabric(&self) -> Result<MixedFabric, FabricError> {
        let empty = |transport| MixedFabric::new(self.id(), transport);
        match self.carrier() {
            Carrier::Shm => Ok(empty(Transport::Shm).with_shm(self.open_shm()?)),
            Carrier::Tcp => Ok(empty(Transport::Tcp).with_tcp(self.open_tcp()?)),
            Carrier::Mixed => self.open_mixed(),
            #[cfg(feature = "verbs")]
            Carrier::Verbs => Ok(empty(Transport::Verbs).open_verbs(self.verbs_config(net_config(self)?))?),
            #[cfg(not(feature = "verbs"))]
            Carrier::Verbs => Err(FabricError::NoVerbs),
        }
    }

    /// Opens shared memory, whatever [`carrier`](Config::carrier) says: for programs to which the calls through a table
    /// that a mixed fabric makes count, tens of nanoseconds in a round trip. Fails if another process of this user has
    /// the node's id on this host, or if the system lacks resources.
    pub fn open_shm(&self) -> Result<ShmFabric, FabricError> {
        Ok(ShmFabric::open(ShmConfig::new(self.cluster(), self.id()))?)
    }

    /// Opens sockets, whatever [`carrier`](Config::carrier) says.
    pub(crate) fn open_tcp(&self) -> Result<TcpFabric, FabricError> {
        let mut tcp = TcpConfig::new(net_config(self)?);
        tcp.send_buffer_bytes = self.tcp().send_buffer_bytes;
        tcp.receive_buffer_bytes = self.tcp().receive_buffer_bytes;
        Ok(TcpFabric::open(tcp)?)
    }

    /// Opens shared memory, sockets, and RDMA if there is a device and there are no keys.
    fn open_mixed(&self) -> Result<MixedFabric, FabricError> {
        // Opened even if no other member is on this host yet: one may join.
        let fabric = MixedFabric::new(self.id(), Transport::Best).with_tcp(self.open_tcp()?).with_shm(self.open_shm()?);
        #[cfg(feature = "verbs")]
        match self.probe_verbs() {
            // Keys ask for encryption, which devices don't have.
            Ok(_) if matches!(self.security(), Security::Tls(_)) => {}
            Ok(_) => return Ok(fabric.open_verbs(self.verbs_config(net_config(self)?))?),
            Err(FabricError::Verbs(VerbsError::NoDevice)) => tracing::debug!("there is no RDMA here"),
            Err(error) => tracing::warn!(%error, "RDMA is not used"),
        }
        Ok(fabric)
    }

    /// Finds the RDMA device that the node would use, or the reason for which there is none. Opens nothing else. Fails
    /// with that reason.
    #[cfg(feature = "verbs")]
    pub fn probe_verbs(&self) -> Result<VerbsDevice, FabricError> {
        let mut net = NetConfig::new(self.cluster(), self.id());
        net.listen = self.listen().iter().map(ToString::to_string).collect();
        Ok(self.verbs_config(net).probe()?)
    }

    #[cfg(feature = "verbs")]
    fn verbs_config(&self, net: NetConfig) -> VerbsConfig {
        let mut verbs = VerbsConfig::new(net);
        let VerbsOptions { device, port, gid_index, traffic_class, service_level, partition_key } = self.verbs();
        (verbs.device, verbs.port, verbs.gid_index) = (device.clone(), *port, *gid_index);
        (verbs.traffic_class, verbs.service_level) = (*traffic_class, *service_level);
        verbs.partition_key = *partition_key;
        verbs
    }

    /// Dials a member as this node would, and takes leave again. Success means that the member runs, and would talk to
    /// this node. Disturbs neither, nor a node of this id that runs.
    ///
    /// Blocks for `timeout` at most.
    ///
    /// Fails if the member can't be reached or refuses, or if the keys that the configuration names can't be used.
    pub fn greet(&self, member: NodeId, timeout: Duration) -> Result<(), FabricError> {
        let net = net_config(self)?;
        let dial = ServiceDial {
            addresses: net.peers.get(&member).map_or(&[], Vec::as_slice),
            peer: Some(member),
            cluster: &net.cluster,
            node: net.node,
            security: &net.security,
            service: NO_SERVICE,
            connect_timeout: timeout,
            timeout,
        };
        match dial_service(&dial) {
            // A member that refuses the service has accepted the greeting.
            Err(DialError::NoService { .. }) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    /// Checks the keys that the configuration names, if it names any: that they can be read, belong together, are valid
    /// today, and are those of this node and cluster. A node that starts does the same. Fails if one of
    /// them does not hold.
    pub fn check_keys(&self) -> Result<(), FabricError> {
        identity(self).map(drop)
    }
}

/// A service that no node ever offers.
const NO_SERVICE: ServiceId = ServiceId(u32::MAX);

/// The keys that protect the node's port, if it has a port and keys.
pub(crate) fn port_identity(config: &Config) -> Result<Option<Identity>, FabricError> {
    if config.carrier() == Carrier::Shm { Ok(None) } else { identity(config) }
}

/// The node's keys, if there are any, as they are now in their files. They must be the node's own.
fn identity(config: &Config) -> Result<Option<Identity>, FabricError> {
    let Security::Tls(keys) = config.security() else { return Ok(None) };
    let mut shared = config.shared_identity().0.lock();
    let identity = match &*shared {
        Some(identity) => {
            identity.reload()?;
            identity.clone()
        }
        None => Identity::load(keys)?,
    };
    let certificate = || keys.certificate.display().to_string();
    let (owner, node) = (identity.principal(), config.id());
    if owner.node() != Some(node) {
        return Err(FabricError::OtherOwner { certificate: certificate(), found: owner.to_string(), node });
    }
    if !identity.is_for(config.cluster()) {
        let cluster = config.cluster().to_owned();
        return Err(FabricError::OtherCluster { certificate: certificate(), cluster });
    }
    if owner.role() == Role::Witness && !config.is_witness() {
        return Err(FabricError::OnlyVotes { certificate: certificate(), node });
    }
    *shared = Some(identity.clone());
    Ok(Some(identity))
}
