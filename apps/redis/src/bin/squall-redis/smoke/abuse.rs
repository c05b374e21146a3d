//! Checks with clients that break the rules.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{Bench, Found};
use crate::{
    client::{RespClient, request, show, until},
    usage::Usage,
};

/// Streams of random bytes, half of which resemble the protocol, do not harm other clients.
pub(super) async fn random_bytes(bench: &Bench) -> Found {
    const STREAMS: usize = 200;
    let mut random = fastrand::Rng::with_seed(bench.seed);
    let mut errors = 0;
    for stream in 0..STREAMS {
        let address = bench.replicas[stream % bench.replicas.len()];
        let mut bytes = vec![0; random.usize(1..2000)];
        random.fill(&mut bytes);
        if stream % 2 == 0 {
            let alphabet = b"*$+-:123\r\n\r\n\r\nGET a\"'\\x";
            bytes.iter_mut().for_each(|byte| *byte = alphabet[usize::from(*byte) % alphabet.len()]);
            bytes.insert(0, b'*');
        }
        let mut client = RespClient::connect(address).await?;
        // A replica may close the connection before all is sent.
        let _ = client.send(&bytes).await;
        client.finish().await;
        let said = client.rest().await.unwrap_or_default();
        errors += usize::from(said.starts_with(b"-ERR"));
    }
    for &address in &bench.replicas {
        RespClient::connect(address).await?.expect(&["PING"], "PONG").await?;
    }
    Ok(format!("{STREAMS} streams, {errors} of them answered with an error first; every replica goes on"))
}

/// Breaches of the protocol get an error that names them, and end the connection.
pub(super) async fn protocol_errors(bench: &Bench) -> Found {
    let cases: [(&[u8], &str); 6] = [
        (b"*1\r\n:1\r\n", "expected '$', got ':'"),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*2000000\r\n", "invalid multibulk length"),
        (b"*2\r\n$3\r\nGET\r\n$-5\r\n", "invalid bulk length"),
        (b"GET \"a\r\n", "unbalanced quotes in request"),
        (&[b'x'; 100_000], "too big inline request"),
    ];
    for &address in &bench.replicas {
        for (bytes, expected) in cases {
            let mut client = RespClient::connect(address).await?;
            client.send(&[b"PING\r\n", bytes].concat()).await?;
            let said = String::from_utf8_lossy(&client.rest().await?).into_owned();
            let expected = format!("+PONG\r\n-ERR Protocol error: {expected}\r\n");
            if said != expected {
                return Err(format!("expected {expected:?}, got {said:?}"));
            }
        }
    }
    let mut browser = RespClient::connect(bench.replicas[0]).await?;
    browser.send(b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET hacked 1\r\n").await?;
    if !browser.rest().await?.is_empty() {
        return Err("an HTTP request was answered".to_owned());
    }
    RespClient::connect(bench.replicas[0]).await?.expect(&["EXISTS", "hacked"], "0").await?;
    Ok(format!("{} kinds of breach at each replica, and an HTTP request", cases.len()))
}

/// A command of 1 GiB ends the connection; one of many megabytes is stored.
pub(super) async fn large_commands(bench: &Bench) -> Found {
    let mut client = RespClient::connect(bench.replicas[0]).await?;
    client.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1073741824\r\n").await?;
    let said = String::from_utf8_lossy(&client.rest().await?).into_owned();
    if said != "-ERR Protocol error: invalid bulk length\r\n" {
        return Err(format!("1 GiB was announced, and the answer was {said:?}"));
    }
    let mut client = RespClient::connect(bench.replicas[1]).await?;
    client.expect(&["SET", "large", "before"], "OK").await?;
    for bytes in [250_000, 10_000_000] {
        let value = "y".repeat(bytes);
        client.expect(&["SET", "large", &value], "OK").await?;
        RespClient::connect(bench.replicas[2]).await?.expect(&["GET", "large"], &value).await?;
    }
    client.expect(&["DEL", "large"], "1").await?;
    Ok("1 GiB ended the connection, 250 kB and 10 MB were stored".to_owned())
}

/// A client that never reads is not read from, and costs the others nothing. Once it reads, it gets all answers.
pub(super) async fn a_client_that_does_not_read(bench: &Bench) -> Found {
    /// The most that one client may cost, in bytes.
    const FAIR: u64 = 8 << 20;
    let address = bench.replicas[0];
    let mut other = RespClient::connect(address).await?;
    let (key, value) = ("k".repeat(10_000), "z".repeat(200_000));
    other.expect(&["SET", &key, &value], "OK").await?;
    other.expect(&["GET", &key], &value).await?;
    let before = Usage::of(bench.processes[0]).resident_bytes;
    let mut slow = RespClient::connect(address).await?;
    let get = request(&["GET", &key]);
    let block = get.repeat(100);
    let mut sent = 0;
    // Until the replica has taken nothing more for a while.
    let mut last = Instant::now();
    while last.elapsed() < Duration::from_millis(300) {
        let bytes = slow.try_send(&block[sent % get.len()..]);
        sent += bytes;
        if bytes > 0 {
            last = Instant::now();
        }
        other.expect(&["PING"], "PONG").await?;
    }
    let grown = Usage::of(bench.processes[0]).resident_bytes.saturating_sub(before);
    if grown > FAIR {
        return Err(format!("a client that does not read costs {} KiB", grown >> 10));
    }
    let complete = sent / get.len();
    let cut = &get[sent % get.len()..];
    for answer in 0..=complete {
        if answer == complete {
            // Completes the request of which only a part, or nothing, found room.
            slow.send(cut).await?;
        }
        let got = show(&slow.answer().await?);
        if got.len() != value.len() {
            return Err(format!("expected {} bytes, got {}", value.len(), got.len()));
        }
    }
    let replies = (complete + 1) * value.len() / 1_000_000;
    Ok(format!(
        "{replies} MB of answers to a client that did not read grew the replica by {} KiB, and came once it read",
        grown >> 10
    ))
}

/// One client too many gets an error. There is room again once another has left.
pub(super) async fn too_many_clients(bench: &Bench, limit: usize) -> Found {
    let address = bench.replicas[2];
    // Clients of earlier checks may still be about to leave.
    until_admitted(bench, address, "connected_clients:1\r\n").await?;
    let mut clients = Vec::new();
    for _ in 0..limit {
        let mut client = RespClient::connect(address).await?;
        client.expect(&["PING"], "PONG").await?;
        clients.push(client);
    }
    let said = String::from_utf8_lossy(&RespClient::connect(address).await?.rest().await?).into_owned();
    if said != "-ERR max number of clients reached\r\n" {
        return Err(format!("client {} was answered with {said:?}", limit + 1));
    }
    drop(clients.pop());
    until_admitted(bench, address, &format!("connected_clients:{limit}\r\n")).await?;
    drop(clients);
    until_admitted(bench, address, "connected_clients:1\r\n").await?;
    Ok(format!("client {} was turned away, until another left", limit + 1))
}

/// Waits until a new client is admitted and INFO has this line.
async fn until_admitted(bench: &Bench, address: SocketAddr, line: &str) -> Result<(), String> {
    until(Duration::from_secs(3) * bench.patience, async || {
        let said = RespClient::connect(address).await?.text(&["INFO", "clients"]).await?;
        if said.contains(line) { Ok(()) } else { Err(format!("expected {line:?}, got {said:?}")) }
    })
    .await
}
