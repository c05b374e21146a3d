//! `squall-bench log`, and `squall-bench ordered` with durable delivery, as a user runs them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::number;

/// An empty directory on a disk.
fn disk(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&path);
    fs::create_dir_all(&path).expect("cargo's directory can be written");
    path
}

fn holds(directory: &Path) -> usize {
    fs::read_dir(directory).expect("it is there").count()
}

fn command(arguments: &str, disk: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall-bench"));
    command.args(arguments.split_whitespace()).arg("--dir").arg(disk);
    command
}

fn bench(arguments: &str, disk: &Path) -> Output {
    command(arguments, disk).output().expect("it can be started")
}

fn assert_plausible(row: &Value, size: f64) {
    assert_eq!(number(row, "size_bytes"), size);
    let rate = number(row, "appends_per_second");
    assert!(rate > 10.0, "{row}");
    assert!((number(row, "bytes_per_second") / rate / size - 1.0).abs() < 1e-6, "{row}");
    let [p50, p99, p999] = ["latency_p50_us", "latency_p99_us", "latency_p999_us"].map(|field| number(row, field));
    assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{row}");
    // A batch has at least one record, and a record is longer than its payload.
    assert!(number(row, "batch_mean") >= 1.0, "{row}");
    assert!(number(row, "batch_bytes_mean") > size * number(row, "batch_mean"), "{row}");
    assert!(number(row, "fsyncs_per_second") > 0.0, "{row}");
    let share = number(row, "log_bytes_per_second") / number(row, "disk_bytes_per_second");
    assert!((share / number(row, "share_of_disk") - 1.0).abs() < 1e-6, "of one round: {row}");
}

#[test]
fn appends_are_held_against_their_disk_and_leave_nothing_on_it() {
    let disk = disk("bench-log");
    for (arguments, name, sizes) in [
        ("log --nodes 2 --size 100,2000 --writers 7 --seconds 0.3 --rounds 1 --json", "log", &[100.0, 2000.0][..]),
        ("ordered --delivery durable --nodes 2 --size 500 --seconds 0.3 --rounds 1 --json", "ordered", &[500.0]),
    ] {
        let output = bench(arguments, &disk);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).expect("it prints UTF-8");
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        assert_eq!(rows.len(), sizes.len(), "{text}");
        for (row, &size) in rows.iter().zip(sizes) {
            assert_eq!((&row["bench"], number(row, "nodes")), (&name.into(), 2.0));
            assert_plausible(row, size);
        }
        assert_eq!(holds(&disk), 0, "{arguments}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_made() {
    let disk = disk("bench-log-refused");
    for (arguments, says) in [
        ("log --seconds 0", "give a time from 1ms to 1d"),
        ("log --tls", "--fabric tcp"),
        ("ordered --delivery durable --rate 10", "--rate is for --delivery ordered"),
    ] {
        let output = bench(arguments, &disk);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {said}");
        assert!(said.contains(says), "{arguments}: {said}");
    }
    assert_eq!(holds(&disk), 0);
    let missing = bench("log", &disk.join("missing"));
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("give another --dir"));
}

/// A process that is killed if the test fails before it has ended.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_is_interrupted_leaves_nothing_on_the_disk() {
    let disk = disk("bench-log-interrupted");
    let child = command("log --nodes 2 --seconds 60", &disk).stdout(Stdio::null()).spawn();
    let mut running = Running(child.expect("it can be started"));
    let until = Instant::now() + Duration::from_secs(60);
    let logs = || -> usize {
        let entries = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        entries(disk.clone()).flat_map(entries).flat_map(entries).count()
    };
    while logs() < 2 {
        assert!(Instant::now() < until, "no node has a log");
        thread::sleep(Duration::from_millis(5));
    }
    let process = Pid::from_child(&running.0);
    kill_process(process, Signal::INT).expect("it runs");
    let status = running.0.wait().expect("it ends");
    assert!(!status.success(), "{status}");
    assert_eq!(holds(&disk), 0);
}
