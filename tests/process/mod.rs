//! Nodes as processes of the test program itself, over shared memory and TCP, each with a replica of a [`Sum`].

// Each test takes what it needs.
#![allow(dead_code)]

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use squall::{Config, Group, Node, NodeId, config::Backend};

use crate::sum::Sum;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
pub(crate) const FAILURE_TIMEOUT: Duration = Duration::from_millis(500);

/// What tells a process of this program that it is a node, and which: `id backend cluster address,address..`.
const NODE: &str = "SQUALL_TEST_NODE";

/// What begins an answer, since the test harness speaks on the same output.
const ANSWER: &str = "> ";

/// What such a process does, as an ignored test called `node`: it answers each line of standard input with one of standard
/// output, until the input ends: `add N` with the sum, `read` with the sum as it is read linearizably, `view` with the
/// members who may send.
pub(crate) fn node() {
    let given = env::var(NODE).expect("it is started by another test");
    let [id, backend, cluster, addresses] = given.split(' ').collect::<Vec<_>>()[..] else { panic!("{given:?}") };
    let id = id.parse().expect("a number");
    let members = 1..=addresses.split(',').count() as u32;
    let config = Config::builder(cluster, id).failure_timeout(FAILURE_TIMEOUT).formation_timeout(PATIENCE);
    let config = match backend {
        "shm" => config.members(members).backend(Backend::Shm),
        _ => members
            .zip(addresses.split(','))
            .fold(config.backend(Backend::Tcp), |config, (id, at)| config.addresses(id, [at])),
    };
    let mut node = Node::builder(config.build().expect("the configuration is valid"));
    let group = node.group("sum", Sum::default());
    let node = node.start().expect("it becomes a member");
    let mut out = io::stdout();
    let mut say = |answer: String| writeln!(out, "\n{ANSWER}{answer}").and_then(|()| out.flush());
    say("ready".to_owned()).expect("the test listens");
    for line in io::stdin().lines() {
        let line = line.expect("the test speaks UTF-8");
        if say(answer(&node, &group, &line)).is_err() {
            return;
        }
    }
}

fn answer(node: &Node, group: &Group<Sum>, line: &str) -> String {
    let sum = match line.split_once(' ') {
        Some(("add", number)) => {
            let number = number.parse().expect("a number");
            group.submit(&number).deadline(PATIENCE).wait().map_err(|error| error.to_string())
        }
        None if line == "read" => group.read(|sum| sum.0).wait().map_err(|error| error.to_string()),
        None if line == "view" => return format!("{:?}", node.view().shards[0].senders),
        _ => panic!("{line:?}"),
    };
    sum.map_or_else(|error| format!("error: {error}"), |sum| sum.to_string())
}

/// A cluster of so many nodes.
pub(crate) struct Cluster {
    pub(crate) name: String,
    backend: &'static str,
    addresses: Vec<String>,
}

impl Cluster {
    pub(crate) fn new(test: &str, backend: &'static str, members: u32) -> Cluster {
        let held: Vec<_> = (0..members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        Cluster { name: format!("process-{test}-{backend}-{}", std::process::id()), backend, addresses }
    }

    /// A process that will be this node; `ready` tells that it is.
    pub(crate) fn launch(&self, id: u32) -> Process {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(["--exact", "node", "--ignored", "--nocapture"]);
        command.env(NODE, format!("{id} {} {} {}", self.backend, self.name, self.addresses.join(",")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Process { id, child, stdin, stdout: BufReader::new(stdout) }
    }

    /// All nodes, members of the first view.
    pub(crate) fn start(&self) -> Vec<Process> {
        let mut nodes: Vec<_> = (1..=self.addresses.len() as u32).map(|id| self.launch(id)).collect();
        nodes.iter_mut().for_each(Process::ready);
        nodes
    }
}

/// A node's process, which ends with this.
pub(crate) struct Process {
    pub(crate) id: u32,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn ready(&mut self) {
        assert_eq!(self.answer(), "ready");
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").expect("it runs");
        self.answer()
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stdout.read_line(&mut line).expect("UTF-8") > 0, "node {} has ended", self.id);
            if let Some(answer) = line.trim_end().strip_prefix(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    pub(crate) fn add(&mut self, number: u64) -> Result<u64, String> {
        let answer = self.ask(&format!("add {number}"));
        answer.parse().map_err(|_| answer)
    }

    /// Adds nothing, so that it may be tried again whatever became of it, until the node serves.
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

    /// As `kill -9`.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("there is a `kill`").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
