//! Requests that wait, at several connections: both servers serve the same ones, with the same answers.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fastrand::Rng;
use squall::NodeId;
use squall_redis::{
    Reply, Store,
    encode::Protocol,
    keyspace::{Publish, WaitEnd},
    message::{AnsweredBy, StoreCommand},
    words,
};

use crate::{
    Both, generator, line, now_ms,
    server::{Connection, Tree},
};

const CONNECTIONS: usize = 6;
const STEPS: usize = 4_000;

/// The ends of waits, by ticket.
#[derive(Default)]
struct Ends(Mutex<BTreeMap<u64, Reply>>);

impl Publish for Ends {
    fn publish(&self, _: &[u8], _: &[u8]) -> usize {
        0
    }

    fn end_wait(&self, ticket: u64, end: WaitEnd) {
        let WaitEnd::Served(reply) = end else { panic!("{end:?}, but no view ends") };
        assert!(self.0.lock().expect("no thread panics").insert(ticket, reply).is_none(), "it is served once");
    }
}

/// Both servers, with connections whose number is the ticket of their requests.
struct Waiting {
    both: Both,
    connections: Vec<Connection>,
    /// Asks how many wait.
    observer: Connection,
    /// Whether each connection waits.
    waits: [bool; CONNECTIONS],
    ends: Arc<Ends>,
    served: usize,
}

impl Waiting {
    fn start(protocol: Protocol) -> Option<Waiting> {
        let mut both = Both::start(protocol)?;
        both.store = Store::at(NodeId(1));
        let ends = Arc::<Ends>::default();
        both.store.set_publisher(Arc::clone(&ends) as _);
        let connections = (0..CONNECTIONS).map(|_| both.redis.connect(protocol)).collect();
        let observer = both.redis.connect(Protocol::Resp2);
        Some(Waiting { both, connections, observer, waits: [false; CONNECTIONS], ends, served: 0 })
    }

    fn waiting(&self) -> usize {
        self.waits.iter().filter(|waits| **waits).count()
    }

    /// Waits until as many clients of Redis wait as of the store.
    fn settle(&mut self) {
        let begun = Instant::now();
        let expected = format!("blocked_clients:{}", self.waiting());
        loop {
            self.observer.send(&line("info clients").words);
            let Tree::Bulk(info) = self.observer.answer() else { panic!("INFO is a text") };
            if String::from_utf8_lossy(&info).lines().any(|line| line == expected) {
                return;
            }
            let told = &self.both.told[self.both.told.len().saturating_sub(40)..];
            assert!(begun.elapsed() < Duration::from_secs(10), "Redis has not {expected} after {told:#?}");
        }
    }

    fn wait(&mut self, connection: usize, text: &str) {
        self.both.told.push(format!("{connection}: {text}"));
        self.connections[connection].send(&line(text).words);
        let request = words::join(text.split(' '));
        let wait = StoreCommand::Wait { at_ms: now_ms(), ticket: connection as u64, request };
        let reply = self.both.apply(&wait);
        self.waits[connection] = reply == Reply::Waiting;
        if reply != Reply::Waiting {
            self.compare(connection, &reply);
        }
        self.read_ends();
        self.settle();
    }

    fn compare(&mut self, connection: usize, reply: &Reply) {
        let (ours, theirs) = (self.both.as_tree(reply), self.connections[connection].answer());
        let told = &self.both.told[self.both.told.len().saturating_sub(40)..];
        assert_eq!(ours, theirs, "connection {connection} after {told:#?}");
    }

    /// Compares the answers of those that were served.
    fn read_ends(&mut self) {
        let ends = std::mem::take(&mut *self.ends.0.lock().expect("no thread panics"));
        for (ticket, reply) in ends {
            self.waits[ticket as usize] = false;
            self.served += 1;
            self.compare(ticket as usize, &reply);
        }
    }

    /// Carries out one request, or several at one moment.
    fn change(&mut self, lines: &[String]) {
        if let [text] = lines {
            self.both.ask(&line(text));
        } else {
            self.both.told.push(format!("multi {lines:?}"));
            self.both.redis.ask(&line("multi").words);
            lines.iter().for_each(|text| _ = self.both.redis.ask(&line(text).words));
            let theirs = self.both.redis.ask(&line("exec").words);
            let requests = lines.iter().map(|text| words::join(text.split(' '))).collect();
            let answered_by = AnsweredBy::Sender;
            let exec = StoreCommand::Transaction { at_ms: now_ms(), watched: Vec::new(), requests, answered_by };
            let ours = self.both.apply(&exec);
            assert_eq!(self.both.as_tree(&ours), theirs, "{lines:?}");
        }
        self.read_ends();
        self.settle();
    }

    fn cancel(&mut self, connection: usize) {
        let cancel = StoreCommand::CancelWaits { at_ms: now_ms(), tickets: vec![connection as u64] };
        assert_eq!(self.both.apply(&cancel), Reply::Integer(i64::from(self.waits[connection])));
        if self.waits[connection] {
            // A connection that goes waits no more.
            let protocol = self.both.protocol;
            self.connections[connection] = self.both.redis.connect(protocol);
            self.waits[connection] = false;
        }
        self.settle();
    }
}

/// A key of a list, or of a sorted set. A capital letter in a request stands for one.
fn fill(text: &str, rng: &mut Rng) -> String {
    let word = |word: &str| match word {
        "L" => format!("l{}", rng.u8(..3)),
        "Z" => format!("z{}", rng.u8(..2)),
        "N" => rng.u8(1..4).to_string(),
        "E" => rng.choice(["left", "right"]).expect("some").to_owned(),
        word => word.to_owned(),
    };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

const WAITS: &[&str] = &[
    "blpop L 0",
    "brpop L L 0",
    "blpop L Z L 0",
    "blmove L L E E 0",
    "brpoplpush L L 0",
    "blmpop 0 2 L L E count N",
    "bzpopmin Z 0",
    "bzpopmax Z Z 0",
    "bzmpop 0 1 Z min count N",
];

/// No key changes its type in place: Redis does not serve those that wait for the new value.
const CHANGES: &[&str] = &[
    "rpush L N",
    "lpush L a b",
    "rpush L a b c",
    "zadd Z N a",
    "zadd Z 1 a 2 b 3 c",
    "rename other L",
    "lmove L L left right",
    "copy other L",
    "rpush other x y",
    "del L",
    "del L Z",
    "sort L store L",
    "zunionstore Z 1 Z",
    "lpop L",
    "flushall",
];

#[test]
fn the_same_requests_are_served_in_the_same_order() {
    let mut rng = generator();
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        let Some(mut waiting) = Waiting::start(protocol) else { return };
        for _ in 0..STEPS / 2 {
            let connection = rng.usize(..CONNECTIONS);
            let mut text = |of: &[&str]| fill(rng.choice(of).expect("some"), &mut rng);
            match text(&["N"]).as_str() {
                "1" if !waiting.waits[connection] => {
                    let wait = text(WAITS);
                    waiting.wait(connection, &wait);
                }
                "1" if text(&["N"]) == "1" => waiting.cancel(connection),
                "2" => {
                    let lines: Vec<_> = (0..3).map(|_| text(CHANGES)).collect();
                    waiting.change(&lines);
                }
                _ => {
                    let change = text(CHANGES);
                    waiting.change(&[change]);
                }
            }
        }
        assert!(waiting.served > STEPS / 40, "{} were served", waiting.served);
    }
}

#[test]
fn waits_in_known_cases_end_as_in_redis() {
    let Some(mut waiting) = Waiting::start(Protocol::Resp2) else { return };
    let change = |waiting: &mut Waiting, lines: &[&str]| {
        let lines: Vec<_> = lines.iter().map(|line| (*line).to_owned()).collect();
        waiting.change(&lines);
    };
    // The key that was set first serves, whatever the order of the words.
    waiting.wait(0, "blpop a b 0");
    change(&mut waiting, &["rpush b 1", "rpush a 2"]);
    // A transaction is seen as a whole.
    waiting.wait(0, "blpop l 0");
    change(&mut waiting, &["lpush l a", "lpush l b", "lpush l c"]);
    waiting.wait(0, "blpop m 0");
    change(&mut waiting, &["lpush m a", "del m"]);
    assert!(waiting.waits[0]);
    // First come, first served, and no more than there is.
    waiting.wait(1, "blpop m 0");
    waiting.wait(2, "brpop m 0");
    change(&mut waiting, &["rpush m 1 2"]);
    assert_eq!(waiting.waits[..3], [false, false, true]);
    // A move that can't be made fails, and the next is served.
    change(&mut waiting, &["set text x"]);
    waiting.wait(3, "brpoplpush q text 0");
    waiting.wait(4, "brpoplpush q m 0");
    change(&mut waiting, &["rpush q moved"]);
    assert_eq!(waiting.waiting(), 0, "the moved element serves the last of the others");
    // Moves in a circle end.
    waiting.wait(0, "blmove r s left right 0");
    waiting.wait(1, "blmove s r left right 0");
    change(&mut waiting, &["rpush r x"]);
    assert_eq!(waiting.waiting(), 0);
    waiting.both.ask(&line("lrange r 0 -1"));
}
