//! Whole clusters from seeds: see `squall::sim::scenario` for the invariants.
//!
//! `SQUALL_SEED` runs one seed alone, `SQUALL_SEEDS=FROM..TO` others than usual; `squall-bench sim replay SEED` prints
//! the events of a seed.

use std::time::Duration;

use squall::{
    Config, Group, Mode, NodeId, Outcome, SubmitError,
    sim::{Cluster, Options, ViewLogKind, scenario},
};

use crate::{seeds, sum::Sum};

/// The number of seeds that run here. The command `squall-bench sim check --seeds N` runs any number.
const SEEDS: u64 = 1000;

#[test]
fn every_scenario_keeps_order_and_promises() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| scenario::run(seed).map(drop).map_err(|failed| failed.to_string()));
}

#[test]
fn a_seed_replays_to_the_last_step() {
    for seed in 0..10 {
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
    let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
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

/// The outcome of a submit that failed because its node was dropped, if it was.
fn outcome_of(answer: Option<Result<u64, SubmitError>>) -> Option<Outcome> {
    match answer {
        Some(Err(SubmitError::Unavailable { outcome, .. })) => Some(outcome),
        _ => None,
    }
}

#[test]
fn what_may_be_on_no_disk_is_not_said_to_be_delivered() {
    let mut dropped = 0;
    for seed in 0..20 {
        let config = Config::builder("demo", 1).members([1, 2, 3]).storage("simulated");
        let config = config.failure_timeout(Duration::from_millis(20));
        let config = config.group("sum", |group| _ = group.mode(Mode::Durable)).build().unwrap();
        let options = Options { view_log: ViewLogKind::RaftOnDisks, ..Options::default() };
        let mut cluster = Cluster::new(config, options, seed);
        let sums = cluster.group("sum", |_| Sum::default());
        cluster.start().unwrap();
        assert_eq!(cluster.wait(LIMIT, sums[2].submit(&5)), Some(Ok(5)));
        let nodes = [1, 2, 3].map(NodeId);
        nodes.iter().for_each(|&node| cluster.hang_disk(node, true));
        // The third does not learn that the second has its message.
        cluster.net().cut_one_way(NodeId(2), NodeId(3));
        let submit = sums[2].submit(&2);
        cluster.run_for(Duration::from_millis(1));
        cluster.suspect(NodeId(1), NodeId(3));
        let outcome = outcome_of(cluster.wait(Duration::from_millis(15), submit));
        assert_ne!(outcome, Some(Outcome::Delivered), "seed {seed}: it is on no disk");
        dropped += u32::from(outcome.is_some());
        nodes.iter().for_each(|&node| cluster.crash(node));
        cluster.net().heal(NodeId(2), NodeId(3));
        nodes.iter().for_each(|&node| cluster.hang_disk(node, false));
        let sums = nodes.map(|node| cluster.declare(node, "sum", Sum::default()));
        nodes.iter().for_each(|&node| cluster.launch(node).unwrap());
        assert!(cluster.run_until(LIMIT, |cluster| nodes.iter().all(|&node| cluster.view(node).is_some())));
        assert_eq!(cluster.wait(LIMIT, sums[0].submit(&0)), Some(Ok(5)), "seed {seed}: the loss of power undoes it");
    }
    assert!(dropped > 0, "a client was told what became of it");
}

#[test]
fn nothing_is_said_to_be_delivered_while_another_who_is_dropped_may_read() {
    let mut stale = 0;
    for seed in 0..20 {
        let config = Config::builder("demo", 1).members([1, 2, 3, 4, 5]);
        let config = config.failure_timeout(Duration::from_millis(20)).read_lease(Duration::from_millis(15));
        let config = config.group("sum", |group| _ = group.senders([4])).build().unwrap();
        let options = Options { view_log: ViewLogKind::Raft, ..Options::default() };
        let mut cluster = Cluster::new(config, options, seed);
        let sums = cluster.group("sum", |_| Sum::default());
        cluster.start().unwrap();
        assert_eq!(cluster.wait(LIMIT, sums[3].submit(&5)), Some(Ok(5)));
        assert_eq!(cluster.wait(LIMIT, sums[4].read(|sum| sum.0)), Some(Ok(5)));
        // The fifth receives nothing from now on, and has its lease. The fourth does not learn that the second has its
        // message.
        [1, 2, 3, 4].iter().for_each(|&node| cluster.net().cut_one_way(NodeId(node), NodeId(5)));
        cluster.net().cut_one_way(NodeId(2), NodeId(4));
        let submit = sums[3].submit(&2);
        cluster.run_for(Duration::from_millis(1));
        [4, 5].iter().for_each(|&node| cluster.suspect(NodeId(1), NodeId(node)));
        let outcome = outcome_of(cluster.wait(Duration::from_millis(10), submit));
        let read = cluster.wait(Duration::from_micros(100), sums[4].read(|sum| sum.0));
        if outcome.is_some() && read == Some(Ok(5)) {
            assert_ne!(outcome, Some(Outcome::Delivered), "seed {seed}: the fifth has read a state without it since");
            stale += 1;
        }
    }
    assert!(stale > 0, "the fifth has read under its lease");
}
