//! The scenarios over an RDMA device: three nodes in this process, each on a device of its own where there are several;
//! and threads that race.
//!
//! Without a device they are skipped, unless `SQUALL_VERBS=1` says that there must be one.
//! `tests/verbs-lab/conformance` runs them in a virtual machine with software RDMA.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use squall_fabric::{
    Fabric, NodeId,
    net::NetConfig,
    verbs::{VerbsConfig, VerbsError, VerbsFabric},
};

use crate::{
    concurrent,
    rig::{Rig, Verdict},
    seeds,
    testbed::{Capabilities, FAILURE_TIMEOUT, Here},
};

/// The number of seeds that each scenario runs from.
const SEEDS: u64 = 3;

/// The names of this machine's devices, in order.
pub(crate) fn devices() -> Vec<String> {
    let entries = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Whether there is a device to run on.
fn is_there() -> bool {
    let there = !devices().is_empty();
    let demanded = std::env::var("SQUALL_VERBS").is_ok_and(|value| value == "1");
    assert!(there || !demanded, "SQUALL_VERBS=1, but: {}", VerbsError::NoDevice);
    if !there {
        eprintln!("skipped: {}", VerbsError::NoDevice);
    }
    there
}

fn cluster_name() -> String {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    format!("conformance-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed))
}

fn open(cluster: &str, node: u32, queue_depth: usize, inline_bytes: usize) -> VerbsFabric {
    let devices = devices();
    let mut net = NetConfig::new(cluster, NodeId(node));
    net.listen = vec!["127.0.0.1:0".to_owned()];
    net.failure_timeout = FAILURE_TIMEOUT;
    let mut config = VerbsConfig::new(net);
    config.device = devices.get(node as usize % devices.len()).cloned();
    config.queue_depth = queue_depth;
    config.inline_bytes = inline_bytes;
    VerbsFabric::open(config).expect("a verbs fabric")
}

/// Nodes of a cluster of their own, which know each other's addresses.
pub(crate) fn open_all(count: u32, queue_depth: usize, inline_bytes: usize) -> Vec<VerbsFabric> {
    let cluster = cluster_name();
    let mut fabrics: Vec<_> = (0..count).map(|node| open(&cluster, node, queue_depth, inline_bytes)).collect();
    let listens = |peer: &VerbsFabric| peer.local_addrs().iter().map(ToString::to_string).collect::<Vec<_>>();
    let addresses: Vec<_> = fabrics.iter().map(|peer| (peer.node(), listens(peer))).collect();
    for fabric in &mut fabrics {
        addresses.iter().for_each(|(peer, addresses)| fabric.learn(*peer, addresses));
    }
    fabrics
}

/// The testbed of a seed. Some seeds have a device that captures few bytes, or none. An emulated processor takes long.
fn bed(seed: u64) -> Here<VerbsFabric> {
    let (depth, inline) = [(16, 256), (64, 0), (512, 32)][seed as usize % 3];
    let can = Capabilities {
        settled: Duration::from_millis(20),
        patience: Duration::from_secs(30),
        ..Capabilities::here(true)
    };
    Here { fabrics: open_all(3, depth, inline), seed, can }
}

/// Runs a scenario from a few seeds, or from the one in `SQUALL_SEED`.
pub(crate) fn check(name: &str, scenario: fn(&mut Rig<'_>) -> Verdict) {
    if !is_there() {
        return;
    }
    for seed in seeds(SEEDS) {
        if let Err(why) = scenario(&mut Rig::new(&mut bed(seed))) {
            panic!("{name}: {why} (again with SQUALL_SEED={seed})");
        }
    }
}

fn race(scenario: fn(VerbsFabric, VerbsFabric)) {
    if is_there() {
        let mut fabrics = open_all(2, 256, 256);
        let (second, first) = (fabrics.pop(), fabrics.pop());
        scenario(first.expect("two fabrics"), second.expect("two fabrics"));
    }
}

#[test]
fn words_are_whole_to_a_spinning_reader() {
    race(concurrent::words_are_whole);
}

#[test]
fn writes_are_ordered_to_a_spinning_reader() {
    race(concurrent::writes_are_ordered);
}

#[test]
fn a_word_announces_its_bytes_to_a_spinning_reader() {
    race(concurrent::a_word_announces_its_bytes);
}
