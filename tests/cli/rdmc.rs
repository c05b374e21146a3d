//! `squall rdmc` and `squall sim rdmc`, as a user runs them; and with the latter, the findings of the RDMC papers.

use std::{fs, path::PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::{number, printed, squall, text};

/// The rows of an experiment's quick run, and its findings.
fn experiment(name: &str) -> (Vec<Value>, Vec<Value>) {
    let lines = printed(&format!("sim rdmc {name} --quick --json"));
    let objects = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    let (findings, rows): (Vec<Value>, Vec<Value>) = objects.partition(|object| object.get("claim").is_some());
    assert!(!rows.is_empty() && !findings.is_empty(), "{lines}");
    assert!(rows.iter().chain(&findings).all(|object| object["experiment"] == name), "{lines}");
    (rows, findings)
}

/// A file in a directory that is removed after the test.
struct Scratch {
    path: PathBuf,
    _directory: TempDir,
}

impl Scratch {
    fn new(name: &str) -> Scratch {
        let directory = tempfile::tempdir().expect("a directory can be made");
        Scratch { path: directory.path().join(name), _directory: directory }
    }

    fn name(&self) -> &str {
        self.path.to_str().expect("a path of ASCII")
    }
}

/// Checks that elements nest and end, and that text has no markup of its own.
fn check_markup(svg: &str) {
    let mut open = Vec::new();
    for (i, piece) in svg.split('<').enumerate().skip(1) {
        let (tag, rest) = piece.split_once('>').unwrap_or_else(|| panic!("element {i} does not end: {piece}"));
        assert!(!rest.contains('>') && tag.matches('"').count().is_multiple_of(2), "{piece}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().expect("a name");
        if let Some(ended) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(ended), "an element ends that is not open");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not ended: {open:?}");
}

#[test]
fn a_plan_is_a_table_of_what_each_rank_does_in_each_step() {
    let expected = "\
binomial pipeline: 4 nodes, 3 blocks, 4 steps

    step  rank 0  rank 1     rank 2     rank 3
       0  b0→1         b0←0  ·          ·
       1  b1→2    b0→3            b1←0       b0←1
       2  b2→1         b2←0  b1→3 b0←3  b0→2 b1←2
       3  b2→2    b2→3 b1←3       b2←0  b1→1 b2←1
    sent  4       2          1          2
received  0       3          3          3

b2→5: sends block 2 to rank 5   b2←5: receives block 2 from rank 5   ·: nothing
";
    assert_eq!(printed("rdmc plan --nodes 4 --blocks 3"), expected);
}

#[test]
fn time_goes_across_where_nodes_do_not_fit() {
    let table = printed("rdmc plan --nodes 20 --blocks 2");
    assert!(table.contains("rank  step 0") && table.lines().any(|line| line.starts_with("  19  ")), "{table}");
}

#[test]
fn a_drawing_names_every_node_and_every_step() {
    let file = Scratch::new("plan.svg");
    let printed = printed(&format!("rdmc plan --algorithm hybrid --racks 3x4 --blocks 5 --svg {}", file.name()));
    assert!(printed.contains("12 nodes, 5 blocks") && printed.contains(file.name()), "{printed}");
    let svg = fs::read_to_string(&file.path).expect("it is written");
    check_markup(&svg);
    for rank in 0..12 {
        assert!(svg.contains(&format!(">rank {rank} (rack {})<", rank / 4)), "no rank {rank}");
    }
    for step in 0..8 {
        assert!(svg.contains(&format!(">step {step}<")), "no step {step}");
    }
}

#[test]
fn help_teaches_by_example() {
    for (arguments, teaches) in [
        ("rdmc --help", "plan"),
        ("rdmc plan --help", "squall rdmc plan --nodes 8 --blocks 4"),
        ("sim --help", "rdmc"),
        ("sim rdmc --help", "squall sim rdmc fig4 --svg fig4.svg"),
    ] {
        let help = printed(arguments);
        assert!(help.contains(teaches), "{arguments} does not mention {teaches:?}: {help}");
    }
}

#[test]
fn impossible_arguments_are_refused_with_a_remedy() {
    for (arguments, named) in [
        ("rdmc plan --nodes 0", &["--nodes", "1..=512"][..]),
        ("rdmc plan --blocks 0", &["--blocks"]),
        ("rdmc plan --algorithm star", &["star", "pipeline"]),
        ("rdmc plan --algorithm hybrid", &["--racks", "4x8"]),
        ("rdmc plan --racks 4x8", &["--racks", "hybrid"]),
        ("rdmc plan --algorithm hybrid --racks 4xx", &["--racks 4xx", "0,0,1,1"]),
        ("rdmc plan --algorithm hybrid --racks 0,,1", &["--racks 0,,1"]),
        ("rdmc plan --algorithm hybrid --racks 100x100", &["10000", "512"]),
        ("rdmc plan --algorithm hybrid --racks 2x4 --nodes 9", &["8 nodes", "9"]),
        ("rdmc plan --nodes 64 --blocks 20", &["too wide", "--svg FILE"]),
        ("rdmc plan --nodes 512 --blocks 65536", &["too many", "--blocks"]),
        ("sim rdmc fig5", &["fig5", "fig4"]),
    ] {
        let output = squall(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
        for name in named {
            assert!(error.contains(name), "{arguments}: {name:?} is not in: {error}");
        }
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_drawing_that_can_not_be_written_is_a_failure() {
    let output = squall("rdmc plan --svg /proc/nowhere/plan.svg");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/proc/nowhere/plan.svg"));
}

#[test]
fn an_experiment_prints_rows_and_findings_and_draws() {
    let file = Scratch::new("fig4.svg");
    let table = printed(&format!("sim rdmc fig4 --quick --svg {}", file.name()));
    assert!(table.contains("algorithm") && table.contains("holds: "), "{table}");
    let svg = fs::read_to_string(&file.path).expect("it is written");
    check_markup(&svg);
    assert!(svg.contains(">256 MB<") && svg.contains(">pipeline<"));
}

#[test]
fn a_run_follows_from_its_seed() {
    let run = |seed| printed(&format!("sim rdmc hybrid --quick --json --seed {seed}"));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2), "the order of ranks is drawn");
}

#[test]
fn sixteen_nodes_take_little_more_than_the_steps_of_the_pipeline() {
    let (rows, _) = experiment("fig4");
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
    let (rows, _) = experiment("fig8");
    let of = |copies: u64| number(rows.iter().find(|r| r["copies"] == copies).expect("a row"), "pipeline_ms");
    assert!(of(511) / of(127) < 1.15);
    assert!(of(511) / of(1) < 1.15);
}

#[test]
fn a_slow_link_costs_what_the_theory_says_at_most() {
    let (rows, _) = experiment("slow-link");
    assert!(rows.iter().any(|row| row["nodes"] == 64));
    for row in rows {
        let (remains, bound) = (number(&row, "remains_percent"), number(&row, "bound_percent"));
        assert!(remains > 0.98 * bound, "{row}");
    }
}

#[test]
fn overlapping_groups_get_equal_shares() {
    let (rows, _) = experiment("fairness");
    for row in rows {
        let share = number(&row, "of_mean_percent");
        assert!((90.0..110.0).contains(&share), "{row}");
    }
}

#[test]
fn what_the_papers_found_holds() {
    for name in ["fig4", "fig6", "fig8", "fig10", "slow-link", "delay", "fairness", "hybrid", "windows"] {
        for finding in experiment(name).1 {
            assert_eq!(finding["holds"], true, "{finding}");
        }
    }
}
