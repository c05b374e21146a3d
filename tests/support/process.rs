//! Nodes as processes of the test program itself, over shared memory and TCP, each with a replica of a [`Sum`].

// Each test uses only a part of this module.
#![allow(dead_code)]

use std::{
    env, fs,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    panic::Location,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use squall::{
    Config, Mode, Node, NodeId, Sharded,
    admin::{AdminClient, AdminError, ShardCondition, ShardReport, StatusReport, Target},
    client::ClientConfig,
    config::{Backend, ConfigBuilder, Security},
};
use tempfile::TempDir;

use crate::sum::Sum;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const FAILURE_TIMEOUT: Duration = Duration::from_millis(500);
pub(crate) const RESTART_WAIT: Duration = Duration::from_secs(2);

/// The variable that tells a process of this program that it is a node, and which: `id backend cluster
/// address,address.. shards replicas directory`. The group is durable if there is a directory.
const NODE: &str = "SQUALL_TEST_NODE";

/// The prefix of an answer, since the test harness writes to the same output.
const ANSWER: &str = "> ";

/// Runs a node of a test, as an ignored test that other tests start.
///
/// It answers each line of standard input with one of standard output, until the input ends: `add N` with the sum,
/// `read` with the sum as it is read linearizably, `view` with the members that may send. The shard is 0; the number of
/// another one may follow `add N` and `read`.
pub(crate) fn node() {
    node_of(config("sum"));
}

/// As [`node`], with this configuration.
pub(crate) fn node_of(config: Config) {
    let mut node = Node::builder(config);
    let sums = node.sharded("sum", |_| Sum::default());
    let node = match node.start() {
        Ok(node) => node,
        // A test that waits for the process to be ready shows the error.
        Err(error) => return say(&error.to_string()).expect("the test listens"),
    };
    say("ready").expect("the test listens");
    for line in io::stdin().lines() {
        let line = line.expect("the test speaks UTF-8");
        if say(&answer(&node, &sums, &line)).is_err() {
            return;
        }
    }
}

/// Waits until something holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Asks a node of this host's cluster.
pub(crate) fn ask(cluster: &str, node: u32) -> AdminClient {
    AdminClient::connect(&Target::on_host(cluster, node), PATIENCE).expect("it runs")
}

/// Runs `squall log` with these arguments and directories.
pub(crate) fn squall_log(arguments: &[&str], directories: &[&Path]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_squall"));
    command.arg("log").args(arguments).args(directories).output().expect("it can be started")
}

/// The output of a command, on both streams.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// The configuration of such a process, with one group, of this name.
pub(crate) fn config(group: &str) -> Config {
    builder(group).build().expect("the configuration is valid")
}

/// The builder of [`config`], for further settings.
pub(crate) fn builder(group: &str) -> ConfigBuilder {
    let given = env::var(NODE).expect("it is started by another test");
    let [id, backend, cluster, addresses, shards, replicas, directory] = given.split(' ').collect::<Vec<_>>()[..]
    else {
        panic!("{given:?}")
    };
    let id = id.parse().expect("a number");
    let members = 1..=addresses.split(',').count() as u32;
    let [shards, replicas] = [shards, replicas].map(|number| number.parse().expect("a number"));
    let config = Config::builder(cluster, id).failure_timeout(FAILURE_TIMEOUT).formation_timeout(PATIENCE);
    let config = match shards {
        1 => config,
        _ => config.group(group, |group| _ = group.shards(shards).replicas(1, Some(replicas))),
    };
    let config = match directory {
        "" => config,
        storage => {
            let config = config.storage(storage).restart_wait(RESTART_WAIT);
            let key = PathBuf::from(storage).with_extension("log.key");
            let config = if key.exists() { config.sign_log(key) } else { config };
            config.group(group, |group| _ = group.mode(Mode::Durable))
        }
    };
    match backend {
        "shm" => config.members(members).backend(Backend::Shm),
        _ => members
            .zip(addresses.split(','))
            .fold(config.backend(Backend::Tcp), |config, (id, at)| config.addresses(id, [at])),
    }
}

/// Writes an answer to the test that started this process.
pub(crate) fn say(answer: &str) -> io::Result<()> {
    let mut out = io::stdout();
    writeln!(out, "\n{ANSWER}{answer}").and_then(|()| out.flush())
}

fn answer(node: &Node, sums: &Sharded<Sum>, line: &str) -> String {
    let number = |word: &str| word.parse().expect("a number");
    let of_shard = |word: Option<&&str>| &sums[word.map_or(0, |word| number(word) as usize)];
    let words: Vec<&str> = line.split(' ').collect();
    let sum = match words[..] {
        ["add", add, ref shard @ ..] => {
            let submit = of_shard(shard.first()).submit(&number(add)).deadline(PATIENCE);
            submit.wait().map_err(|error| error.to_string())
        }
        ["read", ref shard @ ..] => of_shard(shard.first()).read(|sum| sum.0).wait().map_err(|error| error.to_string()),
        ["view"] => return format!("{:?}", node.view().shards[0].senders),
        _ => panic!("{line:?}"),
    };
    sum.map_or_else(|error| format!("error: {error}"), |sum| sum.to_string())
}

/// A cluster of nodes as processes.
pub(crate) struct Cluster {
    pub(crate) name: String,
    /// The name of the ignored test that is such a node.
    node: String,
    backend: &'static str,
    addresses: Vec<String>,
    shards: u32,
    replicas: u32,
    /// The directory of the nodes' directories, if the group is durable.
    directories: Option<TempDir>,
}

impl Cluster {
    /// Makes a cluster whose processes run [`node`].
    pub(crate) fn new(test: &str, backend: &'static str, members: u32) -> Cluster {
        let held: Vec<_> = (0..members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        let name = format!("process-{test}-{backend}-{}", std::process::id());
        let node = "node".to_owned();
        Cluster { name, node, backend, addresses, shards: 1, replicas: members, directories: None }
    }

    /// The same cluster, with processes that run the test called `node` of the module that calls this.
    #[track_caller]
    pub(crate) fn with_own_node(mut self) -> Cluster {
        let module = Path::new(Location::caller().file()).file_stem().expect("it is a file").display().to_string();
        self.node = format!("{module}::node");
        self
    }

    /// Makes a cluster whose group is durable.
    pub(crate) fn durable(test: &str, backend: &'static str, members: u32) -> Cluster {
        let mut cluster = Cluster::new(test, backend, members);
        cluster.directories = Some(tempfile::tempdir().expect("a directory can be made"));
        cluster
    }

    /// Sets the number of shards, and of the replicas of each.
    pub(crate) fn with_shards(mut self, shards: u32, replicas: u32) -> Cluster {
        (self.shards, self.replicas) = (shards, replicas);
        self
    }

    /// A node's directory.
    pub(crate) fn directory(&self, id: u32) -> PathBuf {
        self.directories.as_ref().expect("the group is durable").path().join(id.to_string())
    }

    /// The path at which a node looks for a key with which it signs its log.
    pub(crate) fn log_key(&self, id: u32) -> PathBuf {
        self.directory(id).with_extension("log.key")
    }

    /// Starts the process of this node; its answer `ready` says that it serves.
    pub(crate) fn launch(&self, id: u32) -> Process {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(["--exact", &self.node, "--ignored", "--nocapture"]);
        let directory = self.directories.as_ref().map(|all| all.path().join(id.to_string()).display().to_string());
        let (addresses, directory) = (self.addresses.join(","), directory.unwrap_or_default());
        let Cluster { name, backend, shards, replicas, .. } = self;
        command.env(NODE, format!("{id} {backend} {name} {addresses} {shards} {replicas} {directory}"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Process { id, child, stdin, stdout: Some(BufReader::new(stdout)) }
    }

    /// The configuration with which programs that are no members find the cluster.
    pub(crate) fn clients(&self) -> ClientConfig {
        let members = (1..=self.addresses.len() as u32).map(NodeId);
        let clients = match self.backend {
            "shm" => ClientConfig::on_host(&self.name, members),
            _ => {
                ClientConfig::on_network(&self.name, &self.addresses, &Security::LoopbackOnly).expect("it has no keys")
            }
        };
        clients.with_timeout(PATIENCE)
    }

    /// The nodes' ids.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.addresses.len() as u32
    }

    /// A connection to a node as an operator's.
    pub(crate) fn admin(&self, id: u32) -> Result<AdminClient, AdminError> {
        let target = match self.backend {
            "shm" => Target::on_host(&self.name, id),
            _ => {
                let address = self.addresses[id as usize - 1].parse().expect("an address");
                Target::at(&self.name, &address, &Security::LoopbackOnly).expect("it has no keys")
            }
        };
        AdminClient::connect(&target, PATIENCE)
    }

    /// A node's report of the cluster to operators.
    pub(crate) fn report(&self, id: u32) -> Result<StatusReport, String> {
        let report = self.admin(id).and_then(|mut admin| admin.status());
        report.map_err(|error| error.to_string())
    }

    /// Waits until `so` holds of a node's report to operators. Returns the report.
    pub(crate) fn wait_report(&self, id: u32, what: &str, so: impl Fn(&StatusReport) -> bool) -> StatusReport {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let report = self.report(id);
            match report {
                Ok(report) if so(&report) => return report,
                report => assert!(Instant::now() < deadline, "{what}: node {id} says {report:#?}"),
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until a node's view has all nodes, and all replicas of all shards. Returns the nodes that hold each shard.
    pub(crate) fn wait_whole(&self, id: u32) -> Vec<Vec<u32>> {
        let is_whole = |report: &StatusReport| {
            let holders = holders(report);
            let is_held = |holders: &Option<Vec<u32>>| {
                holders.as_ref().is_some_and(|holders| holders.len() == self.replicas as usize)
            };
            report.members.len() == self.addresses.len() && holders.iter().all(is_held) && !holders.is_empty()
        };
        let report = self.wait_report(id, "all members, and all replicas", is_whole);
        holders(&report).into_iter().flatten().collect()
    }

    /// The sums that all nodes that hold a shard read of it, once all replicas of all shards are there and stay where
    /// they are.
    pub(crate) fn read_all(&self, nodes: &mut [Process], shard: usize) -> Vec<u64> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let holders = self.wait_whole(nodes[0].id).swap_remove(shard);
            let holders = nodes.iter_mut().filter(|node| holders.contains(&node.id));
            let read: Vec<_> = holders.map(|node| node.read_of(shard)).collect();
            if read.len() == self.replicas as usize && read.iter().all(Result::is_ok) {
                return read.into_iter().flatten().collect();
            }
            assert!(Instant::now() < deadline, "shard {shard} is read as {read:?}");
        }
    }

    /// Starts all nodes, as members of the first view.
    pub(crate) fn start(&self) -> Vec<Process> {
        let mut nodes: Vec<_> = self.nodes().map(|id| self.launch(id)).collect();
        nodes.iter_mut().for_each(Process::ready);
        nodes
    }
}

/// The nodes that hold each shard's whole state, by a report; None if the shard is suspended.
pub(crate) fn holders(report: &StatusReport) -> Vec<Option<Vec<u32>>> {
    let of = |shard: &ShardReport| {
        let complete = shard.rows.iter().filter(|row| row.complete).map(|row| row.node.0);
        (!matches!(shard.condition, ShardCondition::Suspended { .. })).then(|| complete.collect())
    };
    report.shards.iter().map(of).collect()
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(directories) = self.directories.take().filter(|_| thread::panicking()) {
            eprintln!("the nodes' directories are kept in {}", directories.keep().display());
        }
    }
}

/// A node's process, which is killed when this is dropped.
pub(crate) struct Process {
    pub(crate) id: u32,
    child: Child,
    stdin: ChildStdin,
    /// None once [`listen`](Process::listen) was called.
    stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn ready(&mut self) {
        assert_eq!(self.answer(), "ready");
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("it runs");
    }

    pub(crate) fn answer(&mut self) -> String {
        let stdout = self.stdout.as_mut().expect("no other thread listens");
        next_answer(stdout).unwrap_or_else(|| panic!("node {} has ended", self.id))
    }

    /// Calls `tell` with each answer, and with None once there are no more, on a thread of its own. No answer can be
    /// asked for any more.
    pub(crate) fn listen(&mut self, mut tell: impl FnMut(Option<String>) + Send + 'static) {
        let mut stdout = self.stdout.take().expect("no thread listens yet");
        thread::spawn(move || {
            loop {
                let answer = next_answer(&mut stdout);
                let is_last = answer.is_none();
                tell(answer);
                if is_last {
                    return;
                }
            }
        });
    }

    pub(crate) fn add(&mut self, number: u64) -> Result<u64, String> {
        self.add_to(0, number)
    }

    /// Adds to the sum of one of the shards.
    pub(crate) fn add_to(&mut self, shard: usize, number: u64) -> Result<u64, String> {
        self.number(&format!("add {number} {shard}"))
    }

    /// Reads the sum of one of the shards linearizably.
    pub(crate) fn read_of(&mut self, shard: usize) -> Result<u64, String> {
        self.number(&format!("read {shard}"))
    }

    fn number(&mut self, line: &str) -> Result<u64, String> {
        let answer = self.ask(line);
        answer.parse().map_err(|_| answer)
    }

    /// Adds nothing, so that it may be tried again after any outcome, until the node serves.
    pub(crate) fn serves(&mut self) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.add(0) {
                Ok(sum) => return sum,
                Err(error) => assert!(Instant::now() < deadline, "node {} does not serve: {error}", self.id),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn wait_view(&mut self, members: &[u32]) {
        let expected = format!("{:?}", members.iter().map(|&id| NodeId(id)).collect::<Vec<_>>());
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.ask("view");
            if view == expected {
                return;
            }
            assert!(Instant::now() < deadline, "node {} has {view}, not {expected}", self.id);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a view of these members, in any order of ranks.
    pub(crate) fn wait_members(&mut self, members: &[u32]) {
        let names: Vec<_> = members.iter().map(|&id| format!("{:?}", NodeId(id))).collect();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let view = self.ask("view");
            if view.matches("NodeId").count() == names.len() && names.iter().all(|name| view.contains(name)) {
                return;
            }
            assert!(Instant::now() < deadline, "node {} has {view}, not {names:?}", self.id);
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the process, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.kill_now();
    }

    pub(crate) fn kill_now(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    /// Sends a signal, and does not wait for its effect.
    pub(crate) fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Sends a signal. After `-STOP` none of the process's threads runs any more.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("there is a `kill`").success());
        // The kernel tells one thread, which stops the others once it gets a core.
        let deadline = Instant::now() + PATIENCE;
        while signal == "-STOP" && !self.is_stopped() {
            assert!(Instant::now() < deadline, "node {} does not stop", self.id);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the thread of this name. Returns its id, as the kernel knows it.
    pub(crate) fn thread(&self, name: &str) -> u32 {
        let is_named = |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|comm| comm.trim_end() == name);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it lives");
            if let Some(path) = threads.flatten().map(|thread| thread.path()).find(is_named) {
                return path.file_name().and_then(|name| name.to_str()?.parse().ok()).expect("its number");
            }
            assert!(Instant::now() < deadline, "node {} has no thread called {name}", self.id);
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it lives");
        let states = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("stat")));
        // The state stands behind the name in parentheses.
        states.flatten().all(|stat| stat.rsplit(") ").next().is_some_and(|state| state.starts_with('T')))
    }
}

/// Kills all processes at once, as `kill -9` does: none lives long enough to go on without another.
pub(crate) fn kill_all(mut processes: Vec<Process>) {
    processes.iter_mut().for_each(|process| process.child.kill().expect("it runs"));
    processes.iter_mut().for_each(|process| _ = process.child.wait().expect("it was killed"));
}

/// The next answer of a process; None if it has ended.
fn next_answer(stdout: &mut BufReader<ChildStdout>) -> Option<String> {
    let mut line = String::new();
    // A process that was killed may leave half a line.
    while stdout.read_line(&mut line).ok()? > 0 && line.ends_with('\n') {
        if let Some(answer) = line.trim_end().strip_prefix(ANSWER) {
            return Some(answer.to_owned());
        }
        line.clear();
    }
    None
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
