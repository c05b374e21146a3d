//! The scenarios on nodes that have shared memory and TCP at once, and RDMA where there is a device.
//!
//! By the seed, the first two nodes meet over the one and the third over the other, or the other way round; and nodes
//! know that it is TCP, or find out that none has more. With RDMA, each pair meets over another one. Memory is shared
//! memory's throughout.

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
    let sockets = tcp::open(3, false, |config| config.queue_depth = depth).into_iter().zip(0..);
    let fabrics = sockets.map(|(sockets, node)| {
        let memory = shm::open(&cluster, node, depth);
        let far = if (seed / 2).is_multiple_of(2) { Transport::Tcp } else { Transport::Network };
        let mut fabric = MixedFabric::new(NodeId(node), far).with_shm(memory).with_tcp(sockets);
        for peer in (0..3).filter(|&peer| near(node, peer)) {
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

#[cfg(not(feature = "verbs"))]
fn with_verbs(fabrics: Vec<MixedFabric>, _seed: u64) -> Vec<MixedFabric> {
    fabrics
}

/// Has each pair meet over another fabric, if there is a device.
#[cfg(feature = "verbs")]
fn with_verbs(fabrics: Vec<MixedFabric>, seed: u64) -> Vec<MixedFabric> {
    if crate::verbs::devices().is_empty() {
        return fabrics;
    }
    // Both have a device, so they find out that they have this in common.
    let verbs = if seed.is_multiple_of(2) { Transport::Verbs } else { Transport::Network };
    let turn = |a: u32, b: u32| [Transport::Shm, Transport::Tcp, verbs][(a + b + seed as u32) as usize % 3];
    let devices = crate::verbs::open_all(3, 64, 256).into_iter().zip(0..);
    let routed = fabrics.into_iter().zip(devices).map(|(fabric, (device, node))| {
        let mut fabric = fabric.with_verbs(device);
        for peer in (0..3).filter(|&peer| peer != node) {
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
