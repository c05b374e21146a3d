//! The scenarios on shared memory: three nodes in this process, polled in turn; and threads that race.

use std::sync::atomic::{AtomicU64, Ordering};

use squall_fabric::{
    NodeId,
    shm::{ShmConfig, ShmFabric},
};

use crate::{
    concurrent,
    rig::{Rig, Verdict},
    seeds,
    testbed::{Capabilities, Here},
};

/// The number of seeds that each scenario runs from.
const SEEDS: u64 = 6;

/// A name that no other test's cluster has, also not in another process.
pub(crate) fn cluster_name() -> String {
    static CLUSTERS: AtomicU64 = AtomicU64::new(0);
    format!("conformance-{}-{}", std::process::id(), CLUSTERS.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn open(cluster: &str, node: u32, queue_depth: usize) -> ShmFabric {
    let mut config = ShmConfig::new(cluster, NodeId(node));
    config.queue_depth = queue_depth;
    ShmFabric::open(config).expect("a shared-memory fabric")
}

fn bed(seed: u64) -> Here<ShmFabric> {
    let cluster = cluster_name();
    let depth = [16, 64, 1024][seed as usize % 3];
    // The backend's own tests kill processes.
    Here { fabrics: (0..3).map(|node| open(&cluster, node, depth)).collect(), seed, can: Capabilities::here(false) }
}

/// Runs a scenario from a few seeds, or from the one in `SQUALL_SEED`.
pub(crate) fn check(name: &str, scenario: fn(&mut Rig<'_>) -> Verdict) {
    for seed in seeds(SEEDS) {
        if let Err(why) = scenario(&mut Rig::new(&mut bed(seed))) {
            panic!("{name}: {why} (again with SQUALL_SEED={seed})");
        }
    }
}

fn race(scenario: fn(ShmFabric, ShmFabric)) {
    let cluster = cluster_name();
    scenario(open(&cluster, 0, 256), open(&cluster, 1, 256));
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
