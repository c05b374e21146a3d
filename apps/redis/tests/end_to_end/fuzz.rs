//! Commands that are well-formed and make no sense: each gets its answer, and the replicas stay alike.

use std::{env, thread};

use redis_protocol::resp2::types::{OwnedFrame, Resp2Frame};

use crate::{
    machine::one_at_a_time,
    target::{Target, fresh_prefix},
    wire::{Client, request},
};

/// Commands that end or silence the connection, wait, change the form of answers, or exist only in Redis.
const LEFT_OUT: &str = "shutdown quit reset hello client monitor debug subscribe psubscribe ssubscribe unsubscribe \
    punsubscribe sunsubscribe wait waitaof blpop brpop brpoplpush blmove blmpop bzpopmin bzpopmax bzmpop replicaof slaveof \
    sync psync failover cluster config acl save bgsave bgrewriteaof module script eval eval_ro evalsha evalsha_ro fcall \
    fcall_ro function swapdb flushall flushdb migrate select auth latency memory replconf asking readonly readwrite \
    restore-asking move pfselftest pfdebug";

/// Arguments that are likely to be mishandled. No number is large enough to ask for much memory.
const WORDS: &str = " 0 1 -1 2 1000 -1000 9223372036854775807 -9223372036854775808 9223372036854775808 00 1.5 -0 1e400 nan inf \
    -inf (1 [a - + * [ \\ a?[^ NX XX GT LT CH INCR GET EX PX EXAT KEEPTTL PERSIST WITHSCORES WITHVALUES LIMIT COUNT MATCH \
    TYPE BYSCORE BYLEX REV LEFT RIGHT BEFORE AFTER WEIGHTS AGGREGATE MAX STORE REPLACE DB RANK MAXLEN ENCODING ASC ALPHA \
    \u{0}\r\n ü";

/// The number of commands that one client sends.
const EACH: usize = 6000;

/// The seed of random choices.
fn seed() -> u64 {
    let seed = env::var("SQUALL_SEED").ok().map_or_else(|| fastrand::u64(..), |seed| seed.parse().expect("a number"));
    eprintln!("SQUALL_SEED={seed} sends the same again");
    seed
}

#[test]
fn commands_that_make_no_sense_are_all_answered_and_leave_the_replicas_alike() {
    let _turn = one_at_a_time();
    let seed = seed();
    let target = Target::start();
    let names = commands(&mut target.connect(0));
    let prefix = fresh_prefix("fuzz");
    thread::scope(|scope| {
        let clients: Vec<_> = (0..6)
            .map(|id| {
                let (client, names, prefix) = (target.connect(id), &names[..], prefix.as_str());
                scope.spawn(move || {
                    tease(client, fastrand::Rng::with_seed(seed.wrapping_add(id as u64)), names, prefix);
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap_or_else(|_| panic!("SQUALL_SEED={seed}: a request was not answered"));
        }
    });
    for n in 0..3 {
        assert_eq!(target.connect(n).ask(&["PING"]), "PONG", "SQUALL_SEED={seed}");
    }
    target.until_all_hold_the_same();
    target.stop();
}

/// The commands that the server lists, without those that are left out.
fn commands(client: &mut Client) -> Vec<String> {
    let OwnedFrame::Array(listed) = client.call(&["COMMAND"]).unwrap() else { panic!("COMMAND has no array") };
    let name = |entry: &OwnedFrame| match entry {
        OwnedFrame::Array(entry) => Some(entry.first()?.as_str()?.to_ascii_lowercase()),
        _ => None,
    };
    let names = listed.iter().filter_map(name);
    names.filter(|name| !LEFT_OUT.split(' ').any(|out| out == name)).collect()
}

fn tease(mut client: Client, mut random: fastrand::Rng, names: &[String], prefix: &str) {
    let odd: Vec<&str> = WORDS.split(' ').collect();
    let mut sent = 0;
    while sent < EACH {
        let count = random.usize(1..20);
        let mut bytes = Vec::new();
        for _ in 0..count {
            let mut words = vec![random.choice(names).expect("commands").clone()];
            for _ in 0..random.usize(..6) {
                words.push(match random.u8(..10) {
                    0..4 => format!("{prefix}{}", random.u8(..20)),
                    4..9 => (*random.choice(&odd).expect("words")).to_owned(),
                    _ => (0..random.usize(..40)).map(|_| random.char('\u{0}'..'\u{ff}')).collect(),
                });
            }
            bytes.extend_from_slice(&request(&words));
        }
        client.send(&bytes).expect("the replica reads");
        for _ in 0..count {
            client.answer().expect("an answer for each request");
        }
        sent += count;
    }
    let end = client.ask(&["ECHO", "end"]);
    assert!(end == "QUEUED" || end == "end", "answers and requests are out of step: {end:?}");
}

/// Bytes without any form end in an error, or without an answer, and other clients do not notice.
#[test]
fn bytes_at_random_cost_their_sender_the_connection_and_nobody_else() {
    let _turn = one_at_a_time();
    let target = Target::start();
    let seed = seed();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut other = target.connect(0);
    for stream in 0..300 {
        let alphabet = b"*$+-:%~>123\r\n\r\n\r\nGET a\"'\\x";
        let mut bytes = b"*".to_vec();
        bytes.extend((0..random.usize(1..2000)).map(|_| match stream % 2 {
            0 => alphabet[random.usize(..alphabet.len())],
            _ => random.u8(..),
        }));
        let mut client = target.connect(stream);
        // The server may close the connection before all is sent.
        let _ = client.send(&bytes);
        let _ = client.finish();
        // Answers to bytes that happened to be requests, and the end.
        client.rest();
        assert_eq!(other.ask(&["PING"]), "PONG", "SQUALL_SEED={seed}");
    }
    target.stop();
}
