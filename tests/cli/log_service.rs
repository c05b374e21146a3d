//! `squall log` as a user runs it: nodes and clients are processes of the command, over shared memory and TCP.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const NODES: [u32; 3] = [1, 2, 3];

pub(crate) fn squall() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.env_remove("SQUALL_ID").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The output of a command that must succeed.
pub(crate) fn says(output: &Output) -> String {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The errors of a command, which must exit with this code.
pub(crate) fn complains(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stderr)
}

fn all(from: Option<impl Read>) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.map(|mut from| from.read_to_end(&mut bytes).expect("it is a pipe"));
    bytes
}

/// A process that is killed when this is dropped.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    /// Waits for the process to end, and returns its output.
    pub(crate) fn end(mut self) -> Output {
        drop(self.0.stdin.take());
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        thread::scope(|scope| {
            let stdout = scope.spawn(|| all(stdout));
            let stderr = all(stderr);
            let status = self.0.wait().expect("it can be waited for");
            Output { status, stdout: stdout.join().expect("it is read"), stderr }
        })
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(sent.expect("there is a `kill`").success());
    }
}

impl Drop for Process {
    /// Kills the process, as `kill -9` does.
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Three nodes with a configuration, and directories that go with them.
pub(crate) struct Cluster {
    pub(crate) name: String,
    pub(crate) base: TempDir,
    pub(crate) addresses: Vec<String>,
}

impl Cluster {
    pub(crate) fn new(test: &str, backend: &str) -> Cluster {
        let name = format!("log-{test}-{backend}-{}", std::process::id());
        let base = tempfile::tempdir().expect("a directory can be made");
        let mut file = format!("cluster = \"{name}\"\nstorage = \"{{id}}\"\nfailure_timeout_ms = 500\n");
        let mut addresses = Vec::new();
        if backend == "tcp" {
            // All are bound at once, so that no port comes twice.
            let held: Vec<_> =
                NODES.iter().map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
            addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
            file += "[addresses]\n";
            for (id, address) in NODES.iter().zip(&addresses) {
                file += &format!("{id} = \"{address}\"\n");
            }
            file += "[fabric]\nbackend = \"tcp\"\n";
        } else {
            file += "members = [1, 2, 3]\n";
        }
        file += "[groups.log]\nmode = \"durable\"\n";
        fs::write(base.path().join("log.toml"), file).expect("a file can be written");
        Cluster { name, base, addresses }
    }

    fn file(&self) -> PathBuf {
        self.base.path().join("log.toml")
    }

    /// The directory of a node's log.
    pub(crate) fn log(&self, id: u32) -> PathBuf {
        self.base.path().join(id.to_string()).join("logs").join("log")
    }

    fn launch(&self, id: u32) -> Process {
        let mut command = squall();
        command.args(["log", "serve", "--id", &id.to_string(), "--config"]).arg(self.file());
        Process(command.stderr(Stdio::inherit()).spawn().expect("it can be started"))
    }

    pub(crate) fn start(&self, ids: &[u32]) -> Vec<Process> {
        let mut nodes: Vec<Process> = ids.iter().map(|&id| self.launch(id)).collect();
        for Process(node) in &mut nodes {
            let mut line = String::new();
            let out = node.stdout.as_mut().expect("it is piped");
            BufReader::new(out).read_line(&mut line).expect("it speaks UTF-8");
            assert!(line.contains("serves the log"), "{line:?}");
        }
        nodes
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = squall();
        command.arg("log").args(arguments).arg("--config").arg(self.file());
        command
    }

    fn spawn(&self, arguments: &[&str]) -> Process {
        Process(self.command(arguments).spawn().expect("it can be started"))
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.spawn(arguments).end()
    }

    /// Appends lines, and returns their versions.
    pub(crate) fn append(&self, lines: &[String]) -> Vec<u64> {
        let path = self.base.path().join("lines");
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>())
            .expect("a file can be written");
        let output = self.run(&["append", path.to_str().expect("a readable path")]);
        says(&output).lines().map(|version| version.parse().expect("a version")).collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.base.disable_cleanup(thread::panicking());
    }
}

pub(crate) fn lines(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|number| format!("line {number}, with ümläuts and a tab\there")).collect()
}

#[test]
fn what_is_appended_can_be_read_by_version_and_by_time() {
    for backend in ["shm", "tcp"] {
        let cluster = Cluster::new("read", backend);
        let _nodes = cluster.start(&NODES);
        // More lines than may be under way at a time.
        let lines = lines(0..6000);
        let versions = cluster.append(&lines);
        assert_eq!(versions.len(), lines.len());
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");

        let read = says(&cluster.run(&["read"]));
        assert_eq!(read.lines().collect::<Vec<_>>(), lines);
        let (from, to) = (versions[100].to_string(), versions[399].to_string());
        let part = says(&cluster.run(&["read", "--from", &from, "--to", &to]));
        assert_eq!(part.lines().collect::<Vec<_>>(), lines[100..400]);
        let few = says(&cluster.run(&["read", "--from", &from, "--limit", "3", "--with-version", "--stale"]));
        let expected: Vec<_> = (100..103).map(|at| format!("{}\t{}", versions[at], lines[at])).collect();
        assert_eq!(few.lines().collect::<Vec<_>>(), expected);
        let last = says(&cluster.run(&["tail", "-n", "7"]));
        assert_eq!(last.lines().collect::<Vec<_>>(), lines[5993..]);
        assert_eq!(says(&cluster.run(&["tail", "-n", "0"])), "");

        let records: Vec<Value> = says(&cluster.run(&["read", "--json"]))
            .lines()
            .map(|line| serde_json::from_str(line).expect("a JSON object"))
            .collect();
        let (middle, next) = (&records[250], &records[251]);
        assert_eq!((&middle["version"], &middle["record"]), (&versions[250].into(), &lines[250].as_str().into()));
        let time = middle["time"].as_str().expect("a time");
        assert_eq!(says(&cluster.run(&["at", "--time", time])).trim_end(), lines[250]);
        let just_before = next["time_ns"].as_u64().expect("nanoseconds") - 1;
        let seconds = format!("{}.{:09}", just_before / 1_000_000_000, just_before % 1_000_000_000);
        assert_eq!(says(&cluster.run(&["at", "--time", &seconds])).trim_end(), lines[250]);
        assert!(complains(&cluster.run(&["at", "--time", "1"]), 1).contains("all records are later"));

        let stat: Value = serde_json::from_str(&says(&cluster.run(&["stat", "--json"]))).expect("JSON");
        let members = stat["members"].as_array().expect("a list");
        assert_eq!(members.iter().map(|member| &member["node"]).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(members.iter().all(|member| member["log"]["last"].as_u64() >= versions.last().copied()), "{stat}");
        assert!(says(&cluster.run(&["stat"])).contains("all members have"));
        assert!(says(&cluster.run(&["verify"])).contains("all 3 members have the same"));
    }
}

#[test]
fn whole_files_are_records_and_need_be_no_text() {
    let cluster = Cluster::new("files", "shm");
    let _nodes = cluster.start(&NODES);
    // A line longer than the messages that go through the ring, and than a page.
    let long: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let paths = ["empty", "short", "long"].map(|name| cluster.base.path().join(name));
    for (path, contents) in paths.iter().zip([&b""[..], b"\xff\n\x00", &long]) {
        fs::write(path, contents).expect("a file can be written");
    }
    let [empty, short, long_path] = paths.each_ref().map(|path| path.to_str().expect("a readable path"));
    let versions = says(&cluster.run(&["append", "--file", empty, short, long_path]));
    assert_eq!(versions.lines().count(), 3);
    let read = cluster.run(&["read"]);
    assert!(read.status.success());
    assert!(read.stdout == [b"\n\xff\n\x00\n", &long[..], b"\n"].concat(), "the records are others");
    let json = says(&cluster.run(&["read", "--json", "--limit", "2"]));
    let last: Value = serde_json::from_str(json.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["bytes"], "ff0a00");
}

/// Reads lines as they come.
struct Lines(BufReader<ChildStdout>);

impl Lines {
    fn of(process: &mut Process) -> Lines {
        Lines(BufReader::new(process.0.stdout.take().expect("it is piped")))
    }

    fn take(&mut self, count: usize) -> Vec<String> {
        let line = |_| {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).expect("UTF-8") > 0, "it has ended");
            line.trim_end().to_owned()
        };
        (0..count).map(line).collect()
    }
}

#[test]
fn appending_and_following_go_on_when_members_die_and_come_back() {
    for backend in ["shm", "tcp"] {
        let cluster = Cluster::new("failover", backend);
        let mut nodes = cluster.start(&NODES);
        let lines = lines(0..300);
        let mut append = cluster.spawn(&["append", "--timeout", "90"]);
        let mut input = append.0.stdin.take().expect("it is piped");
        let mut say = |range: std::ops::Range<usize>| {
            lines[range].iter().for_each(|line| writeln!(input, "{line}").expect("it listens"));
        };
        let mut tail = cluster.spawn(&["tail", "-f", "-n", "1000"]);
        let mut shown = Lines::of(&mut tail);

        say(0..100);
        assert_eq!(shown.take(100), lines[..100]);
        // The commands come to talk to this node sooner or later.
        drop(nodes.remove(0));
        say(100..200);
        assert_eq!(shown.take(100), lines[100..200]);
        // Two of three were killed, and the third can't go on alone. Then it is killed, too.
        drop(nodes);
        say(200..300);
        let _nodes = cluster.start(&[3, 1, 2]);
        assert_eq!(shown.take(100), lines[200..]);
        drop(input);
        let versions: Vec<u64> = says(&append.end()).lines().map(|line| line.parse().expect("a version")).collect();
        assert_eq!(versions.len(), lines.len());
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(says(&cluster.run(&["read"])).lines().collect::<Vec<_>>(), lines);
        tail.signal("INT");
        let ended = tail.end();
        assert!(ended.status.success(), "{}", text(&ended.stderr));
        assert!(says(&cluster.run(&["verify"])).contains("all 3 members have the same"));
    }
}

#[test]
fn verify_accuses_no_member_that_is_started_again_meanwhile() {
    let cluster = Cluster::new("again", "shm");
    let mut nodes = cluster.start(&NODES);
    let lines: Vec<String> = (0..3000).map(|line| format!("{line}: {}", "x".repeat(2000))).collect();
    cluster.append(&lines);
    for round in 0..6 {
        let verify = cluster.spawn(&["verify", "--quiet"]);
        thread::sleep(Duration::from_millis(20 * round));
        let at = (round % 3) as usize;
        drop(nodes.remove(at));
        nodes.insert(at, cluster.start(&[NODES[at]]).remove(0));
        let ended = verify.end();
        let code = ended.status.code();
        assert!(matches!(code, Some(0 | 3)), "{code:?}: {}", text(&ended.stderr));
        assert!(code == Some(0) || text(&ended.stderr).contains("could not be checked"), "{}", text(&ended.stderr));
    }
    assert!(says(&cluster.run(&["verify"])).contains("all 3 members have the same"));
}

#[test]
fn a_member_without_a_majority_says_so_and_shows_what_it_has_to_who_wants_that() {
    for backend in ["shm", "tcp"] {
        let cluster = Cluster::new("alone", backend);
        let mut nodes = cluster.start(&NODES);
        let lines = lines(0..20);
        cluster.append(&lines);
        nodes.truncate(1);
        let begun = Instant::now();
        let refused = loop {
            let output = cluster.run(&["read", "--timeout", "1"]);
            if !output.status.success() {
                break output;
            }
            // Others may vouch for it until they miss its heartbeats.
            assert!(begun.elapsed() < Duration::from_secs(30), "it reads though no member vouches for it");
        };
        let why = complains(&refused, 1);
        assert!(why.contains("was not read") && why.contains("The last trouble was"), "{why}");
        assert_eq!(says(&cluster.run(&["read", "--stale"])).lines().collect::<Vec<_>>(), lines);
    }
}

#[test]
fn clients_need_an_address_and_no_configuration() {
    let cluster = Cluster::new("address", "tcp");
    let _nodes = cluster.start(&NODES);
    let lines = lines(0..3);
    cluster.append(&lines);
    let mut command = squall();
    command.args(["log", "tail", "--cluster", &cluster.name, "--address", &cluster.addresses[1]]);
    let output = Process(command.spawn().expect("it can be started")).end();
    assert_eq!(says(&output).lines().collect::<Vec<_>>(), lines);
}

#[test]
fn interrupted_appends_say_what_is_known() {
    let cluster = Cluster::new("stop", "shm");
    let _nodes = cluster.start(&NODES);
    let mut append = cluster.spawn(&["append"]);
    let mut versions = Lines::of(&mut append);
    let input = append.0.stdin.as_mut().expect("it is piped");
    lines(0..20).iter().for_each(|line| writeln!(input, "{line}").expect("it listens"));
    versions.take(20);
    append.signal("INT");
    let input = append.0.stdin.take();
    let complaint = complains(&append.end(), 1);
    drop(input);
    assert!(complaint.contains("stopped; 20 records"), "{complaint}");
}

#[test]
fn nodes_stop_when_they_are_asked_to_and_the_log_goes_on_when_they_are_started_again() {
    let cluster = Cluster::new("serve", "shm");
    let lines = lines(0..40);
    for part in [0..20, 20..40] {
        let nodes = cluster.start(&NODES);
        cluster.append(&lines[part]);
        nodes.iter().for_each(|node| node.signal("TERM"));
        nodes.into_iter().for_each(|node| assert!(node.end().status.success()));
    }
    let _nodes = cluster.start(&NODES);
    assert_eq!(says(&cluster.run(&["read"])).lines().collect::<Vec<_>>(), lines);
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let cluster = Cluster::new("mistakes", "shm");
    let alone = complains(&cluster.run(&["read", "--timeout", "1"]), 1);
    assert!(alone.contains("not read within") && alone.contains("does not run"), "{alone}");
    let _nodes = cluster.start(&NODES);
    for (arguments, code, part) in [
        (&["read", "--group", "other"][..], 1, "no group \"other\""),
        (&["tail", "--group", "other"], 1, "no group \"other\""),
        (&["read", "--from", "5", "--to", "4"], 2, "lies behind"),
        (&["at", "--time", "yesterday"], 2, "RFC 3339"),
        (&["append", "/nowhere"], 1, "/nowhere can't be read"),
        (&["serve", "--id", "4"], 2, ""),
        (&["serve", "--id", "1", "--group", "other"], 2, "no durable group \"other\""),
        (&["serve", "--id", "1"], 1, "already"),
    ] {
        let complaint = complains(&cluster.run(arguments), code);
        assert!(complaint.contains(part), "{arguments:?}: {complaint}");
    }
    let nobody = Process(squall().args(["log", "read"]).spawn().expect("it can be started")).end();
    assert!(complains(&nobody, 2).contains("--config"));
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory can be made");
    for entry in fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it can be read");
        fs::copy(entry.path(), to.join(entry.file_name())).expect("it can be copied");
    }
}

fn verify(directories: &[&Path]) -> Output {
    Process(squall().args(["log", "verify"]).args(directories).spawn().expect("it can be started")).end()
}

#[test]
fn logs_on_disk_are_verified_without_their_nodes_and_damage_is_named() {
    let cluster = Cluster::new("verify", "shm");
    let nodes = cluster.start(&NODES);
    cluster.append(&lines(0..300));
    let logs = NODES.map(|id| cluster.log(id));
    let [first, second, third] = logs.each_ref().map(PathBuf::as_path);
    assert!(says(&verify(&[first])).contains("all records are good"), "while the node runs");
    drop(nodes);
    assert!(says(&verify(&[first, second, third])).contains("the same records up to version"));

    let damaged = cluster.base.path().join("damaged");
    copy(second, &damaged);
    let segment = fs::read_dir(&damaged).expect("it is there").map(|entry| entry.expect("it can be read").path());
    let needle = b"line 150,";
    let (path, mut bytes, at) = segment
        .filter_map(|path| {
            let bytes = fs::read(&path).expect("it can be read");
            let at = bytes.windows(needle.len()).position(|bytes| bytes == needle)?;
            Some((path, bytes, at))
        })
        .next()
        .expect("a segment has the line");
    bytes[at] ^= 1;
    fs::write(&path, bytes).expect("it can be written");
    let complaint = complains(&verify(&[first, &damaged]), 1);
    let name = path.file_name().and_then(|name| name.to_str()).expect("a readable name");
    assert!(complaint.contains(name), "{complaint}");

    let nothing = complains(&verify(&[cluster.base.path()]), 1);
    assert!(nothing.contains(cluster.base.path().to_str().expect("a readable path")), "{nothing}");
}
