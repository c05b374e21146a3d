//! Nodes of this process and others, over the loopback interface.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, RemoteRegion, Slice, Source,
    Target, Time, Token, Wait,
    net::NetConfig,
    tcp::{TcpConfig, TcpFabric},
};

/// The time that a test waits before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) const TAG: GroupTag = GroupTag { layer: 1, group: 2, epoch: 3 };

/// A cluster name that no other test has, in this process or another.
pub(crate) fn cluster() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A node, and the completions that it has seen.
pub(crate) struct Node {
    pub(crate) fabric: TcpFabric,
    pub(crate) seen: Vec<Completion>,
}

impl Node {
    /// A node that listens on a port of its own.
    pub(crate) fn open(cluster: &str, id: u32) -> Node {
        Node::with(cluster, id, |_| ())
    }

    pub(crate) fn with(cluster: &str, id: u32, set: impl FnOnce(&mut TcpConfig)) -> Node {
        let mut config = TcpConfig::new(NetConfig::new(cluster, NodeId(id)));
        config.net.listen = vec!["127.0.0.1:0".to_owned()];
        set(&mut config);
        Node { fabric: TcpFabric::open(config).unwrap(), seen: Vec::new() }
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.fabric.local_addrs().iter().map(ToString::to_string).collect()
    }

    pub(crate) fn poll(&mut self) {
        self.fabric.poll(Time::boot_clock(), &mut self.seen);
    }

    pub(crate) fn region(&mut self, kind: RegionKind, bytes: usize) -> Region {
        self.fabric.register(kind, bytes).unwrap()
    }

    pub(crate) fn connect(&mut self, peer: u32, expose: &[Region]) -> EndpointId {
        self.fabric.connect(NodeId(peer), TAG, expose, b"hello")
    }

    pub(crate) fn post(&mut self, on: EndpointId, op: Op<'_>, token: u64) {
        self.fabric.post(on, op, Token(token)).unwrap();
    }

    pub(crate) fn remote(&self, on: EndpointId) -> Option<&[RemoteRegion]> {
        self.seen.iter().find_map(|completion| match completion {
            Completion::Connected { endpoint, remote, .. } if *endpoint == on => Some(remote.as_slice()),
            _ => None,
        })
    }

    pub(crate) fn broken(&self, on: EndpointId) -> Option<&BreakReason> {
        self.seen.iter().find_map(|completion| match completion {
            Completion::Broken { endpoint, reason, .. } if *endpoint == on => Some(reason),
            _ => None,
        })
    }

    pub(crate) fn done(&self, on: EndpointId, token: u64) -> bool {
        self.seen.contains(&Completion::Done { endpoint: on, token: Token(token), result: Ok(()) })
    }

    /// Sleeps as a node that has nothing to do.
    pub(crate) fn sleep_until_broken(&mut self, on: EndpointId) {
        loop {
            self.fabric.arm();
            self.poll();
            if self.broken(on).is_some() {
                return self.fabric.disarm();
            }
            self.fabric.wait(Time::MAX);
        }
    }

    /// Polls until the condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Node) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.poll();
            if holds(self) {
                return;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}; seen: {:?}", self.seen);
            std::thread::yield_now();
        }
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

/// Polls all nodes until the condition holds.
#[track_caller]
pub(crate) fn until(nodes: &mut [Node], what: &str, mut holds: impl FnMut(&mut [Node]) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        nodes.iter_mut().for_each(Node::poll);
        if holds(nodes) {
            return;
        }
        let seen: Vec<_> = nodes.iter().map(|node| &node.seen).collect();
        assert!(Instant::now() < deadline, "waited in vain for {what}; seen: {seen:?}");
        std::thread::yield_now();
    }
}

/// Two nodes, each with an endpoint to the other.
pub(crate) struct Pair {
    pub(crate) nodes: Vec<Node>,
    pub(crate) ends: [EndpointId; 2],
}

/// Nodes 1 and 2, connected, each of which exposes the regions that the callback registers.
pub(crate) fn pair(
    set: impl Fn(&mut TcpConfig),
    expose: impl Fn(&mut Node) -> Vec<Region>,
) -> (Pair, [Vec<Region>; 2]) {
    let mut nodes = two(set);
    let regions = [expose(&mut nodes[0]), expose(&mut nodes[1])];
    let ends = [nodes[0].connect(2, &regions[0]), nodes[1].connect(1, &regions[1])];
    until(&mut nodes, "a connection", |nodes| (0..2).all(|i| nodes[i].remote(ends[i]).is_some()));
    (Pair { nodes, ends }, regions)
}

impl Pair {
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut [Node], [EndpointId; 2]) -> bool) {
        let ends = self.ends;
        until(&mut self.nodes, what, |nodes| holds(nodes, ends));
    }

    pub(crate) fn post(&mut self, node: usize, op: Op<'_>, token: u64) {
        self.nodes[node].post(self.ends[node], op, token);
    }

    /// A place in the other node's region.
    pub(crate) fn target(&self, node: usize, region: usize, offset: usize) -> Target {
        Target { region: self.nodes[node].remote(self.ends[node]).unwrap()[region].key, offset }
    }

    #[track_caller]
    pub(crate) fn done(&mut self, node: usize, token: u64) {
        self.until("a completion", |nodes, ends| nodes[node].done(ends[node], token));
    }
}

pub(crate) fn whole(region: &Region) -> Slice<'_> {
    Slice { region, offset: 0, len: region.len() }
}

pub(crate) fn inline(bytes: &[u8]) -> Source<'_> {
    Source::Inline(bytes)
}

pub(crate) fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes);
    bytes
}

/// Bytes that differ from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}
