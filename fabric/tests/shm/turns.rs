//! The endpoints that a poll looks at, and their order.

use squall_fabric::{
    BreakReason, Completion, EndpointId, Fabric, GroupTag, MIN_RECV_DEPTH, NodeId, Op, Region, RegionKind, Target,
    Token,
    shm::{MAX_QUEUE_DEPTH, ShmConfig, ShmError, ShmFabric},
};

use super::world::{Node, cluster, inline, until, whole};

/// Two nodes with several endpoints between them.
struct World {
    nodes: Vec<Node>,
    ends: Vec<[EndpointId; 2]>,
    /// The region that node 2 exposes on each.
    exposed: Region,
}

impl World {
    fn new(endpoints: u32, kind: RegionKind, poll_bytes: usize) -> World {
        let cluster = cluster();
        let open = |id| {
            let mut config = ShmConfig::new(cluster.as_str(), NodeId(id));
            config.poll_bytes = poll_bytes;
            Node::with(config)
        };
        let mut nodes = vec![open(1), open(2)];
        let exposed = nodes[1].region(kind, 4096);
        let connect = |group| {
            let tag = GroupTag { layer: 1, group, epoch: 1 };
            let second = nodes[1].fabric.connect(NodeId(1), tag, std::slice::from_ref(&exposed), b"");
            [nodes[0].fabric.connect(NodeId(2), tag, &[], b""), second]
        };
        let ends = (0..endpoints).map(connect).collect();
        until(&mut nodes, "connections", |nodes| nodes.iter().all(|node| node.seen.len() == endpoints as usize));
        World { nodes, ends, exposed }
    }

    fn write(&mut self, on: usize, bytes: &[u8]) {
        let target = Target { region: self.exposed.key(), offset: 0 };
        let op = Op::Write { source: inline(bytes), target };
        self.nodes[0].fabric.post(self.ends[on][0], op, Token::UNSIGNALED).unwrap();
    }

    fn send(&mut self, on: usize) {
        let op = Op::Send { source: inline(b"message"), imm: None };
        self.nodes[0].fabric.post(self.ends[on][0], op, Token::UNSIGNALED).unwrap();
    }

    fn looks(&self) -> [u64; 2] {
        [0, 1].map(|node: usize| self.nodes[node].fabric.stats().endpoints_looked_at)
    }

    fn has_received(&self, on: usize) -> bool {
        let is_it =
            |seen: &Completion| matches!(seen, Completion::Received { endpoint, .. } if *endpoint == self.ends[on][1]);
        self.nodes[1].seen.iter().any(is_it)
    }

    fn poll(&mut self) {
        self.nodes.iter_mut().for_each(Node::poll);
    }
}

#[test]
fn polls_look_at_no_endpoint_without_cause() {
    const ENDPOINTS: usize = 16;
    let mut world = World::new(ENDPOINTS as u32, RegionKind::Polled, 1 << 20);
    let quiet = world.looks();
    for round in 0..100u64 {
        world.write(round as usize % ENDPOINTS, &round.to_ne_bytes());
        world.poll();
        assert_eq!(world.exposed.load(0), round);
    }
    assert_eq!(world.looks(), quiet, "pushed bytes are nothing to look at");

    let into = world.nodes[1].region(RegionKind::Bulk, 64);
    let end = world.ends[7][1];
    world.nodes[1].post(end, Op::Recv { into: whole(&into) }, 1);
    world.send(7);
    world.poll();
    assert!(world.has_received(7));
    let most = ENDPOINTS as u64;
    assert_eq!(world.looks()[1], quiet[1] + most, "it is not said which endpoint has news");
    world.poll();
    let after = world.looks();
    (0..100).for_each(|_| world.poll());
    assert_eq!(world.looks(), after, "all is done");
}

#[test]
fn an_endpoint_with_much_to_do_delays_others_by_one_poll() {
    let mut world = World::new(3, RegionKind::Bulk, 4096);
    let into = world.nodes[1].region(RegionKind::Bulk, 64);
    for on in [1, 2] {
        let end = world.ends[on][1];
        world.nodes[1].post(end, Op::Recv { into: whole(&into) }, 1);
    }
    // Each poll copies a small part of these writes.
    (0..500).for_each(|_| world.write(0, &[1; 256]));
    world.send(1);
    world.nodes[0].poll();
    world.nodes[1].poll();
    assert!(!world.has_received(1), "the first endpoint has used up what a poll may do");
    world.nodes[1].poll();
    assert!(world.has_received(1));
    // A send that comes when the other is in the middle waits no longer.
    world.send(2);
    world.nodes[0].poll();
    world.nodes[1].poll();
    world.nodes[1].poll();
    assert!(world.has_received(2));
}

#[test]
fn what_was_handed_over_before_the_peer_had_heard_of_the_connection_is_found() {
    let cluster = cluster();
    let mut nodes = [Node::open(&cluster, 1), Node::open(&cluster, 2)];
    let into = nodes[1].region(RegionKind::Bulk, 64);
    let ends = [nodes[0].connect(2, &[]), nodes[1].connect(1, &[])];
    nodes[1].post(ends[1], Op::Recv { into: whole(&into) }, 1);
    nodes[1].poll();
    nodes[0].until("a connection", |node| node.remote(ends[0]).is_some());
    nodes[0].post(ends[0], Op::Send { source: inline(b"message"), imm: None }, 1);
    nodes[0].poll();
    nodes[1].until("the message", |node| node.seen.iter().any(|seen| matches!(seen, Completion::Received { .. })));
    nodes[0].until("its completion", |node| node.done(ends[0], 1));
}

#[test]
fn a_breach_that_waited_its_turn_is_found() {
    let mut world = World::new(2, RegionKind::Bulk, 4096);
    (0..100).for_each(|_| world.write(0, &[1; 256]));
    world.send(1);
    let end = world.ends[1][1];
    until(&mut world.nodes, "a break", |nodes| nodes[1].broken(end) == Some(&BreakReason::ReceiverNotReady));
}

#[test]
fn a_queue_that_the_contract_does_not_allow_is_refused() {
    for depth in [0, MIN_RECV_DEPTH - 1, MAX_QUEUE_DEPTH + 1] {
        let mut config = ShmConfig::new(cluster(), NodeId(1));
        config.queue_depth = depth;
        assert_eq!(ShmFabric::open(config).unwrap_err(), ShmError::QueueDepth { depth });
    }
}
