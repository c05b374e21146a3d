//! Nodes of this process that share memory.

use squall_fabric::{
    NodeId, Region,
    shm::{ShmConfig, ShmFabric},
};

use crate::nodes;
pub(crate) use crate::nodes::{PATIENCE, TAG, bytes_of, cluster, inline, pattern, until, whole};

pub(crate) type Node = nodes::Node<ShmFabric>;
pub(crate) type Pair = nodes::Pair<ShmFabric>;

impl Node {
    pub(crate) fn open(cluster: &str, id: u32) -> Node {
        Node::with(ShmConfig::new(cluster, NodeId(id)))
    }

    pub(crate) fn with(config: ShmConfig) -> Node {
        Node::on(ShmFabric::open(config).unwrap())
    }
}

/// Nodes 1 and 2, connected, each of which exposes the regions that the callback registers.
pub(crate) fn pair(expose: impl Fn(&mut Node) -> Vec<Region>) -> (Pair, [Vec<Region>; 2]) {
    let cluster = cluster();
    nodes::connected(vec![Node::open(&cluster, 1), Node::open(&cluster, 2)], expose)
}
