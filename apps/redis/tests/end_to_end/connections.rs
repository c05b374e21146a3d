//! A replica's care for its clients besides their data: connections that must end, and the reasons that clients are
//! told.

use std::{io, thread, time::Duration};

use rustix::process::Signal;

use crate::{
    machine::{one_at_a_time, until},
    process::Cluster,
    wire::{Client, request, show},
};

const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn a_subscriber_of_a_replica_that_missed_messages_is_told_so() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let (mut missed, mut stayed) = (cluster.replicas[2].connect(), cluster.replicas[0].connect());
    for subscriber in [&mut missed, &mut stayed] {
        assert_eq!(subscriber.ask(&["SUBSCRIBE", "news"]), "[subscribe, news, 1]");
    }
    cluster.replicas[2].signal(Signal::STOP);
    until("the others have given it up", || cluster.replicas[0].info("members").as_deref() == Some("2"));
    let mut publisher = cluster.replicas[1].connect();
    publisher.ask(&["PUBLISH", "news", "missed by one"]);
    assert_eq!(show(&stayed.answer().expect("a message")), "[message, news, missed by one]");
    cluster.replicas[2].signal(Signal::CONT);
    assert!(missed.is_closed_within(PATIENCE), "messages are missing");
    cluster.stop();
}

#[test]
fn all_of_a_pipeline_is_answered_in_order_though_a_replica_dies_on_the_way() {
    const REQUESTS: usize = 20_000;
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut client = cluster.replicas[0].connect();
    let words: [&[&str]; 5] = [&["INCR", "n"], &["GET", "n"], &["PING"], &["LRANGE", "l", "0", "-1"], &["WATCH", "n"]];
    let pipeline: Vec<u8> = words.iter().cycle().take(REQUESTS).flat_map(|words| request(words)).collect();
    client.send(&pipeline).expect("the replica reads");
    client.finish().expect("it is connected");
    let mut number = 0;
    for place in 0..REQUESTS {
        if place == REQUESTS / 10 {
            cluster.replicas[2].signal(Signal::KILL);
        }
        let answer = show(&client.answer().expect("each request is answered"));
        match words[place % words.len()][0] {
            "PING" => assert_eq!(answer, "PONG"),
            "INCR" => {
                number += 1;
                assert_eq!(answer, number.to_string());
            }
            "GET" => assert_eq!(answer, number.to_string()),
            "LRANGE" => assert_eq!(answer, "[]"),
            _ => assert_eq!(answer, "OK"),
        }
    }
    assert!(client.is_closed_within(PATIENCE), "nothing is answered twice");
    cluster.stop();
}

#[test]
fn who_ends_its_own_connection_is_told_that_it_did() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let mut client = cluster.replicas[0].connect();
    let id = client.ask(&["CLIENT", "ID"]);
    let kill = ["CLIENT", "KILL", "ID", &id, "SKIPME", "NO"];
    let set = ["SET", "key", "1"];
    client.send(&[request(&set), request(&kill), request(&set)].concat()).expect("the replica reads");
    assert_eq!(show(&client.answer().expect("an answer")), "OK");
    assert_eq!(show(&client.answer().expect("an answer")), "1");
    assert!(client.is_closed_within(PATIENCE));
    cluster.stop();
}

#[test]
fn many_half_sent_requests_do_not_take_all_memory() {
    let _turn = one_at_a_time();
    let cluster = Cluster::start();
    let replica = &cluster.replicas[0];
    let mut client = replica.connect();
    assert_eq!(client.ask(&["CONFIG", "SET", "maxmemory-clients", "4194304"]), "OK");
    let mut greedy: Vec<_> = (0..40).map(|_| replica.connect()).collect();
    let half = [b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$400000\r\n", &[b'x'; 300_000][..]].concat();
    // Clients that are disconnected may not get to send all of it.
    let sent = greedy.iter_mut().map(|connection| connection.send(&half)).filter(Result::is_ok).count();
    assert!(sent > 0);
    until("the replica has read what it will", || {
        client.ask(&["SET", "key", "1"]) == "OK" && clients(&mut client) < 30
    });
    let used = info(&mut client, "mem_clients_normal");
    assert!(used < 8 << 20, "{used}");
    drop(greedy);
    until("they are gone", || clients(&mut client) == 1);
    cluster.stop();
}

fn clients(client: &mut Client) -> i64 {
    info(client, "connected_clients")
}

fn info(client: &mut Client, name: &str) -> i64 {
    let text = client.ask(&["INFO"]);
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("there is no {name} in {text}"))
}

#[test]
fn who_sends_slowly_is_not_idle() -> io::Result<()> {
    let _turn = one_at_a_time();
    let cluster = Cluster::start_with(&["--timeout", "1"]);
    let mut client = cluster.replicas[0].connect();
    for byte in request(&["PING"]) {
        client.send(&[byte])?;
        thread::sleep(Duration::from_millis(250));
    }
    assert_eq!(show(&client.answer()?), "PONG");
    cluster.stop();
    Ok(())
}
