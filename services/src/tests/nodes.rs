//! Nodes in threads that offer services, on one host and at ports.
//!
//! The tests of crates that use services have this file too: their module brings the names of this crate.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use squall_fabric::{
    NodeId,
    net::{Identity, NetConfig, Security, certificate_name},
    tcp::{TcpConfig, TcpFabric},
};

use super::{Caller, DialTarget, Handler, Server, Service};

/// A limit that nothing here reaches unless it is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a cluster's name that no other test has.
pub(super) fn fresh_cluster() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-control-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The transport of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Host,
    Port,
    Tls,
}

pub(super) const WAYS: &[Way] = &[Way::Host, Way::Port, Way::Tls];

/// Returns the protection of a node's port; None without a port.
pub(super) fn security(way: Way, cluster: &str, id: u32) -> Option<Security> {
    match way {
        Way::Host => None,
        Way::Port => Some(Security::LoopbackOnly),
        Way::Tls => Some(Security::Tls(identity(cluster, NodeId(id)))),
    }
}

/// Returns the keys of a node, of the one authority that its cluster has.
fn identity(cluster: &str, node: NodeId) -> Identity {
    static ALL: Mutex<BTreeMap<String, CertifiedIssuer<'static, KeyPair>>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap();
    let authority = all.entry(cluster.to_owned()).or_insert_with(|| {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    });
    let params = CertificateParams::new(vec![certificate_name(cluster, node)]).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    Identity::from_pem(&authority.pem(), &certificate.pem(), &key.serialize_pem()).unwrap()
}

/// A node that offers services.
pub(super) struct Node {
    pub(super) caller: Caller,
    pub(super) contact: DialTarget,
    pub(super) server: Option<Server>,
    _fabric: Option<TcpFabric>,
}

impl Node {
    pub(super) fn start(way: Way, cluster: &str, id: u32, handlers: Vec<(Service, Handler)>) -> Node {
        let node = NodeId(id);
        let caller = caller(way, cluster, id);
        let Some(security) = security(way, cluster, id) else {
            let server = Some(Server::on_host(cluster, node, handlers).unwrap());
            let contact = DialTarget { node: Some(node), addresses: Vec::new() };
            return Node { caller, contact, server, _fabric: None };
        };
        let mut config = NetConfig::new(cluster, node);
        config.listen = vec!["127.0.0.1:0".to_owned()];
        config.security = security;
        let fabric = TcpFabric::open(TcpConfig::new(config)).unwrap();
        let server = Some(Server::at_port(node, |service| fabric.take_service(service), handlers).unwrap());
        let addresses = fabric.local_addrs().iter().map(ToString::to_string).collect();
        Node { caller, contact: DialTarget { node: Some(node), addresses }, server, _fabric: Some(fabric) }
    }
}

/// Returns a caller with a node's identity.
pub(super) fn caller(way: Way, cluster: &str, id: u32) -> Caller {
    match security(way, cluster, id) {
        None => Caller::on_host(cluster, NodeId(id)),
        Some(security) => Caller::on_network(cluster, NodeId(id), security),
    }
}
