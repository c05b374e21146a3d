//! Processes whose logs were damaged while they were ended: a complete copy that comes late, and the work of an
//! operator where there is none.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use crate::process::{self, Cluster, Process, said, squall_log};

/// The time after which a log at rest has noted its acknowledged mark.
const QUIET: Duration = Duration::from_millis(2500);

fn log_of(cluster: &Cluster, id: u32) -> PathBuf {
    cluster.directory(id).join("logs/sum")
}

/// The newest segment that has records, and the end of its records.
fn end_of(log: &Path) -> (PathBuf, u64) {
    let names = fs::read_dir(log).expect("it is there").map(|entry| entry.expect("it can be listed").path());
    let mut segments: Vec<PathBuf> = names
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")))
        .collect();
    segments.sort();
    let used = |path: &PathBuf| {
        let bytes = fs::read(path).expect("it can be read");
        bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1)
    };
    segments.into_iter().rev().map(|path| (path.clone(), used(&path))).find(|(_, used)| *used > 4096).expect("records")
}

/// Makes the last bytes of a log zero.
fn zero_end(log: &Path, bytes: u64) {
    let (path, end) = end_of(log);
    let file = OpenOptions::new().write(true).open(path).expect("it is there");
    file.write_all_at(&vec![0; bytes as usize], end - bytes).expect("it can be written");
}

/// Starts a cluster, adds `numbers` numbers, lets the logs rest, and ends all processes.
fn add(cluster: &Cluster, numbers: usize) {
    let mut nodes = cluster.start();
    let members = nodes.len();
    for nth in 0..numbers {
        nodes[nth % members].add(1).expect("all are there");
    }
    thread::sleep(QUIET);
    process::kill_all(nodes);
}

#[test]
fn a_complete_log_that_comes_late_is_not_cut_to_those_of_damaged_members() {
    let cluster = Cluster::durable("late", "shm", 3);
    add(&cluster, 60);
    zero_end(&log_of(&cluster, 2), 3);
    zero_end(&log_of(&cluster, 3), 700);
    let mut nodes: Vec<Process> = [2, 3].into_iter().map(|id| cluster.launch(id)).collect();
    nodes.iter_mut().for_each(Process::ready);
    for node in &mut nodes {
        let refused = node.add(0).expect_err("it lacks what was acknowledged");
        assert!(refused.contains("no member holds the group's state"), "{refused}");
    }
    nodes.push(cluster.launch(1));
    nodes[2].ready();
    nodes.iter_mut().for_each(|node| assert_eq!(node.serves(), 60));
    process::kill_all(nodes);
}

#[test]
fn an_operator_repairs_a_log_from_a_copy_or_accepts_what_it_lacks() {
    let cluster = Cluster::durable("operator", "shm", 1);
    add(&cluster, 40);
    let (log, copy) = (log_of(&cluster, 1), cluster.directory(1).with_extension("copy"));
    let copied = Command::new("cp").arg("-r").args([&log, &copy]).status().expect("it can be started");
    assert!(copied.success());
    zero_end(&log, 500);
    let verified = squall_log(&["verify"], &[&log]);
    assert!(
        !verified.status.success() && said(&verified).contains("were acknowledged, and are missing"),
        "{verified:?}"
    );
    let waits = || {
        let mut node = cluster.launch(1);
        node.ready();
        let refused = node.add(0).expect_err("it lacks what was acknowledged");
        assert!(refused.contains("no member holds the group's state"), "{refused}");
        let used = squall_log(&["cut", "--before-damage"], &[&log]);
        assert!(!used.status.success() && said(&used).contains("in use"), "{used:?}");
        node.kill();
    };
    waits();

    let cut = squall_log(&["cut", "--before-damage"], &[&log]);
    assert!(cut.status.success() && said(&cut).contains("--accept-loss"), "{cut:?}");
    waits();

    let repaired = squall_log(&["repair", "--from"], &[&copy, &log]);
    assert!(repaired.status.success(), "{repaired:?}");
    let mut node = cluster.launch(1);
    node.ready();
    assert_eq!(node.serves(), 40);
    thread::sleep(QUIET);
    node.kill();

    zero_end(&log, 500);
    let read = squall_log(&["read"], &[&log]);
    assert!(!read.status.success() && said(&read).contains("can't be read"), "{read:?}");
    let cut = squall_log(&["cut", "--before-damage", "--accept-loss"], &[&log]);
    assert!(cut.status.success(), "{cut:?}");
    let mut node = cluster.launch(1);
    node.ready();
    let sum = node.serves();
    assert!((20..40).contains(&sum), "{sum}");
    node.kill();
    let verified = squall_log(&["verify"], &[&log]);
    assert!(verified.status.success(), "{verified:?}");

    let strange = squall_log(&["cut", "--before-damage"], &[&cluster.directory(1)]);
    assert!(!strange.status.success() && said(&strange).contains("holds no log"), "{strange:?}");
}
