//! Options of `squall cp`, and receivers that come late.

use std::fs;

use super::copy::{BLOCK, SMALL, World, assert_same, number, receiver, report, text, write};

#[test]
fn a_receiver_that_is_missing_costs_the_others_nothing_and_may_come_late() {
    let mut world = World::new(&["a"]);
    write(&world.from("file"), 20_000_000);
    let output = world.push(&["file"], "a,b", &SMALL);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("b: no receiver \"b\" runs on this host"), "{}", text(&output.stderr));
    assert_same(&world.from("file"), &world.at("a", "file"));
    fs::remove_file(world.at("a", "file")).unwrap();
    let slow = [&SMALL[..], &["--limit-rate", "8MiB/s"]].concat();
    let mut push = world.command(&["file"], "a,b", &slow).spawn().unwrap();
    world.await_segments("a", 2, &mut push);
    fs::create_dir(world.at("b", "")).unwrap();
    world.serve("b", &[]);
    let output = push.wait_with_output().unwrap();
    let report = report(&output);
    assert!(output.status.success() && report["complete"] == true, "{report}");
    for name in ["a", "b"] {
        assert_same(&world.from("file"), &world.at(name, "file"));
        assert!(number(receiver(&report, name), "bytes_moved") <= 20_000_000 + 64 * BLOCK, "{report}");
    }
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_there_would_be_to_do() {
    let world = World::new(&["a"]);
    write(&world.from("d/same"), 10);
    world.push_well(&["d"], "a", &[]);
    write(&world.from("d/new"), 100_000);
    fs::write(world.at("a", "d/gone"), "gone").unwrap();
    let dry = world.push_well(&["d"], "a", &["--dry-run", "--delete"]);
    let row = receiver(&dry, "a").clone();
    assert_eq!((number(&row, "lacked"), number(&row, "bytes_written"), number(&row, "deleted")), (1, 100_000, 1));
    assert!(!world.at("a", "d/new").exists() && world.at("a", "d/gone").exists());
    let real = world.push_well(&["d"], "a", &["--delete"]);
    let row = receiver(&real, "a").clone();
    assert_eq!((number(&row, "lacked"), number(&row, "bytes_written"), number(&row, "deleted")), (1, 100_000, 1));
    assert_same(&world.from("d"), &world.at("a", "d"));
}

#[test]
fn names_that_would_do_things_to_a_terminal_are_shown_escaped() {
    let world = World::new(&["a"]);
    let name = "evil\u{1b}[2J\nname";
    fs::create_dir(world.from("d")).unwrap();
    fs::write(world.from("d").join(name), "x").unwrap();
    fs::create_dir_all(world.at("a", "d").join(name)).unwrap();
    let output = world.push(&["d"], "a", &[]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    assert!(errors.contains("evil\\u{1b}[2J\\nname") && !errors.contains('\u{1b}'), "{errors}");
}

#[test]
fn a_receiver_whose_staging_directory_was_removed_goes_on() {
    let world = World::new(&["a"]);
    write(&world.from("x"), 10);
    world.push_well(&["x"], "a", &[]);
    fs::remove_dir_all(world.at("a", ".squall-cp")).unwrap();
    write(&world.from("y"), 100_000);
    world.push_well(&["x", "y"], "a", &[]);
    assert_same(&world.from("y"), &world.at("a", "y"));
}
