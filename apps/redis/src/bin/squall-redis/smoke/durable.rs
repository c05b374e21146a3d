//! The check of the data on disk after every process was killed.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc::{self, UnboundedSender},
    time::timeout,
};

use super::{Bench, Found};
use crate::{
    args::Args,
    client::{RespClient, field},
    cluster::Cluster,
};

/// The number of writes that are answered before all replicas are killed, and again afterwards.
const WRITES: usize = 500;

/// Kills all replicas in the middle of writes, and starts them again. Every acknowledged increment and key must be
/// there, once.
pub(super) async fn nothing_acknowledged_is_lost(bench: &Bench, cluster: &mut Cluster, args: &Args) -> Found {
    let limit = Duration::from_secs(60) * bench.patience;
    // A replica may be down from the check before.
    cluster.start_again(args).await.map_err(|error| error.to_string())?;
    let (tell, mut told) = mpsc::unbounded_channel();
    let writers = bench.replicas.iter().enumerate();
    let writers: Vec<_> =
        writers.map(|(writer, &address)| tokio::spawn(write(address, writer, tell.clone()))).collect();
    drop(tell);
    for _ in 0..WRITES {
        timeout(limit, told.recv()).await.map_err(|_| "writes are not answered")?.ok_or("all writers have ended")?;
    }
    for replica in 0..bench.replicas.len() {
        cluster.kill(replica).await.map_err(|error| error.to_string())?;
    }
    let mut acknowledged = Vec::new();
    for writer in writers {
        acknowledged.push(writer.await.map_err(|error| error.to_string())?);
    }
    let begun = Instant::now();
    timeout(limit, cluster.start_again(args))
        .await
        .map_err(|_| format!("the replicas do not serve after {limit:?}"))?
        .map_err(|error| error.to_string())?;
    let outage = begun.elapsed();
    for (reader, &address) in bench.replicas.iter().enumerate() {
        let mut client = RespClient::connect(address).await?;
        for (writer, &acknowledged) in acknowledged.iter().enumerate() {
            let counted = client.text(&["GET", &format!("durable:{writer}")]).await?;
            let held: usize = counted.parse().unwrap_or(0);
            // The outcome of the last increment is not known.
            if !(acknowledged..=acknowledged + 1).contains(&held) {
                return Err(format!("{acknowledged} increments were acknowledged, replica {} has {held}", reader + 1));
            }
            if acknowledged > 0 {
                let key = format!("durable:{writer}:{acknowledged}");
                client.expect(&["GET", &key], &acknowledged.to_string()).await?;
            }
        }
        let info = client.text(&["INFO", "persistence"]).await?;
        if field(&info, "aof_enabled") != Some("1") {
            return Err(format!("INFO says nothing of the log: {info:?}"));
        }
    }
    let total: usize = acknowledged.iter().sum();
    Ok(format!("{total} acknowledged increments are there, each once; all serve again after {} ms", outage.as_millis()))
}

/// Counts at one replica, and sets a key to each count, until the replica dies. Returns the number of increments whose
/// key was acknowledged as well.
async fn write(address: SocketAddr, writer: usize, tell: UnboundedSender<()>) -> usize {
    let mut acknowledged = 0;
    let Ok(mut client) = RespClient::connect(address).await else { return acknowledged };
    loop {
        let next = (acknowledged + 1).to_string();
        let counter = format!("durable:{writer}");
        if client.expect(&["SET", &format!("{counter}:{next}"), &next], "OK").await.is_err()
            || client.expect(&["INCR", &counter], &next).await.is_err()
        {
            return acknowledged;
        }
        acknowledged += 1;
        // The receiver may have stopped counting.
        let _ = tell.send(());
    }
}
