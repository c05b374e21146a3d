//! Replicas that die, even several at once, or stand still, under load. Acknowledged increments stay, no client waits
//! for ever, and the replicas come back.

use std::{net::SocketAddr, thread, time::Duration};

use rustix::process::Signal;

use crate::{
    load::{Load, Seen},
    machine::{one_at_a_time, until},
    process::{Cluster, Replica},
    target::until_all_hold_the_same,
};

const CLIENTS: usize = 6;

/// The limit of any request. A suspicion takes a second where no process has died, and the machine may be busy.
const BOUND: Duration = Duration::from_secs(10);

/// The acknowledgements that each client must get before the failure, and after it.
const SOME: u64 = 20;

/// Runs clients at all replicas while `befall` harms some, until all serve again. Returns the results of each client.
fn survives(options: &[&str], befall: impl Fn(&Cluster)) -> Vec<Seen> {
    let _turn = one_at_a_time();
    let cluster = Cluster::start_with(options);
    let addresses: Vec<SocketAddr> = cluster.replicas.iter().map(Replica::address).collect();
    let load = Load::new(CLIENTS);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let clients = load.start(scope, &addresses);
        load.until_more("the clients have begun", SOME);
        befall(&cluster);
        load.until_more("the clients go on", SOME);
        until("all replicas are full members again", || {
            cluster.replicas.iter().all(|replica| is_full(replica, &cluster))
        });
        load.until_more("the clients go on with all replicas", SOME);
        load.stop();
        clients.into_iter().map(|client| client.join().expect("no client has seen anything wrong")).collect()
    });
    let mut clients: Vec<_> = cluster.replicas.iter().map(Replica::connect).collect();
    for Seen { key, acknowledged, unknown, slowest, .. } in &seen {
        let held: u64 = clients[0].ask(&["GET", key]).parse().expect("it has counted");
        assert!((*acknowledged..=acknowledged + unknown).contains(&held), "{held}: {seen:?}");
        assert!(*slowest < BOUND, "{seen:?}");
    }
    until_all_hold_the_same(clients);
    cluster.stop();
    seen
}

/// Whether a replica's view has all replicas as full members.
fn is_full(replica: &Replica, cluster: &Cluster) -> bool {
    let senders = replica.info("view_senders").unwrap_or_default();
    senders.split(',').count() == cluster.replicas.len() && replica.info("state").as_deref() == Some("ok")
}

fn kill(cluster: &Cluster, indices: &[usize]) {
    indices.iter().for_each(|&index| cluster.replicas[index].signal(Signal::KILL));
}

#[test]
fn a_killed_follower_is_not_missed_and_comes_back() {
    let seen = survives(&[], |cluster| kill(cluster, &[2]));
    let (one, other): (Vec<_>, Vec<_>) = seen.into_iter().partition(|seen| seen.unknown + seen.refused == 0);
    assert!(one.len() >= CLIENTS * 2 / 3, "only the killed replica's clients notice: {other:?}");
}

#[test]
fn a_killed_leader_is_not_missed_and_comes_back() {
    survives(&[], |cluster| kill(cluster, &[0]));
}

#[test]
fn over_tcp_killed_replicas_come_back_as_well() {
    survives(&["--fabric", "tcp"], |cluster| kill(cluster, &[2]));
    survives(&["--fabric", "tcp"], |cluster| kill(cluster, &[0]));
}

#[test]
fn two_of_five_die_at_once() {
    survives(&["--replicas", "5"], |cluster| kill(cluster, &[0, 3]));
}

#[test]
fn a_replica_that_stood_still_longer_than_the_timeout_comes_back_by_itself() {
    for index in [2, 0] {
        survives(&[], |cluster| {
            cluster.replicas[index].signal(Signal::STOP);
            let others = || cluster.replicas.iter().enumerate().filter(|(other, _)| *other != index);
            until("the others have given it up", || {
                others().all(|(_, replica)| replica.info("members").as_deref() == Some("2"))
            });
            cluster.replicas[index].signal(Signal::CONT);
        });
    }
}

#[test]
fn without_a_majority_clients_are_told_at_once_and_go_on_when_it_is_back() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut client = cluster.replicas[0].connect();
    assert_eq!(client.ask(&["SET", "key", "1"]), "OK");
    cluster.replicas[1..].iter().for_each(|replica| replica.signal(Signal::STOP));
    until("it is told", || client.ask(&["SET", "key", "2"]).starts_with("-CLUSTERDOWN"));
    assert!(client.ask(&["GET", "key"]).starts_with("-CLUSTERDOWN"));
    assert_eq!(client.ask(&["PING"]), "PONG", "it still answers what needs no group");
    assert_eq!(cluster.replicas[0].info("state").as_deref(), Some("waits"));
    cluster.replicas[1..].iter().for_each(|replica| replica.signal(Signal::CONT));
    until("it goes on", || client.ask(&["SET", "key", "3"]) == "OK");
    assert_eq!(client.ask(&["GET", "key"]), "3");
    until("all replicas are full members", || cluster.replicas.iter().all(|replica| is_full(replica, &cluster)));
    until_all_hold_the_same(cluster.replicas.iter().map(Replica::connect).collect());
    cluster.stop();
}
