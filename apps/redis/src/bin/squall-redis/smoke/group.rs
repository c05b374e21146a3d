//! Checks of the group: replicas agree, and go on without one of them.

use std::time::{Duration, Instant};

use super::{Bench, Found};
use crate::{
    agreement::agreement,
    client::{RespClient, field},
    cluster::Cluster,
};

/// Checks that all replicas have applied the same commands, and hold the same.
pub(super) async fn replicas_hold_the_same(bench: &Bench) -> Found {
    RespClient::connect(bench.replicas[0]).await?.expect(&["SET", "last", "write"], "OK").await?;
    agreement(&bench.replicas, Duration::from_secs(5) * bench.patience).await
}

/// The death of a replica makes the others' clients wait for a moment, and go on. No request is refused, and no
/// answered write is lost.
pub(super) async fn the_others_go_on(bench: &Bench, cluster: &mut Cluster) -> Found {
    let mut clients = RespClient::connect_to_all(&bench.replicas[..2]).await?;
    cluster.kill(2).await.map_err(|error| error.to_string())?;
    let begun = Instant::now();
    let limit = Duration::from_secs(5) * bench.patience;
    let mut slowest = Duration::ZERO;
    let mut writes = 0u32;
    loop {
        let client = &mut clients[writes as usize % 2];
        let asked = Instant::now();
        writes += 1;
        client.expect(&["INCR", "after"], &writes.to_string()).await?;
        slowest = slowest.max(asked.elapsed());
        let info = client.text(&["INFO", "squall"]).await?;
        if field(&info, "members") == Some("2") && writes > 10 {
            break;
        }
        if begun.elapsed() > limit {
            return Err(format!("after {limit:?} the view still is {:?}", field(&info, "view")));
        }
    }
    Ok(format!("the other two go on without it; the longest of {writes} writes took {} ms", slowest.as_millis()))
}
