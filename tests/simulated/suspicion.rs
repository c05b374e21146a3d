//! The cost of a broken link to a group: one of the two nodes that it joined, and no other, since no node suspects on
//! another's word.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use squall::{
    Config, NodeId,
    sim::{Cluster, Options, SimConfig},
};

use crate::{seeds, sum::Sum};

/// The number of seeds that run.
const SEEDS: u64 = 60;

const FAILURE_TIMEOUT: Duration = Duration::from_millis(20);

/// Breaks a link in a cluster under load. Returns the nodes at its ends, and the nodes that left with each view that
/// followed.
fn break_a_link(seed: u64) -> ([NodeId; 2], BTreeMap<u64, Vec<NodeId>>) {
    let mut rng = Rng::with_seed(seed);
    let mut nodes: Vec<NodeId> = (1..=rng.u32(4..=7)).map(NodeId).collect();
    let config = Config::builder("suspicion", 1)
        .members(nodes.iter().map(|node| node.0))
        .failure_timeout(FAILURE_TIMEOUT)
        .build()
        .expect("the configuration is valid");
    // The ends notice the break at once, or when the heartbeats are missed.
    let failure_timeout = [Duration::from_millis(1), 5 * FAILURE_TIMEOUT][rng.usize(..2)];
    let net = SimConfig { failure_timeout, ..SimConfig::fast() };
    let mut cluster = Cluster::new(config, Options { net, ..Options::default() }, rng.u64(..));
    let groups = cluster.group("sum", |_| Sum::default());
    cluster.start().expect("the cluster starts");
    let all = nodes.clone();
    rng.shuffle(&mut nodes);
    let ends = [nodes[0], nodes[1]];
    if rng.bool() {
        cluster.net().cut(ends[0], ends[1]);
    } else {
        cluster.net().cut_one_way(ends[0], ends[1]);
    }
    let mut left = BTreeMap::new();
    let mut waiting = Vec::new();
    for _ in 0..400 {
        waiting.push(groups[rng.usize(..groups.len())].submit(&1));
        cluster.run_for(Duration::from_micros(500));
        let views = all.iter().filter_map(|&node| cluster.view(node));
        left.extend(views.filter(|view| view.epoch.0 > 1).map(|view| (view.epoch.0, view.left.clone())));
    }
    (ends, left)
}

#[test]
fn a_broken_link_costs_one_of_its_two_ends_and_nobody_else() {
    for seed in seeds::seeds(SEEDS) {
        let (ends, left) = break_a_link(seed);
        assert!(!left.is_empty(), "seed {seed}: the link between {ends:?} broke, and no member was dropped");
        let costs_one = |left: &Vec<NodeId>| left.len() <= 1 && left.iter().all(|node| ends.contains(node));
        assert!(left.values().all(costs_one), "seed {seed}: the link between {ends:?} broke, and these left: {left:?}");
    }
}
