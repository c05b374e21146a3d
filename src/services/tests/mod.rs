//! Nodes in threads, on one host and at ports.

mod messages;
mod states;
mod streams;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use squall_fabric::{
    NodeId,
    net::{NetConfig, Security},
    tcp::{TcpConfig, TcpFabric},
};

use super::*;

/// A limit that nothing here reaches unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a cluster's name that no other test has.
fn fresh_cluster() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-control-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The transport of the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Host,
    Port,
    #[cfg(feature = "keys")]
    Tls,
}

const WAYS: &[Way] = &[
    Way::Host,
    Way::Port,
    #[cfg(feature = "keys")]
    Way::Tls,
];

/// Returns the protection of a node's port; None without a port.
fn security(way: Way, cluster: &str, id: u32) -> Option<Security> {
    let _ = (cluster, id);
    match way {
        Way::Host => None,
        Way::Port => Some(Security::LoopbackOnly),
        #[cfg(feature = "keys")]
        Way::Tls => Some(Security::Tls(identity(cluster, NodeId(id)))),
    }
}

/// Returns the keys of a node, of the one authority that its cluster has.
#[cfg(feature = "keys")]
fn identity(cluster: &str, node: NodeId) -> squall_fabric::net::Identity {
    use std::{collections::BTreeMap, sync::Mutex};

    use crate::keys::Authority;

    static ALL: Mutex<BTreeMap<String, Authority>> = Mutex::new(BTreeMap::new());
    let mut all = ALL.lock().unwrap();
    let authority = all.entry(cluster.to_owned()).or_insert_with(|| Authority::create(cluster).unwrap());
    let keys = authority.issue(node, 1).unwrap();
    squall_fabric::net::Identity::from_pem(authority.certificate(), keys.certificate(), keys.key()).unwrap()
}

/// A node that offers services.
struct Node {
    caller: Caller,
    contact: DialTarget,
    server: Option<Server>,
    _fabric: Option<TcpFabric>,
}

impl Node {
    fn start(way: Way, cluster: &str, id: u32, handlers: Vec<(Service, Handler)>) -> Node {
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
fn caller(way: Way, cluster: &str, id: u32) -> Caller {
    match security(way, cluster, id) {
        None => Caller::on_host(cluster, NodeId(id)),
        Some(security) => Caller::on_network(cluster, NodeId(id), security),
    }
}
