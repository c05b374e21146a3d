//! The scenarios on nodes that have shared memory and TCP at once, and RDMA where there is a device.
//!
//! By the seed, the first two nodes meet over the one and the third over the other, or the other way round; and nodes
//! know that, or find out which share memory. With RDMA, each pair meets over another one, or over the best that it
//! finds. Memory is shared memory's throughout.

use std::time::Duration;

use squall_fabric::{
    NodeId,
    mixed::{MixedFabric, Transport},
};

use crate::{
    rig::{Rig, Verdict},
    seeds, shm, tcp,
    testbed::{Capabilities, Here},
};

/// The number of seeds that each scenario runs from. (Where RDMA is emulated, all takes long.)
const SEEDS: u64 = if cfg!(feature = "verbs") { 4 } else { 8 };

fn bed(seed: u64) -> Here<MixedFabric> {
    let depth = [16, 64, 1024][seed as usize % 3];
    let cluster = shm::cluster_name();
    let near = |a: u32, b: u32| (a.max(b) < 2) == seed.is_multiple_of(2);
    // Two nodes that find each other's sockets, and one that does not.
    let place = |node: u32| {
        if finds_out(seed) { format!("{cluster}-{}", u64::from(node) + seed % 2 < 2) } else { cluster.clone() }
    };
    let sockets = tcp::open(3, false, |config| config.queue_depth = depth).into_iter().zip(0..);
    let fabrics = sockets.map(|(sockets, node)| {
        let memory = shm::open(&place(node), node, depth);
        let far = if finds_out(seed) { Transport::Best } else { Transport::Tcp };
        let mut fabric = MixedFabric::new(NodeId(node), far).with_shm(memory).with_tcp(sockets);
        for peer in (0..3).filter(|&peer| !finds_out(seed) && near(node, peer)) {
            fabric.route(NodeId(peer), Transport::Shm);
        }
        fabric
    });
    let can = Capabilities {
        settled: Duration::from_millis(20),
        patience: Duration::from_secs(30),
        ..Capabilities::here(false)
    };
    Here { fabrics: with_verbs(fabrics.collect(), seed), seed, can }
}

fn finds_out(seed: u64) -> bool {
    !(seed / 2).is_multiple_of(2)
}

#[cfg(not(feature = "verbs"))]
fn with_verbs(fabrics: Vec<MixedFabric>, _seed: u64) -> Vec<MixedFabric> {
    fabrics
}

/// Has each pair meet over another fabric, or over the best that it finds, if there is a device.
#[cfg(feature = "verbs")]
fn with_verbs(fabrics: Vec<MixedFabric>, seed: u64) -> Vec<MixedFabric> {
    if crate::verbs::devices().is_empty() {
        return fabrics;
    }
    let turn = |a: u32, b: u32| [Transport::Shm, Transport::Tcp, Transport::Verbs][(a + b + seed as u32) as usize % 3];
    let devices = crate::verbs::open_all(3, 64, 256).into_iter().zip(0..);
    let routed = fabrics.into_iter().zip(devices).map(|(fabric, (device, node))| {
        let mut fabric = fabric.with_verbs(device);
        for peer in (0..3).filter(|&peer| !finds_out(seed) && peer != node) {
            fabric.route(NodeId(peer), turn(node, peer));
        }
        fabric
    });
    routed.collect()
}

/// Runs a scenario from a few seeds, or from the one in `SQUALL_SEED`.
pub(crate) fn check(name: &str, scenario: fn(&mut Rig<'_>) -> Verdict) {
    for seed in seeds(SEEDS) {
        if let Err(why) = scenario(&mut Rig::new(&mut bed(seed))) {
            panic!("{name}: {why} (again with SQUALL_SEED={seed})");
        }
    }
}
