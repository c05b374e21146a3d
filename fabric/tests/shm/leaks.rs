//! A fabric that is gone leaves nothing behind.

use squall_fabric::{Op, RegionKind, Source, Token};

use super::world::{pair, whole};
use crate::child::{self, Process};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The number of mappings of anonymous files.
fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:squall")).count()
}

/// One life of two nodes, with all that they do.
fn live() {
    let (mut pair, _) = pair(|node| vec![node.region(RegionKind::Bulk, 1 << 16), node.region(RegionKind::Polled, 64)]);
    let source = pair.nodes[0].region(RegionKind::Bulk, 1 << 16);
    let target = pair.target(0, 0, 0);
    pair.post(0, Op::Write { source: Source::Region(whole(&source)), target }, 1);
    pair.done(0, 1);
    let before = mappings();
    let shared = pair.nodes[0].region(RegionKind::Bulk, 1 << 16);
    let sealed = pair.nodes[0].fabric.seal(shared).unwrap();
    let recv = pair.nodes[1].region(RegionKind::Bulk, 64);
    pair.post(1, Op::Recv { into: whole(&recv) }, 2);
    pair.nodes[0].fabric.share(pair.ends[0], &sealed, None, Token(2)).unwrap();
    pair.done(0, 2);
    drop((sealed, recv));
    pair.until("what was shared and not taken to be unmapped", |_, _| mappings() == before);
    // The peer lets go of memory that it has pulled from, too.
    drop(source);
    pair.until("the memory to be unmapped on both sides", |_, _| mappings() == before - 2);
}

#[test]
fn child_that_counts() {
    if child::argument().is_none() {
        return;
    }
    live();
    let before = (descriptors(), mappings());
    assert_eq!(before.1, 0, "mappings are left");
    for _ in 0..20 {
        live();
    }
    assert_eq!((descriptors(), mappings()), before);
}

#[test]
fn a_fabric_leaks_neither_descriptors_nor_memory() {
    // Other tests of this process open descriptors meanwhile.
    Process::start("shm::leaks::child_that_counts", "").succeed();
}
