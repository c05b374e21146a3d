//! The work of operators on a store that runs: they watch it, pause it, limit it, and stop it.

use std::{
    thread,
    time::{Duration, Instant},
};

use redis_protocol::resp2::types::OwnedFrame;

use crate::{
    machine::{free_ports, one_at_a_time, until},
    process::{Cluster, Replica},
    target::until_all_hold_the_same,
    wire::{Client, request, show},
};

/// The value of a field of INFO.
fn field(client: &mut Client, section: &str, name: &str) -> String {
    let info = client.ask(&["INFO", section]);
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("INFO {section} has no {name}: {info}")).to_owned()
}

fn number(client: &mut Client, section: &str, name: &str) -> u64 {
    let value = field(client, section, name);
    value.parse().unwrap_or_else(|_| panic!("{name} is {value}"))
}

#[test]
fn a_replica_that_is_shut_down_leaves_its_group_and_ends_well() {
    let _turn = one_at_a_time();
    let (cluster, base) = (format!("shutdown-{}", std::process::id()), free_ports().to_string());
    let start = |id: u32| Replica::serving(&["--id", &id.to_string(), "--cluster", &cluster, "--port", &base]);
    let mut replicas: Vec<Replica> = thread::scope(|scope| {
        let starting: Vec<_> = (1..=3).map(|id| scope.spawn(move || start(id))).collect();
        starting.into_iter().map(|replica| replica.join().expect("it starts")).collect()
    });
    let (mut asks, mut other) = (replicas[2].connect(), replicas[2].connect());
    assert_eq!(other.ask(&["SET", "k", "1"]), "OK");
    assert!(asks.ask(&["SHUTDOWN", "SAVE"]).starts_with("-ERR this server has no disk"));
    assert_eq!(asks.ask(&["SHUTDOWN", "ABORT"]), "-ERR No shutdown in progress.");
    asks.send(&[request(&["INCR", "k"]), request(&["SHUTDOWN"])].concat()).expect("the replica reads");
    assert_eq!(show(&asks.answer().expect("an answer")), "2", "what came before is answered");
    assert!(asks.answer().is_err(), "there is no answer");
    assert!(other.is_closed_within(Duration::from_secs(30)));
    assert_eq!(replicas.pop().and_then(Replica::ends).and_then(|status| status.code()), Some(0));
    // It has left, so that nothing was suspected, and nothing waits.
    let mut left = replicas[0].connect();
    assert_eq!(left.ask(&["GET", "k"]), "2");
    until("the others go on as a view of two", || field(&mut left, "squall", "members") == "2");
    assert_eq!(left.ask(&["INCR", "k"]), "3");
    let one = replicas.remove(0);
    let mut last = one.connect();
    last.send(&request(&["SHUTDOWN", "NOW", "FORCE"])).expect("the replica reads");
    assert!(last.answer().is_err());
    assert_eq!(one.ends().and_then(|status| status.code()), Some(0));
}

#[test]
fn a_supervisor_starts_no_replica_again_that_was_shut_down_and_ends_with_the_last() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    for (place, replica) in cluster.replicas.iter().enumerate() {
        let mut client = replica.connect();
        assert_eq!(client.ask(&["INCR", "n"]), (place + 1).to_string());
        client.send(&request(&["SHUTDOWN", "NOSAVE"])).expect("the replica reads");
        assert!(client.answer().is_err());
        until("it is gone", || !crate::process::is_alive(replica.pid()));
    }
    cluster.ends();
}

#[test]
fn a_front_end_can_be_shut_down() {
    let _turn = one_at_a_time();
    let name = format!("front-{}", std::process::id());
    let cluster = Cluster::start_with(&["--cluster", &name]);
    let listen = format!("127.0.0.1:{}", cluster.replicas[0].port + 10);
    let front_end = Replica::serving(&["front-end", "--cluster", &name, "--listen", &listen]);
    let mut client = front_end.connect();
    assert_eq!(client.ask(&["SET", "k", "1"]), "OK");
    assert!(client.ask(&["INFO", "commandstats"]).contains("cmdstat_set:calls=1,"));
    client.send(&request(&["SHUTDOWN"])).expect("it reads");
    assert!(client.answer().is_err());
    assert_eq!(front_end.ends().and_then(|status| status.code()), Some(0));
    assert_eq!(cluster.replicas[0].connect().ask(&["GET", "k"]), "1");
    cluster.stop();
}

#[test]
fn a_monitor_that_does_not_read_is_cut_off_and_slows_nobody() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let replica = &cluster.replicas[0];
    let (mut reader, mut stopped, mut client) = (replica.connect(), replica.connect(), replica.connect());
    assert_eq!(reader.ask(&["MONITOR"]), "OK");
    assert_eq!(client.ask(&["KEYS", "*"]), "[]");
    let line = show(&reader.answer().expect("a line"));
    let (at, rest) = line.split_once(" [0 127.0.0.1:").expect("a time and an address");
    assert!(at.split_once('.').is_some_and(|(seconds, micros)| seconds.len() == 10 && micros.len() == 6), "{line}");
    assert_eq!(rest.split_once("] ").map(|(_, words)| words), Some(r#""KEYS" "*""#));
    drop(reader);
    assert_eq!(stopped.ask(&["MONITOR"]), "OK");
    let text = "x".repeat(100_000);
    let mut slowest = Duration::ZERO;
    until("the monitor is cut off", || {
        for _ in 0..50 {
            let begun = Instant::now();
            assert_eq!(client.ask(&["ECHO", &text]).len(), text.len());
            slowest = slowest.max(begun.elapsed());
        }
        number(&mut client, "stats", "client_output_buffer_limit_disconnections") > 0
    });
    assert!(slowest < Duration::from_secs(5), "a request took {slowest:?}");
    assert!(stopped.rest().len() > 1 << 16, "it still gets what was sent before");
    cluster.stop();
}

#[test]
fn a_pause_holds_the_writes_of_one_replicas_clients() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut operator = cluster.replicas[0].connect();
    assert_eq!(operator.ask(&["CLIENT", "PAUSE", "1000000", "WRITE"]), "OK");
    let mut writer = cluster.replicas[0].connect();
    writer.send(&request(&["SET", "k", "held"])).expect("the replica reads");
    assert_eq!(cluster.replicas[1].connect().ask(&["SET", "k", "other"]), "OK");
    for _ in 0..100 {
        assert_eq!(operator.ask(&["GET", "k"]), "other", "reads go on, and the write is held");
    }
    let mut gone = cluster.replicas[0].connect();
    let named = ["CLIENT", "SETNAME", "gone"];
    gone.send(&[request(&named), request(&["SET", "gone", "1"])].concat()).expect("the replica reads");
    assert_eq!(show(&gone.answer().expect("an answer")), "OK");
    drop(gone);
    until("its end is noticed", || !operator.ask(&["CLIENT", "LIST"]).contains("name=gone"));
    assert_eq!(operator.ask(&["CLIENT", "UNPAUSE"]), "OK");
    assert_eq!(show(&writer.answer().expect("an answer")), "OK");
    assert_eq!(operator.ask(&["MGET", "k", "gone"]), "[held, nil]", "what a client asked that has gone is not done");
    let begun = Instant::now();
    assert_eq!(operator.ask(&["CLIENT", "PAUSE", "500"]), "OK");
    assert_eq!(writer.ask(&["PING"]), "PONG");
    assert!(begun.elapsed() >= Duration::from_millis(500), "all requests wait for the time to be over");
    cluster.stop();
}

const OOM: &str = "-OOM command not allowed when used memory > 'maxmemory'.";

/// Writes new values until they are refused, and returns how many were not.
fn fill(client: &mut Client, prefix: &str, value: &str) -> usize {
    (0..10_000)
        .take_while(|n| match &*client.ask(&["SET", &format!("{prefix}{n}"), value]) {
            "OK" => true,
            refused => {
                assert_eq!(refused, OOM);
                false
            }
        })
        .count()
}

#[test]
fn writes_beyond_maxmemory_are_refused_at_each_replica_and_go_on_once_keys_are_removed() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut clients: Vec<Client> = cluster.replicas.iter().map(Replica::connect).collect();
    for client in &mut clients {
        let limit = number(client, "memory", "used_memory") + (24 << 20);
        assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory", &limit.to_string()]), "OK");
    }
    let value = "v".repeat(100_000);
    let count = fill(&mut clients[0], "a", &value);
    assert!((100..300).contains(&count), "{count} values of 100 kB in 24 MiB");
    // The others hold the same, and what their own clients may write is little.
    for (client, prefix) in clients[1..].iter_mut().zip(["b", "c"]) {
        assert!(fill(client, prefix, &value) < count);
    }
    until_all_hold_the_same(cluster.replicas.iter().map(Replica::connect).collect());
    for client in &mut clients {
        // Once a large request is over, there may be a little room again.
        let limit = number(client, "memory", "used_memory") - (1 << 20);
        assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory", &limit.to_string()]), "OK");
        assert_eq!(client.ask(&["INCR", "n"]), OOM);
        assert_eq!(client.ask(&["GET", "a0"]), value, "reads go on");
        assert_eq!(client.ask(&["MULTI"]), "OK");
        assert_eq!(client.ask(&["GET", "a0"]), OOM);
        assert!(client.ask(&["EXEC"]).starts_with("-EXECABORT "));
        assert!(number(client, "memory", "used_memory") > number(client, "memory", "maxmemory"));
        assert!(client.ask(&["INFO", "errorstats"]).contains("errorstat_OOM:count="));
    }
    // One with a larger limit goes on alone, and the replicas stay alike.
    assert_eq!(clients[1].ask(&["CONFIG", "SET", "maxmemory", "1gb"]), "OK");
    assert_eq!(clients[1].ask(&["SET", "large", &value]), "OK");
    assert_eq!(clients[0].ask(&["SET", "large", "x"]), OOM);
    until_all_hold_the_same(cluster.replicas.iter().map(Replica::connect).collect());
    for n in 0..count {
        assert_eq!(clients[0].ask(&["DEL", &format!("a{n}")]), "1", "what frees memory is done");
    }
    for client in &mut clients {
        until("there is room again", || client.ask(&["SET", "again", "1"]) == "OK");
    }
    until_all_hold_the_same(cluster.replicas.iter().map(Replica::connect).collect());
    cluster.stop();
}

#[test]
fn a_front_end_refuses_what_its_replica_has_no_memory_for() {
    let _turn = one_at_a_time();
    let name = format!("memory-{}", std::process::id());
    let cluster = Cluster::start_with(&["--cluster", &name]);
    let listen = format!("127.0.0.1:{}", cluster.replicas[0].port + 10);
    let front_end = Replica::serving(&["front-end", "--cluster", &name, "--listen", &listen]);
    let mut client = front_end.connect();
    assert_eq!(client.ask(&["SET", "k", "1"]), "OK");
    let limit = |limit: &str| {
        for replica in &cluster.replicas {
            assert_eq!(replica.connect().ask(&["CONFIG", "SET", "maxmemory", limit]), "OK");
        }
    };
    limit("1");
    until("the front end knows", || client.ask(&["SET", "k", "2"]) == OOM);
    assert_ne!(client.ask(&["GET", "k"]), "nil", "reads go on");
    assert_eq!(client.ask(&["DEL", "k"]), "1", "what frees memory is done");
    limit("0");
    until("the front end knows", || client.ask(&["SET", "k", "3"]) == "OK");
    assert!(front_end.stop().is_some_and(|status| status.success()));
    cluster.stop();
}

#[test]
fn what_was_asked_and_how_long_it_took_is_reported() {
    let _turn = one_at_a_time();
    let options = ["--slowlog-log-slower-than", "0", "--slowlog-max-len", "3", "--latency-monitor-threshold", "1"];
    let cluster = Cluster::start_with(&options);
    let mut client = cluster.replicas[0].connect();
    assert_eq!(client.ask(&["CLIENT", "SETNAME", "me"]), "OK");
    assert_eq!(client.ask(&["SET", "k", "1", "PX", "1"]), "OK");
    until("the key expires", || number(&mut client, "stats", "expired_keys") == 1);
    assert_eq!(client.ask(&["GET", "k"]), "nil");
    assert_eq!(client.ask(&["SLOWLOG", "LEN"]), "3");
    let OwnedFrame::Array(entries) = client.call(&["SLOWLOG", "GET", "-1"]).expect("an answer") else {
        panic!("SLOWLOG GET answers an array")
    };
    let shown = entries.iter().map(show).collect::<Vec<_>>();
    assert!(shown.len() == 3 && shown[1].contains("[GET, k], 127.0.0.1:") && shown[1].ends_with(", me]"), "{shown:?}");
    assert_eq!(number(&mut client, "stats", "keyspace_misses"), 1);
    let calls = client.ask(&["INFO", "commandstats"]);
    assert!(calls.contains("cmdstat_get:calls=1,usec="), "{calls}");
    assert!(client.ask(&["INFO", "everything"]).contains("latency_percentiles_usec_get:p50="));
    let default = client.ask(&["INFO"]);
    assert!(
        default.contains("# CPU") && !default.contains("cmdstat_") && default.contains("used_cpu_sys:"),
        "{default}"
    );
    let received = number(&mut client, "stats", "total_net_input_bytes");
    assert!(received > 100 && number(&mut client, "stats", "total_net_output_bytes") > received);
    until("a second is over in which something was asked", || {
        number(&mut client, "stats", "instantaneous_ops_per_sec") > 0
    });
    assert!(client.ask(&["LATENCY", "HISTOGRAM", "get"]).starts_with("[get, [calls, 1, histogram_usec, ["));
    // A view change takes some milliseconds at least.
    cluster.replicas[2].signal(rustix::process::Signal::KILL);
    until("the view change is noted", || client.ask(&["LATENCY", "LATEST"]).contains("view-change"));
    assert!(client.ask(&["LATENCY", "DOCTOR"]).contains("view-change: "));
    let stats = client.ask(&["MEMORY", "STATS"]);
    assert!(stats.starts_with("[peak.allocated, ") && stats.contains("keys.count, 0"), "{stats}");
    assert_eq!(client.ask(&["CONFIG", "RESETSTAT"]), "OK");
    assert_eq!(number(&mut client, "stats", "keyspace_misses"), 0);
    assert!(!client.ask(&["INFO", "commandstats"]).contains("cmdstat_get"));
    cluster.stop();
}
