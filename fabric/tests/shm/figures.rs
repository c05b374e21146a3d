//! The costs of operations. These tests print figures, and are run by hand on an idle host:
//! `cargo test --release -p squall-fabric --test all shm::figures:: -- --ignored --nocapture --test-threads=1`

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use squall_fabric::{Completion, Fabric, GroupTag, NodeId, Op, RegionKind, Source, Time, Token};

use super::world::{Node, Pair, cluster, inline, pair, until, whole};
use crate::child::Process;

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

/// Page faults of this process that needed no disk.
fn page_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // The name, which may contain anything, is in parentheses; then come the third and all other fields.
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_whitespace().nth(10 - 3).unwrap().parse().unwrap()
}

/// An application's use of a message.
type Use = (&'static str, fn(&mut [u8]));

const USES: [Use; 3] = [
    ("read nothing", |_| ()),
    ("read all", |bytes| {
        black_box(bytes.chunks_exact(8).fold(0, |sum: u64, c| sum ^ u64::from_ne_bytes(c.try_into().unwrap())));
    }),
    ("write all", |bytes| bytes.fill(1)),
];

#[test]
#[ignore = "measures"]
fn sharing_beside_copying() {
    const BYTES: usize = 256 << 20;
    for (what, use_it) in USES {
        let (mut pair, _) = pair(|_| Vec::new());
        let source = pair.nodes[0].region(RegionKind::Bulk, BYTES);
        source.write(0, &vec![7; BYTES]);
        let into = pair.nodes[1].region(RegionKind::Bulk, BYTES);
        // The application's buffer, which stands for a region that is received in place.
        let mut message = vec![0; BYTES];
        let mut token = 0;
        let copied = shortest(|| {
            token += 1;
            pair.post(1, Op::Recv { into: whole(&into) }, token);
            let began = Instant::now();
            pair.post(0, Op::Send { source: Source::Region(whole(&source)), imm: None }, token);
            pair.done(0, token);
            use_it(&mut message);
            began.elapsed()
        });
        let began = Instant::now();
        let memory = pair.nodes[0].fabric.seal(source).unwrap();
        let sealing = began.elapsed();
        let mut faults = 0;
        let shared = shortest(|| {
            token += 1;
            pair.post(1, Op::Recv { into: whole(&into) }, token);
            let (began, before) = (Instant::now(), page_faults());
            let Pair { nodes, ends } = &mut pair;
            nodes[0].fabric.share(ends[0], &memory, None, Token(token)).unwrap();
            let mut copy = None;
            until(nodes, "a share", |nodes| {
                copy = nodes[1].fabric.take_shared(ends[1], Token(token));
                copy.is_some()
            });
            let mut copy = copy.unwrap();
            use_it(&mut copy);
            // The copy's pages are given back, as those of a receive buffer are not.
            drop(copy);
            faults = page_faults() - before;
            began.elapsed()
        });
        eprintln!(
            "256 MiB, {what}: {copied:?} copied; {shared:?} shared, {faults} page faults; {sealing:?} more for sealing"
        );
    }
}

#[test]
#[ignore = "measures"]
fn noticing_a_death() {
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let cluster = cluster();
            let mut child = Process::start("shm::processes::child_that_connects", &cluster);
            let mut node = Node::open(&cluster, 1);
            let end = node.connect(2, &[]);
            node.until("a connection", |node| node.remote(end).is_some());
            let began = Instant::now();
            child.0.kill().unwrap();
            node.sleep_until_broken(end);
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    eprintln!("from `kill -9` to a break, of 20: median {:?}, at most {:?}", times[10], times[19]);
}
