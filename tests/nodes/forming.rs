//! Groups of processes form though one of them dies meanwhile, or though their host has no time for all of them.
//! Otherwise, the processes that wait say in time what is missing.
//!
//! `SQUALL_ROUNDS` sets the number of times that a founder dies, `SQUALL_SEED` the moment with which that begins. A
//! large group takes the whole machine:
//!
//! ```text
//! SQUALL_ROUNDS=50 cargo test --release -p squall-cli --test nodes forming:: -- --nocapture
//! taskset -c 0,1 cargo test --release -p squall-cli --test nodes forming::sixty_four -- --ignored --nocapture
//! ```
#![expect(clippy::print_stderr, reason = "it says how long it took")]

use std::{
    env,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use squall::{
    Config, ConfigBuilder, Node, NodeId, Witness,
    config::{Backend, Security},
    keys::{Authority, Files},
};

use crate::{process::say, sum::Sum};

/// The variable that tells a process of this program which node it is: `id members witness formation_ms addresses keys
/// storage cluster`, where `-` stands for a missing value.
const NODE: &str = "SQUALL_TEST_FORMING";

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let given = env::var(NODE).expect("it is started by another test");
    let [id, members, witness, formation, addresses, keys, storage, cluster] = given.split(' ').collect::<Vec<_>>()[..]
    else {
        panic!("{given:?}")
    };
    tracing_subscriber::fmt().with_writer(io::stderr).with_max_level(level()).init();
    let id: u32 = id.parse().expect("a number");
    let members: u32 = members.parse().expect("a number");
    let formation = Duration::from_millis(formation.parse().expect("a number"));
    let mut config = Config::builder(cluster, id).members(1..=members).formation_timeout(formation);
    if let Ok(witness) = witness.parse::<u32>() {
        config = config.witnesses([witness]).voters((1..=members).chain([witness]));
    }
    if storage != "-" {
        config = config.storage(storage);
    }
    config = placed(config, id, addresses, keys);
    let config = config.build().expect("the configuration is valid");
    if config.is_witness() {
        let witness = Witness::start(&config).expect("it votes");
        say("ready").expect("the test listens");
        // The process runs until the test ends it.
        let _ = io::stdin().lines().count();
        return drop(witness);
    }
    let mut node = Node::builder(config);
    let group = node.group("sum", Sum::default());
    let node = match node.start() {
        Ok(node) => node,
        Err(error) => return say(&format!("ended: {error}")).expect("the test listens"),
    };
    say(&format!("ready {}", node.view().epoch.0)).expect("the test listens");
    for _ in io::stdin().lines() {
        let answered = group.submit(&1).deadline(formation).wait();
        let epoch = node.view().epoch.0;
        let said = answered.map_or_else(|error| format!("error: {error}"), |_| format!("answered {epoch}"));
        if say(&said).is_err() {
            return;
        }
    }
}

fn level() -> tracing::Level {
    env::var("SQUALL_LEVEL").ok().and_then(|level| level.parse().ok()).unwrap_or(tracing::Level::INFO)
}

fn placed(config: ConfigBuilder, id: u32, addresses: &str, keys: &str) -> ConfigBuilder {
    if addresses == "-" {
        return config.backend(Backend::Shm);
    }
    let all = (1..).zip(addresses.split(','));
    let config = all.fold(config.backend(Backend::Tcp), |config, (id, at)| config.addresses(id, [at]));
    if keys == "-" {
        return config;
    }
    let files = Files::in_directory(keys);
    config.security(Security::Tls(files.of(NodeId(id))))
}

/// A line of a process: an answer, or one of its log.
#[derive(Debug)]
enum Line {
    Answer(String),
    Log(String),
}

/// A node's process, which is killed when this is dropped.
struct Process {
    id: u32,
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<Line>,
    started: Instant,
}

impl Process {
    fn launch(id: u32, given: &str) -> Process {
        let mut command = Command::new(env::current_exe().expect("this program has a path"));
        command.args(["--exact", "forming::node", "--ignored", "--nocapture"]).env(NODE, format!("{id} {given}"));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("it can be started");
        let stdin = child.stdin.take().expect("piped");
        let (answers, lines) = mpsc::channel();
        let logs = answers.clone();
        let (out, err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        // Nothing receives any more once the process is dropped.
        thread::spawn(move || {
            let said = BufReader::new(out).lines().map_while(Result::ok);
            let answer = |line: String| line.strip_prefix("> ").map(str::to_owned);
            said.filter_map(answer).try_for_each(|line| answers.send(Line::Answer(line)))
        });
        let told = env::var_os("SQUALL_LEVEL").is_some();
        thread::spawn(move || {
            BufReader::new(err).lines().map_while(Result::ok).try_for_each(|line| {
                if told {
                    eprintln!("{id}: {line}");
                }
                logs.send(Line::Log(line))
            })
        });
        Process { id, child, stdin, lines, started: Instant::now() }
    }

    /// Returns the next answer, if it comes before a moment.
    fn answer(&self, until: Instant) -> Option<String> {
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Line::Answer(answer)) => return Some(answer),
                Ok(Line::Log(_)) => {}
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => panic!("node {} has ended without a word", self.id),
            }
        }
    }

    /// Waits for a line of the log that contains these words, until a moment.
    fn logs(&self, words: &str, until: Instant) -> bool {
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Line::Log(line)) if line.contains(words) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn number(name: &str, usual: u64) -> u64 {
    env::var(name).ok().map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// The time that a founder and the others wait for their first view.
const FORMATION: Duration = Duration::from_secs(3);

/// The time that a busy machine may take beyond that.
const SLACK: Duration = Duration::from_secs(5);

/// The number of groups that form at a time.
const AT_ONCE: u64 = 4;

#[test]
fn none_hangs_of_two_members_and_a_witness_whose_founder_dies_at_any_moment() {
    let (rounds, first) = (number("SQUALL_ROUNDS", 12), number("SQUALL_SEED", 0));
    let ways: Vec<&str> = thread::scope(|scope| {
        let share = |at: u64| {
            scope.spawn(move || (at..rounds).step_by(AT_ONCE as usize).map(|r| round(first + r)).collect::<Vec<_>>())
        };
        let running: Vec<_> = (0..AT_ONCE).map(share).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("no round fails")).collect()
    });
    let formed = ways.iter().filter(|way| **way == "member").count();
    eprintln!("{rounds} founders died: {formed} times the other was a member, else it ended in time with a sentence");
}

/// Lets the founder die at the seed's moment. Returns the fate of the other member.
fn round(seed: u64) -> &'static str {
    let mut rng = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().expect("a directory can be made");
    let storage =
        |id: u32, has| if has { directory.path().join(id.to_string()).display().to_string() } else { "-".into() };
    let has_storage = seed % 3 == 2;
    let cluster = format!("forming-{}-{seed}", std::process::id());
    let launch = |id| {
        let given = format!("2 9 {} - - {} {cluster}", FORMATION.as_millis(), storage(id, has_storage));
        Process::launch(id, &given)
    };
    let (founder, other, _witness) = (launch(1), launch(2), launch(9));
    // Half of them in the midst of the foundation, the others at any moment of the processes' first steps.
    if rng.bool() {
        founder.logs("the view log begins", Instant::now() + FORMATION);
        thread::sleep(Duration::from_micros(rng.u64(0..10_000)));
    } else {
        thread::sleep(Duration::from_micros(rng.u64(0..400_000)));
    }
    drop(founder);
    let again = rng.bool().then(|| {
        thread::sleep(Duration::from_millis(rng.u64(0..1500)));
        launch(1)
    });
    // None ends before all have reported their fate: one that joins needs the others.
    let mut processes: Vec<Process> = [Some(other), again].into_iter().flatten().collect();
    let ways: Vec<_> = processes.iter_mut().map(|process| came_to(process, seed)).collect();
    ways[0]
}

/// The fate of a process within its formation timeout.
fn came_to(process: &mut Process, seed: u64) -> &'static str {
    let id = process.id;
    let until = process.started + FORMATION + SLACK;
    let said = process.answer(until).unwrap_or_else(|| panic!("seed {seed}: node {id} is no member and says nothing"));
    if said.starts_with("ended: ") {
        return "ended";
    }
    assert!(said.starts_with("ready "), "seed {seed}: node {id}: {said}");
    let asked = Instant::now();
    writeln!(process.stdin).expect("it runs");
    let said = process.answer(asked + FORMATION + SLACK);
    assert!(said.is_some(), "seed {seed}: node {id} is a member, and a submit has no answer");
    "member"
}

/// Starts `members` nodes at once, over TCP with TLS and the default timeouts. Returns the time until all were in
/// operation, and the latest epoch that any of them had then, and some seconds later.
fn form(members: u32, limit: Duration) -> (Duration, u64, u64) {
    let directory = tempfile::tempdir().expect("a directory can be made");
    let cluster = format!("crowd-{}", std::process::id());
    issue(&cluster, members, directory.path());
    let held: Vec<_> = (0..members).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free")).collect();
    let addresses: Vec<String> = held.iter().map(|held| held.local_addr().expect("it has one").to_string()).collect();
    drop(held);
    let given =
        format!("{members} - {} {} {} - {cluster}", limit.as_millis(), addresses.join(","), directory.path().display());
    let began = Instant::now();
    let mut nodes: Vec<Process> = (1..=members).map(|id| Process::launch(id, &given)).collect();
    let until = began + limit;
    let epoch = |said: Option<String>, id: u32, begins: &str| {
        let said = said.unwrap_or_else(|| panic!("node {id} says nothing within {limit:?}"));
        let epoch = said.strip_prefix(begins).and_then(|epoch| epoch.trim().parse::<u64>().ok());
        epoch.unwrap_or_else(|| panic!("node {id}: {said}"))
    };
    let formed = nodes.iter().map(|node| epoch(node.answer(until), node.id, "ready ")).max().unwrap_or_default();
    let took = began.elapsed();
    thread::sleep(Duration::from_secs(3));
    nodes.iter_mut().for_each(|node| writeln!(node.stdin).expect("it runs"));
    let until = Instant::now() + limit;
    let later = nodes.iter().map(|node| epoch(node.answer(until), node.id, "answered ")).max().unwrap_or_default();
    (took, formed, later)
}

fn issue(cluster: &str, members: u32, directory: &Path) {
    let files = Files::in_directory(directory);
    let ca = Authority::create(cluster).expect("a CA");
    ca.save(&files, false).expect("the directory is new");
    (1..=members).for_each(|id| ca.issue(NodeId(id), 1).and_then(|keys| keys.save(&files, false)).expect("keys"));
}

#[test]
fn sixteen_nodes_form_in_one_or_two_epochs() {
    let (took, formed, later) = form(16, Duration::from_secs(60));
    eprintln!("16 nodes formed in {took:?}, in epoch {formed}, and were in epoch {later} later");
    assert!(formed <= 2 && later <= 2, "epochs {formed} and {later}");
}

#[test]
#[ignore = "it takes the whole machine"]
fn sixty_four_nodes_form_within_twenty_seconds_in_one_or_two_epochs() {
    let members = number("SQUALL_NODES", 64) as u32;
    let (took, formed, later) = form(members, Duration::from_secs(90));
    eprintln!("{members} nodes formed in {took:?}, in epoch {formed}, and were in epoch {later} later");
    assert!(took < Duration::from_secs(20) && formed <= 2 && later <= 2, "{took:?}, epochs {formed} and {later}");
}
