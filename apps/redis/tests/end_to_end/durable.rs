//! Replicas whose data is on disk, all of them killed: every acknowledged increment must be there again, once.

use std::{fs, net::SocketAddr, path::PathBuf, thread};

use rustix::process::Signal;

use crate::{
    load::{Load, Seen},
    machine::{DEADLINE, has, one_at_a_time, until},
    process::{self, Cluster, Replica},
    redis_benchmark,
    target::until_all_hold_the_same,
};

const CLIENTS: usize = 6;

/// The acknowledgements that each client must get before the kill, and after it.
const SOME: u64 = 20;

/// A directory for the data, which is removed on drop.
struct Data(PathBuf);

impl Data {
    fn new(test: &str) -> Data {
        Data(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{}", std::process::id())))
    }

    fn as_str(&self) -> &str {
        self.0.to_str().expect("a readable path")
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        // The directory lies among the tests' temporary files, so one that stays does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Kills all replicas at once, as soon as all of them serve.
fn kill_all(cluster: &Cluster) {
    until("all replicas serve", || {
        cluster.replicas.iter().all(|replica| process::is_alive(replica.pid()) && serves(replica))
    });
    cluster.replicas.iter().for_each(|replica| replica.signal(Signal::KILL));
}

fn serves(replica: &Replica) -> bool {
    replica.info("state").as_deref() == Some("ok") && replica.info("members").as_deref() == Some("3")
}

/// Runs clients at the replicas while all of them are killed, more than once.
fn survives(fabric: &str) {
    let _turn = one_at_a_time();
    let data = Data::new(&format!("durable-{fabric}"));
    let cluster = Cluster::start_with(&["--durable", data.as_str(), "--fabric", fabric]);
    let addresses: Vec<SocketAddr> = cluster.replicas.iter().map(Replica::address).collect();
    let load = Load::new(CLIENTS);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let clients = load.start(scope, &addresses);
        for _ in 0..2 {
            load.until_more("the clients go on", SOME);
            kill_all(&cluster);
        }
        load.until_more("the clients go on in the end", SOME);
        until("all replicas serve again", || cluster.replicas.iter().all(serves));
        load.stop();
        clients.into_iter().map(|client| client.join().expect("no client has seen anything wrong")).collect()
    });
    let mut clients: Vec<_> = cluster.replicas.iter().map(Replica::connect).collect();
    for Seen { key, acknowledged, unknown, .. } in &seen {
        let held: u64 = clients[0].ask(&["GET", key]).parse().expect("it has counted");
        assert!((*acknowledged..=acknowledged + unknown).contains(&held), "{held}: {seen:?}");
    }
    until_all_hold_the_same(clients);
    cluster.stop();
}

#[test]
fn all_replicas_are_killed_and_every_acknowledged_increment_counts_once() {
    survives("shm");
}

#[test]
fn over_tcp_all_replicas_are_killed_and_every_acknowledged_increment_counts_once() {
    survives("tcp");
}

#[test]
fn a_front_end_s_increments_are_exact_though_all_replicas_are_killed() {
    let _turn = one_at_a_time();
    let data = Data::new("durable-front-end");
    let name = format!("durable-front-end-{}", std::process::id());
    let cluster = Cluster::start_with(&["--durable", data.as_str(), "--cluster", &name]);
    let listen = format!("127.0.0.1:{}", cluster.replicas[0].port + 10);
    let front_end = Replica::serving(&["front-end", "--cluster", &name, "--listen", &listen]);
    let mut client = front_end.connect();
    for count in 1..=60 {
        if count % 20 == 10 {
            kill_all(&cluster);
        }
        assert_eq!(client.ask(&["INCR", "count"]), count.to_string());
        assert_eq!(client.ask(&["SET", &format!("key{count}"), "here"]), "OK");
    }
    let mut direct = cluster.replicas[2].connect();
    assert_eq!(direct.ask(&["GET", "count"]), "60");
    assert_eq!(direct.ask(&["DBSIZE"]), "61");
    front_end.stop();
    cluster.stop();
}

#[test]
fn redis_benchmark_runs_against_durable_replicas() {
    let _turn = one_at_a_time();
    if !has("redis-benchmark", "redis-tools") {
        return;
    }
    let data = Data::new("durable-benchmark");
    let cluster = Cluster::start_with(&["--durable", data.as_str()]);
    redis_benchmark(cluster.replicas[0].port, 20_000);
    until_all_hold_the_same(cluster.replicas.iter().map(Replica::connect).collect());
    cluster.stop();
}

#[test]
fn the_data_of_a_stopped_cluster_is_there_when_it_is_started_again() {
    let _turn = one_at_a_time();
    let data = Data::new("durable-stopped");
    let start = || Cluster::start_with(&["--durable", data.as_str()]);
    let cluster = start();
    assert_eq!(cluster.replicas[0].connect().ask(&["SET", "key", "kept"]), "OK");
    cluster.stop();
    let mut cluster = start();
    assert_eq!(cluster.replicas[1].connect().ask(&["GET", "key"]), "kept");
    assert_eq!(cluster.replicas[1].connect().ask(&["INCR", "count"]), "1");
    let replicas: Vec<u32> = cluster.replicas.iter().map(Replica::pid).collect();
    cluster.kill_supervisor();
    until("the replicas are gone", || replicas.iter().all(|&pid| !process::is_alive(pid)));
    let cluster = start();
    assert_eq!(cluster.replicas[2].connect().ask(&["MGET", "key", "count"]), "[kept, 1]");
    let info = cluster.replicas[2].connect().ask(&["INFO", "persistence"]);
    assert!(info.contains("aof_enabled:1") && info.contains("log_globally_persisted:"), "{info}");
    cluster.stop();
}

#[test]
fn the_smoke_test_does_not_touch_data_that_is_there() {
    let data = Data::new("durable-smoke");
    fs::create_dir_all(data.as_str()).expect("a directory can be made");
    fs::write(format!("{}/precious", data.as_str()), "data").expect("a file can be written");
    let (status, said) = process::run_for(&["--smoke", "--durable", data.as_str()], DEADLINE);
    assert_eq!(status.and_then(|status| status.code()), Some(2), "{said}");
    assert!(said.contains("give a new directory"), "{said}");
}
