//! Measurements of groups of real processes, as a user runs them.

use std::{
    fs,
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{bench, number, text};

/// The lines of JSON that the command prints.
fn figures(arguments: &str) -> Vec<Value> {
    let output = bench(arguments);
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn help_teaches_by_example() {
    for (arguments, teaches) in [
        ("--help", "yardsticks"),
        ("ordered --help", "squall-bench ordered --nodes 3"),
        ("calls --help", "squall-bench calls --nodes 3"),
        ("collectives --help", "squall-bench collectives --nodes 2,4,8 --operation barrier"),
        ("bulk --help", "squall-bench bulk --nodes 4 --size 256MiB"),
        ("transactions --help", "squall-bench transactions --nodes 4 --window 1"),
    ] {
        let output = bench(arguments);
        assert!(output.status.success());
        let help = text(&output.stdout);
        assert!(help.contains(teaches), "{arguments} does not mention {teaches:?}: {help}");
        assert!(!help.contains("worker"), "{arguments} shows what only the command itself uses: {help}");
    }
}

#[test]
fn a_short_benchmark_of_real_processes_gives_plausible_figures() {
    let figures = figures("ordered --nodes 2,3 --size 100 --seconds 0.5 --json");
    let (yardsticks, rows): (Vec<_>, Vec<_>) = figures.iter().partition(|figure| figure["bench"] == "yardstick");
    assert!(yardsticks.iter().any(|yardstick| yardstick["name"] == "memcpy" && number(yardstick, "value") > 0.01));
    assert_eq!(rows.len(), 2, "{rows:?}");
    for (row, nodes) in rows.into_iter().zip([2.0, 3.0]) {
        assert_eq!((&row["bench"], &row["fabric"], &row["senders"]), (&"ordered".into(), &"shm".into(), &"all".into()));
        assert_eq!((number(row, "nodes"), number(row, "size_bytes")), (nodes, 100.0));
        let rate = number(row, "messages_per_second");
        assert!(rate > 100.0, "{row}");
        assert!((number(row, "bytes_per_second") / rate - 100.0).abs() < 0.01, "{row}");
        let [p50, p99, p999] = ["latency_p50_us", "latency_p99_us", "latency_p999_us"].map(|field| number(row, field));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{row}");
        assert!(number(row, "wall_seconds") > 0.4, "{row}");
        assert!(number(row, "cpu_seconds") > 0.0, "{row}");
        assert!(number(row, "window") >= 1.0, "{row}");
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_times_every_message() {
    let figures = figures("ordered --bare --nodes 2 --senders one --size 1 --rate 200 --seconds 0.5 --json");
    let row = figures.iter().find(|figure| figure["bench"] == "ordered").expect("a row");
    assert_eq!((&row["senders"], number(row, "rate")), (&"one".into(), 200.0));
    let rate = number(row, "messages_per_second");
    assert!((100.0..=400.0).contains(&rate), "one sender at 200 per second gave {rate}");
    assert!(number(row, "lateness_p50_us") > 0.0, "{row}");
}

#[test]
fn callers_are_answered_and_reads_under_a_lease_wake_nobody() {
    let rows = |line: &str| -> Vec<_> {
        figures(line).into_iter().filter(|figure| figure["bench"] == "calls").collect::<Vec<_>>()
    };
    let mixed = rows("calls --bare --nodes 2 --callers 1,3 --in-flight 4 --reads 50 --seconds 0.3 --json");
    assert_eq!(mixed.len(), 2);
    for row in &mixed {
        assert!(row["calls_per_second"].as_f64() > Some(100.0), "{row}");
        assert!(row["latency_p50_us"].as_f64() > Some(0.0), "{row}");
    }
    let reads = rows("calls --bare --nodes 2 --reads 100 --seconds 0.3 --json");
    assert!(reads[0]["switches_per_call"].as_f64() < Some(0.1), "{}", reads[0]);
}

/// The rows of a bulk benchmark.
fn moved(arguments: &str) -> Vec<Value> {
    let figures = figures(&format!("bulk --bare {arguments} --json"));
    figures.into_iter().filter(|figure| figure["bench"] == "bulk").collect()
}

#[test]
fn collective_operations_are_measured_by_size_and_algorithm() {
    let rows = |arguments: &str| {
        let figures = figures(&format!("collectives --bare --samples 3 {arguments} --json"));
        figures.iter().for_each(|row| {
            assert!(row["bench"] == "collectives" && number(row, "microseconds_median") > 0.0, "{row}");
            assert!(number(row, "microseconds_p99") >= number(row, "microseconds_median"), "{row}");
        });
        let of = |row: &Value, name| row[name].as_str().expect("a name").to_owned();
        let named = |row: &Value| {
            let size = number(row, "size_bytes") as u64;
            (of(row, "fabric"), number(row, "nodes") as u64, of(row, "operation"), size, of(row, "algorithm"))
        };
        figures.iter().map(named).collect::<Vec<_>>()
    };
    let row = |fabric: &str, nodes, operation: &str, size, algorithm: &str| {
        (fabric.to_owned(), nodes, operation.to_owned(), size, algorithm.to_owned())
    };
    let chosen = rows("--nodes 2,3 --operation barrier,allreduce --size 20 --algorithm exchange,halving");
    let expected = [
        row("shm", 2, "barrier", 0, "exchange"),
        row("shm", 3, "barrier", 0, "exchange"),
        row("shm", 2, "allreduce", 24, "exchange"),
        row("shm", 3, "allreduce", 24, "exchange"),
        row("shm", 2, "allreduce", 24, "halving"),
        row("shm", 3, "allreduce", 24, "halving"),
    ];
    assert_eq!(chosen, expected);
    let long = rows("--fabric tcp --nodes 3 --operation broadcast --size 1MiB --algorithm rdmc,chain");
    let expected = [row("tcp", 3, "broadcast", 1 << 20, "rdmc"), row("tcp", 3, "broadcast", 1 << 20, "chain")];
    assert_eq!(long, expected);
    let others = "reduce,gather,scatter,allgather,reduce-scatter,all-to-all";
    assert_eq!(rows(&format!("--nodes 4 --operation {others} --size 100KiB")).len(), 6);
}

#[test]
fn bulk_data_reaches_every_process_by_every_algorithm() {
    let ways = ["sequential", "interleaved", "chain", "tree", "pipeline", "hybrid"];
    // A message whose last block and last word are short.
    let rows = moved(&format!(
        "--nodes 2,5 --size 100001 --block 4KiB --algorithm {} --iterations 2 --warm-up 1",
        ways.join(",")
    ));
    let algorithms: Vec<_> = rows.iter().map(|row| row["algorithm"].as_str().expect("a name")).collect();
    assert_eq!(algorithms, [ways, ways].concat());
    for row in &rows {
        assert_eq!((number(row, "size_bytes"), number(row, "block_bytes")), (100_001.0, 4096.0));
        let seconds = number(row, "seconds_median");
        assert!(seconds > 0.0 && (number(row, "bytes_per_second") * seconds / 100_001.0 - 1.0).abs() < 1e-6, "{row}");
        assert!((0.0..=seconds * 1e3).contains(&number(row, "skew_ms")), "{row}");
        assert!(number(row, "cpu_seconds") > 0.0, "{row}");
    }
}

#[test]
fn a_bulk_benchmark_chooses_what_suits_shared_memory() {
    let rows = moved("--size 1,1MiB,32MiB --iterations 2");
    let blocks: Vec<_> = rows.iter().map(|row| number(row, "block_bytes")).collect();
    assert!(blocks.is_sorted() && blocks[0] < blocks[2] && blocks[2] < 33_554_432.0, "{blocks:?}");
    for row in &rows {
        assert_eq!(
            (&row["algorithm"], &row["fabric"], number(row, "nodes")),
            (&"interleaved".into(), &"shm".into(), 4.0)
        );
        assert!(row["share_least"].is_null(), "one group shares with no other: {row}");
    }
}

#[test]
fn groups_of_several_roots_move_their_messages_at_once() {
    for (arguments, groups) in
        [("--senders all", 3.0), ("--senders half", 1.0), ("--senders all --groups 7", 7.0), ("--groups 2", 2.0)]
    {
        let rows = moved(&format!("--nodes 3 --size 300KiB --iterations 2 {arguments}"));
        let row = &rows[0];
        assert_eq!(number(row, "groups"), groups, "{arguments}");
        let total = groups * number(row, "size_bytes");
        assert!((number(row, "bytes_per_second") * number(row, "seconds_median") / total - 1.0).abs() < 1e-6, "{row}");
        if groups > 1.0 {
            let [least, most] = ["share_least", "share_most"].map(|field| number(row, field));
            assert!(0.0 < least && least <= 1.0 && 1.0 <= most && most <= groups, "{row}");
        }
    }
}

#[test]
fn receivers_share_the_pages_of_one_copy() {
    // A message whose last page and last word are short.
    let rows = moved("--nodes 2,4 --size 100001,256KiB --share --iterations 2 --warm-up 1");
    assert_eq!(rows.len(), 4, "{rows:?}");
    for row in &rows {
        assert_eq!(
            (&row["shared"], &row["algorithm"], &row["block_bytes"]),
            (&true.into(), &Value::Null, &Value::Null)
        );
        let [seconds, after_seal] = ["seconds_median", "after_seal_seconds_median"].map(|field| number(row, field));
        assert!(0.0 < after_seal && after_seal < seconds, "sealing takes part of the time: {row}");
        assert!(row["touch_seconds_median"].is_null() && row["page_faults"].is_null(), "no receiver used it: {row}");
    }
}

#[test]
fn writing_a_shared_message_faults_once_for_each_page_and_a_copied_one_never() {
    for (arguments, least, most) in [
        ("--share --touch write", 64.0, 80.0),
        ("--share --touch read", 1.0, 80.0),
        ("--touch write", 0.0, 16.0),
        ("--touch read", 0.0, 16.0),
    ] {
        // The message has 64 pages.
        let rows = moved(&format!("--nodes 3 --size 256KiB --iterations 3 {arguments}"));
        let faults = number(&rows[0], "page_faults");
        assert!((least..=most).contains(&faults), "{arguments}: {}", rows[0]);
        assert!(number(&rows[0], "touch_seconds_median") > 0.0, "{}", rows[0]);
    }
}

#[test]
fn a_sweep_tries_blocks_up_to_the_whole_message() {
    let rows = moved("--nodes 2 --size 256KiB --sweep --iterations 1 --warm-up 0");
    let blocks = |algorithm: &str| -> Vec<f64> {
        rows.iter().filter(|row| row["algorithm"] == algorithm).map(|row| number(row, "block_bytes")).collect()
    };
    for algorithm in ["interleaved", "pipeline"] {
        assert_eq!(blocks(algorithm), [65_536.0, 262_144.0]);
    }
}

#[test]
fn impossible_arguments_are_refused_with_a_remedy() {
    for (arguments, named) in [
        ("ordered --size 300000 --bulk-reserve 262144", &["--size 300000", "--bulk-reserve", "262144"][..]),
        ("ordered --ring-bytes 1000", &["1000", "--ring-bytes", "power of two"]),
        ("ordered --size 0", &["--size", "1 B"]),
        ("ordered --nodes many", &["--nodes", "give a whole number"]),
        ("ordered --nodes 65", &["--nodes", "1..=64"]),
        ("ordered --window 0", &["--window 0"]),
        ("ordered --rate -1", &["-1"]),
        ("ordered --spin sometimes", &["sometimes", "auto"]),
        ("collectives --operation barrier --algorithm ring", &["--algorithm ring", "--help"]),
        ("bulk --fabric sim", &["sim", "shm", "tcp"]),
        ("bulk --share --fabric tcp", &["--share", "--fabric shm"]),
        ("ordered --tls", &["--tls", "--fabric tcp"]),
        ("calls --fabric tcp --addresses 10.0.0.1", &["--addresses lists 1 for 3 nodes", "{host}"]),
        ("ordered --fabric tcp --addresses 10.0.0.{host}:99999", &["10.0.0.1:99999", "host and a port"]),
        ("bulk --share --algorithm chain", &["--share", "--algorithm"]),
        ("bulk --share --block 1MiB", &["--share", "--block"]),
        ("bulk --share --sweep", &["--share", "--sweep"]),
        ("bulk --share --groups 2", &["--share", "--groups"]),
        ("bulk --share --senders all", &["--share", "--senders"]),
        ("bulk --touch twice", &["twice", "read", "write"]),
        ("bulk --size 0", &["'0'", "1 B to 1 TiB"]),
        ("bulk --size many", &["many", "a size such as"]),
        ("bulk --nodes 1", &["--nodes", "2..=64"]),
        ("bulk --block 2GiB", &["--block 2147483648", "1073741824"]),
        ("bulk --size 8GiB --block 1", &["--size 8589934592", "--block 1", "larger"]),
        ("bulk --sweep --block 1MiB", &["--sweep", "--block"]),
        ("", &["Usage"]),
        ("orderde", &["orderde"]),
    ] {
        let output = bench(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {}", text(&output.stderr));
        let error = text(&output.stderr);
        for name in named {
            assert!(error.contains(name), "{arguments}: {name:?} is not in: {error}");
        }
        assert!(output.stdout.is_empty());
    }
}

/// The processes that a process has started and that still run.
fn children(parent: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().map(|id| id.parse().expect("a process id")).collect()
}

fn is_running(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < limit, "{what} did not come to pass");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Benchmarks that would take an hour.
const LONG: [&str; 2] =
    ["ordered --bare --nodes 3 --rate 10 --seconds 3600", "bulk --bare --nodes 3 --size 16MiB --iterations 1000000"];

/// A benchmark's process, which is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A benchmark of three nodes, and their processes.
fn started(arguments: &str) -> (Running, Vec<u32>) {
    let bench = Command::new(env!("CARGO_BIN_EXE_squall-bench"))
        .args(arguments.split_whitespace())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be started");
    let bench = Running(bench);
    until("the start of three nodes", || children(bench.0.id()).len() == 3);
    let nodes = children(bench.0.id());
    (bench, nodes)
}

fn kill(process: u32) {
    let killed = Command::new("kill").args(["-9", &process.to_string()]).status().expect("kill can be started");
    assert!(killed.success());
}

#[test]
fn a_node_that_dies_fails_the_benchmark_and_is_named() {
    for arguments in LONG {
        let (mut bench, nodes) = started(arguments);
        kill(nodes[1]);
        let mut error = String::new();
        let said = bench.0.stderr.as_mut().expect("it is piped").read_to_string(&mut error);
        said.expect("the command prints UTF-8");
        assert_eq!(bench.0.wait().expect("it ends").code(), Some(1));
        assert!(error.contains("node 1") && error.contains("signal"), "{arguments}: {error}");
        until("the end of the other nodes", || !nodes.iter().any(|&node| is_running(node)));
    }
}

#[test]
fn nodes_do_not_outlive_the_benchmark() {
    for arguments in LONG {
        let (bench, nodes) = started(arguments);
        drop(bench);
        until("the end of all nodes", || !nodes.iter().any(|&node| is_running(node)));
    }
}
