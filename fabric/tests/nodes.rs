//! Nodes on any fabric of this process, which are polled until something has happened.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, NodeId, Op, Region, RegionKind, RemoteRegion, Slice, Source,
    Target, Time, Token, Wait,
};

/// The time that a test waits before it fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A cluster name that no other test has, in this process or another.
pub(crate) fn cluster() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) const TAG: GroupTag = GroupTag { layer: 1, group: 2, epoch: 3 };

/// A node, and the completions that it has seen.
pub(crate) struct Node<F> {
    pub(crate) fabric: F,
    pub(crate) seen: Vec<Completion>,
}

impl<F: Fabric + Wait> Node<F> {
    pub(crate) fn on(fabric: F) -> Node<F> {
        Node { fabric, seen: Vec::new() }
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

    /// Waits for a condition, as the contract of `Wait` says.
    #[track_caller]
    pub(crate) fn sleep_until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let deadline = Time::boot_clock() + PATIENCE;
        loop {
            self.fabric.arm();
            self.poll();
            if holds(self) {
                return self.fabric.disarm();
            }
            assert!(Time::boot_clock() < deadline, "a wake-up was lost: {what} did not come; seen: {:?}", self.seen);
            self.fabric.wait(deadline);
        }
    }

    /// Polls until the condition holds.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
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

/// Polls all nodes until the condition holds.
#[track_caller]
pub(crate) fn until<F: Fabric + Wait>(
    nodes: &mut [Node<F>],
    what: &str,
    mut holds: impl FnMut(&mut [Node<F>]) -> bool,
) {
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
pub(crate) struct Pair<F> {
    pub(crate) nodes: Vec<Node<F>>,
    pub(crate) ends: [EndpointId; 2],
}

/// Connects nodes 1 and 2, each of which exposes the regions that the callback registers.
pub(crate) fn connected<F: Fabric + Wait>(
    mut nodes: Vec<Node<F>>,
    expose: impl Fn(&mut Node<F>) -> Vec<Region>,
) -> (Pair<F>, [Vec<Region>; 2]) {
    let regions = [expose(&mut nodes[0]), expose(&mut nodes[1])];
    let ends = [nodes[0].connect(2, &regions[0]), nodes[1].connect(1, &regions[1])];
    until(&mut nodes, "a connection", |nodes| (0..2).all(|i| nodes[i].remote(ends[i]).is_some()));
    (Pair { nodes, ends }, regions)
}

impl<F: Fabric + Wait> Pair<F> {
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut [Node<F>], [EndpointId; 2]) -> bool) {
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

    #[track_caller]
    pub(crate) fn both_broken(&mut self, reason: &BreakReason) {
        for node in 0..2 {
            self.until("a break", |nodes, ends| nodes[node].broken(ends[node]).is_some());
            assert_eq!(self.nodes[node].broken(self.ends[node]), Some(reason), "at node {node}");
        }
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
