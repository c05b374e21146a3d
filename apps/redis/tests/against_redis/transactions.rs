use fastrand::Rng;

use squall_redis::{
    command::{self, CommandFn},
    encode::Protocol,
    message::{AnsweredBy, StoreCommand, WatchedKey},
    words,
};

use crate::{Both, Request, any_type, generator, key, line, now_ms, request, server::Tree, strings::time, word};

/// The number of random transactions.
const TRANSACTIONS: usize = 4_000;

impl Both {
    /// Watches keys at both.
    fn watch(&mut self, keys: &[Vec<u8>]) -> Vec<WatchedKey> {
        let request = [vec![b"watch".to_vec()], keys.to_vec()].concat();
        assert_eq!(self.redis.ask(&request), Tree::Status("OK".to_owned()));
        keys.iter().map(|key| self.store.watch(key, now_ms())).collect()
    }

    /// Carries out requests at one moment, and compares the answers. Returns whether they were carried out.
    fn exec(&mut self, watched: Vec<WatchedKey>, requests: &[Request]) -> bool {
        let is_known = |request: &Request| {
            let split: Vec<&[u8]> = request.words.iter().map(Vec::as_slice).collect();
            command::check(&split).is_ok_and(|spec| !matches!(spec.run, CommandFn::Local))
        };
        assert!(requests.iter().all(is_known), "what a server would not queue");
        self.redis.ask(&line("multi").words);
        for request in requests {
            assert_eq!(self.redis.ask(&request.words), Tree::Status("QUEUED".to_owned()));
        }
        let theirs = self.redis.ask(&line("exec").words);
        let joined = requests.iter().map(|request| words::join(&request.words)).collect();
        let reply = self.apply(&StoreCommand::Transaction {
            at_ms: now_ms(),
            watched,
            requests: joined,
            answered_by: AnsweredBy::Sender,
        });
        let shown = |request: &Request| words::join(&request.words).escape_ascii().to_string();
        let shown: Vec<_> = requests.iter().map(shown).collect();
        assert_eq!(
            self.as_tree(&reply),
            theirs,
            "to {shown:#?}, after {:#?}",
            &self.told[self.told.len().saturating_sub(20)..]
        );
        !matches!(theirs, Tree::Null | Tree::NullArray)
    }
}

#[test]
fn a_request_that_fails_does_not_stop_the_others() {
    let Some(mut both) = Both::start(Protocol::Resp2) else { return };
    both.exec(Vec::new(), &["set a 1", "lpush a 1", "incr a", "hget a f", "setrange a -1 x", "get a"].map(line));
    both.exec(Vec::new(), &["expire a -1", "exists a", "set a 2", "ttl a"].map(line));
    both.exec(Vec::new(), &[]);
}

#[test]
fn transactions() {
    let Some(mut both) = Both::start(Protocol::Resp3) else { return };
    let mut rng = generator();
    let mut aborted = 0;
    for _ in 0..TRANSACTIONS {
        let watched: Vec<_> = (0..rng.usize(..4)).map(|_| key(&mut rng)).collect();
        // Redis refuses a `WATCH` without keys.
        let watched = if watched.is_empty() { Vec::new() } else { both.watch(&watched) };
        for _ in 0..rng.u8(..10) {
            both.ask(&any(&mut rng));
        }
        let requests: Vec<_> = (0..rng.u8(..5)).map(|_| any(&mut rng)).collect();
        aborted += usize::from(!both.exec(watched, &requests));
    }
    assert!((TRANSACTIONS / 20..TRANSACTIONS / 2).contains(&aborted), "{aborted} were aborted");
    both.compare_digests();
}

/// A request whose answer is the same at any moment, and reveals the key's value.
fn any(rng: &mut Rng) -> Request {
    let key = key(rng);
    let names = [
        "get",
        "set",
        "set",
        "del",
        "incr",
        "append",
        "getset",
        "setnx",
        "setex",
        "getex",
        "getdel",
        "expire",
        "persist",
        "rename",
        "renamenx",
        "copy",
        "lpush",
        "lpop",
        "lset",
        "lrem",
        "ltrim",
        "linsert",
        "zremrangebyrank",
        "rpoplpush",
        "sadd",
        "srem",
        "smove",
        "sunionstore",
        "sinterstore",
        "hset",
        "hsetnx",
        "hdel",
        "hincrby",
        "zadd",
        "zrem",
        "zincrby",
        "zpopmin",
        "zunionstore",
        "setbit",
        "setrange",
        "flushall",
        "type",
        "any",
    ];
    let name = *rng.choice(&names).expect("some");
    let mut words = vec![name.as_bytes().to_vec(), key];
    let number = |rng: &mut Rng| rng.i8(-1..3).to_string().into_bytes();
    match name {
        "set" | "append" | "getset" | "setnx" | "lpush" | "sadd" | "srem" | "hdel" | "zrem" => words.push(word(rng)),
        "setex" => words.extend([time(rng, "ex"), word(rng)]),
        "expire" => words.push(time(rng, "ex")),
        "getex" if rng.bool() => words.push(b"persist".to_vec()),
        "rename" | "renamenx" | "copy" | "rpoplpush" | "sunionstore" => words.push(crate::key(rng)),
        "sinterstore" => words.extend([crate::key(rng), crate::key(rng)]),
        "smove" => words.extend([crate::key(rng), word(rng)]),
        "ltrim" | "zremrangebyrank" => words.extend([number(rng), number(rng)]),
        "linsert" => words.extend([b"before".to_vec(), word(rng), word(rng)]),
        "lset" | "lrem" => words.extend([number(rng), word(rng)]),
        "hset" | "hsetnx" => words.extend([word(rng), word(rng)]),
        "hincrby" => words.extend([word(rng), number(rng)]),
        "zadd" | "zincrby" => words.extend([number(rng), word(rng)]),
        "zunionstore" => words.extend([b"2".to_vec(), crate::key(rng), crate::key(rng)]),
        "setbit" => words.extend([number(rng), b"1".to_vec()]),
        "setrange" => words.extend([number(rng), word(rng)]),
        "flushall" if rng.u8(..4) == 0 => words.truncate(1),
        "flushall" => words[0] = b"exists".to_vec(),
        "any" => return any_type(rng),
        _ => {}
    }
    request(words)
}
