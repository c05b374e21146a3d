//! `squall-bench transactions`, as a user runs it.

use serde_json::Value;

use crate::{bench, number, printed, text};

#[test]
fn transactions_are_measured_between_real_processes() {
    let printed = printed("transactions --bare --json --nodes 2 --seconds 0.3 --window 4");
    let row: Value = serde_json::from_str(&printed).expect(&printed);
    assert_eq!(row["bench"], "transactions", "{row}");
    let shape = ["nodes", "shards", "replicas", "accounts", "window"].map(|field| number(&row, field));
    assert_eq!(shape, [2.0, 2.0, 2.0, 64.0, 4.0], "{row}");
    let [rate, p50, p99] =
        ["transactions_per_second", "latency_p50_us", "latency_p99_us"].map(|field| number(&row, field));
    assert!(rate > 0.0 && 0.0 < p50 && p50 <= p99, "{row}");
}

#[test]
fn histories_are_checked_after_a_node_was_killed_or_stopped() {
    for (seed, fate) in [(3, "node 0 was stopped, and has learnt that it is out"), (4, "node 1 was killed (-9)")] {
        let line = printed(&format!("transactions --check --seconds 0.5 --seed {seed}"));
        for found in [fate, "strictly serializable", "all copies of each shard are the same"] {
            assert!(line.contains(found), "{line}");
        }
    }
}

#[test]
fn transactions_over_the_shards_of_a_group_are_measured() {
    let printed = printed("transactions --groups --bare --json --nodes 3 --seconds 0.3 --window 4");
    let row: Value = serde_json::from_str(&printed).expect(&printed);
    assert_eq!(row["bench"], "transactions-groups", "{row}");
    let [rate, p50, p99] =
        ["transactions_per_second", "latency_p50_us", "latency_p99_us"].map(|field| number(&row, field));
    assert!(rate > 0.0 && 0.0 < p50 && p50 <= p99, "{row}");
}

#[test]
fn transactions_over_the_shards_of_a_group_are_checked_after_a_node_and_a_client_were_killed() {
    let line = printed("transactions --groups --check --seconds 2 --seed 4 --window 8");
    for found in ["strictly serializable", "a node and a client were killed"] {
        assert!(line.contains(found), "{line}");
    }
}

#[test]
fn what_cannot_be_run_is_refused_with_a_remedy() {
    for (arguments, remedy) in [
        ("--check --replicas 1", "give --replicas 2 or more"),
        ("--check --nodes 2", "give --nodes 3 or more"),
        ("--replicas 4", "give each shard between 1 and 3"),
        ("--seconds 61", "give a time from 10ms to 1m"),
        ("--check --json", "cannot be used with"),
    ] {
        let output = bench(&format!("transactions {arguments}"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(remedy), "{arguments}: {said}");
    }
}
