//! What holds the replicas together, and what they do without.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Bench, Found, client::Client};
use crate::cluster::Cluster;

/// All replicas have applied the same, and hold the same.
pub(super) async fn replicas_hold_the_same(bench: &Bench) -> Found {
    let mut clients = Vec::new();
    for &address in &bench.replicas {
        clients.push(Client::connect(address).await?);
    }
    clients[0].expect(&["SET", "last", "write"], "OK").await?;
    // The others deliver it a moment later.
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let mut states = Vec::new();
        for client in &mut clients {
            let info = info(client).await?;
            let field = |name: &str| info.get(name).cloned().ok_or_else(|| format!("INFO says nothing of {name}"));
            let (state, seq) = (field("state")?, field("applied_seq")?);
            states.push((state, seq, client.text(&["DEBUG", "DIGEST"]).await?, client.text(&["DBSIZE"]).await?));
        }
        let (state, seq, digest, keys) = &states[0];
        if states.iter().all(|other| *other == states[0]) && state == "ok" && digest.len() == 40 {
            return Ok(format!("digest {digest} of {keys} keys at applied_seq {seq}, at all three"));
        }
        if Instant::now() > until {
            return Err(format!("the replicas say {states:?}"));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Within a second of a replica's death, the others refuse data commands, and say why; they still answer PING and INFO.
pub(super) async fn the_others_say_so(bench: &Bench, cluster: &mut Cluster) -> Found {
    let mut clients = Vec::new();
    for &address in &bench.replicas[..2] {
        clients.push(Client::connect(address).await?);
    }
    let begun = Instant::now();
    cluster.kill(2).await.map_err(|error| error.to_string())?;
    let mut slowest = Duration::ZERO;
    let mut why = String::new();
    for client in &mut clients {
        loop {
            let said = client.text(&["SET", "after", "death"]).await?;
            slowest = slowest.max(begun.elapsed());
            if said.starts_with("-CLUSTERDOWN ") {
                why = said;
                break;
            }
            if said != "OK" || slowest > Duration::from_secs(1) {
                return Err(format!("SET answered {said:?} {slowest:?} after a replica's death"));
            }
        }
        if slowest > Duration::from_secs(1) {
            return Err(format!("it took {slowest:?}"));
        }
        let said = client.text(&["GET", "after"]).await?;
        if !said.starts_with("-CLUSTERDOWN ") {
            return Err(format!("GET answered {said:?}"));
        }
        client.expect(&["PING"], "PONG").await?;
        let info = info(client).await?;
        if info.get("state").map(String::as_str) != Some("ended") || !info.contains_key("end_reason") {
            return Err(format!("INFO says {info:?}"));
        }
    }
    Ok(format!("after {} ms the others said {why:?}; PING and INFO work", slowest.as_millis()))
}

async fn info(client: &mut Client) -> Result<BTreeMap<String, String>, String> {
    let text = client.text(&["INFO"]).await?;
    if text.starts_with('-') {
        return Err(format!("INFO answered {text}"));
    }
    Ok(text.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.into(), value.into())).collect())
}
