//! `squall rdmc`, as a user runs it.

use std::fs;

use crate::{
    drawing::{Scratch, check_markup},
    printed, squall, text,
};

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
    for (arguments, teaches) in [("rdmc --help", "plan"), ("rdmc plan --help", "squall rdmc plan --nodes 8 --blocks 4")]
    {
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
