//! Damage by disks while their nodes run: simulated members find it by reading their logs again, and replace it by each
//! other's records, while the group goes on.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual.

use std::{io, time::Duration};

use fastrand::Rng;
use rkyv::Archived;
use squall::{
    Applied, Config, Group, Mode, NodeId, Replicated, Snapshot,
    sim::{Cluster, Options, ViewLogKind},
};

use crate::{seeds, sum::Sum};

/// The number of seeds that run here.
const SEEDS: u64 = 50;

const PATIENCE: Duration = Duration::from_secs(5);

/// The count of commands.
#[derive(Debug, Default)]
struct Count(Sum);

impl Replicated for Count {
    type Command = Vec<u8>;
    type Reply = u64;

    fn apply(&mut self, _command: &Archived<Vec<u8>>, _at: &Applied) -> u64 {
        self.0.0 += 1;
        self.0.0
    }

    fn snapshot(&self) -> Snapshot {
        Replicated::snapshot(&self.0)
    }

    fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
        Replicated::restore(&mut self.0, from)
    }
}

fn cluster(members: u32, seed: u64) -> (Cluster, Vec<Group<Count>>) {
    let config = Config::builder("scrub", 1)
        .members(1..=members)
        .failure_timeout(Duration::from_millis(20))
        .storage("simulated")
        .group("count", |group| {
            // Small enough that there are snapshots, and records before the newest one.
            group.mode(Mode::Durable).snapshot_bytes(64 << 10);
        })
        .build()
        .expect("the configuration is valid");
    let options = Options {
        view_log: ViewLogKind::RaftOnDisks,
        segment_bytes: 32 << 10,
        scrub_bytes_per_second: 4 << 20,
        ..Options::default()
    };
    let mut cluster = Cluster::new(config, options, seed);
    let groups = cluster.group("count", |_| Count::default());
    cluster.start().expect("the group forms");
    (cluster, groups)
}

fn work(cluster: &mut Cluster, groups: &[Group<Count>], rng: &mut Rng, count: usize) {
    for _ in 0..count {
        let group = &groups[rng.usize(0..groups.len())];
        let answer = group.submit(&vec![7; rng.usize(0..2000)]);
        let answer = cluster.wait(PATIENCE, answer);
        assert!(matches!(answer, Some(Ok(_))), "{answer:?}");
    }
}

#[test]
fn what_a_disk_damages_while_its_node_runs_is_found_and_repaired_from_another_member() {
    let mut repaired = 0;
    for seed in seeds::seeds(SEEDS) {
        let mut rng = Rng::with_seed(seed);
        let (mut cluster, groups) = cluster(3, seed);
        work(&mut cluster, &groups, &mut rng, 150);
        let mut hurt = Vec::new();
        for _ in 0..rng.usize(1..=6) {
            let node = NodeId(rng.u32(1..=3));
            hurt.extend(cluster.rot_record(node, 0).map(|what| (node, what)));
            work(&mut cluster, &groups, &mut rng, 5);
        }
        let nodes = [1, 2, 3].map(NodeId);
        let is_sound = |cluster: &Cluster| {
            nodes.iter().all(|&node| cluster.damages(node, 0).is_some_and(|(damage, _)| damage.is_empty()))
        };
        let done = cluster.run_until(PATIENCE, is_sound);
        let damages = nodes.map(|node| cluster.damages(node, 0));
        assert!(done, "seed {seed}: {hurt:?}, and then {damages:?}");
        repaired += damages.into_iter().flatten().map(|(_, repaired)| repaired).sum::<u64>();
        work(&mut cluster, &groups, &mut rng, 5);
        assert!(nodes.iter().all(|&node| cluster.end_reason(node).is_none()), "seed {seed}");
    }
    assert!(repaired > 0 || seeds::seeds(SEEDS).is_empty());
}

#[test]
fn a_member_without_others_says_what_is_damaged_and_goes_on() {
    for seed in seeds::seeds(SEEDS).take(5) {
        let mut rng = Rng::with_seed(seed);
        let (mut cluster, groups) = cluster(1, seed);
        work(&mut cluster, &groups, &mut rng, 60);
        let hurt = cluster.rot_record(NodeId(1), 0);
        cluster.run_for(PATIENCE);
        let (damage, repaired) = cluster.damages(NodeId(1), 0).expect("it runs");
        assert_eq!((damage.len(), repaired), (1, 0), "seed {seed}: {hurt:?}: {damage:?}");
        work(&mut cluster, &groups, &mut rng, 20);
    }
}
