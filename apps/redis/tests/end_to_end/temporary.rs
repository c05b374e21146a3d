//! A cluster in memory, and the directory of temporary files: no file that was there is removed or changed.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    machine::{DEADLINE, free_ports, one_at_a_time, until},
    process::ends_within,
};

/// Starts a cluster whose temporary files are in `directory`.
fn spawn(directory: &Path, options: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall-redis"));
    command.args(["--port", &free_ports().to_string()]).args(options).env("TMPDIR", directory);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().expect("the program starts")
}

/// Runs a cluster until it serves, and stops it. Returns the modes of the directories that it has made in the meantime.
fn run(directory: &Path, options: &[&str]) -> Vec<u32> {
    let before = names(directory);
    let mut cluster = spawn(directory, options);
    let mut lines = BufReader::new(cluster.stdout.take().expect("it is piped")).lines();
    assert!(lines.any(|line| line.expect("it is text").contains("Ctrl-C stops them")), "{options:?}: it did not start");
    let made = names(directory).into_iter().filter(|name| !before.contains(name));
    let mode = |name: String| fs::metadata(directory.join(name)).expect("it is there").permissions().mode() & 0o777;
    let modes = made.map(mode).collect();
    let pid = Pid::from_child(&cluster);
    kill_process(pid, Signal::INT).expect("the supervisor is alive");
    assert!(ends_within(DEADLINE, &mut cluster).is_some_and(|status| status.success()));
    modes
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).expect("it is there");
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_cluster_removes_only_what_it_made_and_follows_no_planted_link() {
    let _turn = one_at_a_time();
    let base = tempfile::tempdir().expect("a directory can be made");
    let (temporary, other) = (base.path().join("tmp"), base.path().join("other"));
    for directory in [&temporary, &other, &temporary.join("bank")] {
        fs::create_dir(directory).expect("there is room");
        fs::write(directory.join("precious"), "kept").expect("there is room");
    }
    symlink(&other, temporary.join("planted")).expect("it is new");
    for options in [&["--cluster", "bank"][..], &["--cluster", "planted", "--fabric", "tcp"]] {
        assert_eq!(run(&temporary, options), [0o700], "{options:?}");
        assert_eq!(names(&temporary), ["bank", "planted", "precious"], "{options:?}");
        assert_eq!(names(&temporary.join("bank")), ["precious"], "{options:?}");
        assert_eq!(names(&other), ["precious"], "{options:?}");
    }
}

/// A replica that stands still. It is killed on drop.
struct Still(Pid);

impl Drop for Still {
    fn drop(&mut self) {
        // It may have ended.
        let _ = kill_process(self.0, Signal::KILL);
    }
}

#[test]
fn a_directory_stays_until_the_replicas_of_a_supervisor_that_was_killed_have_ended() {
    let _turn = one_at_a_time();
    let base = tempfile::tempdir().expect("a directory can be made");
    let mut cluster = spawn(base.path(), &[]);
    let lines = BufReader::new(cluster.stdout.take().expect("it is piped")).lines();
    let mut said: Vec<String> = Vec::new();
    for line in lines.map_while(Result::ok) {
        said.push(line);
        if said.last().is_some_and(|line| line.contains("Ctrl-C stops them")) {
            break;
        }
    }
    assert!(said.last().is_some_and(|line| line.contains("Ctrl-C stops them")), "all serve: {said:?}");
    let line = said.iter().find(|line| line.contains("(process ")).expect("a replica serves");
    let pid = line.split_once("(process ").and_then(|(_, rest)| rest.trim_end_matches(')').parse().ok());
    let still = Still(Pid::from_raw(pid.expect("a number")).expect("a process id"));
    kill_process(still.0, Signal::STOP).expect("the replica is alive");
    cluster.kill().expect("it is alive");
    cluster.wait().expect("it was killed");
    let place = base.path().join(&names(base.path())[0]);
    let kept = names(&place);
    // Another cluster removes what nobody uses.
    run(base.path(), &[]);
    assert_eq!(names(&place), kept);
    drop(still);
    until("the directory is removed", || {
        run(base.path(), &[]);
        names(base.path()).is_empty()
    });
}

#[test]
fn a_cluster_s_name_is_no_path() {
    let _turn = one_at_a_time();
    let base = tempfile::tempdir().expect("a directory can be made");
    for name in ["..", ".", "../x", "/", "a/b", "", "-x"] {
        let status = spawn(base.path(), &[&format!("--cluster={name}")]).wait().expect("it can be waited for");
        assert_eq!(status.code(), Some(2), "{name:?}");
    }
    assert_eq!(names(base.path()), Vec::<String>::new());
}
