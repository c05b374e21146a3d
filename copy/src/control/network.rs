//! The meeting of source and receivers over a network: by addresses, each receiver at its node's one port.
//!
//! A receiver's node id is that of its certificate, and random without certificates; a caller learns it. A source
//! listens nowhere: it dials all receivers, and tells each the addresses of the others.

use std::time::Duration;

use crossbeam::channel::Receiver;
use squall_fabric::{
    NodeId,
    mixed::{MixedFabric, Transport},
    net::{DialError, NetConfig, Security, ServiceDial, ServiceId, ServiceStream, dial_service},
    tcp::{TcpConfig, TcpError, TcpFabric},
};
use squall_services::ControlStream;

/// The time that a receiver has to answer a call.
const PATIENCE: Duration = Duration::from_secs(5);

/// The addresses at which a receiver listens, and their protection.
#[derive(Clone, Debug)]
pub struct ReceiverNetwork {
    /// The addresses, `host:port`, one or more.
    pub listen: Vec<String>,
    /// The protection of the port. Without TLS a receiver listens on loopback addresses only, unless told otherwise;
    /// any user of this host that reaches it can send files.
    pub security: Security,
}

fn config(cluster: &str, security: &Security) -> NetConfig {
    let node = security.node().unwrap_or_else(|| NodeId(fastrand::u32(..u32::MAX)));
    let mut config = NetConfig::new(cluster, node);
    config.security = security.clone();
    config
}

/// Opens a receiver's fabric, and returns it with the calls that come in.
pub(crate) fn open_receiver(
    cluster: &str,
    network: &ReceiverNetwork,
) -> Result<(MixedFabric, Receiver<ServiceStream>), TcpError> {
    let mut config = config(cluster, &network.security);
    config.listen.clone_from(&network.listen);
    let node = config.node;
    let fabric = TcpFabric::open(TcpConfig::new(config))?;
    let calls = fabric.take_service(ServiceId::COPIES);
    Ok((MixedFabric::new(node, Transport::Tcp).with_tcp(fabric), calls))
}

/// The identity and the security with which a source calls receivers.
pub(crate) struct Caller(NetConfig);

impl Caller {
    /// Opens a source's fabric.
    pub(crate) fn open(cluster: &str, security: &Security) -> Result<(MixedFabric, Caller), TcpError> {
        let config = config(cluster, security);
        let fabric = TcpFabric::open(TcpConfig::new(config.clone()))?;
        Ok((MixedFabric::new(config.node, Transport::Tcp).with_tcp(fabric), Caller(config)))
    }

    /// Calls the receiver at an address.
    pub(crate) fn call(&self, address: &str) -> Result<ControlStream, DialError> {
        let Caller(NetConfig { cluster, node, security, .. }) = self;
        dial_service(&ServiceDial {
            addresses: &[address.to_owned()],
            peer: None,
            cluster,
            node: *node,
            security,
            service: ServiceId::COPIES,
            connect_timeout: PATIENCE,
            timeout: PATIENCE,
        })
        .map(ControlStream::port)
    }
}
