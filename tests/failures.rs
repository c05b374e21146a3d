//! Nodes as processes that die without a word or stand still, over shared memory and TCP: the others go on, nothing that was
//! acknowledged is lost, and who comes back gets the state.

mod sum;

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use squall::{Config, Group, Node, config::Backend};

use sum::Sum;

const PATIENCE: Duration = Duration::from_secs(60);
const FAILURE_TIMEOUT: Duration = Duration::from_millis(500);

// --- the processes

/// What tells a process of this program that it is a node, and which: `id backend cluster address,address..`.
const NODE: &str = "SQUALL_TEST_NODE";

/// What begins an answer, since the test harness speaks on the same output.
const ANSWER: &str = "> ";

/// Answers each line of standard input with one of standard output, until the input ends: `add N` with the sum, `read` with
/// the sum as it is read linearizably, `view` with the members who may send.
#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
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

struct Cluster {
    name: String,
    backend: &'static str,
    addresses: Vec<String>,
}

impl Cluster {
    fn new(test: &str, backend: &'static str, members: u32) -> Cluster {
        let held: Vec<_> = (0..members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
        let addresses = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
        Cluster { name: format!("failures-{test}-{backend}-{}", std::process::id()), backend, addresses }
    }

    /// A process that will be this node; `ready` tells that it is.
    fn launch(&self, id: u32) -> Process {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(["--exact", "node", "--ignored", "--nocapture"]);
        command.env(NODE, format!("{id} {} {} {}", self.backend, self.name, self.addresses.join(",")));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it can be started");
        let (stdin, stdout) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Process { id, child, stdin, stdout: BufReader::new(stdout) }
    }

    /// All nodes, members of the first view.
    fn start(&self) -> Vec<Process> {
        let mut nodes: Vec<_> = (1..=self.addresses.len() as u32).map(|id| self.launch(id)).collect();
        nodes.iter_mut().for_each(Process::ready);
        nodes
    }
}

struct Process {
    id: u32,
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn ready(&mut self) {
        assert_eq!(self.answer(), "ready");
    }

    fn ask(&mut self, line: &str) -> String {
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

    fn add(&mut self, number: u64) -> Result<u64, String> {
        let answer = self.ask(&format!("add {number}"));
        answer.parse().map_err(|_| answer)
    }

    /// Adds nothing, so that it may be tried again whatever became of it, until the node serves.
    fn serves(&mut self) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.add(0) {
                Ok(sum) => return sum,
                Err(error) => assert!(Instant::now() < deadline, "node {} does not serve: {error}", self.id),
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    fn wait_view(&mut self, members: &[u32]) {
        let expected = format!("{:?}", members.iter().map(|&id| squall::NodeId(id)).collect::<Vec<_>>());
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
    fn kill(mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it was killed");
    }

    fn signal(&self, signal: &str) {
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

// --- the tests

fn who_is_killed_is_missed_for_a_moment_and_comes_back_with_the_state(backend: &'static str) {
    for (victim, others) in [(3, [1, 2]), (1, [2, 3])] {
        let cluster = Cluster::new(&format!("kill{victim}"), backend, 3);
        let mut nodes = cluster.start();
        for (sum, node) in (1..).zip(&mut nodes) {
            assert_eq!(node.add(1), Ok(sum));
        }
        nodes.remove(victim as usize - 1).kill();
        for (sum, node) in (4..).zip(&mut nodes) {
            assert_eq!(node.add(1), Ok(sum), "no submit fails for it");
            node.wait_view(&others);
        }
        let mut back = cluster.launch(victim);
        back.ready();
        back.wait_view(&[others[0], others[1], victim]);
        assert_eq!(back.add(10), Ok(15));
        for node in &mut nodes {
            assert_eq!(node.ask("read"), "15");
        }
    }
}

fn two_of_five_are_killed_at_once(backend: &'static str) {
    for victims in [[1, 2], [2, 5]] {
        let cluster = Cluster::new(&format!("two{}", victims[1]), backend, 5);
        let mut nodes = cluster.start();
        assert_eq!(nodes[0].add(1), Ok(1));
        let (dead, mut living): (Vec<_>, Vec<_>) = nodes.into_iter().partition(|node| victims.contains(&node.id));
        dead.into_iter().for_each(Process::kill);
        for (sum, node) in (2..).zip(&mut living) {
            assert_eq!(node.add(1), Ok(sum));
        }
    }
}

fn who_was_stopped_learns_that_it_was_dropped_and_comes_back(backend: &'static str) {
    for (victim, others) in [(3, [1, 2]), (1, [2, 3])] {
        let cluster = Cluster::new(&format!("stop{victim}"), backend, 3);
        let mut nodes = cluster.start();
        assert_eq!(nodes[0].add(1), Ok(1));
        let mut stopped = nodes.remove(victim as usize - 1);
        stopped.signal("-STOP");
        for (sum, node) in (2..).zip(&mut nodes) {
            assert_eq!(node.add(1), Ok(sum));
            node.wait_view(&others);
        }
        stopped.signal("-CONT");
        assert_eq!(stopped.serves(), 3);
        stopped.wait_view(&[others[0], others[1], victim]);
    }
}

fn one_of_three_alone_says_so_and_goes_on_when_another_is_back(backend: &'static str) {
    let cluster = Cluster::new("alone", backend, 3);
    let mut nodes = cluster.start();
    assert_eq!(nodes[0].add(1), Ok(1));
    for node in &nodes[1..] {
        node.signal("-STOP");
    }
    let asked = Instant::now();
    let error = nodes[0].add(1).expect_err("nobody else has it");
    assert!(error.contains("too few of the group's members can be reached"), "{error}");
    assert!(asked.elapsed() < FAILURE_TIMEOUT + Duration::from_secs(10), "{:?}", asked.elapsed());
    assert!(nodes[0].ask("read").contains("too few"), "nor may it be read");
    for node in &nodes[1..] {
        node.signal("-CONT");
    }
    // What became of the 1 that was under way nobody knew.
    let sum = nodes[0].serves();
    assert!((1..=2).contains(&sum), "{sum}");
    for node in &mut nodes {
        assert_eq!(node.serves(), sum, "at node {}", node.id);
    }
}

macro_rules! over_both {
    ($($test:ident),* $(,)?) => {
        mod over_shm {
            $(#[test] fn $test() { super::$test("shm") })*
        }
        mod over_tcp {
            $(#[test] fn $test() { super::$test("tcp") })*
        }
    };
}

over_both!(
    who_is_killed_is_missed_for_a_moment_and_comes_back_with_the_state,
    two_of_five_are_killed_at_once,
    who_was_stopped_learns_that_it_was_dropped_and_comes_back,
    one_of_three_alone_says_so_and_goes_on_when_another_is_back,
);
