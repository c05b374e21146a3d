use fastrand::Rng;

use squall_redis::{
    command::{self, CommandFn, Spec},
    encode::Protocol,
};

use crate::{
    Order, Request, any_type, compare, key, line, near, request,
    server::{Server, Tree},
    strings::time,
    word,
};

#[test]
fn every_command_is_described_as_in_redis() {
    let Some(mut redis) = Server::start(Protocol::Resp2) else { return };
    let mut differ = Vec::new();
    // The server's own commands are fewer than Redis', and two take one word more since 7.2.
    let is_apart = |spec: &Spec| matches!(spec.run, CommandFn::Local) || ["zrank", "zrevrank"].contains(&spec.name);
    for spec in command::all().filter(|spec| !is_apart(spec)) {
        let answer = redis.ask(&line(&format!("command info {}", spec.name)).words);
        let [Tree::Array(theirs)] = answer.array() else { panic!("Redis has no {}", spec.name) };
        let keys = [spec.keys.first, spec.keys.last, spec.keys.step];
        let ours = [spec.arity, keys[0], keys[1], keys[2]].map(|number| Tree::Integer(i64::from(number)));
        let theirs_are = [1, 3, 4, 5].map(|place| theirs[place].clone());
        let is_fast = theirs[2].array().contains(&Tree::Status("fast".to_owned()));
        if ours != theirs_are || spec.is_fast != is_fast {
            differ.push(format!(
                "{}: {ours:?}, fast {}; in Redis {theirs_are:?}, fast {is_fast}",
                spec.name, spec.is_fast
            ));
        }
    }
    assert!(differ.is_empty(), "{differ:#?}");
}

/// The flags that are compared. The others have no meaning here, or another one: the server always answers what it can
/// answer by itself.
const FLAGS: [&str; 9] =
    ["write", "readonly", "denyoom", "admin", "pubsub", "noscript", "blocking", "no_auth", "no_multi"];

#[test]
fn every_command_has_the_flags_of_redis() {
    let Some(mut redis) = Server::start(Protocol::Resp2) else { return };
    let mut differ = Vec::new();
    for spec in command::all() {
        let answer = redis.ask(&line(&format!("command info {}", spec.name)).words);
        let [Tree::Array(theirs)] = answer.array() else { panic!("Redis has no {}", spec.name) };
        // Where Redis has subcommands, they have the flags.
        if !theirs[9].array().is_empty() {
            continue;
        }
        let theirs: Vec<_> =
            FLAGS.iter().filter(|flag| theirs[2].array().contains(&Tree::Status(flag.to_string()))).collect();
        let run = match spec.run {
            CommandFn::Write(_) | CommandFn::Block(_) => "write",
            CommandFn::Read(_) => "readonly",
            CommandFn::Local => "",
        };
        let ours: Vec<_> = spec.flags.names().chain([run]).collect();
        let ours: Vec<_> = FLAGS.iter().filter(|flag| ours.contains(flag)).collect();
        if ours != theirs {
            differ.push(format!("{}: {ours:?}, in Redis {theirs:?}", spec.name));
        }
    }
    // DEBUG has digests here, which look at the keys. PUBLISH takes a turn in the order, as what writes does. Redis
    // queues the others in a transaction, or has a flag of its own for what it does not.
    let expected = [
        "auth",
        "debug",
        "hello",
        "info",
        "monitor",
        "psubscribe",
        "publish",
        "punsubscribe",
        "subscribe",
        "unsubscribe",
    ];
    differ.retain(|line| !expected.iter().any(|name| line.starts_with(&format!("{name}: "))));
    assert!(differ.is_empty(), "{differ:#?}");
}

#[test]
fn keys() {
    let fixed = [
        "set a 1",
        "rename absent b",
        "rename a a",
        "renamenx a a",
        "renamenx absent a",
        "copy a a",
        "copy a b db 0 replace",
        "copy a b db x",
        "copy a b db",
        "copy a b rep",
        "copy absent absent",
        "copy absent b replace",
        "scan x",
        "scan 0 count 0",
        "scan 0 count x",
        "scan 0 count",
        "scan 0 novalues",
        "scan 0 match",
        "flushdb now",
        "flushall sync async",
        "flushdb async",
        "object",
        "object x",
        "object encoding",
        "object encoding a b",
        "object help",
        "object help a",
        "object freq absent",
        "object idletime absent",
        "set a 1",
        "object freq a",
        "object idletime a",
        "memory usage",
        "memory usage absent",
        "memory usage absent samples",
        "memory usage absent samples x",
        "memory usage absent samples -1",
        "memory usage absent samples 5",
        "memory usage absent sample 5",
        "memory x",
        "publish a",
        "publish a b",
        "type",
        "touch a absent a",
        "exists a absent a",
    ];
    compare(&fixed, any);
}

#[test]
fn expiries() {
    let fixed = [
        "set a 1",
        "expire a",
        "expire a x",
        "expire a 1 xx nx",
        "expire a 1 gt nx",
        "expire a 1 gt lt",
        "expire a 1 never",
        "expire absent x never",
        "expire absent 1 never",
        "expire a 9223372036854775807",
        "pexpire a 9223372036854775807",
        "expireat a 9223372036854775",
        "expireat a 9223372036854776",
        "expire a -9223372036854775808",
        "expire a -9223372036854776",
        "pexpireat a 9223372036854775807",
        "expiretime a",
        "pexpiretime a",
        "pexpire a -9223372036854775808",
        "exists a",
        "set a 1",
        "expireat a 1 gt",
        "expireat a 1 lt",
        "exists a",
    ];
    compare(&fixed, any_expiry);
}

#[test]
fn patterns() {
    compare(&[], |rng| match rng.u8(..3) {
        0 => {
            let mut pick = |from: &[u8]| *rng.choice(from).expect("some");
            let len = pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8]);
            Request {
                words: vec![b"keys".to_vec(), (0..len).map(|_| pick(b"abc*?[]^-\\")).collect()],
                order: Order::Any,
            }
        }
        1 => {
            // The empty key is left out: in Redis no pattern but "*" matches it.
            let len = rng.usize(1..5);
            let name = (0..len).map(|_| *rng.choice(b"abc*?[]^-\\").expect("some")).collect();
            request(vec![b"set".to_vec(), name, b"".to_vec()])
        }
        _ => match rng.u8(..50) {
            0 => request(vec![b"flushdb".to_vec()]),
            _ => request(vec![b"dbsize".to_vec()]),
        },
    });
}

fn text(of: impl ToString) -> Vec<u8> {
    of.to_string().into_bytes()
}

fn any(rng: &mut Rng) -> Request {
    if rng.u8(..4) == 0 {
        return any_type(rng);
    }
    let some_key = key(rng);
    let names = [
        "del", "unlink", "exists", "touch", "type", "keys", "scan", "rename", "renamenx", "copy", "dbsize", "set",
        "set", "set", "setex", "append", "persist", "get", "object", "flushall",
    ];
    let name = *rng.choice(&names).expect("some");
    let mut words = vec![text(name), some_key];
    let few = rng.usize(..3);
    match name {
        "del" | "unlink" | "exists" | "touch" => words.extend((0..few).map(|_| key(rng))),
        "keys" => {
            words[1] = text(rng.choice(["*", "k*", "k[0-3]", "?1", "k1", "k[^1]", ""]).expect("some"));
            return Request { words, order: Order::Any };
        }
        "scan" => {
            // All in one step, as the two servers meet the keys in different orders.
            words = ["scan", "0", "count", "1000"].map(text).to_vec();
            for _ in 0..few {
                words.extend(match rng.u8(..2) {
                    0 => [text("match"), text(rng.choice(["*", "k[0-3]", "?1", "x"]).expect("some"))],
                    _ => [text("type"), text(rng.choice(["string", "STRING", "list", "zset", "x"]).expect("some"))],
                });
            }
            return Request { words, order: Order::Any };
        }
        "rename" | "renamenx" => words.push(key(rng)),
        "copy" => {
            words.push(key(rng));
            words.extend((0..few).map(|_| text("replace")));
        }
        "dbsize" => words.truncate(1),
        "set" | "append" => words.push(word(rng)),
        "setex" => words.extend([time(rng, "ex"), word(rng)]),
        "object" => {
            words.insert(1, text("encoding"));
            return Request { words, order: Order::Encoding };
        }
        "flushall" => {
            words.truncate(1);
            if rng.u8(..8) > 0 {
                return request(vec![text("dbsize")]);
            }
        }
        _ => {}
    }
    request(words)
}

fn any_expiry(rng: &mut Rng) -> Request {
    if rng.u8(..8) == 0 {
        return any_type(rng);
    }
    let key = key(rng);
    let names = [
        "expire",
        "pexpire",
        "expireat",
        "pexpireat",
        "expiretime",
        "pexpiretime",
        "ttl",
        "pttl",
        "persist",
        "set",
        "set",
        "append",
        "rename",
        "copy",
        "incr",
    ];
    let name = *rng.choice(&names).expect("some");
    let mut words = vec![text(name), key];
    match name {
        "set" => {
            words.push(text("1"));
            if rng.bool() {
                words.push(text("keepttl"));
            }
        }
        "append" => words.push(word(rng)),
        "rename" | "copy" => words.push(crate::key(rng)),
        "incr" | "persist" => {}
        "ttl" | "pttl" | "expiretime" | "pexpiretime" => return near(words),
        _ => {
            let option = match name {
                "expire" => "ex",
                "pexpire" => "px",
                "expireat" => "exat",
                _ => "pxat",
            };
            words.push(time(rng, option));
            for _ in 0..rng.u8(..3) {
                words.push(text(rng.choice(["nx", "XX", "gt", "LT"]).expect("some")));
            }
        }
    }
    request(words)
}
