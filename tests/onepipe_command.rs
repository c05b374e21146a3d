//! `squall sim onepipe`, as a user runs it, and what the 1Pipe paper says.

#![cfg(feature = "cli")]

use std::process::{Command, Output};

use serde_json::Value;

fn squall(arguments: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_squall")).args(arguments.split_whitespace()).output().expect("it can be started")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("the command prints UTF-8")
}

/// What it prints, if it succeeds.
fn printed(arguments: &str) -> String {
    let output = squall(arguments);
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// The rows of an experiment's quick run, and its findings.
fn experiment(name: &str) -> (Vec<Value>, Vec<Value>) {
    let lines = printed(&format!("sim onepipe {name} --quick --json"));
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let (findings, rows): (Vec<Value>, Vec<Value>) = objects.partition(|object| object.get("claim").is_some());
    assert!(!rows.is_empty() && !findings.is_empty(), "{lines}");
    (rows, findings)
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field} is no number in {row}"))
}

fn check_findings(findings: &[Value]) {
    for finding in findings {
        assert_eq!(finding["holds"], true, "{finding}");
    }
}

#[test]
fn help_teaches_by_example() {
    for (arguments, teaches) in
        [("sim --help", "onepipe"), ("sim onepipe --help", "squall sim onepipe fig9 --svg fig9.svg")]
    {
        let help = printed(arguments);
        assert!(help.contains(teaches), "{arguments} does not mention {teaches:?}: {help}");
    }
}

#[test]
fn an_experiment_prints_rows_and_findings_and_draws() {
    let file = std::env::temp_dir().join(format!("squall-{}-onepipe.svg", std::process::id()));
    let table = printed(&format!("sim onepipe fig10 --quick --svg {}", file.display()));
    assert!(table.contains("core switch") && table.contains("holds: "), "{table}");
    let svg = std::fs::read_to_string(&file).expect("it is written");
    std::fs::remove_file(&file).expect("it is there");
    assert!(svg.contains(">recovery time, µs<") && svg.contains(">ToR switch<"));
}

#[test]
fn a_run_follows_from_its_seed() {
    let run = |seed| printed(&format!("sim onepipe fig10 --quick --json --seed {seed}"));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2), "what fails is drawn");
}

#[test]
fn one_pipe_scales_and_sequencers_saturate() {
    let (rows, findings) = experiment("fig8");
    let of = |system: &str, processes: u64| {
        let found = rows.iter().find(|row| row["system"] == system && row["processes"] == processes);
        number(found.expect("there is such a row"), "mmsg_per_s")
    };
    assert!(of("1Pipe/BE", 512) > 0.95 * of("1Pipe/BE", 2));
    assert!(of("HostSeq", 512) < 0.1 * of("HostSeq", 2));
    check_findings(&findings);
}

#[test]
fn a_message_waits_for_half_a_beacon_interval_whatever_the_distance() {
    let (rows, findings) = experiment("fig9");
    for row in rows.iter().filter(|row| row["loss"] == "0" && row["switches"] == "chip") {
        let overhead = number(row, "best_effort_overhead_us");
        assert!((1.5..2.6).contains(&overhead), "{row}");
    }
    check_findings(&findings);
}

#[test]
fn what_cuts_hosts_off_takes_longer_to_recover_from() {
    let (_, findings) = experiment("fig10");
    check_findings(&findings);
}
