//! Rounds of `kill -9`: real nodes die while they append, some of them or all, at any moment, and come back in any order; then all
//! members' logs are compared with what was acknowledged. Every acknowledged record is there once, where its writer was told, all
//! members have the same, and nothing is there that nobody sent.
//!
//! Ten rounds make a cluster, over shared memory and over TCP by turns. `SQUALL_ROUNDS` sets how many rounds there are in all,
//! `SQUALL_SEED` with what the first cluster begins:
//!
//! ```text
//! SQUALL_ROUNDS=200 cargo test --release --test kill_rounds -- --nocapture
//! ```
#![expect(
    clippy::print_stdout,
    clippy::exit,
    reason = "rounds are told as they go; and a node must end with its parent"
)]

mod process;
mod sum;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    env,
    error::Error,
    io::{self, Read},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use process::{Cluster, Process, RESTART_WAIT, say};
use squall::{
    Freshness, Node, NodeId,
    client::{Client, ClientConfig},
    log_service::{LogClient, LogRecord, RecordLog},
};

const MEMBERS: u32 = 3;

/// Rounds where nobody says how many.
const ROUNDS: u64 = 20;
const ROUNDS_OF_A_CLUSTER: u64 = 10;

/// So many appends of each writer are under way.
const WINDOW: usize = 16;

/// Clients that are no members. Their appends are carried out once, whoever dies.
const SESSIONS: u32 = 2;

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

const GROUP: &str = "log";

/// A node that writes nothing has this number.
const NOBODY: u32 = u32::MAX;

/// The first writer that is a node's process; each has a number of its own.
const FIRST_PROCESS: u32 = 1000;

/// What the `number`th record of a writer is: both, and bytes that follow from them.
fn record(writer: u32, number: u32) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(u64::from(writer) << 32 | u64::from(number));
    let mut bytes = [writer.to_le_bytes(), number.to_le_bytes()].concat();
    bytes.resize(8 + random.usize(..1000), 0);
    random.fill(&mut bytes[8..]);
    bytes
}

/// Whose record it is, and which; None if nobody has sent such.
fn origin(bytes: &[u8]) -> Option<(u32, u32)> {
    let (&writer, rest) = bytes.split_first_chunk()?;
    let (writer, number) = (u32::from_le_bytes(writer), u32::from_le_bytes(*rest.first_chunk()?));
    (record(writer, number) == bytes).then_some((writer, number))
}

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::config(GROUP);
    let mut node = Node::builder(config.clone());
    let group = node.serve(GROUP, RecordLog::default(), RecordLog::options(&config, GROUP));
    let node = node.start().expect("it becomes a member");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("it is told who it is");
    let writer = line.trim().parse().expect("a number");
    // It does not outlive the test.
    thread::spawn(|| io::stdin().read(&mut [0]).map(|_| std::process::exit(0)));
    say("ready").expect("the test listens");
    let (mut next, mut under_way) = (0, VecDeque::new());
    while node.end_reason().is_none() {
        while under_way.len() < WINDOW && writer != NOBODY {
            let Ok(submit) = group.try_submit(&record(writer, next)) else { break };
            under_way.push_back((next, submit.deadline(PATIENCE)));
            next += 1;
        }
        let Some((number, submit)) = under_way.pop_front() else {
            // The group does not serve now.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let said = match submit.wait() {
            Ok(appended) => say(&format!("{number} {}", appended.version)),
            Err(_) => say(&format!("{number} 0")),
        };
        said.expect("the test listens");
    }
    panic!("its part is over: {:?}", node.end_reason());
}

/// What a writer says of one of its records.
#[derive(Clone, Copy, Debug)]
struct Told {
    number: u32,
    /// None if it does not know what became of it.
    version: Option<u64>,
}

enum News {
    Ready,
    Told(Told),
    Ended,
}

impl From<Option<String>> for News {
    fn from(said: Option<String>) -> News {
        let Some(said) = said else { return News::Ended };
        let Some((number, version)) = said.split_once(' ') else { return News::Ready };
        let (number, version) = (number.parse().expect("a number"), version.parse().expect("a version"));
        News::Told(Told { number, version: Some(version).filter(|&version| version > 0) })
    }
}

/// A node's process.
struct Running {
    process: Process,
    writer: u32,
    is_ready: bool,
    /// How many of its records were acknowledged.
    acknowledged: u64,
}

/// A client that is no member, on a thread of its own.
fn session(
    config: ClientConfig,
    writer: u32,
    stop: Arc<AtomicBool>,
    tell: Sender<(u32, News)>,
) -> JoinHandle<Result<u32, String>> {
    thread::spawn(move || {
        let client = Client::<RecordLog>::connect(&config, GROUP).map_err(|error| error.to_string())?;
        let (mut under_way, mut sent) = (VecDeque::new(), 0);
        loop {
            while under_way.len() < WINDOW && !stop.load(Ordering::Relaxed) {
                under_way.push_back((sent, client.submit(&record(writer, sent))));
                sent += 1;
            }
            let Some((number, call)) = under_way.pop_front() else { return Ok(sent) };
            let appended = call.wait().map_err(|error| format!("record {number} of session {writer}: {error}"))?;
            // Nobody listens once the test has failed.
            let _ = tell.send((writer, News::Told(Told { number, version: Some(appended.version) })));
        }
    })
}

/// What all members have been seen to have.
#[derive(Default)]
struct Checked {
    /// All versions up to this one.
    upto: u64,
    /// Where each record is.
    found: HashMap<(u32, u32), u64>,
}

impl Checked {
    /// Looks at what came behind that, at all members.
    fn go_on(&mut self, clients: &ClientConfig) -> Result<(), Box<dyn Error>> {
        let mut log = LogClient::new(clients, GROUP);
        // Else it knows addresses, and not whose they are.
        log.members()?;
        let from = self.upto + 1;
        let mut first = log.at_member(NodeId(1));
        let upto = first.read(Freshness::Latest, u64::MAX..)?.safe;
        let records = read(&mut first, from, upto)?;
        for member in 2..=MEMBERS {
            let others = read(&mut log.at_member(NodeId(member)), from, upto)?;
            let differs = records.iter().zip(&others).find(|(one, other)| one != other);
            assert!(differs.is_none(), "members 1 and {member} differ: {differs:?}");
            assert_eq!(records.len(), others.len(), "versions {from} to {upto} at members 1 and {member}");
        }
        for found in &records {
            let bytes = found.record()?;
            let origin = origin(&bytes).ok_or_else(|| format!("nobody sent version {}", found.version))?;
            if let Some(before) = self.found.insert(origin, found.version) {
                return Err(format!("{origin:?} is there twice, as {before} and {}", found.version).into());
            }
        }
        self.upto = upto;
        Ok(())
    }
}

/// All records of these versions, at one member.
fn read(log: &mut LogClient, from: u64, upto: u64) -> Result<Vec<LogRecord>, Box<dyn Error>> {
    let (mut records, mut next) = (Vec::new(), from);
    let deadline = Instant::now() + PATIENCE;
    while next <= upto {
        assert!(Instant::now() < deadline, "version {next} of {upto} does not come at {:?}", log.member());
        let page = log.follow(next..=upto, Duration::from_secs(1))?;
        records.extend(page.records);
        next = page.next;
    }
    Ok(records)
}

struct Rounds {
    cluster: Cluster,
    rng: fastrand::Rng,
    nodes: BTreeMap<u32, Running>,
    news: Receiver<(u32, News)>,
    tell: Sender<(u32, News)>,
    next_writer: u32,
    /// How many processes may still be heard, dead ones too.
    heard: usize,
    checked: Checked,
    /// What was acknowledged, and not yet looked for.
    acknowledged: Vec<(u32, u32, u64)>,
    /// The largest number that each writer is known to have sent.
    sent: HashMap<u32, u32>,
    acknowledgements: u64,
}

impl Rounds {
    fn new(seed: u64, backend: &'static str) -> Rounds {
        let (tell, news) = mpsc::channel();
        Rounds {
            cluster: Cluster::durable(&format!("kill-{seed}"), backend, MEMBERS),
            rng: fastrand::Rng::with_seed(seed),
            nodes: BTreeMap::new(),
            news,
            tell,
            next_writer: FIRST_PROCESS,
            heard: 0,
            checked: Checked::default(),
            acknowledged: Vec::new(),
            sent: HashMap::new(),
            acknowledgements: 0,
        }
    }

    fn launch(&mut self, id: u32) {
        let writer = self.next_writer;
        self.launch_as(id, writer, writer);
    }

    /// Starts a node that has this number here, and writes as another.
    fn launch_as(&mut self, id: u32, writer: u32, writes_as: u32) {
        self.next_writer = writer + 1;
        let mut process = self.cluster.launch(id);
        process.tell(&writes_as.to_string());
        self.heard += 1;
        let tell = self.tell.clone();
        process.listen(move |said| {
            // Nobody listens once the test has failed.
            let _ = tell.send((writer, said.into()));
        });
        self.nodes.insert(id, Running { process, writer, is_ready: false, acknowledged: 0 });
    }

    fn kill(&mut self, id: u32) {
        self.nodes.remove(&id).expect("it runs").process.kill();
    }

    /// Takes what writers say until something is so.
    fn until(&mut self, what: &str, so: impl Fn(&Rounds) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((writer, news)) = self.news.recv_timeout(left) else { panic!("not within {PATIENCE:?}: {what}") };
            self.take(writer, news);
        }
    }

    fn take(&mut self, writer: u32, news: News) {
        let node = self.nodes.iter_mut().find(|(_, node)| node.writer == writer);
        match (news, node) {
            (News::Ended, Some((id, _))) => panic!("node {id} has ended by itself"),
            (News::Told(Told { number, version }), node) => {
                self.sent.entry(writer).and_modify(|sent| *sent = number.max(*sent)).or_insert(number);
                if let Some(version) = version {
                    self.acknowledged.push((writer, number, version));
                    self.acknowledgements += 1;
                    if let Some((_, node)) = node {
                        node.acknowledged += 1;
                    }
                }
            }
            (News::Ended, None) => self.heard -= 1,
            (News::Ready, Some((_, node))) => node.is_ready = true,
            (News::Ready, None) => {}
        }
    }

    fn all_append(&mut self) {
        self.until("all members append", |rounds| {
            rounds.nodes.len() == MEMBERS as usize && rounds.nodes.values().all(|node| node.acknowledged > 0)
        });
    }

    fn pause(&mut self, most: Duration) {
        thread::sleep(most.mul_f64(self.rng.f64()));
    }

    /// Nodes die, and come back.
    fn round(&mut self) -> String {
        let enough = self.acknowledgements + self.rng.u64(1..1500);
        self.until("appends are acknowledged", |rounds| rounds.acknowledgements >= enough);
        let mut victims: Vec<u32> = (1..=MEMBERS).collect();
        self.rng.shuffle(&mut victims);
        if self.rng.u8(..3) > 0 {
            victims.truncate(self.rng.usize(1..=victims.len()));
        }
        let mut story = format!("kills {victims:?}");
        for &id in &victims {
            self.kill(id);
            if self.rng.bool() {
                self.pause(Duration::from_millis(50));
            }
        }
        self.rng.shuffle(&mut victims);
        story += &format!(", starts {victims:?}");
        for (index, &id) in victims.iter().enumerate() {
            if index > 0 && index + 1 == victims.len() && self.rng.u8(..6) == 0 {
                story += &format!(", {id} late");
                thread::sleep(RESTART_WAIT + Duration::from_millis(300));
            } else if self.rng.bool() {
                self.pause(Duration::from_millis(400));
            }
            self.launch(id);
        }
        if self.rng.u8(..4) == 0 {
            let again = self.rng.choice(victims).expect("there are some");
            story += &format!(", kills {again} as it comes back");
            self.pause(Duration::from_secs(1));
            self.kill(again);
            self.launch(again);
        }
        self.nodes.values_mut().for_each(|node| node.acknowledged = 0);
        self.all_append();
        story
    }

    /// Compares what members have with what was acknowledged.
    fn check(&mut self) {
        self.checked.go_on(&self.cluster.clients()).expect("all members have the same");
        let Checked { upto, found } = &self.checked;
        self.acknowledged.retain(|&(writer, number, version)| {
            let lies_at = found.get(&(writer, number));
            assert!(
                version > *upto || lies_at == Some(&version),
                "record {number} of {writer} was acknowledged as version {version} and is at {lies_at:?}"
            );
            version > *upto
        });
    }

    /// Nothing is there that nobody sent. Nobody writes any more, and all was heard.
    fn check_sent(&self, sessions: &[u32]) {
        for &(writer, number) in self.checked.found.keys() {
            assert!(writer < self.next_writer, "there was no writer {writer}");
            let sent = match sessions.get(writer as usize) {
                Some(&sent) => sent,
                None => self.sent.get(&writer).map_or(0, |&told| told + 1) + WINDOW as u32,
            };
            assert!(number < sent, "writer {writer} sent {sent} records at most, and {number} is there");
        }
        for (writer, &sent) in sessions.iter().enumerate() {
            let lost = (0..sent).find(|&number| !self.checked.found.contains_key(&(writer as u32, number)));
            assert_eq!(lost, None, "of {sent} records of session {writer}");
        }
        assert!(self.acknowledged.is_empty(), "{:?}", self.acknowledged);
    }
}

fn of_a_cluster(seed: u64, count: u64) {
    let backend = ["shm", "tcp"][(seed % 2) as usize];
    let mut rounds = Rounds::new(seed, backend);
    (1..=MEMBERS).for_each(|id| rounds.launch(id));
    let stop = Arc::new(AtomicBool::new(false));
    let session = |writer| session(rounds.cluster.clients(), writer, Arc::clone(&stop), rounds.tell.clone());
    let sessions: Vec<_> = (0..SESSIONS).map(session).collect();
    rounds.all_append();
    for round in 1..=count {
        let begun = Instant::now();
        let story = rounds.round();
        rounds.check();
        println!(
            "SQUALL_SEED={seed} {backend} round {round}: {story}; {} acknowledged, {} versions are alike ({:.1} s)",
            rounds.acknowledgements,
            rounds.checked.upto,
            begun.elapsed().as_secs_f64()
        );
    }
    stop.store(true, Ordering::Relaxed);
    let sessions: Vec<u32> = sessions
        .into_iter()
        .map(|session| session.join().expect("it does not panic").expect("all are answered"))
        .collect();
    // All of it once more, from disks alone, when all was heard that the dead have said.
    (1..=MEMBERS).for_each(|id| rounds.kill(id));
    rounds.until("all was heard", |rounds| rounds.heard == 0);
    for id in 1..=MEMBERS {
        let writer = rounds.next_writer;
        rounds.launch_as(id, writer, NOBODY);
    }
    rounds.until("all come back", |rounds| rounds.nodes.values().all(|node| node.is_ready));
    let before = std::mem::take(&mut rounds.checked);
    rounds.check();
    let moved = before.found.iter().find(|(record, at)| rounds.checked.found.get(record) != Some(at));
    assert_eq!(moved, None, "a record was there, and is not there any more");
    rounds.check_sent(&sessions);
}

fn number<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn whoever_is_killed_nothing_acknowledged_is_lost() {
    let rounds = number("SQUALL_ROUNDS").unwrap_or(ROUNDS);
    let first: u64 = number("SQUALL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    for (seed, begun) in (first..).zip((0..rounds).step_by(ROUNDS_OF_A_CLUSTER as usize)) {
        println!("SQUALL_SEED={seed}");
        of_a_cluster(seed, ROUNDS_OF_A_CLUSTER.min(rounds - begun));
    }
}
