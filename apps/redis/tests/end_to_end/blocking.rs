//! Requests that wait for elements, at several replicas, which stand still, die and come back.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    machine::{one_at_a_time, until},
    process::{Cluster, Replica},
    wire::{Client, request, show},
};

const PATIENCE: Duration = Duration::from_secs(30);

/// The number of clients of a replica whose requests wait.
fn waiting(replica: &Replica) -> usize {
    replica.connect().ask(&["CLIENT", "LIST"]).matches(" flags=b ").count()
}

/// A connection whose request waits at a replica.
fn wait(replica: &Replica, words: &[&str]) -> Client {
    let before = waiting(replica);
    let mut client = replica.connect();
    client.send(&request(words)).expect("the replica reads");
    until("the request waits", || waiting(replica) == before + 1);
    client
}

fn next(client: &mut Client) -> String {
    show(&client.answer().expect("an answer in time"))
}

/// Pushes elements that nobody waits for until one stays. Before that, one may be given to a client that has just gone.
fn until_an_element_stays(client: &mut Client, list: &str) {
    until("an element stays", || {
        client.ask(&["RPUSH", list, "x"]);
        client.ask(&["LLEN", list]) != "0"
    });
    assert_eq!(client.ask(&["DEL", list]), "1");
}

#[test]
fn who_comes_first_is_served_first_over_all_replicas() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut clients: Vec<Client> =
        (0..9).map(|place| wait(&cluster.replicas[place % 3], &["BLPOP", "none", "queue", "0"])).collect();
    let mut members = wait(&cluster.replicas[1], &["BZPOPMAX", "set", "0"]);
    let mut pusher = cluster.replicas[2].connect();
    assert_eq!(pusher.ask(&["RPUSH", "queue", "0", "1", "2", "3"]), "4");
    assert_eq!(pusher.ask(&["MULTI"]), "OK");
    for element in ["4", "5", "6", "7", "8"] {
        assert_eq!(pusher.ask(&["RPUSH", "queue", element]), "QUEUED");
    }
    assert_eq!(pusher.ask(&["EXEC"]), "[1, 2, 3, 4, 5]");
    for (place, client) in clients.iter_mut().enumerate() {
        assert_eq!(next(client), format!("[queue, {place}]"));
    }
    assert_eq!(pusher.ask(&["EXISTS", "queue"]), "0");
    assert_eq!(pusher.ask(&["ZADD", "set", "1", "low", "2.5", "high"]), "2");
    assert_eq!(next(&mut members), "[set, high, 2.5]");
    cluster.stop();
}

#[test]
fn what_is_asked_behind_a_request_that_waits_is_answered_behind_it() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut client = cluster.replicas[0].connect();
    let requests: [&[&str]; 5] =
        [&["INCR", "n"], &["BLMOVE", "a", "b", "LEFT", "RIGHT", "0"], &["INCR", "n"], &["GET", "n"], &["PING"]];
    client.send(&requests.map(request).concat()).expect("the replica reads");
    assert_eq!(next(&mut client), "1");
    until("it waits", || waiting(&cluster.replicas[0]) == 1);
    let mut pusher = cluster.replicas[1].connect();
    assert_eq!(pusher.ask(&["GET", "n"]), "1");
    assert_eq!(pusher.ask(&["LPUSH", "a", "x"]), "1");
    assert_eq!([(); 4].map(|()| next(&mut client)), ["x", "2", "2", "PONG"]);
    assert_eq!(pusher.ask(&["LRANGE", "b", "0", "-1"]), "[x]");
    cluster.stop();
}

#[test]
fn a_wait_ends_by_its_time_by_another_client_and_with_its_connection() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start_with(&["--timeout", "1"]);
    let replica = &cluster.replicas[0];
    let begun = Instant::now();
    assert_eq!(replica.connect().ask(&["BLPOP", "queue", "1.3"]), "nil");
    assert!(begun.elapsed() >= Duration::from_millis(1300), "its own timeout counts, not that of idle clients");
    let mut other = cluster.replicas[1].connect();
    for (how, answer) in [("TIMEOUT", "nil"), ("ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK")] {
        let mut client = replica.connect();
        let id = client.ask(&["CLIENT", "ID"]);
        assert_eq!(replica.connect().ask(&["CLIENT", "UNBLOCK", &id, how]), "0");
        client.send(&request(&["BRPOP", "queue", "0"])).expect("the replica reads");
        until("it waits", || waiting(replica) == 1);
        assert_eq!(replica.connect().ask(&["CLIENT", "UNBLOCK", &id, how]), "1");
        assert_eq!(next(&mut client), answer);
    }
    let gone = wait(replica, &["BLPOP", "queue", "0"]);
    drop(gone);
    until("its end is noticed", || waiting(replica) == 0);
    until_an_element_stays(&mut other, "queue");
    let mut killed = wait(replica, &["BLPOP", "queue", "0"]);
    assert_eq!(replica.connect().ask(&["CLIENT", "KILL", "TYPE", "normal"]), "1");
    assert!(killed.is_closed_within(PATIENCE));
    until_an_element_stays(&mut other, "queue");
    cluster.stop();
}

#[test]
fn what_is_pushed_when_a_replica_has_died_is_not_given_to_its_clients() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let _dead = wait(&cluster.replicas[2], &["BLPOP", "queue", "0"]);
    let mut alive = wait(&cluster.replicas[0], &["BLPOP", "queue", "0"]);
    cluster.replicas[2].signal(Signal::KILL);
    until("the others have given it up", || {
        // It may be back already.
        cluster.replicas[0].info("members").as_deref() == Some("2") || waiting_are(&cluster, 1)
    });
    let mut pusher = cluster.replicas[1].connect();
    assert_eq!(pusher.ask(&["RPUSH", "queue", "1", "2"]), "2");
    assert_eq!(next(&mut alive), "[queue, 1]");
    assert_eq!(pusher.ask(&["LRANGE", "queue", "0", "-1"]), "[2]");
    cluster.stop();
}

/// Whether all replicas are there again, and so many clients wait at them.
fn waiting_are(cluster: &Cluster, count: usize) -> bool {
    let is_there = |replica: &Replica| replica.info("members").as_deref() == Some("3");
    cluster.replicas.iter().all(is_there) && cluster.replicas.iter().map(waiting).sum::<usize>() == count
}

#[test]
fn a_client_of_a_replica_that_stood_still_is_told_and_nothing_is_lost() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut stopped = wait(&cluster.replicas[2], &["BLPOP", "queue", "0"]);
    cluster.replicas[2].signal(Signal::STOP);
    until("the others have given it up", || cluster.replicas[0].info("members").as_deref() == Some("2"));
    let mut pusher = cluster.replicas[1].connect();
    assert_eq!(pusher.ask(&["RPUSH", "queue", "1"]), "1");
    cluster.replicas[2].signal(Signal::CONT);
    let told = next(&mut stopped);
    assert!(told.starts_with("-UNBLOCKED ") || told.starts_with("-UNKNOWN "), "{told}");
    assert_eq!(pusher.ask(&["LRANGE", "queue", "0", "-1"]), "[1]");
    until("it serves again", || cluster.replicas[2].info("state").as_deref() == Some("ok"));
    until("its clients can take", || stopped.ask(&["BLPOP", "queue", "0.1"]) == "[queue, 1]");
    cluster.stop();
}

#[test]
fn a_client_of_a_replica_that_was_dropped_is_told_before_the_replica_is_taken_back() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let dropped = &cluster.replicas[2];
    let mut pusher = cluster.replicas[1].connect();
    // Whenever it is dropped soon again, it waits longer before it asks to join.
    until("its client is told in the meantime", || {
        let mut client = wait(dropped, &["BLPOP", "queue", "0"]);
        dropped.signal(Signal::STOP);
        until("the others have given it up", || cluster.replicas[0].info("members").as_deref() == Some("2"));
        assert_eq!(pusher.ask(&["RPUSH", "queue", "1"]), "1");
        let begun = Instant::now();
        dropped.signal(Signal::CONT);
        let told = next(&mut client);
        let took = begun.elapsed();
        until("it serves again", || dropped.info("state").as_deref() == Some("ok") && waiting_are(&cluster, 0));
        assert_eq!(pusher.ask(&["LRANGE", "queue", "0", "-1"]), "[1]", "nothing was taken for who was dropped");
        assert_eq!(pusher.ask(&["DEL", "queue"]), "1");
        let is_outside = told.starts_with("-UNKNOWN the group goes on without this replica,");
        let is_back = ["-UNBLOCKED this replica was dropped from its group,", "-UNKNOWN this replica missed a part"];
        assert!(is_outside || is_back.iter().any(|text| told.starts_with(text)), "{told}");
        assert!(!is_outside || took >= Duration::from_secs(1), "it may have been back soon, and have told the end");
        is_outside
    });
    cluster.stop();
}

#[test]
fn many_that_wait_stand_in_nobodys_way() {
    const CLIENTS: usize = 300;
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let replica = &cluster.replicas[0];
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| replica.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(&request(&["BLPOP", "queue", "0"])).expect("the replica reads"));
    until("all wait", || waiting(replica) == CLIENTS);
    let mut other = replica.connect();
    for count in 1..=2 * CLIENTS {
        assert_eq!(other.ask(&["INCR", "n"]), count.to_string());
    }
    let elements: Vec<String> = (0..CLIENTS).map(|element| element.to_string()).collect();
    let push: Vec<&str> = ["RPUSH", "queue"].into_iter().chain(elements.iter().map(String::as_str)).collect();
    assert_eq!(other.ask(&push), CLIENTS.to_string());
    let mut given: Vec<String> = clients.iter_mut().map(next).collect();
    given.sort();
    let mut expected: Vec<String> = elements.iter().map(|element| format!("[queue, {element}]")).collect();
    expected.sort();
    assert_eq!(given, expected);
    cluster.stop();
}

#[test]
fn nothing_waits_any_more_when_all_replicas_of_a_durable_group_were_killed() {
    let _turn = one_at_a_time();
    let name = format!("blocking-{}", std::process::id());
    let data = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
    let cluster = Cluster::start_with(&["--durable", data.to_str().expect("a readable path"), "--cluster", &name]);
    let mut client = wait(&cluster.replicas[0], &["BLPOP", "queue", "0"]);
    let mut other = cluster.replicas[1].connect();
    assert_eq!(other.ask(&["RPUSH", "queue", "first"]), "1");
    assert_eq!(next(&mut client), "[queue, first]");
    let _waits = wait(&cluster.replicas[2], &["BLPOP", "queue", "0"]);
    cluster.replicas.iter().for_each(|replica| replica.signal(Signal::KILL));
    until("it serves again", || {
        let connected = Client::connect(cluster.replicas[1].address());
        let answer = connected.and_then(|mut client| client.call(&["SET", "key", "1"]));
        answer.is_ok_and(|answer| show(&answer) == "OK")
    });
    assert_eq!(cluster.replicas[1].connect().ask(&["RPUSH", "queue", "second"]), "1");
    assert_eq!(cluster.replicas[1].connect().ask(&["LRANGE", "queue", "0", "-1"]), "[second]");
    // A front end has no replica at which a request could wait.
    let listen = format!("127.0.0.1:{}", cluster.replicas[0].port + 10);
    let front_end = Replica::serving(&["front-end", "--cluster", &name, "--listen", &listen]);
    let mut client = front_end.connect();
    assert!(client.ask(&["BLPOP", "queue", "0"]).starts_with("-ERR no request waits at a front end"));
    assert_eq!(client.ask(&["MULTI"]), "OK");
    assert_eq!(client.ask(&["BLPOP", "queue", "0"]), "QUEUED");
    assert_eq!(client.ask(&["EXEC"]), "[[queue, second]]");
    cluster.stop();
    // It lies among the tests' temporary files, so one that stays does no harm.
    let _ = fs::remove_dir_all(&data);
}
