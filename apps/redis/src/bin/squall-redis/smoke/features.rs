//! Checks of transactions, messages and keys that expire.

use std::time::{Duration, Instant};

use super::{Bench, Found};
use crate::client::{RespClient, show, until};

/// Transfers between two accounts, by optimistic transactions at all replicas at once, lose nothing.
pub(super) async fn transactions(bench: &Bench) -> Found {
    const EACH: usize = 50;
    let mut setup = RespClient::connect(bench.replicas[0]).await?;
    setup.expect(&["SET", "account:a", "1000"], "OK").await?;
    setup.expect(&["SET", "account:b", "1000"], "OK").await?;
    let mut tasks = Vec::new();
    for &address in &bench.replicas {
        let mut client = RespClient::connect(address).await?;
        tasks.push(tokio::spawn(async move {
            let (mut done, mut tries) = (0, 0);
            while done < EACH {
                tries += 1;
                client.expect(&["WATCH", "account:a", "account:b"], "OK").await?;
                let number = |text: String| text.parse::<i64>().map_err(|error| format!("{text}: {error}"));
                let a = number(client.text(&["GET", "account:a"]).await?)?;
                let b = number(client.text(&["GET", "account:b"]).await?)?;
                client.expect(&["MULTI"], "OK").await?;
                client.expect(&["SET", "account:a", &(a - 1).to_string()], "QUEUED").await?;
                client.expect(&["PING"], "QUEUED").await?;
                client.expect(&["SET", "account:b", &(b + 1).to_string()], "QUEUED").await?;
                match &*client.text(&["EXEC"]).await? {
                    "[OK, PONG, OK]" => done += 1,
                    "(nil)" => {}
                    other => return Err(format!("EXEC answered {other}")),
                }
            }
            Ok(tries)
        }));
    }
    let mut tries = 0;
    for task in tasks {
        tries += task.await.map_err(|error| error.to_string())??;
    }
    let moved = bench.replicas.len() * EACH;
    setup.expect(&["GET", "account:a"], &(1000 - moved).to_string()).await?;
    setup.expect(&["GET", "account:b"], &(1000 + moved).to_string()).await?;
    setup.expect(&["MULTI"], "OK").await?;
    setup.expect(&["GET"], "-ERR wrong number of arguments for 'get' command").await?;
    setup.expect(&["EXEC"], "-EXECABORT Transaction discarded because of previous errors.").await?;
    Ok(format!("{moved} transfers at all replicas at once, in {tries} tries"))
}

/// Messages published at one replica reach the subscribers of all, in one order.
pub(super) async fn messages(bench: &Bench) -> Found {
    const EACH: usize = 100;
    let mut subscribers = RespClient::connect_to_all(&bench.replicas).await?;
    for client in &mut subscribers {
        client.expect(&["PSUBSCRIBE", "news.*"], "[psubscribe, news.*, 1]").await?;
    }
    let mut tasks = Vec::new();
    for (index, &address) in bench.replicas.iter().enumerate() {
        let mut client = RespClient::connect(address).await?;
        tasks.push(tokio::spawn(async move {
            for number in 0..EACH {
                client.expect(&["PUBLISH", &format!("news.{index}"), &number.to_string()], "1").await?;
            }
            Ok::<_, String>(())
        }));
    }
    for task in tasks {
        task.await.map_err(|error| error.to_string())??;
    }
    let mut orders = Vec::new();
    for client in &mut subscribers {
        let mut order = Vec::new();
        for _ in 0..EACH * bench.replicas.len() {
            order.push(show(&client.answer().await?));
        }
        orders.push(order);
        let refused = client.text(&["GET", "a"]).await?;
        if !refused.starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE / ") {
            return Err(format!("a subscriber's GET was answered with {refused}"));
        }
        client.expect(&["PUNSUBSCRIBE"], "[punsubscribe, news.*, 0]").await?;
    }
    if orders.iter().any(|order| *order != orders[0]) {
        return Err("subscribers of different replicas saw different orders".to_owned());
    }
    Ok(format!("{} messages came to the subscribers of every replica, in the same order", orders[0].len()))
}

/// A key expires at all replicas at once, and is removed even if no client asks for it.
pub(super) async fn expiry(bench: &Bench) -> Found {
    let mut clients = RespClient::connect_to_all(&bench.replicas).await?;
    // All replicas must be asked before the key expires.
    let life = Duration::from_millis(150) * bench.patience;
    let millis = life.as_millis().to_string();
    let set = Instant::now();
    clients[0].expect(&["SET", "brief", "1", "PX", &millis], "OK").await?;
    for client in &mut clients {
        client.expect(&["EXISTS", "brief"], "1").await?;
    }
    until(life + Duration::from_secs(2) * bench.patience, async || {
        for client in &mut clients {
            client.expect(&["EXISTS", "brief"], "0").await?;
        }
        Ok(())
    })
    .await?;
    let took = set.elapsed();
    // The store's clock counts whole milliseconds, and may have begun the one in which the key was set long before.
    if took + Duration::from_millis(1) < life {
        return Err(format!("it was gone after {took:?}"));
    }
    Ok(format!("a key of {millis} ms was gone at all replicas after {} ms", took.as_millis()))
}
