//! All commands of the store in whole simulated clusters, each from a seed, within one view: clients at all nodes,
//! clocks that differ, nodes that pause.
//!
//! Afterwards all replicas must be the same to the last detail, and the history of some keys must be linearizable. A
//! failure names its seed. `SQUALL_SEED` runs that one alone, and `SQUALL_SEEDS=FROM..TO` runs others than usual.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use porcupine_rs::{CheckResult, Operation};
use squall::{
    Config, Group, NodeId,
    sim::{Cluster, Options, SimConfig},
};
use squall_redis::{
    Reply, Store,
    command::{self, CommandFn, Spec},
    message::{AnsweredBy, StoreCommand, WatchedKey},
    words,
};

use crate::{
    model::{Register, Step, number},
    seeds,
};

/// The number of seeds that run.
const SEEDS: u64 = 100;

/// The number of operations of each client.
const OPERATIONS: usize = 60;

/// The most operations that a client has under way.
const PIPELINE: usize = 4;

/// The nanoseconds of virtual time in a millisecond of the clocks. They are few, so that keys expire within a run,
/// which takes some milliseconds of virtual time.
const NS_PER_CLOCK_MS: u64 = 10_000;

/// The limit of the search for a linearization of one key's history.
const PATIENCE: Duration = Duration::from_secs(20);

/// The changes to keys whose history is not checked. A capital letter stands for a word. It is a key of a string, a
/// hash, a list, a set (`M`) or a sorted set, or one of these: a field or member `F`, a value `V`, a small number `N`,
/// a time `T` in milliseconds.
const CHANGES: &[&str] = &[
    "set S V",
    "set S V px T",
    "set S V keepttl get",
    "setnx S V",
    "setex S 1 V",
    "psetex S T V",
    "msetnx S V S V",
    "getset S V",
    "getex S px T",
    "getdel S",
    "append S V",
    "incr S",
    "incrby S N",
    "decr S",
    "decrby S N",
    "setbit S N 1",
    "bitop xor S S S",
    "bitfield S overflow sat set u4 #N V incrby i7 N N",
    "incrbyfloat S 0.5",
    "setrange S N V",
    "mset S V S V",
    "pexpire S T",
    "pexpire Z T",
    "pexpire H T",
    "expire L 1",
    "expireat S 1700000001",
    "pexpireat S 1700000000100",
    "persist S",
    "del S",
    "unlink L",
    "rename S S",
    "renamenx S S",
    "copy S S replace",
    "hset H F V F V",
    "hincrby H F N",
    "hincrbyfloat H F 0.5",
    "hmset H F V",
    "hdel H F",
    "hsetnx H F V",
    "lpush L V V",
    "rpush L V",
    "lpop L",
    "rpop L N",
    "lmove L L left right",
    "lpushx L V",
    "rpushx L V",
    "rpoplpush L L",
    "lmpop 2 L L left count N",
    "ltrim L N 10",
    "blpop L L 0",
    "brpop L 1",
    "blmove L L right left 0",
    "brpoplpush L L 0",
    "blmpop 0 2 L L left count N",
    "sort L by weight* limit 0 9 get # get S* alpha desc store L",
    "linsert L before V V",
    "lrem L N V",
    "lset L N V",
    "sadd M F F",
    "srem M F",
    "spop M",
    "spop M N",
    "smove M M F",
    "sunionstore M M M",
    "sinterstore M M M",
    "sdiffstore M M M",
    "zadd Z N F N F",
    "zadd Z gt ch N F",
    "zincrby Z N F",
    "zrem Z F",
    "zpopmin Z",
    "zpopmax Z N",
    "zmpop 2 Z Z min count N",
    "bzpopmin Z 0",
    "bzpopmax Z Z 1",
    "bzmpop 0 2 Z Z max count N",
    "zremrangebylex Z [f1 [f2",
    "zremrangebyrank Z 0 0",
    "zremrangebyscore Z (3 4",
    "zrangestore Z Z 0 3 rev",
    "zunionstore Z 2 Z M weights 1 2",
    "zinterstore Z 2 Z Z aggregate max",
    "zdiffstore Z 2 Z M",
];

/// The reads of these keys.
const LOOKS: &[&str] = &[
    "get S",
    "strlen S",
    "lcs S S idx withmatchlen",
    "bitfield_ro S get u8 N",
    "sort_ro M alpha desc",
    "pttl S",
    "type H",
    "exists S L",
    "keys *",
    "dbsize",
    "randomkey",
    "scan 0",
    "hgetall H",
    "lrange L 0 -1",
    "smembers M",
    "srandmember M",
    "zrange Z 0 -1 withscores",
    "zrandmember Z 2",
    "zscan Z 0",
];

/// The number of keys whose history is checked.
const CHECKED: usize = 3;

/// The state that all clients share.
#[derive(Default)]
struct World {
    /// The time, in nanoseconds of virtual time.
    now: Cell<u64>,
    /// The number of calls and returns so far, which orders them.
    events: Cell<i64>,
    /// The last value that was set: values are never set twice.
    values: Cell<i64>,
    histories: RefCell<[Vec<Operation<Register>>; CHECKED]>,
    aborted: Cell<usize>,
}

impl World {
    fn event(&self) -> i64 {
        self.events.set(self.events.get() + 1);
        self.events.get()
    }

    fn value(&self) -> i64 {
        self.values.set(self.values.get() + 1000);
        self.values.get()
    }
}

/// A node, as its server's clients see it.
#[derive(Clone)]
struct Server {
    world: Rc<World>,
    group: Group<Store>,
    skew_ms: u64,
}

impl Server {
    fn clock_ms(&self) -> u64 {
        1_700_000_000_000 + self.skew_ms + self.world.now.get() / NS_PER_CLOCK_MS
    }

    async fn ask(&self, line: &str) -> Reply {
        let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
        let (at_ms, request) = (self.clock_ms(), words::join(&words));
        let spec = command::check(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
        match spec.run {
            CommandFn::Write(_) | CommandFn::Block(_) => self
                .group
                .submit(&StoreCommand::Run { at_ms, request, answered_by: AnsweredBy::Sender })
                .await
                .expect("nodes live"),
            CommandFn::Read(_) => self.group.read(move |store| store.look(&request, at_ms)).await.expect("nodes live"),
            CommandFn::Local => panic!("{line}: no replica is asked this"),
        }
    }

    /// Carries out requests at one moment unless a key has changed since it was watched. `None` if it has.
    async fn transaction(&self, watched: Vec<WatchedKey>, lines: &[&str]) -> Option<Vec<Reply>> {
        let requests = lines.iter().map(|line| words::join(line.split(' '))).collect();
        let transaction =
            StoreCommand::Transaction { at_ms: self.clock_ms(), watched, requests, answered_by: AnsweredBy::Sender };
        match self.group.submit(&transaction).await.expect("nodes live") {
            Reply::Array(replies) => Some(replies),
            Reply::NullArray => None,
            other => panic!("a transaction was answered {other:?}"),
        }
    }

    async fn watch(&self, key: &str) -> WatchedKey {
        let (key, clock_ms) = (key.as_bytes().to_vec(), self.clock_ms());
        self.group.read(move |store| store.watch(&key, clock_ms)).await.expect("nodes live")
    }

    /// An operation on a key whose history is checked.
    async fn checked(self, key: usize, what: u8) {
        let name = format!("checked{key}");
        let mut call_time = self.world.event();
        let value = self.world.value();
        let (get, set) = (format!("get {name}"), format!("set {name} {value}"));
        let op = match what {
            0..=2 => Step::Get(number(&self.ask(&get).await)),
            3 | 4 => {
                assert_eq!(self.ask(&set).await, Reply::OK);
                Step::Set(value)
            }
            5 | 6 => Step::Incr(Some(number(&self.ask(&format!("incr {name}")).await).expect("a sum"))),
            7 => Step::Del(number(&self.ask(&format!("del {name}")).await) == Some(1)),
            8 => {
                let replies = self.transaction(Vec::new(), &[&get, &set, &get]).await.expect("nothing is watched");
                assert_eq!(number(&replies[2]), Some(value));
                Step::Swap(Some(number(&replies[0])), value)
            }
            _ => {
                let watched = self.watch(&name).await;
                let old = number(&self.ask(&get).await);
                call_time = self.world.event();
                if self.transaction(vec![watched], &[&set]).await.is_none() {
                    return self.world.aborted.set(self.world.aborted.get() + 1);
                }
                Step::Swap(Some(old), value)
            }
        };
        let return_time = self.world.event();
        let operation = Operation { client_id: None, call_time, return_time, op, metadata: None };
        self.world.histories.borrow_mut()[key].push(operation);
    }

    /// An operation on other keys.
    async fn unchecked(self, what: u8, lines: Vec<String>) {
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        match what {
            0 => {
                let watched = self.watch(lines[0].split(' ').nth(1).expect("a key")).await;
                self.transaction(vec![watched], &lines).await;
            }
            1 => {
                self.group.submit(&StoreCommand::Tick { at_ms: self.clock_ms() }).await.expect("nodes live");
            }
            _ => {
                self.ask(lines[0]).await;
            }
        }
    }
}

/// A line with words in the place of the capital letters.
fn fill(line: &str, rng: &mut Rng) -> String {
    let word = |word: &str| match word {
        "S" | "H" | "L" | "M" | "Z" => format!("{word}{}", rng.u8(..2)),
        "F" => format!("f{}", rng.u8(..40)),
        "V" => rng.u8(..20).to_string(),
        "N" => rng.u8(1..5).to_string(),
        "T" => rng.u16(1..200).to_string(),
        word => word.to_owned(),
    };
    line.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

struct Client {
    node: usize,
    left: usize,
    waiting: Vec<Pin<Box<dyn Future<Output = ()>>>>,
}

struct Simulation {
    rng: Rng,
    cluster: Cluster,
    nodes: Vec<NodeId>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    /// By node: the time until which it is paused.
    paused_until: Vec<u64>,
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Rng::with_seed(seed);
        let ids: Vec<u32> = (1..=rng.u32(3..=5)).collect();
        let nodes: Vec<_> = ids.iter().copied().map(NodeId).collect();
        let ring_bytes = 1 << rng.u32(11..=15);
        // Many commands, some, or only the longest travel as bulk messages.
        let threshold = [40, 80, 10 << 10][rng.usize(..3)];
        let config = Config::builder("simulated", 1)
            .members(ids)
            .failure_timeout(Duration::from_millis(100))
            .group("kv", |group| {
                group.ring_bytes(ring_bytes).bulk_threshold(threshold).bulk_reserve(16 << 10).max_waiting(64);
            })
            .build()
            .expect("the configuration is valid");
        let net = if rng.u8(..5) == 0 { SimConfig::nasty() } else { SimConfig::fast() };
        let mut cluster = Cluster::new(config, Options { net, ..Options::default() }, rng.u64(..));
        let groups = cluster.group("kv", Store::at);
        cluster.start().expect("the cluster starts");
        let world = Rc::new(World::default());
        let server = |group| Server { world: Rc::clone(&world), group, skew_ms: rng.u64(..20) };
        let servers: Vec<_> = groups.into_iter().map(server).collect();
        let client = |_| Client { node: rng.usize(..nodes.len()), left: OPERATIONS, waiting: Vec::new() };
        let clients = (0..2 * nodes.len()).map(client).collect();
        Simulation { cluster, servers, clients, paused_until: vec![0; nodes.len()], nodes, rng }
    }

    fn now(&self) -> u64 {
        self.cluster.now().as_nanos()
    }

    fn run(&mut self) {
        let begun = self.now();
        while self.clients.iter().any(|client| client.left > 0 || !client.waiting.is_empty()) {
            assert!(self.now() - begun < 10_000_000_000, "after 10 s some client still waits");
            self.cluster.run_for(Duration::from_nanos(self.rng.u64(..2000)));
            let now = self.now();
            self.servers[0].world.now.set(now);
            self.pause_and_resume(now);
            for place in 0..self.clients.len() {
                // A paused process does nothing.
                if self.paused_until[self.clients[place].node] == 0 {
                    self.go_on(place);
                }
            }
        }
        for node in 0..self.nodes.len() {
            self.paused_until[node] = 0;
            self.cluster.resume(self.nodes[node]);
        }
    }

    fn pause_and_resume(&mut self, now: u64) {
        for (until, node) in self.paused_until.iter_mut().zip(&self.nodes) {
            if *until == 0 && self.rng.u16(..2000) == 0 {
                *until = now + self.rng.u64(1..500_000);
                self.cluster.pause(*node);
            } else if *until != 0 && *until <= now {
                *until = 0;
                self.cluster.resume(*node);
            }
        }
    }

    fn go_on(&mut self, place: usize) {
        let (client, rng) = (&mut self.clients[place], &mut self.rng);
        if client.left > 0 && client.waiting.len() < PIPELINE && rng.u8(..8) == 0 {
            client.left -= 1;
            let server = self.servers[client.node].clone();
            client.waiting.push(if rng.bool() {
                Box::pin(server.checked(rng.usize(..CHECKED), rng.u8(..12)))
            } else {
                let what = rng.u8(..10);
                let mut line = |of: &[&str]| fill(rng.choice(of).expect("there are some"), rng);
                let lines = match what {
                    0 => vec![line(CHANGES), line(LOOKS), line(CHANGES)],
                    1..4 => vec![line(LOOKS)],
                    _ => vec![line(CHANGES)],
                };
                Box::pin(server.unchecked(what, lines))
            });
        }
        let mut context = Context::from_waker(Waker::noop());
        client.waiting.retain_mut(|operation| operation.as_mut().poll(&mut context) == Poll::Pending);
    }

    /// All that a node's replica holds, in its order.
    fn dump(&mut self, node: usize) -> Vec<String> {
        let at_ms = self.servers.iter().map(Server::clock_ms).max().expect("there are nodes");
        let look = move |store: &Store| {
            let keys = store.keys().view(at_ms);
            let shown = keys.iter().map(|(key, entry)| {
                let line: &[&[u8]] = match entry.value.type_name() {
                    "string" => &[b"get", key],
                    "hash" => &[b"hgetall", key],
                    "list" => &[b"lrange", key, b"0", b"-1"],
                    "set" => &[b"smembers", key],
                    _ => &[b"zrange", key, b"0", b"-1", b"withscores"],
                };
                let value = store.look(&words::join(line), at_ms);
                assert!(!matches!(value, Reply::Error(_)), "{value:?}");
                format!("{} until {:?}: {value:?}", key.escape_ascii(), entry.expires_ms())
            });
            [format!("{} at {}", keys.len(), store.time_ms(0))].into_iter().chain(shown).collect()
        };
        let read = self.servers[node].group.read(look);
        self.cluster.wait(Duration::from_secs(1), read).expect("an answer in time").expect("the node lives")
    }
}

/// Runs a seed, checks it, and returns the content of the replicas.
fn run(seed: u64) -> Vec<String> {
    let mut simulation = Simulation::new(seed);
    simulation.run();
    let dumps: Vec<_> = (0..simulation.nodes.len()).map(|node| simulation.dump(node)).collect();
    for dump in &dumps[1..] {
        assert_eq!(dump, &dumps[0], "seed {seed}: replicas differ");
    }
    let world = &simulation.servers[0].world;
    for history in &*world.histories.borrow() {
        let result = porcupine_rs::check_operations_timeout(history, PATIENCE);
        assert_eq!(result, CheckResult::Ok, "seed {seed}: no linearization of {history:#?}");
    }
    dumps.into_iter().next().expect("there are nodes")
}

#[test]
fn replicas_stay_the_same_and_histories_are_linearizable() {
    seeds::run_all(seeds::seeds(SEEDS), |seed| Ok(run(seed)));
}

#[test]
fn whatever_changes_the_state_is_simulated() {
    let is_simulated = |name: &str| CHANGES.iter().any(|line| line.split(' ').next() == Some(name));
    // One changes nothing, and the others would remove the keys whose history is checked.
    let is_apart = |name| ["publish", "flushdb", "flushall"].contains(&name);
    let is_change = |spec: &Spec| matches!(spec.run, CommandFn::Write(_) | CommandFn::Block(_));
    let changes = command::all().filter(|spec| is_change(spec) && !is_apart(spec.name));
    let missing: Vec<_> = changes.map(|spec| spec.name).filter(|name| !is_simulated(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_seed_does_the_same_again() {
    assert_eq!(run(7), run(7));
}
