//! Many connections, long messages, memory of other fabrics, and the absence of leaks when a fabric is gone.

use squall_fabric::{
    BreakReason, Completion, Fabric, GroupTag, NodeId, Op, Region, RegionKey, RegionKind, Source, Target, Token,
};

use super::world::{bytes_of, inline, pair, pattern, two, until, whole};
use crate::child::{self, Process};

#[test]
fn hundreds_of_endpoints_carry_writes_in_both_directions() {
    const ENDPOINTS: usize = 300;
    let mut nodes = two(|_| ());
    let tables = [0, 1].map(|node: usize| nodes[node].region(RegionKind::Polled, 8 * ENDPOINTS));
    let mut ends = [Vec::new(), Vec::new()];
    for group in 0..ENDPOINTS as u32 {
        let tag = GroupTag { layer: 1, group, epoch: 1 };
        for node in 0..2 {
            let expose = std::slice::from_ref(&tables[node]);
            ends[node].push(nodes[node].fabric.connect(NodeId(2 - node as u32), tag, expose, b""));
        }
    }
    until(&mut nodes, "all connections", |nodes| nodes.iter().all(|node| node.seen.len() == ENDPOINTS));
    for node in 0..2 {
        for (i, end) in ends[node].iter().enumerate() {
            let target = Target { region: tables[1 - node].key(), offset: 8 * i };
            nodes[node].post(*end, Op::Write { source: inline(&[1; 8]), target }, 1);
        }
    }
    until(&mut nodes, "all writes", |_| tables.iter().all(|table| (0..ENDPOINTS).all(|i| table.load(8 * i) != 0)));
    // One of them ends alone.
    let (closed, other) = (ends[0][7], ends[1][7]);
    nodes[0].fabric.disconnect(closed);
    until(&mut nodes, "a break", |nodes| nodes[1].broken(other).is_some());
    let broken = |c: &&Completion| matches!(c, Completion::Broken { .. });
    assert_eq!(nodes[1].seen.iter().filter(broken).count(), 1);
}

#[test]
fn long_messages_pass_through_small_socket_buffers() {
    const BYTES: usize = 5_000_000;
    let set = |config: &mut squall_fabric::tcp::TcpConfig| {
        config.send_buffer_bytes = Some(4 << 10);
        config.receive_buffer_bytes = Some(64 << 10);
        config.staging_bytes = 0;
        config.poll_bytes = 0;
    };
    let (mut pair, regions) = pair(set, |node| vec![node.region(RegionKind::Bulk, BYTES)]);
    let source = pair.nodes[0].region(RegionKind::Bulk, BYTES);
    let into = pair.nodes[1].region(RegionKind::Bulk, BYTES);
    source.write(0, &pattern(BYTES));
    pair.post(1, Op::Recv { into: whole(&into) }, 1);
    let target = pair.target(0, 0, 0);
    pair.post(0, Op::Write { source: Source::Region(whole(&source)), target }, 2);
    pair.post(0, Op::Send { source: Source::Region(whole(&source)), imm: None }, 3);
    pair.until("the message", |nodes, _| nodes[1].seen.iter().any(|c| matches!(c, Completion::Received { .. })));
    assert!(bytes_of(&regions[1][0]) == pattern(BYTES), "what was written");
    assert!(bytes_of(&into) == pattern(BYTES), "what was sent");
    pair.done(0, 3);
}

#[test]
fn memory_of_another_fabric_is_written_read_and_exposed() {
    let theirs = Region::heap(RegionKind::Bulk, RegionKey(77), 10_000);
    let mut nodes = two(|_| ());
    let mine = Region::heap(RegionKind::Bulk, RegionKey(78), 10_000);
    mine.write(0, &pattern(10_000));
    let ends = [nodes[0].connect(2, &[]), nodes[1].connect(1, std::slice::from_ref(&theirs))];
    until(&mut nodes, "a connection", |nodes| (0..2).all(|i| nodes[i].remote(ends[i]).is_some()));
    let target = Target { region: RegionKey(77), offset: 0 };
    nodes[0].post(ends[0], Op::Write { source: Source::Region(whole(&mine)), target }, 1);
    until(&mut nodes, "a write", |nodes| nodes[0].done(ends[0], 1) && bytes_of(&theirs) == pattern(10_000));
}

#[test]
fn a_node_that_is_dropped_has_closed_its_endpoints() {
    let (mut pair, _) = pair(|_| (), |_| Vec::new());
    pair.post(0, Op::Send { source: inline(b"last"), imm: None }, 1);
    let into = pair.nodes[1].region(RegionKind::Bulk, 64);
    let end = pair.ends[1];
    pair.post(1, Op::Recv { into: whole(&into) }, 2);
    let mut left = pair.nodes.pop().unwrap();
    drop(pair);
    left.until("a break", |node| node.broken(end).is_some());
    assert_eq!(left.broken(end), Some(&BreakReason::PeerClosed));
    let received = Completion::Received { endpoint: end, token: Token(2), bytes: 4, imm: None };
    assert!(left.seen.contains(&received), "what was posted before the end came: {:?}", left.seen);
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// One life of two nodes.
fn live() {
    let (mut pair, _) = pair(|_| (), |node| vec![node.region(RegionKind::Bulk, 1 << 16)]);
    let source = pair.nodes[0].region(RegionKind::Bulk, 1 << 16);
    let target = pair.target(0, 0, 0);
    pair.post(0, Op::Write { source: Source::Region(whole(&source)), target }, 1);
    pair.done(0, 1);
    let before = descriptors();
    let end = pair.ends[0];
    pair.nodes[0].fabric.disconnect(end);
    pair.until("a break", |nodes, ends| nodes[1].broken(ends[1]).is_some());
    assert_eq!(descriptors(), before - 2, "the endpoint's sockets are closed on both sides");
}

#[test]
fn child_that_counts() {
    if child::argument().is_none() {
        return;
    }
    live();
    let before = descriptors();
    for _ in 0..20 {
        live();
    }
    assert_eq!(descriptors(), before);
}

#[test]
fn a_fabric_leaks_no_descriptors() {
    // Other tests of this process open descriptors meanwhile.
    Process::start("tcp::basics::child_that_counts", "").succeed();
}
