//! TCP fabrics of several hosts, with cut links and stopped processes: each node is a process of a network namespace.

#[path = "../../tests/hosts/mod.rs"]
mod hosts;

use std::{
    env,
    io::Write as _,
    io::{BufRead, BufReader},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

use hosts::Hosts;
use rustix::process::{Pid, Signal, kill_process};
use squall_fabric::{
    BreakReason, Completion, Fabric, GroupTag, NodeId, Time, Wait,
    net::{NetConfig, Security},
    tcp::{TcpConfig, TcpFabric},
};

/// The default timeout, which the nodes have.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that a busy machine may add before a line of a node's has been read.
const SLACK: Duration = Duration::from_millis(250);

/// The longest time of any wait that has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(20);

const NODE: &str = "SQUALL_CUTS_TEST_NODE";

/// A node with an endpoint to the other one, on the host that has its number. It prints a line when it is connected,
/// and one with the reason when that breaks.
struct Node {
    process: Child,
    lines: Receiver<String>,
}

impl Node {
    fn start(hosts: &Hosts, id: u32) -> Node {
        let mut process = hosts
            .command(id, env::current_exe().unwrap())
            .args(["--exact", "node", "--nocapture", "--test-threads=1"])
            .env(NODE, id.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (said, lines) = channel();
        thread::spawn(move || {
            // The harness prints lines as well.
            let mine =
                output.lines().map_while(Result::ok).filter_map(|line| Some(line.strip_prefix("node: ")?.to_owned()));
            mine.for_each(|line| drop(said.send(line)));
        });
        Node { process, lines }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
    }

    #[track_caller]
    fn says(&self, expected: &str, within: Duration) {
        match self.lines.recv_timeout(within) {
            Ok(line) => assert_eq!(line, expected),
            Err(RecvTimeoutError::Timeout) => panic!("no word of {expected:?} within {within:?}"),
            Err(RecvTimeoutError::Disconnected) => panic!("the node ended before it said {expected:?}: see above"),
        }
    }

    /// Checks that the node prints nothing more within `time`.
    #[track_caller]
    fn is_silent(&self, time: Duration) {
        assert_eq!(self.lines.recv_timeout(time), Err(RecvTimeoutError::Timeout));
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the node of each process; it is no test of its own.
#[test]
fn node() {
    let Ok(id) = env::var(NODE) else { return };
    let id: u32 = id.parse().unwrap();
    let mut net = NetConfig::new("cuts", NodeId(id));
    net.security = Security::None;
    net.listen = vec![format!("host{id}:7700")];
    let peer = 3 - id;
    net.peers.insert(NodeId(peer), vec![format!("host{peer}:7700")]);
    let mut fabric = TcpFabric::open(TcpConfig::new(net)).unwrap();
    let tag = GroupTag { layer: 1, group: 1, epoch: 1 };
    fabric.connect(NodeId(peer), tag, &[], b"");
    let mut seen = Vec::new();
    loop {
        fabric.arm();
        fabric.poll(Time::boot_clock(), &mut seen);
        for completion in seen.drain(..) {
            let text = match completion {
                Completion::Connected { .. } => "connected".to_owned(),
                Completion::Broken { reason, .. } => reason.to_string(),
                _ => continue,
            };
            // The line goes past the harness, which keeps the tests' output to itself.
            writeln!(std::io::stdout(), "\nnode: {text}").unwrap();
        }
        fabric.wait(Time::MAX);
    }
}

fn pair() -> Option<(Hosts, [Node; 2])> {
    let hosts = Hosts::up(2, "200mbit")?;
    let nodes = [1, 2].map(|id| Node::start(&hosts, id));
    nodes.iter().for_each(|node| node.says("connected", PATIENCE));
    Some((hosts, nodes))
}

/// An endpoint idles beyond the failure timeout, so that only heartbeats keep it.
#[test]
fn an_idle_endpoint_outlives_the_failure_timeout() {
    let Some((_hosts, nodes)) = pair() else { return };
    nodes[0].is_silent(3 * FAILURE_TIMEOUT);
    nodes[1].is_silent(Duration::ZERO);
}

#[test]
fn both_sides_notice_a_silent_cut_within_the_failure_timeout() {
    let Some((hosts, nodes)) = pair() else { return };
    hosts.cut(2);
    let cut = Instant::now();
    for node in &nodes {
        node.says(&BreakReason::Unreachable.to_string(), (FAILURE_TIMEOUT + SLACK).saturating_sub(cut.elapsed()));
    }
}

#[test]
fn a_cut_shorter_than_the_failure_timeout_breaks_nothing() {
    let Some((hosts, nodes)) = pair() else { return };
    hosts.cut(2);
    thread::sleep(FAILURE_TIMEOUT / 4);
    hosts.heal(2);
    nodes[0].is_silent(3 * FAILURE_TIMEOUT);
    nodes[1].is_silent(Duration::ZERO);
}

#[test]
fn a_stopped_process_is_given_up_within_the_failure_timeout_and_says_so_when_it_goes_on() {
    let Some((_hosts, nodes)) = pair() else { return };
    nodes[1].signal(Signal::STOP);
    nodes[0].says(&BreakReason::Unreachable.to_string(), FAILURE_TIMEOUT + SLACK);
    nodes[1].signal(Signal::CONT);
    nodes[1].says(&BreakReason::GivenUp.to_string(), PATIENCE);
}

#[test]
fn a_killed_process_is_noticed_at_once() {
    let Some((_hosts, nodes)) = pair() else { return };
    nodes[1].signal(Signal::KILL);
    let line = nodes[0].lines.recv_timeout(FAILURE_TIMEOUT / 4).expect("its kernel closes its sockets");
    assert!(line.starts_with("the connection was lost: "), "{line}");
}
