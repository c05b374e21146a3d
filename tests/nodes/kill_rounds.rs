//! Rounds of `kill -9`: real nodes die while they append, some of them or all, at any moment, and come back in any
//! order. Then all members' logs are compared with the acknowledged records.
//!
//! Every acknowledged record is there once, at the version that its writer was told. All members have the same, and no
//! record is there that no writer sent. One test has a group of three members, and clients that are no members. The
//! other one has a group of several shards, each with replicas at two of four to six nodes.
//!
//! Ten rounds make a cluster, over shared memory and over TCP by turns. `SQUALL_ROUNDS` sets the number of rounds of
//! each test, `SQUALL_SEED` the seed of the first cluster:
//!
//! ```text
//! SQUALL_ROUNDS=200 cargo test --release -p squall-cli --test nodes kill_rounds:: -- --nocapture
//! ```
#![expect(
    clippy::print_stdout,
    clippy::exit,
    reason = "rounds are told as they go; and a node must end with its parent"
)]

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
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

use squall::{
    Consistency, Group, Node, NodeId, Submit, SubmitError,
    client::{Client, ClientConfig},
    log_service::{Appended, LogClient, LogRecord, RecordLog},
};

use crate::process::{self, Cluster, Process, RESTART_WAIT, say};

/// The number of rounds where the environment names none.
const ROUNDS: u64 = 20;
const ROUNDS_WITH_SHARDS: u64 = 5;
const ROUNDS_OF_A_CLUSTER: u64 = 10;

/// The number of appends of each writer that are under way.
const WINDOW: usize = 16;

/// The number of clients that are no members. Their appends are carried out once, whichever nodes die.
const SESSIONS: u32 = 2;

/// The time that any step may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time that a member may take to answer with its records.
const ATTEMPT: Duration = Duration::from_secs(10);

const GROUP: &str = "log";

/// The number of a node that writes nothing.
const NOBODY: u32 = u32::MAX;

/// The number of the first writer that is a node's process. A node has a number of its own for each shard.
const FIRST_PROCESS: u32 = 1000;

/// A cluster's nodes, its group's shards, and the replicas of each.
#[derive(Clone, Copy, Debug)]
struct Layout {
    nodes: u32,
    shards: u32,
    replicas: u32,
}

/// The `number`th record of a writer: both numbers, and bytes that follow from them.
fn record(writer: u32, number: u32) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(u64::from(writer) << 32 | u64::from(number));
    let mut bytes = [writer.to_le_bytes(), number.to_le_bytes()].concat();
    bytes.resize(8 + random.usize(..1000), 0);
    random.fill(&mut bytes[8..]);
    bytes
}

/// The writer and the number of a record; None if it is no writer's record.
fn origin(bytes: &[u8]) -> Option<(u32, u32)> {
    let (&writer, rest) = bytes.split_first_chunk()?;
    let (writer, number) = (u32::from_le_bytes(writer), u32::from_le_bytes(*rest.first_chunk()?));
    (record(writer, number) == bytes).then_some((writer, number))
}

/// A function that appends a record to a shard.
type Append = Box<dyn Fn(&Vec<u8>) -> Result<Submit<Appended>, SubmitError> + Send>;

#[test]
#[ignore = "it is what the other tests start as processes"]
fn node() {
    let config = process::config(GROUP);
    let mut node = Node::builder(config.clone());
    // Groups with shards serve no clients.
    let shards: Vec<Append> = match config.group(GROUP).shards {
        1 => {
            let group = node.serve(GROUP, RecordLog::default(), RecordLog::options(&config, GROUP));
            vec![Box::new(move |record| group.try_submit(record))]
        }
        _ => {
            let group = node.sharded(GROUP, |_| RecordLog::default());
            let append = |shard: &Group<RecordLog>| -> Append {
                let shard = shard.clone();
                Box::new(move |record| shard.try_submit(record))
            };
            group.iter().map(append).collect()
        }
    };
    let node = node.start().expect("it becomes a member");
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("it is told who it is");
    let writer: u32 = line.trim().parse().expect("a number");
    // The process does not outlive the test.
    thread::spawn(|| io::stdin().read(&mut [0]).map(|_| std::process::exit(0)));
    say("ready").expect("the test listens");
    if writer != NOBODY {
        for (writer, append) in (writer..).zip(shards) {
            thread::spawn(move || write(writer, &append));
        }
    }
    panic!("its part is over: {:?}", node.wait_ended());
}

/// Appends one record after the other to a shard, and reports the outcome of each, as long as the process lives.
fn write(writer: u32, append: &Append) {
    let (mut next, mut under_way) = (0, VecDeque::new());
    loop {
        while under_way.len() < WINDOW {
            let Ok(submit) = append(&record(writer, next)) else { break };
            under_way.push_back((next, submit.deadline(PATIENCE)));
            next += 1;
        }
        let Some((number, submit)) = under_way.pop_front() else {
            // The shard does not serve here now.
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        let version = submit.wait().map_or(0, |appended| appended.version);
        say(&format!("{writer} {number} {version}")).expect("the test listens");
    }
}

/// A writer's report of one of its records.
#[derive(Clone, Copy, Debug)]
struct Told {
    number: u32,
    /// None if the writer does not know the outcome.
    version: Option<u64>,
}

enum News {
    Ready,
    Told(Told),
    Ended,
}

impl News {
    /// Parses the words of a process that has the number `process` as a writer, or others. Returns the writer with the
    /// news.
    fn of(said: Option<&str>, process: u32) -> (u32, News) {
        let Some(said) = said else { return (process, News::Ended) };
        let numbers: Vec<u64> = said.split(' ').flat_map(str::parse).collect();
        let [writer, number, version] = numbers[..] else { return (process, News::Ready) };
        let version = Some(version).filter(|&version| version > 0);
        (writer as u32, News::Told(Told { number: number as u32, version }))
    }
}

/// A node's process.
struct Running {
    process: Process,
    /// Its number as a writer of the first shard; those of the other shards follow.
    writer: u32,
    is_ready: bool,
    /// The number of its records that were acknowledged.
    acknowledged: u64,
}

/// A client that is no member, on a thread of its own. Each second one has the replies of all members.
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
                under_way.push_back((sent, crate::appending::append(&client, &record(writer, sent), writer % 2 == 1)));
                sent += 1;
            }
            let Some((number, wait)) = under_way.pop_front() else { return Ok(sent) };
            let version = wait().map_err(|error| format!("record {number} of session {writer}: {error}"))?;
            // Nothing receives any more once the test has failed.
            let _ = tell.send((writer, News::Told(Told { number, version })));
        }
    })
}

/// The entries that all replicas of a shard were seen to have.
#[derive(Default)]
struct Checked {
    /// All versions up to this one.
    upto: u64,
    /// The version of each record.
    found: HashMap<(u32, u32), u64>,
}

impl Checked {
    /// Checks the entries behind `upto`, at all replicas.
    fn go_on(&mut self, cluster: &Cluster, shard: u32) -> Result<(), Box<dyn Error>> {
        let until = Instant::now() + PATIENCE;
        let (upto, records) = loop {
            let holders = cluster.wait_whole(1).swap_remove(shard as usize);
            match self.read_alike(&cluster.clients(), shard, &holders) {
                Ok(read) => break read,
                Err(error) if Instant::now() > until => return Err(error),
                // A replica has moved away meanwhile.
                Err(error) => println!("shard {shard} at members {holders:?}: {error}"),
            }
        };
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

    /// Reads the shard at all of these members, which must have the same. Returns the last version, and the records.
    fn read_alike(
        &self,
        clients: &ClientConfig,
        shard: u32,
        holders: &[u32],
    ) -> Result<(u64, Vec<LogRecord>), Box<dyn Error>> {
        let mut log = LogClient::new(clients, GROUP).of_shard(shard);
        log.set_timeout(ATTEMPT);
        // Without this, the client knows addresses, and not their nodes.
        log.members()?;
        let from = self.upto + 1;
        let (first, others) = holders.split_first().ok_or("no node holds it")?;
        let mut at_first = log.at_member(NodeId(*first));
        let upto = at_first.read(Consistency::Linearizable, u64::MAX..)?.globally_persisted;
        let records = read(&mut at_first, from, upto)?;
        for other in others {
            let theirs = read(&mut log.at_member(NodeId(*other)), from, upto)?;
            let differs = records.iter().zip(&theirs).find(|(one, other)| one != other);
            assert!(differs.is_none(), "of shard {shard}, members {first} and {other} differ: {differs:?}");
            assert_eq!(records.len(), theirs.len(), "versions {from} to {upto} at members {first} and {other}");
        }
        Ok((upto, records))
    }
}

/// Reads all records of these versions, at one member.
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
    layout: Layout,
    /// Before the cluster, whose directories go when it is dropped.
    nodes: BTreeMap<u32, Running>,
    cluster: Cluster,
    rng: fastrand::Rng,
    news: Receiver<(u32, News)>,
    tell: Sender<(u32, News)>,
    next_writer: u32,
    /// The number of processes whose news may still come, dead ones included.
    heard: usize,
    /// By shard.
    checked: Vec<Checked>,
    /// The shards to which a node that runs has appended since the last round.
    fresh: BTreeSet<u32>,
    /// The acknowledged records that were not yet looked for.
    acknowledged: Vec<(u32, u32, u64)>,
    /// The largest number that each writer is known to have sent.
    sent: HashMap<u32, u32>,
    acknowledgements: u64,
}

impl Rounds {
    fn new(seed: u64, backend: &'static str, layout: Layout) -> Rounds {
        let (tell, news) = mpsc::channel();
        let Layout { nodes, shards, replicas } = layout;
        let cluster = Cluster::durable(&format!("kill-{seed}-{shards}"), backend, nodes).with_own_node();
        Rounds {
            layout,
            nodes: BTreeMap::new(),
            cluster: cluster.with_shards(shards, replicas),
            rng: fastrand::Rng::with_seed(seed),
            news,
            tell,
            next_writer: FIRST_PROCESS,
            heard: 0,
            checked: (0..shards).map(|_| Checked::default()).collect(),
            fresh: BTreeSet::new(),
            acknowledged: Vec::new(),
            sent: HashMap::new(),
            acknowledgements: 0,
        }
    }

    fn launch(&mut self, id: u32) {
        self.launch_as(id, self.next_writer, self.next_writer);
    }

    /// Starts a node that has the number `writer` here, and that writes as `writes_as`.
    fn launch_as(&mut self, id: u32, writer: u32, writes_as: u32) {
        self.next_writer = writer + self.layout.shards;
        let mut process = self.cluster.launch(id);
        process.tell(&writes_as.to_string());
        self.heard += 1;
        let tell = self.tell.clone();
        process.listen(move |said| {
            // Nothing receives any more once the test has failed.
            let _ = tell.send(News::of(said.as_deref(), writer));
        });
        self.nodes.insert(id, Running { process, writer, is_ready: false, acknowledged: 0 });
    }

    fn kill(&mut self, id: u32) {
        self.nodes.remove(&id).expect("it runs").process.kill();
    }

    /// Takes news of writers until `so` holds.
    fn until(&mut self, what: &str, so: impl Fn(&Rounds) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !so(self) {
            let left = deadline.saturating_duration_since(Instant::now());
            let Ok((writer, news)) = self.news.recv_timeout(left) else { panic!("not within {PATIENCE:?}: {what}") };
            self.take(writer, news);
        }
    }

    fn take(&mut self, writer: u32, news: News) {
        let shard = self.shard_of(writer);
        let is_by = |node: &Running| node.writer <= writer && writer < node.writer + self.layout.shards;
        let node = self.nodes.iter_mut().find(|(_, node)| is_by(node));
        match (news, node) {
            (News::Ended, Some((id, _))) => panic!("node {id} has ended by itself"),
            (News::Told(Told { number, version }), node) => {
                self.sent.entry(writer).and_modify(|sent| *sent = number.max(*sent)).or_insert(number);
                if let Some(version) = version {
                    self.acknowledged.push((writer, number, version));
                    self.acknowledgements += 1;
                    if let Some((_, node)) = node {
                        node.acknowledged += 1;
                        self.fresh.insert(shard);
                    }
                }
            }
            (News::Ended, None) => self.heard -= 1,
            (News::Ready, Some((_, node))) => node.is_ready = true,
            (News::Ready, None) => {}
        }
    }

    /// The shard to which a writer appends.
    fn shard_of(&self, writer: u32) -> u32 {
        writer.checked_sub(FIRST_PROCESS).map_or(0, |number| number % self.layout.shards)
    }

    /// Waits until all nodes are members, and each that has a replica for certain appends; and until each shard takes
    /// records.
    fn all_append(&mut self) {
        let Layout { nodes, shards, replicas } = self.layout;
        self.until("all members append", |rounds| {
            let appends = |node: &Running| node.is_ready && (node.acknowledged > 0 || replicas < nodes);
            rounds.nodes.len() == nodes as usize
                && rounds.nodes.values().all(appends)
                && rounds.fresh.len() == shards as usize
        });
    }

    fn pause(&mut self, most: Duration) {
        thread::sleep(most.mul_f64(self.rng.f64()));
    }

    /// Kills nodes, and starts them again.
    fn round(&mut self) -> String {
        let enough = self.acknowledgements + self.rng.u64(1..1500);
        self.until("appends are acknowledged", |rounds| rounds.acknowledgements >= enough);
        let mut victims: Vec<u32> = self.cluster.nodes().collect();
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
        self.fresh.clear();
        self.all_append();
        story
    }

    /// Compares the replicas' records with those that were acknowledged.
    fn check(&mut self) {
        for (shard, checked) in (0..).zip(&mut self.checked) {
            checked.go_on(&self.cluster, shard).expect("all replicas have the same");
        }
        for (writer, number, version) in std::mem::take(&mut self.acknowledged) {
            let shard = self.shard_of(writer);
            let Checked { upto, found } = &self.checked[shard as usize];
            let lies_at = found.get(&(writer, number));
            assert!(
                version > *upto || lies_at == Some(&version),
                "record {number} of {writer} was acknowledged as version {version} of shard {shard} and is at {lies_at:?}"
            );
            if version > *upto {
                self.acknowledged.push((writer, number, version));
            }
        }
    }

    /// Checks that each record there was sent. No writer writes any more, and all news was taken.
    fn check_sent(&self, sessions: &[u32]) {
        let found =
            (0..).zip(&self.checked).flat_map(|(shard, checked)| checked.found.keys().map(move |of| (shard, of)));
        for (shard, &(writer, number)) in found {
            assert!(writer < self.next_writer, "there was no writer {writer}");
            assert_eq!(self.shard_of(writer), shard, "record {number} of {writer} was sent to another shard");
            let sent = match sessions.get(writer as usize) {
                Some(&sent) => sent,
                None => self.sent.get(&writer).map_or(0, |&told| told + 1) + WINDOW as u32,
            };
            assert!(number < sent, "writer {writer} sent {sent} records at most, and {number} is there");
        }
        for (writer, &sent) in sessions.iter().enumerate() {
            let lost = (0..sent).find(|&number| !self.checked[0].found.contains_key(&(writer as u32, number)));
            assert_eq!(lost, None, "of {sent} records of session {writer}");
        }
        assert!(self.acknowledged.is_empty(), "{:?}", self.acknowledged);
    }
}

fn of_a_cluster(seed: u64, count: u64, layout: Layout) {
    let backend = ["shm", "tcp"][(seed % 2) as usize];
    let mut rounds = Rounds::new(seed, backend, layout);
    rounds.cluster.nodes().for_each(|id| rounds.launch(id));
    let stop = Arc::new(AtomicBool::new(false));
    let session = |writer| session(rounds.cluster.clients(), writer, Arc::clone(&stop), rounds.tell.clone());
    let sessions: Vec<_> = (0..SESSIONS).filter(|_| layout.shards == 1).map(session).collect();
    rounds.all_append();
    for round in 1..=count {
        let begun = Instant::now();
        let story = rounds.round();
        rounds.check();
        println!(
            "SQUALL_SEED={seed} {backend} {layout:?} round {round}: {story}; {} acknowledged, {:?} versions are alike ({:.1} s)",
            rounds.acknowledgements,
            rounds.checked.iter().map(|checked| checked.upto).collect::<Vec<_>>(),
            begun.elapsed().as_secs_f64()
        );
    }
    stop.store(true, Ordering::Relaxed);
    let sessions: Vec<u32> = sessions
        .into_iter()
        .map(|session| session.join().expect("it does not panic").expect("all are answered"))
        .collect();
    // Checks all of it once more, from disks alone, when all news of the dead processes was taken.
    rounds.cluster.nodes().for_each(|id| rounds.kill(id));
    rounds.until("all was heard", |rounds| rounds.heard == 0);
    for id in rounds.cluster.nodes() {
        let writer = rounds.next_writer;
        rounds.launch_as(id, writer, NOBODY);
    }
    rounds.until("all come back", |rounds| rounds.nodes.values().all(|node| node.is_ready));
    let fresh = (0..layout.shards).map(|_| Checked::default()).collect();
    let before = std::mem::replace(&mut rounds.checked, fresh);
    rounds.check();
    for (before, now) in before.iter().zip(&rounds.checked) {
        let moved = before.found.iter().find(|(record, at)| now.found.get(record) != Some(at));
        assert_eq!(moved, None, "a record was there, and is not there any more");
    }
    rounds.check_sent(&sessions);
}

fn number<T: FromStr>(name: &str) -> Option<T> {
    env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn of_all_clusters(rounds: u64, layout: impl Fn(u64) -> Layout) {
    let rounds = number("SQUALL_ROUNDS").unwrap_or(rounds);
    let first: u64 = number("SQUALL_SEED").unwrap_or_else(|| fastrand::u64(..1 << 40));
    for (seed, begun) in (first..).zip((0..rounds).step_by(ROUNDS_OF_A_CLUSTER as usize)) {
        println!("SQUALL_SEED={seed}");
        of_a_cluster(seed, ROUNDS_OF_A_CLUSTER.min(rounds - begun), layout(seed));
    }
}

#[test]
fn whoever_is_killed_nothing_acknowledged_is_lost() {
    of_all_clusters(ROUNDS, |_| Layout { nodes: 3, shards: 1, replicas: 3 });
}

#[test]
fn whoever_is_killed_nothing_acknowledged_is_lost_of_any_shard() {
    let layout = |seed: u64| Layout { nodes: 4 + (seed / 2 % 3) as u32, shards: 2 + (seed % 3) as u32, replicas: 2 };
    of_all_clusters(ROUNDS_WITH_SHARDS, layout);
}
