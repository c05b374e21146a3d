//! Nodes of this process and others, over the loopback interface.

use squall_fabric::{
    Fabric, NodeId, Region,
    net::NetConfig,
    tcp::{TcpConfig, TcpFabric},
};

use crate::nodes;
pub(crate) use crate::nodes::{PATIENCE, TAG, bytes_of, cluster, inline, pattern, until, whole};

pub(crate) type Node = nodes::Node<TcpFabric>;
pub(crate) type Pair = nodes::Pair<TcpFabric>;

impl Node {
    /// A node that listens on a port of its own.
    pub(crate) fn open(cluster: &str, id: u32) -> Node {
        Node::with(cluster, id, |_| ())
    }

    pub(crate) fn with(cluster: &str, id: u32, set: impl FnOnce(&mut TcpConfig)) -> Node {
        let mut config = TcpConfig::new(NetConfig::new(cluster, NodeId(id)));
        config.net.listen = vec!["127.0.0.1:0".to_owned()];
        set(&mut config);
        Node::on(TcpFabric::open(config).unwrap())
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.fabric.local_addrs().iter().map(ToString::to_string).collect()
    }
}

/// Tells nodes the addresses of the others.
pub(crate) fn introduce(nodes: &mut [Node]) {
    let addresses: Vec<_> = nodes.iter().map(|node| (node.fabric.node(), node.addresses())).collect();
    for node in nodes {
        let own = node.fabric.node();
        for (peer, addresses) in addresses.iter().filter(|(peer, _)| *peer != own) {
            node.fabric.learn(*peer, addresses);
        }
    }
}

/// Nodes 1 and 2, which know each other.
pub(crate) fn two(set: impl Fn(&mut TcpConfig)) -> Vec<Node> {
    let cluster = cluster();
    let mut nodes = vec![Node::with(&cluster, 1, &set), Node::with(&cluster, 2, &set)];
    introduce(&mut nodes);
    nodes
}

/// Nodes 1 and 2, connected, each of which exposes the regions that the callback registers.
pub(crate) fn pair(
    set: impl Fn(&mut TcpConfig),
    expose: impl Fn(&mut Node) -> Vec<Region>,
) -> (Pair, [Vec<Region>; 2]) {
    nodes::connected(two(set), expose)
}
