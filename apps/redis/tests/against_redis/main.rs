//! A comparison of the store with a real redis-server: the same requests get the same answers, to the byte.
//!
//! Skipped where there is no redis-server, unless `SQUALL_FORBID_SKIPS` is set. Both versions of the protocol are
//! compared. A number with a fraction may be written in another way as long as it is the same number.

mod hashes;
mod keys;
mod lcs;
mod lists;
mod server;
mod sets;
mod sort;
mod sorted_sets;
mod strings;
mod transactions;
mod waiting;

use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use rkyv::rancor;
use server::{Server, Tree};
use squall::{Applied, Epoch, Hlc, NodeId, Replicated, Seq};
use squall_redis::{
    Reply, Store,
    command::{self, CommandFn},
    encode::{Protocol, encode},
    keyspace::KeyEntry,
    message::{AnsweredBy, StoreCommand},
    value::Value,
    words,
};

/// The number of random requests that each type's test makes.
const REQUESTS: usize = 20_000;

/// The comparison of an answer's elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// In the order of Redis.
    Same,
    /// In the order of Redis, with each number written as Redis writes it.
    SameToTheByte,
    /// In any order: they are sorted before they are compared.
    Any,
    /// Pairs, in any order.
    AnyOfPairs,
    /// One number, which depends on the time when the server was asked.
    Near,
    /// One encoding. A collection's encoding depends on Redis' version, and on the collection's history.
    Encoding,
}

/// A request, and the comparison of its answer.
pub(crate) struct Request {
    pub(crate) words: Vec<Vec<u8>>,
    pub(crate) order: Order,
}

/// A request whose answer has an order.
pub(crate) fn request(words: Vec<Vec<u8>>) -> Request {
    Request { words, order: Order::Same }
}

/// A request whose answer is a number of milliseconds or seconds.
pub(crate) fn near(words: Vec<Vec<u8>>) -> Request {
    Request { words, order: Order::Near }
}

/// A request that gives a key a value of another type.
pub(crate) fn any_type(rng: &mut Rng) -> Request {
    let key = key(rng);
    let mut words = match rng.u8(..5) {
        0 => vec![b"rpush".to_vec(), key, word(rng)],
        1 => vec![b"sadd".to_vec(), key, word(rng)],
        2 => vec![b"hset".to_vec(), key, word(rng), word(rng)],
        3 => vec![b"zadd".to_vec(), key, b"7".to_vec(), word(rng)],
        _ => vec![b"set".to_vec(), key, word(rng)],
    };
    if rng.bool() {
        // Otherwise keys would soon keep the type that they have.
        words = vec![b"del".to_vec(), words.swap_remove(1)];
    }
    request(words)
}

/// A request of words without spaces.
pub(crate) fn line(line: &str) -> Request {
    request(line.split(' ').map(|word| word.as_bytes().to_vec()).collect())
}

/// The number of keys.
const KEYS: u8 = 8;

/// One of few keys, so that requests often concern the same one.
pub(crate) fn key(rng: &mut Rng) -> Vec<u8> {
    format!("k{}", rng.u8(..KEYS)).into_bytes()
}

/// A short text, a number, or a word that only resembles one.
pub(crate) fn word(rng: &mut Rng) -> Vec<u8> {
    let words = [
        "",
        "a",
        "b",
        "c",
        "abc",
        "foo",
        "0",
        "1",
        "-1",
        "10",
        "007",
        "3.5",
        "1e3",
        "9223372036854775807",
        " 1",
        "x\0y",
        "inf",
        "nan",
    ];
    rng.choice(words).expect("there are some").as_bytes().to_vec()
}

/// Both servers, side by side.
pub(crate) struct Both {
    protocol: Protocol,
    redis: Server,
    store: Store,
    applied: u64,
    told: Vec<String>,
}

impl Both {
    /// Starts a redis-server. `None` if there is none, which is reported.
    pub(crate) fn start(protocol: Protocol) -> Option<Both> {
        Some(Both { protocol, redis: Server::start(protocol)?, store: Store::default(), applied: 0, told: Vec::new() })
    }

    /// Sends a request to both, and compares the answers.
    pub(crate) fn ask(&mut self, request: &Request) {
        let shown: Vec<_> = request.words.iter().map(|word| word.escape_ascii().to_string()).collect();
        self.told.push(shown.join(" "));
        let theirs = sorted(self.redis.ask(&request.words), request.order);
        let ours = sorted(self.ask_store(&request.words), request.order);
        let is_same = match request.order {
            Order::Near => are_near(&ours, &theirs) || ours == theirs,
            Order::Encoding => ours == theirs || [&ours, &theirs].into_iter().all(is_of_collection),
            Order::SameToTheByte => ours == theirs,
            Order::Same | Order::Any | Order::AnyOfPairs => alike(&ours, &theirs),
        };
        if !is_same {
            let before = self.told.len().saturating_sub(30);
            panic!(
                "Redis answers {theirs:?}, the store {ours:?}, to the last of these:\n{}",
                self.told[before..].join("\n")
            );
        }
    }

    /// Compares digests of all keys. Afterwards no key has an expiry, and there is no sorted set.
    fn compare_digests(&mut self) {
        let shown = |(key, entry): (&[u8], &KeyEntry)| (key.to_vec(), matches!(entry.value, Value::SortedSet(_)));
        let all: Vec<_> = self.store.keys().view(0).iter().map(shown).collect();
        for (key, is_sorted_set) in all {
            // Of the expiry, Redis' digest holds only that there is one.
            self.ask(&near(vec![b"pexpiretime".to_vec(), key.clone()]));
            self.ask(&request(vec![b"persist".to_vec(), key.clone()]));
            // The digest holds scores as Redis 7.0 writes them.
            if is_sorted_set {
                let words = [&b"zrange"[..], &key, b"0", b"-1", b"withscores"].map(<[u8]>::to_vec);
                self.ask(&request(words.to_vec()));
                self.ask(&request(vec![b"del".to_vec(), key]));
            }
        }
        // Redis counts expired keys until a client asks for them, or it comes across them.
        (0..KEYS).for_each(|key| self.ask(&line(&format!("exists k{key}"))));
        self.ask(&line("dbsize"));
        let request = line("debug digest").words;
        let (Tree::Status(theirs), Tree::Bulk(ours)) = (self.redis.ask(&request), self.ask_store(&request)) else {
            panic!("a digest is a text")
        };
        assert_eq!(theirs.as_bytes(), ours, "digests differ");
    }

    fn ask_store(&mut self, request: &[Vec<u8>]) -> Tree {
        let now_ms = now_ms();
        let split: Vec<&[u8]> = request.iter().map(Vec::as_slice).collect();
        let request = words::join(request);
        let reply = match command::check(&split).map(|spec| spec.run) {
            Err(error) => Reply::Error(error),
            Ok(CommandFn::Read(_)) => self.store.look(&request, now_ms),
            Ok(CommandFn::Write(_)) => {
                self.apply(&StoreCommand::Run { at_ms: now_ms, request, answered_by: AnsweredBy::Sender })
            }
            // All that wait here wait for a moment.
            Ok(CommandFn::Block(_)) => match self.apply(&StoreCommand::Wait { at_ms: now_ms, ticket: 0, request }) {
                Reply::Waiting => {
                    let cancel = StoreCommand::CancelWaits { at_ms: now_ms, tickets: vec![0] };
                    assert_eq!(self.apply(&cancel), Reply::Integer(1));
                    Reply::NullArray
                }
                reply => reply,
            },
            Ok(CommandFn::Local) => panic!("the server answers this, not the store"),
        };
        self.as_tree(&reply)
    }

    fn as_tree(&self, reply: &Reply) -> Tree {
        let mut out = Vec::new();
        encode(reply, self.protocol, &mut out);
        Tree::read(&mut &out[..])
    }

    fn apply(&mut self, command: &StoreCommand) -> Reply {
        self.applied += 1;
        let (epoch, seq, sender, time) = (Epoch(1), Seq(self.applied), NodeId(1), Hlc(0));
        let at = Applied { epoch, seq, sender, time, version: None, follow_up: None };
        let bytes = rkyv::to_bytes::<rancor::Error>(command).expect("it can be archived");
        let archived = rkyv::access::<_, rancor::Error>(&bytes).expect("it was just archived");
        self.store.apply(archived, &at)
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_millis() as u64
}

/// A random generator. `SQUALL_SEED` sets its seed.
pub(crate) fn generator() -> Rng {
    let seed = std::env::var("SQUALL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("SQUALL_SEED={seed} makes the same requests again");
    Rng::with_seed(seed)
}

/// Compares the answers to `fixed` requests, and then to random ones.
pub(crate) fn compare(fixed: &[&str], random: impl Fn(&mut Rng) -> Request) {
    let mut rng = generator();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let Some(mut both) = Both::start(protocol) else { return };
        fixed.iter().for_each(|text| both.ask(&line(text)));
        both.ask(&line("flushall"));
        for place in 1..=REQUESTS / 2 {
            both.ask(&random(&mut rng));
            if place % (REQUESTS / 4) == 0 {
                both.compare_digests();
            }
        }
    }
}

/// Whether it is an encoding of a collection.
fn is_of_collection(tree: &Tree) -> bool {
    let known: [&[u8]; 5] = [b"listpack", b"quicklist", b"intset", b"hashtable", b"skiplist"];
    matches!(tree, Tree::Bulk(name) if known.contains(&&name[..]))
}

fn sorted(tree: Tree, order: Order) -> Tree {
    let key = |tree: &Tree| format!("{tree:?}");
    match (tree, order) {
        (Tree::Array(all), Order::Any) => {
            let mut all: Vec<_> = all.into_iter().map(|tree| sorted(tree, order)).collect();
            all.sort_by_key(key);
            Tree::Array(all)
        }
        (Tree::Set(mut all), Order::Any) => {
            all.sort_by_key(key);
            Tree::Set(all)
        }
        // In RESP3, each pair is an array.
        (Tree::Array(mut pairs), Order::AnyOfPairs) if matches!(pairs.first(), Some(Tree::Array(_))) => {
            pairs.sort_by_key(key);
            Tree::Array(pairs)
        }
        (Tree::Array(all), Order::AnyOfPairs) => Tree::Array(sorted_pairs(&all)),
        (Tree::Map(all), Order::AnyOfPairs) => Tree::Map(sorted_pairs(&all)),
        (tree, _) => tree,
    }
}

fn sorted_pairs(all: &[Tree]) -> Vec<Tree> {
    let mut pairs: Vec<_> = all.chunks(2).map(|pair| Tree::Array(pair.to_vec())).collect();
    pairs.sort_by_key(|tree| format!("{tree:?}"));
    pairs
}

/// Whether two times could be the same one, as two servers report it.
fn are_near(left: &Tree, right: &Tree) -> bool {
    /// The tests' times are 1000 seconds or more apart, and are reported in seconds or milliseconds.
    const NEAR: u64 = 900;
    matches!((left, right), (Tree::Integer(left @ 2..), Tree::Integer(right @ 2..)) if left.abs_diff(*right) < NEAR)
}

/// Whether two answers have the same meaning.
fn alike(left: &Tree, right: &Tree) -> bool {
    let number = |text: &[u8]| str::from_utf8(text).ok()?.parse::<f64>().ok();
    match (left, right) {
        (Tree::Array(left), Tree::Array(right))
        | (Tree::Set(left), Tree::Set(right))
        | (Tree::Map(left), Tree::Map(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| alike(left, right))
        }
        (Tree::Bulk(left), Tree::Bulk(right)) if left.contains(&b'.') || right.contains(&b'.') => {
            left == right || (number(left).is_some() && number(left) == number(right))
        }
        _ => left == right,
    }
}
