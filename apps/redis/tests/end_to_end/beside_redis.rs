//! The server's own answers beside those of a real redis-server: the same conversations, and the same bytes.

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
};

use crate::{
    machine::{free_ports, has, one_at_a_time, until},
    process::Cluster,
    wire::{Client, request},
};

/// Requests of one connection, sent at once. Redis 7.2 and 7.0 answer them alike.
const CONVERSATIONS: &[&[&str]] = &[
    &["PING", "PING hi", "ping a b", "ECHO x", "ECHO", "SELECT 0", "SELECT x", "SELECT 99999"],
    &["MULTI", "SET k 1", "GET k", "EXEC", "GET k"],
    &["MULTI", "EXEC", "EXEC", "DISCARD"],
    &["MULTI", "MULTI", "EXEC"],
    &["MULTI", "WATCH a", "EXEC"],
    &["MULTI", "GET", "EXEC"],
    &["MULTI", "NOSUCH a", "SET k 1", "EXEC", "GET k"],
    &["MULTI", "SET k 5", "DISCARD", "GET k"],
    &["SET k x", "MULTI", "INCR k", "SET j 2", "EXEC"],
    &["WATCH k", "SET k 9", "MULTI", "SET k 10", "EXEC", "GET k"],
    &["WATCH k", "UNWATCH", "SET k 9", "MULTI", "SET k 10", "EXEC"],
    &["WATCH k", "MULTI", "PING", "ECHO a", "UNWATCH", "SELECT 0", "EXEC"],
    &["WATCH", "MULTI x", "UNWATCH"],
    &["MULTI", "CLIENT GETNAME", "CLIENT SETNAME bob", "CLIENT GETNAME", "EXEC"],
    &["SUBSCRIBE a b a", "PSUBSCRIBE x*", "GET k", "PING", "PING x", "UNSUBSCRIBE a", "PUNSUBSCRIBE", "UNSUBSCRIBE"],
    &["UNSUBSCRIBE", "PUNSUBSCRIBE zz", "UNSUBSCRIBE q", "SUBSCRIBE"],
    &["HELLO 3", "SUBSCRIBE a", "GET k", "PING", "UNSUBSCRIBE nope", "RESET", "GET k"],
    &["HELLO 3", "SUBSCRIBE a", "PUBSUB CHANNELS", "PUBSUB NUMSUB a b", "PUBSUB NUMPAT"],
    &["HELLO 4", "HELLO x", "HELLO 2 WHAT", "HELLO 3 SETNAME", "HELLO 3 AUTH a", "HELLO 3 AUTH a b"],
    &["HELLO 3 SETNAME a,b", "CLIENT GETNAME", "HELLO"],
    &["AUTH x", "AUTH default x", "AUTH a b", "AUTH a b c", "AUTH", "PING"],
    &["CLIENT GETNAME", "CLIENT SETNAME bob", "CLIENT GETNAME", "CLIENT SETNAME", "RESET", "CLIENT GETNAME"],
    &["CLIENT NOSUCH", "CLIENT", "CLIENT KILL 1.2.3.4:5", "CLIENT KILL ID 99999", "CLIENT KILL ID x", "CLIENT KILL"],
    &["CLIENT KILL ID 1 ADDR", "CLIENT KILL TYPE what", "CLIENT KILL USER x", "CLIENT LIST TYPE what"],
    &["CLIENT LIST FOO", "CLIENT LIST ID x", "CLIENT NO-EVICT on", "CLIENT NO-EVICT x", "CLIENT ID x"],
    &["CONFIG GET", "CONFIG SET", "CONFIG SET a", "CONFIG SET a b", "CONFIG SET a b c", "CONFIG NOSUCH"],
    &["CONFIG GET save", "CONFIG RESETSTAT", "CONFIG SET databases 3", "CONFIG SET timeout x", "CONFIG SET timeout 0"],
    &["COMMAND COUNT x", "COMMAND NOSUCH", "COMMAND GETKEYS GET a", "COMMAND INFO nosuch", "COMMAND LIST FILTERBY"],
    &["COMMAND LIST FILTERBY PATTERN ech?", "COMMAND DOCS nosuch"],
    &["WAIT x 0", "WAIT 0 x", "WAIT 0 -1", "WAIT 1"],
    &["PUBSUB CHANNELS", "PUBSUB NUMSUB a b", "PUBSUB NUMPAT", "PUBSUB NUMPAT x", "PUBSUB WHAT", "PUBSUB"],
    &["TIME x", "ACL WHOAMI", "MODULE LIST", "MODULE WHAT", "ACL WHAT", "CLUSTER INFO", "CLUSTER"],
    &["SLOWLOG LEN x", "SLOWLOG GET x", "SLOWLOG GET -2", "SLOWLOG GET 1 2", "SLOWLOG WHAT", "SLOWLOG HELP", "SLOWLOG"],
    &["CONFIG SET slowlog-log-slower-than -1", "SLOWLOG RESET", "SLOWLOG LEN", "SLOWLOG GET", "SLOWLOG RESET x"],
    &["LATENCY WHAT", "LATENCY HISTORY", "LATENCY HISTORY x", "LATENCY LATEST", "LATENCY RESET", "LATENCY RESET a b"],
    &["LATENCY LATEST x", "LATENCY HISTOGRAM nosuch", "LATENCY DOCTOR x", "LATENCY", "LATENCY HELP x"],
    &["MONITOR x", "SHUTDOWN WHAT", "SHUTDOWN ABORT", "SHUTDOWN SAVE NOSAVE", "SHUTDOWN ABORT NOW"],
    &["CLIENT PAUSE", "CLIENT PAUSE x", "CLIENT PAUSE -1", "CLIENT PAUSE 1 WHAT", "CLIENT PAUSE 1 ALL x"],
    &["CLIENT PAUSE 1 WRITE", "SET k 1", "GET k", "CLIENT PAUSE 1", "GET k", "CLIENT UNPAUSE", "CLIENT UNPAUSE x"],
    &[
        "MEMORY WHAT",
        "MEMORY STATS x",
        "MEMORY DOCTOR x",
        "MEMORY PURGE",
        "MEMORY PURGE x",
        "MEMORY USAGE",
        "MEMORY HELP x",
    ],
    &["CONFIG SET slowlog-log-slower-than x", "CONFIG SET slowlog-log-slower-than -2", "CONFIG SET slowlog-max-len -1"],
    &["CONFIG SET latency-monitor-threshold -1", "CONFIG SET maxmemory x", "CONFIG SET tcp-backlog 3"],
    &["CONFIG GET slowlog-max-len", "CONFIG GET latency-monitor-threshold", "CONFIG GET tcp-backlog"],
    &["CONFIG SET maxmemory 100mb", "CONFIG GET maxmemory", "CONFIG SET maxmemory 1gB maxmemory-policy noeviction"],
    &["CONFIG GET maxmemory", "CONFIG SET maxmemory 0", "CONFIG GET maxmemory", "CONFIG GET maxmemory-policy"],
    &[
        "SET k 1",
        "MULTI",
        "SET k 2",
        "DEL k",
        "CONFIG SET maxmemory 1",
        "EXEC",
        "GET k",
        "CONFIG SET maxmemory 0",
        "GET k",
    ],
    &[
        "SET k 1",
        "CONFIG SET maxmemory 1",
        "SET k 2",
        "INCR k",
        "APPEND k 1",
        "GET k",
        "EXPIRE k 10",
        "PERSIST k",
        "MULTI",
        "GET k",
        "EXEC",
        "MULTI",
        "EXEC",
        "WATCH k",
        "UNWATCH",
        "DEL k",
        "EXISTS k",
        "PING",
        "PUBLISH a b",
        "CONFIG SET maxmemory 0",
        "SET k 3",
        "GET k",
    ],
    &["QUIT", "PING"],
    &["RESET x", "QUIT x", "foo", "foo a b"],
];

/// Streams of bytes, most of them against the protocol.
const STREAMS: &[&str] = &[
    "*2\r\n:1\r\n",
    "*x\r\n",
    "*1\r\n$-1\r\n",
    "*1\r\n$99999999999\r\n",
    "PING\n\r\n*0\r\n*-1\r\nPING\r\nQUIT\r\n",
    "POST / HTTP\r\n",
    "ECHO \"a\\x41\"\r\nECHO 'a\r\nPING\r\n",
];

#[test]
fn the_server_answers_as_redis_does() {
    let _turn = one_at_a_time();
    if !has("redis-server", "redis-server") {
        return;
    }
    let redis = Redis::start();
    let cluster = Cluster::start();
    let ours = cluster.replicas[0].address();
    for conversation in CONVERSATIONS {
        let mut bytes = encode("FLUSHALL");
        conversation.iter().for_each(|line| bytes.extend(encode(line)));
        bytes.extend(encode("QUIT"));
        assert_eq!(converse(ours, &bytes), converse(redis.address, &bytes), "{conversation:?}");
    }
    for stream in STREAMS {
        let bytes = stream.as_bytes();
        assert_eq!(converse(ours, bytes), converse(redis.address, bytes), "{stream:?}");
    }
    cluster.stop();
}

/// Requests that only look, each of which finds a number of keys, and does not find others.
const LOOKS: &[&str] = &[
    "GET text",
    "GET none",
    "MGET text none list",
    "EXISTS text none text",
    "STRLEN text",
    "STRLEN none",
    "GETRANGE text 0 1",
    "GETBIT text 1",
    "GETBIT none 1",
    "BITCOUNT text",
    "BITCOUNT none",
    "TYPE text",
    "TYPE none",
    "TTL text",
    "TTL none",
    "PTTL text",
    "EXPIRETIME none",
    "LLEN list",
    "LLEN none",
    "LLEN text",
    "LRANGE list 0 -1",
    "LRANGE none 0 -1",
    "LINDEX list 0",
    "LINDEX none 0",
    "LPOS list a",
    "LPOS none a",
    "HGET hash f",
    "HGET hash nosuch",
    "HGET none f",
    "HMGET hash f g",
    "HMGET none f",
    "HGETALL hash",
    "HGETALL none",
    "HLEN hash",
    "HLEN none",
    "HKEYS hash",
    "HKEYS none",
    "HEXISTS hash f",
    "HEXISTS none f",
    "HSTRLEN hash f",
    "HRANDFIELD hash",
    "HRANDFIELD none",
    "SCARD set",
    "SCARD none",
    "SISMEMBER set a",
    "SISMEMBER none a",
    "SMISMEMBER set a b",
    "SMISMEMBER none a",
    "SMEMBERS set",
    "SMEMBERS none",
    "SRANDMEMBER set",
    "SRANDMEMBER none",
    "SINTER set none",
    "SUNION set none",
    "SDIFF set none",
    "SINTERCARD 1 set",
    "ZCARD zset",
    "ZCARD none",
    "ZSCORE zset a",
    "ZSCORE none a",
    "ZMSCORE zset a b",
    "ZMSCORE none a",
    "ZRANK zset a",
    "ZRANK none a",
    "ZCOUNT zset 0 1",
    "ZCOUNT none 0 1",
    "ZRANGE zset 0 -1",
    "ZRANGE none 0 -1",
    "ZRANGEBYSCORE zset 0 1",
    "ZLEXCOUNT zset - +",
    "ZRANDMEMBER zset",
    "ZRANDMEMBER none",
    "ZUNION 2 zset none",
    "ZINTER 2 zset none",
    "ZDIFF 2 zset none",
    "HSCAN hash 0",
    "HSCAN none 0",
    "SSCAN set 0",
    "ZSCAN zset 0",
    "SCAN 0",
    "KEYS *",
    "DBSIZE",
    "TOUCH text none",
    "OBJECT ENCODING text",
    "OBJECT ENCODING none",
    "PING",
];

#[test]
fn keys_that_are_found_and_missed_are_counted_as_in_redis() {
    let _turn = one_at_a_time();
    if !has("redis-server", "redis-server") {
        return;
    }
    let redis = Redis::start();
    let cluster = Cluster::start();
    let mut both = [redis.address, cluster.replicas[0].address()].map(|at| Client::connect(at).expect("it listens"));
    let setup = ["SET text abc", "RPUSH list a b", "HSET hash f 1", "SADD set a", "ZADD zset 1 a", "CONFIG RESETSTAT"];
    let mut differ = Vec::new();
    for line in setup {
        both.iter_mut().for_each(|client| drop(client.ask(&line.split(' ').collect::<Vec<_>>())));
    }
    for line in LOOKS {
        let counts = both.each_mut().map(|client| {
            client.ask(&line.split(' ').collect::<Vec<_>>());
            let info = client.ask(&["INFO", "stats"]);
            client.ask(&["CONFIG", "RESETSTAT"]);
            let counts = info.lines().filter(|line| line.starts_with("keyspace_"));
            counts.map(str::to_owned).collect::<Vec<_>>()
        });
        if counts[0] != counts[1] {
            differ.push(format!("{line}: {counts:?}"));
        }
    }
    assert!(differ.is_empty(), "Redis, and the store: {differ:#?}");
    cluster.stop();
}

fn encode(line: &str) -> Vec<u8> {
    request(&line.split(' ').collect::<Vec<_>>())
}

/// All bytes until the server closes the connection, except for those that differ between any two servers.
fn converse(address: SocketAddr, bytes: &[u8]) -> String {
    let mut client = Client::connect(address).expect("the server listens");
    client.send(bytes).expect("the server reads");
    let mut said = String::from_utf8(client.rest()).expect("it is text");
    for (from, until) in [("$7\r\nversion\r\n", "$5\r\nproto"), ("$2\r\nid\r\n", "$4\r\nmode")] {
        let mut at = 0;
        while let Some(found) = said[at..].find(from) {
            let begin = at + found + from.len();
            let end = begin + said[begin..].find(until).expect("it goes on");
            said.replace_range(begin..end, "");
            at = begin;
        }
    }
    said
}

/// A redis-server that is killed on drop.
struct Redis {
    child: Child,
    address: SocketAddr,
}

impl Redis {
    fn start() -> Redis {
        let port = free_ports();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        let child = command.stdout(Stdio::null()).spawn().expect("redis-server starts");
        let redis = Redis { child, address: (Ipv4Addr::LOCALHOST, port).into() };
        until("redis-server listens", || Client::connect(redis.address).is_ok());
        redis
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // If this fails, the test is over all the same.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
