//! `squall-bench shards`, as a user runs it.

use serde_json::Value;

use crate::{bench, number, printed, text};

#[test]
fn a_sharded_group_is_measured_while_members_fail_and_leave() {
    let printed = printed("shards --json --nodes 4 --replicas 2 --shards 3 --clients 2 --seconds 0.3 --failures 2");
    let row: Value = serde_json::from_str(&printed).expect(&printed);
    assert_eq!(row["bench"], "shards", "{row}");
    let shape = ["nodes", "shards", "replicas", "clients", "failures"].map(|field| number(&row, field));
    assert_eq!(shape, [4.0, 3.0, 2.0, 2.0, 2.0], "{row}");
    let [p50, p99] = ["latency_p50_us", "latency_p99_us"].map(|field| number(&row, field));
    assert!(0.0 < p50 && p50 <= p99, "{row}");
    let alone = ["member_p50_us", "elsewhere_p50_us", "client_p50_us"].map(|field| number(&row, field));
    assert!(alone.iter().all(|&us| us > 0.0), "{row}");
    assert!(number(&row, "calls_per_second") > 0.0 && number(&row, "answered") > 0.0, "{row}");
    assert!(number(&row, "pause_ms_max") > 0.0, "{row}");
}

#[test]
fn what_cannot_be_run_is_refused_with_a_remedy() {
    for (arguments, remedy) in [("--shards 0", "1..=256"), ("--nodes 1", "2..=32"), ("--seconds 0", "give a time")] {
        let output = bench(&format!("shards {arguments}"));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(remedy), "{arguments}: {said}");
    }
}
