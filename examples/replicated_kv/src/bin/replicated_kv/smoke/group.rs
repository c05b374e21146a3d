//! What holds the replicas together, and what they do without.

use std::time::{Duration, Instant};

use super::{Bench, Found};
use crate::{
    agreement::agreement,
    client::{Client, field},
    cluster::Cluster,
};

/// All replicas have applied the same, and hold the same.
pub(super) async fn replicas_hold_the_same(bench: &Bench) -> Found {
    Client::connect(bench.replicas[0]).await?.expect(&["SET", "last", "write"], "OK").await?;
    agreement(&bench.replicas, Duration::from_secs(5) * bench.patience).await
}

/// Within a second of a replica's death, the others refuse data commands, and say why; they still answer PING and INFO.
pub(super) async fn the_others_say_so(bench: &Bench, cluster: &mut Cluster) -> Found {
    let mut clients = Client::connect_to_all(&bench.replicas[..2]).await?;
    let begun = Instant::now();
    cluster.kill(2).await.map_err(|error| error.to_string())?;
    let limit = Duration::from_secs(1) * bench.patience;
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
            if said != "OK" || slowest > limit {
                return Err(format!("SET answered {said:?} {slowest:?} after a replica's death"));
            }
        }
        if slowest > limit {
            return Err(format!("it took {slowest:?}"));
        }
        let said = client.text(&["GET", "after"]).await?;
        if !said.starts_with("-CLUSTERDOWN ") {
            return Err(format!("GET answered {said:?}"));
        }
        client.expect(&["PING"], "PONG").await?;
        let info = client.text(&["INFO"]).await?;
        if field(&info, "state") != Some("ended") || field(&info, "end_reason").is_none() {
            return Err(format!("INFO says {info:?}"));
        }
    }
    Ok(format!("after {} ms the others said {why:?}; PING and INFO work", slowest.as_millis()))
}
