//! `squall-bench papers rdmc`, as a user runs it, and the findings of the RDMC papers.

use std::fs;

use serde_json::Value;

use crate::{
    bench,
    drawing::{Scratch, check_markup},
    number, printed, text,
};

/// The rows of an experiment's quick run, whose findings hold.
fn experiment(name: &str) -> Vec<Value> {
    let lines = printed(&format!("papers rdmc {name} --quick --json"));
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let (findings, rows): (Vec<Value>, Vec<Value>) = objects.partition(|object| object.get("claim").is_some());
    assert!(!rows.is_empty() && !findings.is_empty(), "{lines}");
    assert!(rows.iter().chain(&findings).all(|object| object["experiment"] == name), "{lines}");
    assert!(findings.iter().all(|finding| finding["holds"] == true), "{findings:?}");
    rows
}

#[test]
fn help_teaches_by_example() {
    for (arguments, teaches) in
        [("papers --help", "rdmc"), ("papers rdmc --help", "squall-bench papers rdmc fig4 --svg fig4.svg")]
    {
        let help = printed(arguments);
        assert!(help.contains(teaches), "{arguments} does not mention {teaches:?}: {help}");
    }
}

#[test]
fn an_experiment_that_there_is_not_is_refused() {
    let output = bench("papers rdmc fig5");
    let error = text(&output.stderr);
    assert!(output.status.code() == Some(2) && error.contains("fig5") && error.contains("fig4"), "{error}");
}

#[test]
fn an_experiment_prints_rows_and_findings_and_draws() {
    let file = Scratch::new("fig4.svg");
    let table = printed(&format!("papers rdmc fig4 --quick --svg {}", file.name()));
    assert!(table.contains("algorithm") && table.contains("holds: "), "{table}");
    let svg = fs::read_to_string(&file.path).expect("it is written");
    check_markup(&svg);
    assert!(svg.contains(">256 MB<") && svg.contains(">pipeline<"));
}

#[test]
fn a_run_follows_from_its_seed() {
    let run = |seed| printed(&format!("papers rdmc hybrid --quick --json --seed {seed}"));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2), "the order of ranks is drawn");
}

#[test]
fn sixteen_nodes_take_little_more_than_the_steps_of_the_pipeline() {
    let rows = experiment("fig4");
    let of = |mb: u64, nodes: u64, algorithm: &str| {
        let found = rows.iter().find(|r| r["message_mb"] == mb && r["nodes"] == nodes && r["algorithm"] == algorithm);
        number(found.expect("there is such a row"), "latency_ms")
    };
    // 128 blocks of 2 MiB at 12.5 GB/s.
    let theory = (4 + 128 - 1) as f64 * f64::from(2 << 20) / 12.5e9 * 1e3;
    let pipeline = of(256, 16, "pipeline");
    assert!((1.0..1.05).contains(&(pipeline / theory)), "{pipeline} ms against {theory} ms");
    assert!(of(256, 16, "sequential") > 2.0 * pipeline);
    assert!(of(256, 16, "tree") > 2.0 * pipeline);
}

#[test]
fn hundreds_of_copies_take_hardly_longer_than_one() {
    let rows = experiment("fig8");
    let of = |copies: u64| number(rows.iter().find(|r| r["copies"] == copies).expect("a row"), "pipeline_ms");
    assert!(of(511) / of(127) < 1.15);
    assert!(of(511) / of(1) < 1.15);
}

#[test]
fn a_slow_link_costs_what_the_theory_says_at_most() {
    let rows = experiment("slow-link");
    assert!(rows.iter().any(|row| row["nodes"] == 64));
    for row in rows {
        let (remains, bound) = (number(&row, "remains_percent"), number(&row, "bound_percent"));
        assert!(remains > 0.98 * bound, "{row}");
    }
}

#[test]
fn overlapping_groups_get_equal_shares() {
    let rows = experiment("fairness");
    for row in rows {
        let share = number(&row, "of_mean_percent");
        assert!((90.0..110.0).contains(&share), "{row}");
    }
}

#[test]
fn what_the_papers_found_holds() {
    let lines = printed("papers rdmc all --quick --json");
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let findings: Vec<Value> = objects.filter(|object| object.get("claim").is_some()).collect();
    let failing = findings.iter().find(|finding| finding["holds"] != true);
    assert!(findings.len() > 10 && failing.is_none(), "{lines}");
}
