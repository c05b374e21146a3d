//! Processes that end, in one way or another, and come back.

use squall_fabric::{
    BreakReason, Completion, Fabric, Flushed, NodeId, Op, RegionKind, Token,
    shm::{ShmConfig, ShmError, ShmFabric},
};

use super::world::{Node, TAG, cluster, inline, pair, until, whole};
use crate::child::{self, Process};

/// A node 2 that connects to node 1 and then does nothing, until it is killed.
#[test]
fn child_that_connects() {
    let Some(cluster) = child::argument() else { return };
    let mut node = Node::open(&cluster, 2);
    let region = node.region(RegionKind::Polled, 64);
    let into = node.region(RegionKind::Bulk, 64);
    let end = node.connect(1, &[region]);
    node.post(end, Op::Recv { into: whole(&into) }, 1);
    node.until("a connection", |node| node.remote(end).is_some());
    loop {
        std::thread::park();
    }
}

#[test]
fn the_death_of_a_process_flushes_work_and_breaks_its_endpoints_once() {
    let cluster = cluster();
    let mut child = Process::start("shm::processes::child_that_connects", &cluster);
    let mut node = Node::open(&cluster, 1);
    let end = node.connect(2, &[]);
    node.until("a connection", |node| node.remote(end).is_some());
    let into = node.region(RegionKind::Bulk, 64);
    node.post(end, Op::Recv { into: whole(&into) }, 1);
    // The child does not poll, so these posts stay outstanding.
    node.post(end, Op::Send { source: inline(b"one"), imm: None }, 2);
    node.fabric.post(end, Op::Send { source: inline(b"two"), imm: None }, Token::UNSIGNALED).unwrap();
    node.post(end, Op::Send { source: inline(b"three"), imm: None }, 3);
    for _ in 0..100 {
        node.poll();
    }
    assert_eq!(node.seen.len(), 1, "only connected so far");
    child.kill();
    node.until("a break", |node| node.broken(end).is_some());
    let flushed = |token| Completion::Done { endpoint: end, token: Token(token), result: Err(Flushed) };
    let broken = Completion::Broken { endpoint: end, peer: NodeId(2), reason: BreakReason::ProcessGone };
    assert_eq!(node.seen[1..], [flushed(2), flushed(3), flushed(1), broken]);
    for _ in 0..100 {
        node.poll();
    }
    assert_eq!(node.seen.len(), 5, "nothing is reported after");

    // The next life of the process meets a new endpoint of the same tag.
    let end = node.connect(2, &[]);
    let _child = Process::start("shm::processes::child_that_connects", &cluster);
    node.until("a connection with the next life", |node| node.remote(end).is_some());
}

#[test]
fn a_process_that_dies_before_it_connects_is_waited_for() {
    let cluster = cluster();
    let mut nodes = vec![Node::open(&cluster, 1)];
    let end = nodes[0].connect(2, &[]);
    for _ in 0..3 {
        // The nodes are linked, since node 1 waits; they are not connected, since node 2 does not ask for it.
        let idle = Node::open(&cluster, 2);
        for _ in 0..1000 {
            nodes[0].poll();
        }
        drop(idle);
    }
    nodes.push(Node::open(&cluster, 2));
    let other = nodes[1].connect(1, &[]);
    until(&mut nodes, "a connection", |nodes| nodes[0].remote(end).is_some() && nodes[1].remote(other).is_some());
    assert_eq!(nodes[0].seen.len(), 1);
}

#[test]
fn an_id_that_a_living_process_has_is_refused() {
    let cluster = cluster();
    let config = || ShmConfig::new(cluster.as_str(), NodeId(1));
    let first = ShmFabric::open(config()).unwrap();
    let error = ShmFabric::open(config()).unwrap_err();
    assert_eq!(error, ShmError::NodeRuns { node: NodeId(1), cluster: cluster.clone() });
    assert!(error.to_string().contains("runs already on this host"), "{error}");
    drop(first);
    ShmFabric::open(config()).expect("the id is free again as soon as its fabric is gone");
}

#[test]
fn closing_a_fabric_is_not_a_death() {
    for gone in 0..2 {
        let (mut pair, _) = pair(|_| Vec::new());
        let node = pair.nodes.remove(gone);
        drop(node);
        let end = pair.ends[1 - gone];
        pair.nodes[0].until("a break", |node| node.broken(end).is_some());
        assert_eq!(pair.nodes[0].broken(end), Some(&BreakReason::PeerClosed));
    }
}

#[test]
fn a_tag_can_be_connected_again_and_again() {
    let (mut pair, _) = pair(|node| vec![node.region(RegionKind::Polled, 64)]);
    for round in 0..50 {
        let closing = round % 2;
        let old = pair.ends;
        pair.nodes[closing].fabric.disconnect(old[closing]);
        // The closing side is at once ready for the next connection; the other one has to hear of the end first.
        let (peer, other) = if closing == 0 { (2, 1) } else { (1, 2) };
        pair.ends[closing] = pair.nodes[closing].fabric.connect(NodeId(peer), TAG, &[], b"");
        pair.until("the break", |nodes, _| nodes[1 - closing].broken(old[1 - closing]).is_some());
        assert_eq!(pair.nodes[1 - closing].broken(old[1 - closing]), Some(&BreakReason::PeerClosed));
        pair.ends[1 - closing] = pair.nodes[1 - closing].fabric.connect(NodeId(other), TAG, &[], b"");
        pair.until("the next connection", |nodes, ends| (0..2).all(|i| nodes[i].remote(ends[i]).is_some()));
        for i in 0..2 {
            assert_eq!(pair.nodes[i].broken(pair.ends[i]), None);
        }
    }
}

#[test]
fn nothing_arrives_after_a_disconnect() {
    let (mut pair, regions) = pair(|node| vec![node.region(RegionKind::Polled, 64)]);
    let target = pair.target(0, 0, 0);
    pair.nodes[1].fabric.disconnect(pair.ends[1]);
    // Node 0 has not heard of it, and may post.
    pair.post(0, Op::Write { source: inline(&[1; 8]), target }, 1);
    assert_eq!(regions[1][0].load(0), 0);
    pair.until("the break", |nodes, ends| nodes[0].broken(ends[0]).is_some());
    assert!(!pair.nodes[0].done(pair.ends[0], 1), "it was flushed");
    assert_eq!(regions[1][0].load(0), 0);
}
