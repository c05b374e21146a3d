//! `--smoke`: a whole cluster, checked through its sockets as a client sees it.

mod abuse;
mod data;
mod durable;
mod features;
mod group;

use std::{
    fmt::Display,
    net::SocketAddr,
    time::{Duration, Instant},
};

use squall_command::say;
use squall_redis::server::{BACKLOG, listen};

use crate::{
    args::{Args, Fabric},
    cluster::{Cluster, free_ports},
};

/// The number of clients that each replica admits: small, so that one too many is soon reached.
const MAX_CLIENTS: usize = 64;

/// The state that all checks share.
struct Bench {
    /// The addresses of the replicas, in the order of their nodes.
    replicas: Vec<SocketAddr>,
    /// The replicas' process ids.
    processes: Vec<u32>,
    seed: u64,
    /// The factor of all time limits.
    patience: u32,
}

/// A check's result: a sentence on what it did, or on what is wrong.
type Found = Result<String, String>;

/// Checks a cluster of its own. Every check is a line of the output; an error says how many failed.
pub(crate) async fn run(args: &Args) -> Result<(), String> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let port = free_ports(args)?;
    let args = Args { port, max_clients: MAX_CLIENTS, ..args.clone() };
    let begun = Instant::now();
    let mut cluster = Cluster::start(&args).await.map_err(|error| error.to_string())?;
    let mut report = SmokeReport { failed: 0 };
    let bench = Bench { replicas: cluster.addresses(), processes: cluster.processes(), seed, patience: args.patience };
    let ports: Vec<_> = bench.replicas.iter().map(|address| address.port().to_string()).collect();
    report.line(
        "start",
        begun,
        Ok(format!("three replicas over {} serve ports {}; seed {seed}", over(&args), ports.join(", "))),
    );

    macro_rules! check {
        ($name:literal, $check:expr) => {{
            let begun = Instant::now();
            let found = $check.await;
            report.line($name, begun, found);
        }};
    }
    check!("commands", data::commands(&bench));
    check!("error texts", data::error_texts(&bench));
    check!("RESP3", data::resp3(&bench));
    check!("linearizable reads", data::reads_see_writes_elsewhere(&bench));
    check!("pipelines", data::pipelines_keep_their_order(&bench));
    check!("counters", data::increments_add_up(&bench));
    check!("MSET and MGET", data::many_keys_change_at_once(&bench));
    check!("transactions", features::transactions(&bench));
    check!("messages", features::messages(&bench));
    check!("expiry", features::expiry(&bench));
    check!("random bytes", abuse::random_bytes(&bench));
    check!("protocol errors", abuse::protocol_errors(&bench));
    check!("large commands", abuse::large_commands(&bench));
    check!("slow client", abuse::a_client_that_does_not_read(&bench));
    check!("too many clients", abuse::too_many_clients(&bench, MAX_CLIENTS));
    check!("same state", group::replicas_hold_the_same(&bench));
    check!("a replica dies", group::the_others_go_on(&bench, &mut cluster));
    if args.durable.is_some() {
        check!("all are killed", durable::nothing_acknowledged_is_lost(&bench, &mut cluster, &args));
    }
    check!("stop", stop(&bench, cluster));
    match report.failed {
        0 => Ok(()),
        failed => Err(format!("{failed} checks failed; --seed {seed} makes the same random choices again")),
    }
}

/// The fabric that carries the replicas' messages, in words.
fn over(args: &Args) -> &'static str {
    match (args.fabric, args.tls) {
        (Fabric::Shm, _) => "shared memory",
        (Fabric::Tcp, false) => "TCP",
        (Fabric::Tcp, true) => "TCP with TLS",
        (Fabric::Verbs, false) => "RDMA",
        (Fabric::Verbs, true) => "RDMA with TLS",
    }
}

struct SmokeReport {
    failed: usize,
}

impl SmokeReport {
    fn line(&mut self, name: &str, begun: Instant, found: Found) {
        let took = begun.elapsed().as_millis();
        let (verdict, text): (_, &dyn Display) = match &found {
            Ok(done) => ("ok", done),
            Err(wrong) => {
                self.failed += 1;
                ("FAILED", wrong)
            }
        };
        say(format_args!("{verdict:6} {name:18} {text} ({took} ms)"));
    }
}

/// Stops the cluster. Its ports must be free at once.
async fn stop(bench: &Bench, cluster: Cluster) -> Found {
    let begun = Instant::now();
    let failed = cluster.stop().await;
    let took = begun.elapsed();
    if !failed.is_empty() {
        return Err(format!("replicas {failed:?} did not end well"));
    }
    if took > Duration::from_secs(2) * bench.patience {
        return Err(format!("it took {took:?}"));
    }
    for address in &bench.replicas {
        listen(*address, BACKLOG).map_err(|error| error.to_string())?;
    }
    Ok("all processes ended well, and their ports can be used again at once".to_owned())
}
