//! The load's clients: all types, expiry, transactions, messages, large values, and connections that come and go.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use fastrand::Rng;
use redis_protocol::resp2::types::OwnedFrame;
use tokio::time::{sleep, timeout};

use super::SoakRun;
use crate::client::{RespClient, request};

/// The longest life of a key that expires.
pub(super) const LONGEST_LIFE: Duration = Duration::from_secs(3);

/// The number of keys of each type, and the size at which collections are kept. The load soon reaches its size, and
/// keeps it.
const KEYS: u32 = 500;
const MEMBERS: u32 = 200;

/// The number of large values, and the bytes of the largest. Most travel as bulk messages.
const LARGE_KEYS: u32 = 10;
const LARGEST: usize = 200_000;

/// The time between sweeps, each of which deletes all keys of a kind by their pattern.
const SWEEP_EVERY: Duration = Duration::from_secs(7);

/// A client that connects, works, and leaves in one of several ways, again and again until the end.
pub(super) async fn client(run: Arc<SoakRun>, id: usize) {
    let mut random = Rng::with_seed(run.soak.seed.wrapping_add(id as u64));
    let address = run.soak.addresses[id % run.soak.addresses.len()];
    let mut number = 0;
    while !run.stopped() {
        let connected = RespClient::connect(address).await;
        run.connections.fetch_add(1, Ordering::Relaxed);
        let worked = match connected {
            Ok(mut client) => work(&run, id, &mut number, &mut client, &mut random).await,
            Err(error) => Err(error),
        };
        if let Err(error) = worked {
            run.failed(error);
            // A pause, so that a replica that is down is not asked without end.
            sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn work(
    run: &SoakRun,
    id: usize,
    number: &mut u64,
    client: &mut RespClient,
    random: &mut Rng,
) -> Result<(), String> {
    for _ in 0..random.usize(20..400) {
        if run.stopped() {
            return Ok(());
        }
        match random.u8(..20) {
            0 => transaction(run, client, random).await?,
            1 => publish(run, id, number, client).await?,
            _ => pipeline(run, client, random).await?,
        }
    }
    match random.u8(..3) {
        // In good order, in the middle of a request, or in the middle of a transaction.
        0 => client.text(&["QUIT"]).await.map(drop),
        1 => client.send(b"*3\r\n$3\r\nSET\r\n$9\r\nsoak:half").await,
        _ => client.text(&["MULTI"]).await.map(drop),
    }
}

/// Sends some commands at once.
async fn pipeline(run: &SoakRun, client: &mut RespClient, random: &mut Rng) -> Result<(), String> {
    let count = random.usize(1..16);
    let (mut bytes, mut sent) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let words = command(random);
        bytes.extend(request(&words));
        sent.push(words);
    }
    client.send(&bytes).await?;
    for words in sent {
        if let OwnedFrame::Error(text) = client.answer().await? {
            let words: String = words.join(" ").chars().take(80).collect();
            run.failed(format!("{words} was answered with {text:?}"));
        }
    }
    run.operations.fetch_add(count as u64, Ordering::Relaxed);
    Ok(())
}

/// A command that must succeed, on a key of its type.
fn command(random: &mut Rng) -> Vec<String> {
    let key = |kind: &str, random: &mut Rng| format!("soak:{kind}:{}", random.u32(..KEYS));
    let value = |random: &mut Rng| "v".repeat(random.usize(1..200));
    let member = |random: &mut Rng| format!("member{}", random.u32(..MEMBERS));
    let millis = |random: &mut Rng| random.u128(1..LONGEST_LIFE.as_millis()).to_string();
    let (kind, variant) = (random.u8(..24), random.u8(..4));
    let mut command: Vec<String> = match (kind, variant) {
        (0..4, _) => vec!["GET".into(), key("string", random)],
        (4..6, _) => vec!["SET".into(), key("string", random), value(random)],
        (6..8, 0) => vec!["SET".into(), key("brief", random), value(random), "PX".into(), millis(random)],
        (6..8, 1) => vec!["PEXPIRE".into(), key("brief", random), millis(random)],
        (6..8, 2) => vec!["PTTL".into(), key("brief", random)],
        (6..8, _) => vec!["PSETEX".into(), key("brief", random), millis(random), value(random)],
        (8..10, _) => vec!["INCR".into(), key("counter", random)],
        (10, _) => ["MGET"].map(String::from).into_iter().chain((0..10).map(|_| key("string", random))).collect(),
        (11..13, 0) => vec!["HSET".into(), key("hash", random), member(random), value(random)],
        (11..13, 1) => vec!["HGETALL".into(), key("hash", random)],
        (11..13, 2) => vec!["HINCRBY".into(), key("tally", random), member(random), "1".into()],
        (11..13, _) => vec!["HDEL".into(), key("hash", random), member(random)],
        (13..15, 0) => vec!["RPUSH".into(), key("list", random), value(random), value(random)],
        (13..15, 1) => vec!["LRANGE".into(), key("list", random), "0".into(), "20".into()],
        (13..15, 2) => vec!["LPOP".into(), key("list", random)],
        (13..15, _) => vec!["LTRIM".into(), key("list", random), "0".into(), MEMBERS.to_string()],
        (15..17, 0) => vec!["SADD".into(), key("set", random), member(random), member(random)],
        (15..17, 1) => vec!["SREM".into(), key("set", random), member(random)],
        (15..17, 2) => vec!["SINTER".into(), key("set", random), key("set", random)],
        (15..17, _) => vec!["SPOP".into(), key("set", random)],
        (17..19, 0) => vec!["ZADD".into(), key("ranking", random), random.u32(..1000).to_string(), member(random)],
        (17..19, 1) => vec!["ZRANGE".into(), key("ranking", random), "0".into(), "20".into(), "WITHSCORES".into()],
        (17..19, 2) => vec!["ZINCRBY".into(), key("ranking", random), "1.5".into(), member(random)],
        (17..19, _) => vec!["ZPOPMIN".into(), key("ranking", random)],
        (19, _) => vec!["UNLINK".into(), key("string", random), key("list", random), key("hash", random)],
        (20, 0) => vec!["SET".into(), large(random), "L".repeat(random.usize(1000..LARGEST))],
        (20, 1) => vec!["STRLEN".into(), large(random)],
        (20, 2) => vec!["GET".into(), large(random)],
        (20, _) => vec!["DEL".into(), large(random)],
        (21, _) => vec!["EXISTS".into(), key("string", random), key("set", random)],
        (22, _) => vec!["TYPE".into(), key("ranking", random)],
        _ => vec!["PING".into()],
    };
    // A tenth of the commands on collections set an expiry instead.
    if variant == 0 && (11..19).contains(&kind) && random.u8(..10) == 0 {
        command = vec!["PEXPIRE".into(), command.swap_remove(1), millis(random)];
    }
    command
}

fn large(random: &mut Rng) -> String {
    format!("soak:large:{}", random.u32(..LARGE_KEYS))
}

/// Adds to two counters at once, unless another client was faster.
async fn transaction(run: &SoakRun, client: &mut RespClient, random: &mut Rng) -> Result<(), String> {
    let keys = [0; 2].map(|_| format!("soak:account:{}", random.u32(..20)));
    let read = [request(&["WATCH", &keys[0], &keys[1]]), request(&["GET", &keys[0]])];
    client.send(&read.concat()).await?;
    for _ in read {
        client.answer().await?;
    }
    let (debit, credit) = (["DECRBY", &keys[0], "5"], ["INCRBY", &keys[1], "5"]);
    let change = [request(&["MULTI"]), request(&debit), request(&credit), request(&["EXEC"])];
    client.send(&change.concat()).await?;
    for _ in 0..3 {
        client.answer().await?;
    }
    match client.answer().await? {
        OwnedFrame::Array(answers) if answers.len() == 2 => {}
        OwnedFrame::Null => {
            run.aborted.fetch_add(1, Ordering::Relaxed);
        }
        other => return Err(format!("EXEC was answered with {other:?}")),
    }
    run.operations.fetch_add(6, Ordering::Relaxed);
    Ok(())
}

/// Publishes this client's next number.
async fn publish(run: &SoakRun, id: usize, number: &mut u64, client: &mut RespClient) -> Result<(), String> {
    *number += 1;
    let said = client.text(&["PUBLISH", "soak:news", &format!("{id} {number}")]).await?;
    if said.starts_with('-') {
        return Err(format!("PUBLISH was answered with {said}"));
    }
    run.published.fetch_add(1, Ordering::Relaxed);
    run.operations.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A connection that has subscribed to what clients publish.
pub(super) async fn subscribe(address: SocketAddr) -> Result<RespClient, String> {
    let mut client = RespClient::connect(address).await?;
    match client.call(&["SUBSCRIBE", "soak:news"]).await? {
        OwnedFrame::Array(_) => Ok(client),
        other => Err(format!("SUBSCRIBE was answered with {other:?}")),
    }
}

/// A subscriber of one replica, until publishing has ended. From every client it must see every number.
pub(super) async fn subscriber(run: Arc<SoakRun>, replica: usize, mut client: RespClient) {
    let mut seen = HashMap::<String, u64>::new();
    while !run.silent.load(Ordering::Relaxed) {
        let Ok(message) = timeout(Duration::from_millis(100), client.next()).await else { continue };
        let (from, number) = match message.map(|message| news(&message)) {
            Ok(Some(news)) => news,
            Ok(None) => return run.failed("a subscriber was sent what is no message".to_owned()),
            Err(error) => return run.failed(format!("a subscriber: {error}")),
        };
        let before = seen.insert(from.clone(), number).unwrap_or(0);
        if before + 1 != number {
            run.failed(format!("replica {} sent message {number} of client {from} after {before}", replica + 1));
        }
        run.received.fetch_add(1, Ordering::Relaxed);
    }
}

fn news(message: &OwnedFrame) -> Option<(String, u64)> {
    let OwnedFrame::Array(parts) = message else { return None };
    let OwnedFrame::BulkString(text) = parts.get(2)? else { return None };
    let (from, number) = str::from_utf8(text).ok()?.split_once(' ')?;
    Some((from.to_owned(), number.parse().ok()?))
}

/// Deletes all keys of a kind from time to time, as applications do: the keys that SCAN finds, in pieces.
pub(super) async fn sweeper(run: Arc<SoakRun>) {
    let kinds = ["string", "brief", "hash", "list", "set", "ranking", "large", "counter"];
    for kind in kinds.iter().cycle() {
        // In short sleeps, so that the end of the run is noticed soon.
        for _ in 0..SWEEP_EVERY.as_millis() / 100 {
            if run.stopped() {
                return;
            }
            sleep(Duration::from_millis(100)).await;
        }
        let replica = fastrand::usize(..run.soak.addresses.len());
        if let Err(error) = sweep(&run, replica, &format!("soak:{kind}:*")).await {
            run.failed(format!("deleting by a pattern: {error}"));
        }
    }
}

async fn sweep(run: &SoakRun, replica: usize, pattern: &str) -> Result<(), String> {
    let mut client = RespClient::connect(run.soak.addresses[replica]).await?;
    let mut cursor = "0".to_owned();
    loop {
        let page = client.call(&["SCAN", &cursor, "MATCH", pattern, "COUNT", "200"]).await?;
        let (next, keys) = found(&page).ok_or_else(|| format!("SCAN was answered with {page:?}"))?;
        if !keys.is_empty() {
            let words: Vec<&str> = ["UNLINK"].into_iter().chain(keys.iter().map(String::as_str)).collect();
            let said = client.text(&words).await?;
            if said.starts_with('-') {
                return Err(format!("UNLINK was answered with {said}"));
            }
        }
        run.operations.fetch_add(2, Ordering::Relaxed);
        if next == "0" {
            return Ok(());
        }
        cursor = next;
    }
}

fn found(page: &OwnedFrame) -> Option<(String, Vec<String>)> {
    let text = |frame: &OwnedFrame| match frame {
        OwnedFrame::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        _ => None,
    };
    let OwnedFrame::Array(parts) = page else { return None };
    let [cursor, OwnedFrame::Array(keys)] = &parts[..] else { return None };
    Some((text(cursor)?, keys.iter().map(text).collect::<Option<_>>()?))
}
