//! What things cost. These print figures, and are run by hand on an idle host:
//! `cargo test --release -p squall-fabric --test shm -- --ignored --nocapture --test-threads=1`

use std::time::{Duration, Instant};

use squall_fabric::{Completion, Fabric, GroupTag, NodeId, Op, RegionKind, Source, Time, Token};

use crate::world::{Node, Pair, cluster, inline, pair, until, whole};

/// The shortest time of several runs: other processes can only make it longer.
fn shortest(mut run: impl FnMut() -> Duration) -> Duration {
    (0..20).map(|_| run()).min().unwrap()
}

#[test]
#[ignore = "measures"]
fn posting_a_polled_write() {
    const POSTS: u32 = 10_000;
    for bytes in [8, 64, 256] {
        let (mut pair, _) = pair(|node| vec![node.region(RegionKind::Polled, 4096)]);
        let target = pair.target(0, 0, 0);
        let Pair { nodes, ends } = &mut pair;
        let time = shortest(|| {
            let began = Instant::now();
            for _ in 0..POSTS {
                let op = Op::Write { source: inline(&[1; 256][..bytes]), target };
                nodes[0].fabric.post(ends[0], op, Token::UNSIGNALED).unwrap();
            }
            began.elapsed()
        });
        eprintln!("posting a polled write of {bytes} bytes: {:?}", time / POSTS);
    }
}

#[test]
#[ignore = "measures"]
fn an_empty_poll() {
    const POLLS: u32 = 10_000;
    for endpoints in [1, 16, 64, 256] {
        let cluster = cluster();
        let mut nodes = vec![Node::open(&cluster, 1), Node::open(&cluster, 2)];
        for group in 0..endpoints {
            let tag = GroupTag { layer: 1, group, epoch: 1 };
            nodes[0].fabric.connect(NodeId(2), tag, &[], b"");
            nodes[1].fabric.connect(NodeId(1), tag, &[], b"");
        }
        until(&mut nodes, "connections", |nodes| nodes.iter().all(|node| node.seen.len() == endpoints as usize));
        let time = shortest(|| {
            let began = Instant::now();
            let mut out = Vec::new();
            for _ in 0..POLLS {
                nodes[0].fabric.poll(Time::ZERO, &mut out);
            }
            began.elapsed()
        });
        eprintln!("an empty poll of {endpoints} endpoints: {:?}", time / POLLS);
    }
}

#[test]
#[ignore = "measures"]
fn pulling_bulk_bytes() {
    for bytes in [4 << 10, 64 << 10, 1 << 20, 16 << 20] {
        let (mut pair, _) = pair(|node| vec![node.region(RegionKind::Bulk, bytes)]);
        let target = pair.target(0, 0, 0);
        let source = pair.nodes[0].region(RegionKind::Bulk, bytes);
        let mut token = 0;
        let time = shortest(|| {
            token += 1;
            pair.nodes[0].seen.clear();
            let began = Instant::now();
            pair.post(0, Op::Write { source: Source::Region(whole(&source)), target }, token);
            let is_done = |c: &Completion| matches!(c, Completion::Done { .. });
            while !pair.nodes[0].seen.iter().any(is_done) {
                pair.nodes.iter_mut().rev().for_each(Node::poll);
            }
            began.elapsed()
        });
        let rate = bytes as f64 / time.as_secs_f64() / 1e9;
        eprintln!("a write of {bytes} bytes into bulk memory: {time:?}, {rate:.1} GB/s (one thread for both nodes)");
    }
}
