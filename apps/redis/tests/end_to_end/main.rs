//! The store as its users meet it: real processes, real sockets, and their failures.

mod bank;
mod beside_redis;
mod blocking;
mod clients;
mod connections;
mod durable;
mod failures;
mod front_end;
mod fuzz;
mod large;
mod linearizable;
mod load;
mod machine;
mod operations;
mod process;
mod replacement;
mod target;
mod temporary;
mod wire;

use std::{process::Command, thread, time::Duration};

use machine::{TemporaryFile, free_ports, has, one_at_a_time, until};
use process::{Cluster, Replica};
use wire::Client;

/// Runs redis-benchmark to its end, which must report no error.
fn redis_benchmark(port: u16, requests: u32) {
    let mut command = Command::new("redis-benchmark");
    command.args(["-p", &port.to_string(), "-t", "set,get,incr,mset", "-n", &requests.to_string()]);
    command.args(["-c", "50", "-P", "16", "-d", "100", "-r", "10000", "-q"]);
    let output = command.output().expect("redis-benchmark starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("rror"), "{said}");
    assert!(said.contains("MSET"), "it ran to its end: {said}");
}

#[test]
fn redis_benchmark_runs_against_one_replica_and_against_all_at_once() {
    let _turn = one_at_a_time();
    if !has("redis-benchmark", "redis-tools") {
        return;
    }
    let cluster = Cluster::start();
    redis_benchmark(cluster.replicas[0].port, 100_000);
    thread::scope(|scope| {
        for replica in &cluster.replicas {
            scope.spawn(|| redis_benchmark(replica.port, 100_000));
        }
    });
    target::until_all_hold_the_same(cluster.replicas.iter().map(Replica::connect).collect());
    cluster.stop();
}

#[test]
fn ctrl_c_ends_all_processes_and_the_ports_are_free_at_once() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let base = cluster.replicas[0].port;
    let children: Vec<u32> = cluster.replicas.iter().map(|replica| replica.pid()).collect();
    cluster.stop();
    until("the replicas are gone", || children.iter().all(|&pid| !process::is_alive(pid)));
    Cluster::start_at(base).stop();
}

#[test]
fn replicas_do_not_outlive_a_killed_supervisor() {
    let _turn = one_at_a_time();
    let mut cluster = Cluster::start();
    let children: Vec<u32> = cluster.replicas.iter().map(|replica| replica.pid()).collect();
    cluster.kill_supervisor();
    until("the replicas are gone", || children.iter().all(|&pid| !process::is_alive(pid)));
}

#[test]
fn an_idle_replica_is_small_and_sleeps() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    for replica in &cluster.replicas {
        let bytes = process::resident_bytes(replica.pid());
        assert!(bytes < 64 << 20, "replica {} has {} MiB of memory", replica.port, bytes >> 20);
    }
    // The start's work takes some time, the more on a busy host. So one of three looks must find the replicas idle.
    let idle = Duration::from_secs(5);
    let cpu_times = || cluster.replicas.iter().map(|replica| process::cpu_time(replica.pid())).collect::<Vec<_>>();
    let look = || {
        let before = cpu_times();
        thread::sleep(idle);
        let used = cpu_times().into_iter().zip(before).map(|(after, before)| after - before);
        used.max().expect("there are replicas")
    };
    thread::sleep(Duration::from_millis(500));
    let used: Vec<Duration> = (0..3).map(|_| look()).take_while(|used| *used * 100 >= idle).collect();
    assert!(used.len() < 3, "an idle replica used {used:?}, each time of {idle:?}");
    cluster.stop();
}

#[test]
fn a_port_in_use_is_named() {
    let _turn = one_at_a_time();
    let base = free_ports();
    let _taken = std::net::TcpListener::bind(("127.0.0.1", base + 1)).expect("the port was free a moment ago");
    let said = process::fails(&["--port", &base.to_string()]);
    assert!(said.contains(&(base + 1).to_string()) && said.contains("--port"), "{said}");
}

#[test]
fn a_second_node_with_the_same_id_is_refused() {
    let _turn = one_at_a_time();
    let (cluster, base) = (format!("twins-{}", std::process::id()), free_ports());
    let mut first = Replica::alone(&["--id", "1", "--cluster", &cluster, "--port", &base.to_string()]);
    let second = ["--id", "1", "--cluster", &cluster, "--port", &(base + 10).to_string()];
    // The one that comes second is refused; the other waits for its peers.
    let mut refused = None;
    until("one of them is refused", || {
        let (status, said) = process::run_for(&second, Duration::from_secs(2));
        refused = status.map(|_| said).or_else(|| first.ended());
        refused.is_some()
    });
    let said = refused.expect("one was refused");
    assert!(said.contains("node 1") && said.contains("already"), "{said}");
}

#[test]
fn a_member_that_never_comes_is_named() {
    let _turn = one_at_a_time();
    let file = TemporaryFile::new(
        "never",
        "cluster = \"never-{pid}\"\nid = 1\nmembers = [1, 2, 3]\nformation_timeout_ms = 400\n",
    );
    let base = free_ports().to_string();
    let said = process::fails(&["--id", "1", "--port", &base, "--config", file.as_str()]);
    assert!(said.contains("node 2 never appeared") && said.contains("node 3 never appeared"), "{said}");
}

#[test]
fn a_half_written_configuration_is_refused_with_the_place() {
    let _turn = one_at_a_time();
    let file = TemporaryFile::new("half", "cluster = \"half\"\nid = 1\nmembers = [1, 2,");
    let said = process::fails(&["--id", "1", "--config", file.as_str()]);
    assert!(said.contains(file.as_str()) && said.contains('3'), "file and line: {said}");
}

#[test]
fn a_command_of_a_gigabyte_costs_its_sender_the_connection_and_nobody_else() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let replica = &cluster.replicas[0];
    let before = process::resident_bytes(replica.pid());
    let mut greedy = replica.connect();
    greedy.send(b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1073741824\r\n").expect("the replica reads");
    // As much of it as the replica takes; it may close the connection at any time.
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..1024 {
        if greedy.send(&chunk).is_err() {
            break;
        }
    }
    let grown = process::resident_bytes(replica.pid()).saturating_sub(before);
    assert!(grown < 64 << 20, "it grew by {} MiB", grown >> 20);
    assert_eq!(replica.connect().ask(&["SET", "key", "small"]), "OK");
    cluster.stop();
}

#[test]
fn a_client_must_say_the_password_where_there_is_one() {
    let _turn = one_at_a_time();
    let file = TemporaryFile::new("password", "secret words\n");
    let cluster = Cluster::start_with(&["--password-file", file.as_str()]);
    let mut client = cluster.replicas[1].connect();
    assert_eq!(client.ask(&["SET", "key", "1"]), "-NOAUTH Authentication required.");
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(client.ask(&["AUTH", "secret"]), wrong);
    assert_eq!(client.ask(&["AUTH", "secret words"]), "OK");
    assert_eq!(client.ask(&["SET", "key", "1"]), "OK");
    let mut stranger = cluster.replicas[2].connect();
    stranger.send(b"*11\r\n").expect("the replica reads");
    assert_eq!(stranger.ask(&["PING"]), "-ERR Protocol error: unauthenticated multibulk length");
    cluster.stop();
}

#[test]
fn everything_works_over_tcp_with_and_without_tls() {
    let _turn = one_at_a_time();
    for options in [&["--smoke", "--fabric", "tcp"][..], &["--smoke", "--fabric", "tcp", "--tls"]] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_squall-redis")).args(options).output().expect("the program starts");
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{options:?}: {said}");
        let over = if options.contains(&"--tls") { "TCP with TLS" } else { "TCP" };
        assert!(said.contains(&format!("three replicas over {over} serve")), "{said}");
    }
}

#[test]
fn tls_without_a_network_makes_no_sense() {
    let (status, said) = process::run_for(&["--tls"], machine::DEADLINE);
    assert_eq!(status.and_then(|status| status.code()), Some(2), "{said}");
    assert!(said.contains("--fabric tcp"), "{said}");
}

#[test]
fn an_idle_client_is_disconnected_and_a_subscriber_is_not() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start_with(&["--timeout", "1"]);
    let replica = &cluster.replicas[0];
    let (mut idle, mut subscriber) = (replica.connect(), replica.connect());
    assert_eq!(idle.ask(&["PING"]), "PONG");
    subscriber.send(b"HELLO 3\r\nSUBSCRIBE news\r\n").expect("the replica reads");
    assert!(idle.is_closed_within(Duration::from_secs(5)));
    assert_eq!(replica.connect().ask(&["PUBLISH", "news", "hi"]), "1", "the subscriber is still there");
    cluster.stop();
}

#[test]
fn keys_expire_where_nothing_else_happens() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut client = cluster.replicas[2].connect();
    for key in 0..100 {
        assert_eq!(client.ask(&["SET", &format!("key{key}"), "1", "PX", "100"]), "OK");
    }
    let before = applied(&mut client);
    thread::sleep(Duration::from_millis(500));
    let after = applied(&mut client);
    assert!(after > before, "the group was told the time");
    thread::sleep(Duration::from_millis(500));
    assert_eq!(applied(&mut client), after, "there is nothing left to expire");
    assert_eq!(client.ask(&["DBSIZE"]), "0");
    cluster.stop();
}

fn applied(client: &mut Client) -> u64 {
    let info = client.ask(&["INFO", "squall"]);
    let applied = info.lines().find_map(|line| line.strip_prefix("commands_applied:"));
    applied.and_then(|applied| applied.parse().ok()).unwrap_or_else(|| panic!("INFO has no commands_applied: {info}"))
}
