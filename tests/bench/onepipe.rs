//! `squall-bench papers onepipe` and `squall-bench onepipe`, as a user runs them, and the findings of the 1Pipe paper.

use serde_json::Value;

use crate::{bench, number, printed, text};

/// The rows of an experiment's quick run, whose findings hold.
fn experiment(name: &str) -> Vec<Value> {
    let lines = printed(&format!("papers onepipe {name} --quick --json"));
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let (findings, rows): (Vec<Value>, Vec<Value>) = objects.partition(|object| object.get("claim").is_some());
    assert!(!rows.is_empty() && !findings.is_empty(), "{lines}");
    assert!(findings.iter().all(|finding| finding["holds"] == true), "{findings:?}");
    rows
}

#[test]
fn help_teaches_by_example() {
    for (arguments, teaches) in [
        ("papers --help", "onepipe"),
        ("papers onepipe --help", "squall-bench papers onepipe fig9 --svg fig9.svg"),
        ("--help", "onepipe"),
        ("onepipe --help", "squall-bench onepipe --mode be,sequencer"),
    ] {
        let help = printed(arguments);
        assert!(help.contains(teaches), "{arguments} does not mention {teaches:?}: {help}");
    }
}

#[test]
fn an_experiment_prints_rows_and_findings_and_draws() {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let file = directory.path().join("onepipe.svg");
    let table = printed(&format!("papers onepipe fig10 --quick --svg {}", file.display()));
    assert!(table.contains("core switch") && table.contains("holds: "), "{table}");
    let svg = std::fs::read_to_string(&file).expect("it is written");
    assert!(svg.contains(">recovery time, µs<") && svg.contains(">ToR switch<"));
}

#[test]
fn a_run_follows_from_its_seed() {
    let run = |seed| printed(&format!("papers onepipe fig10 --quick --json --seed {seed}"));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2), "what fails is drawn");
}

#[test]
fn one_pipe_scales_and_sequencers_saturate() {
    let rows = experiment("fig8");
    let of = |system: &str, processes: u64| {
        let found = rows.iter().find(|row| row["system"] == system && row["processes"] == processes);
        number(found.expect("there is such a row"), "mmsg_per_s")
    };
    assert!(of("1Pipe/BE", 512) > 0.95 * of("1Pipe/BE", 2));
    assert!(of("HostSeq", 512) < 0.1 * of("HostSeq", 2));
}

#[test]
fn a_message_waits_for_half_a_beacon_interval_whatever_the_distance() {
    let rows = experiment("fig9");
    for row in rows.iter().filter(|row| row["loss"] == 0.0 && row["switches"] == "chip") {
        let overhead = number(row, "best_effort_overhead_us");
        assert!((1.5..2.6).contains(&overhead), "{row}");
    }
}

#[test]
fn what_cuts_hosts_off_takes_longer_to_recover_from() {
    experiment("fig10");
}

#[test]
fn every_order_is_measured_between_real_processes() {
    let modes = ["be", "r", "sequencer", "token", "lamport"];
    let arguments = format!("onepipe --bare --json --nodes 2 --seconds 0.1 --rate 100 --mode {}", modes.join(","));
    let lines = printed(&arguments);
    let rows: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let measured: Vec<_> = rows.iter().map(|row| row["mode"].as_str().expect("a name")).collect();
    assert_eq!(measured, modes);
    for row in &rows {
        assert_eq!((&row["bench"], &row["fabric"]), (&"onepipe".into(), &"shm".into()), "{row}");
        let [nodes, size, width] = ["nodes", "size_bytes", "width"].map(|field| number(row, field));
        assert_eq!((nodes, size, width), (2.0, 64.0, 2.0), "{row}");
        let [rate, p50, p99] =
            ["scatterings_per_second", "latency_p50_us", "latency_p99_us"].map(|field| number(row, field));
        assert!(rate > 0.0 && 0.0 < p50 && p50 <= p99, "{row}");
    }
}

#[test]
fn scatterings_that_are_never_sent_are_counted() {
    let printed = printed("onepipe --bare --json --nodes 2 --seconds 0.05 --rate 1e7 --size 4096 --mode token");
    let row: Value = serde_json::from_str(&printed).expect(&printed);
    assert!(number(&row, "missed") > 0.0, "{row}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_remedy() {
    for (arguments, remedy) in [
        ("--width 5 --nodes 4", "a node receives a scattering once"),
        ("--ring-bytes 1000", "a power of two from 1 KiB"),
        ("--rate 0", "give more than 0"),
        ("--size 1", "give a size from 8 B to 1 MiB"),
        ("--seconds 1ns", "give a time from 1ms to 1d"),
        ("--size 200 --ring-bytes 1024 --mode be,sequencer --nodes 2", "--ring-bytes 2048"),
        ("--size 300 --ring-bytes 1024 --mode be", "--ring-bytes 2048"),
    ] {
        let output = bench(&format!("onepipe --bare {arguments}"));
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains(remedy), "{arguments}: {said}");
    }
    // One at a time, such messages fit.
    printed("onepipe --bare --size 200 --ring-bytes 1024 --nodes 2 --seconds 0.01 --rate 100");
}
