//! Whole clusters from seeds: see `squall::sim::scenario` for what must hold.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual; `squall sim replay SEED` tells what happens in it.

mod sum;

use std::time::Duration;

use squall::{
    Config, Group, Mode, NodeId,
    sim::{Cluster, Decider, Options, scenario},
};

use self::sum::Sum;

/// How many seeds run here. The command `squall sim check --seeds N` runs as many as one likes.
const SEEDS: u64 = 1000;

fn seeds() -> Vec<u64> {
    match std::env::var("SQUALL_SEED") {
        Ok(seed) => vec![seed.parse().expect("SQUALL_SEED is a number")],
        Err(_) => match std::env::var("SQUALL_SEEDS") {
            Ok(range) => {
                let (from, to) = range.split_once("..").expect("SQUALL_SEEDS is FROM..TO");
                (from.parse().expect("a number")..to.parse().expect("a number")).collect()
            }
            Err(_) => (0..SEEDS).collect(),
        },
    }
}

#[test]
fn every_scenario_keeps_order_and_promises() {
    let seeds = seeds();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failures: Vec<_> = std::thread::scope(|scope| {
        let share = |thread: usize| seeds.iter().copied().skip(thread).step_by(threads);
        let run = |thread| {
            move || {
                share(thread)
                    .filter_map(|seed| scenario::run(seed).err())
                    .map(|failed| failed.to_string())
                    .collect::<Vec<_>>()
            }
        };
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(run(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("scenarios catch panics")).collect()
    });
    let told: Vec<&String> = failures.iter().take(20).collect();
    assert!(failures.is_empty(), "{} of {} seeds failed; the first: {told:#?}", failures.len(), seeds.len());
}

#[test]
fn a_seed_replays_to_the_last_step() {
    for seed in 0..30 {
        let first = scenario::run(seed);
        let second = scenario::replay(seed, false, &mut |_, _| {});
        assert_eq!(first, second, "seed {seed}");
    }
}

const LIMIT: Duration = Duration::from_secs(5);

/// Three nodes with a durable group, on simulated disks.
fn durable_sums() -> (Cluster, Vec<Group<Sum>>) {
    let config = Config::builder("demo", 1).members([1, 2, 3]).storage("simulated");
    let config = config.group("sum", |group| _ = group.mode(Mode::Durable)).build().unwrap();
    let options = Options { view_log: Decider::RaftOnDisks, ..Options::default() };
    let mut cluster = Cluster::new(config, options, 42);
    let sums = cluster.group("sum", |_| Sum::default());
    cluster.start().unwrap();
    (cluster, sums)
}

#[test]
fn a_durable_group_comes_back_by_itself_when_all_its_nodes_have_lost_power() {
    let (mut cluster, sums) = durable_sums();
    assert_eq!(cluster.wait(LIMIT, sums[0].submit(&5)), Some(Ok(5)));
    let nodes = [3, 1, 2].map(NodeId);
    nodes.iter().for_each(|&node| cluster.crash(node));
    let sums = nodes.map(|node| cluster.declare(node, "sum", Sum::default()));
    nodes.iter().for_each(|&node| cluster.launch(node).unwrap());
    assert!(cluster.run_until(LIMIT, |cluster| nodes.iter().all(|&node| cluster.view(node).is_some())));
    assert_eq!(cluster.wait(LIMIT, sums[0].submit(&2)), Some(Ok(7)));
}

#[test]
fn a_node_whose_disk_fails_leaves_and_the_others_go_on() {
    let (mut cluster, sums) = durable_sums();
    cluster.fail_sync(NodeId(3), 0, 0);
    assert_eq!(cluster.wait(LIMIT, sums[0].submit(&5)), Some(Ok(5)), "once the third is dropped");
    let reason = cluster.end_reason(NodeId(3)).expect("it has ended").to_string();
    assert!(reason.contains("disk failed"), "{reason}");
    assert_eq!(cluster.view(NodeId(1)).map(|view| view.members.len()), Some(2));
}
