//! All replicas as processes of this host, and the one that watches them.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    pin::Pin,
    process::{ExitStatus, Stdio},
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use squall_kv::server::{ListenError, listen};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, ChildStdin, Command},
    time::timeout,
};

use crate::{
    Args,
    network::{Network, NetworkError},
    replica::{MEMBERS, PASSWORD, READY, stop_asked},
};

/// How long a replica may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Why a cluster could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error("replica {id} would listen on port {base} + {id} - 1, which does not exist: give a lower --port")]
    NoPort { base: u16, id: u32 },
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("this program could not be started again as replica {id}: {error}")]
    Spawn { id: u32, error: io::Error },
    #[error("replica {id} did not come up ({status}): see above for what it said, or set RUST_LOG=info")]
    NotUp { id: u32, status: String },
    #[error("all replicas have died")]
    AllDied,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Runs a cluster until this process is asked to stop.
pub(crate) async fn run(args: &Args) -> Result<(), ClusterError> {
    let stop = stop_asked(false)?;
    tokio::pin!(stop);
    let started = tokio::select! {
        started = Cluster::start(args) => started,
        () = &mut stop => return Ok(()),
    };
    let mut cluster = started?;
    for replica in &cluster.replicas {
        say(&format!(
            "replica {} serves redis-cli -p {} (process {})",
            replica.id,
            replica.address.port(),
            replica.pid()
        ));
    }
    say("Ctrl-C stops them");
    let watched = tokio::select! {
        error = cluster.watch() => Err(error),
        () = &mut stop => Ok(()),
    };
    cluster.stop().await;
    watched
}

/// The replicas of one cluster. Those that still run when it is dropped are killed.
pub(crate) struct Cluster {
    replicas: Vec<ReplicaProcess>,
    /// What time limits are multiplied by.
    patience: u32,
    /// What they know of each other, whose files they may read again.
    _network: Option<Network>,
}

struct ReplicaProcess {
    id: u32,
    address: SocketAddr,
    child: Child,
    /// As long as it is open, the replica goes on. It also closes when this process is killed.
    lifeline: Option<ChildStdin>,
    ended: bool,
}

impl Cluster {
    /// Starts all replicas, and waits until they serve.
    pub(crate) async fn start(args: &Args) -> Result<Cluster, ClusterError> {
        let mut places = Vec::new();
        for id in MEMBERS {
            let address = args.address(id).ok_or(ClusterError::NoPort { base: args.port, id })?;
            // A replica would say the same, after its siblings were started in vain.
            drop(listen(address)?);
            places.push((id, address));
        }
        let name = fresh_name();
        let network = Network::make(&name, args.fabric, args.tls)?;
        let mut replicas = Vec::new();
        for (id, address) in places {
            replicas.push(
                spawn(args, &name, id, address, network.as_ref()).map_err(|error| ClusterError::Spawn { id, error })?,
            );
        }
        let mut cluster = Cluster { replicas, patience: args.patience, _network: network };
        // In any order: if one fails, the others wait for it in vain.
        let mut waits: Vec<_> = cluster.replicas.iter_mut().map(|replica| Box::pin(replica.until_ready())).collect();
        while !waits.is_empty() {
            first(&mut waits).await?;
        }
        drop(waits);
        Ok(cluster)
    }

    /// Where the replicas listen.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(|replica| replica.address).collect()
    }

    /// The replicas' processes, in the order of their nodes; 0 for one that has ended.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.replicas.iter().map(ReplicaProcess::pid).collect()
    }

    /// Says which replicas die, until all have.
    async fn watch(&mut self) -> ClusterError {
        loop {
            let living = self.replicas.iter_mut().filter(|replica| !replica.ended);
            let mut waits: Vec<_> = living.map(|replica| Box::pin(replica.until_ended())).collect();
            if waits.is_empty() {
                return ClusterError::AllDied;
            }
            let (id, status) = first(&mut waits).await;
            say(&format!(
                "replica {id} has died ({status}). The group has ended: the others still answer PING and INFO, and refuse to \
                 read and write. In this version a cluster is not rebuilt; start it again."
            ));
        }
    }

    /// Kills the replica with this place, as an accident would.
    pub(crate) async fn kill(&mut self, index: usize) -> io::Result<()> {
        let replica = &mut self.replicas[index];
        replica.ended = true;
        replica.child.kill().await
    }

    /// Asks all replicas to stop, and waits until they have. Returns the ids of those that did not end well.
    pub(crate) async fn stop(mut self) -> Vec<u32> {
        for replica in &mut self.replicas {
            replica.lifeline = None;
        }
        let mut failed = Vec::new();
        for replica in self.replicas.iter_mut().filter(|replica| !replica.ended) {
            match timeout(STOP_PATIENCE * self.patience, replica.child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => {
                    eprintln!("replicated_kv: replica {} ended badly ({status})", replica.id);
                    failed.push(replica.id);
                }
                Ok(Err(_)) | Err(_) => {
                    eprintln!("replicated_kv: replica {} does not stop, so it is killed", replica.id);
                    failed.push(replica.id);
                    // It is killed once more when it is dropped.
                    let _ = replica.child.kill().await;
                }
            }
        }
        failed
    }
}

impl ReplicaProcess {
    fn pid(&self) -> u32 {
        self.child.id().unwrap_or_default()
    }

    /// Waits for the word that the replica serves.
    async fn until_ready(&mut self) -> Result<(), ClusterError> {
        let output = self.child.stdout.take().expect("its output is piped");
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).await?;
        if line.trim_end() == READY {
            return Ok(());
        }
        let status = self.child.wait().await?;
        Err(ClusterError::NotUp { id: self.id, status: status.to_string() })
    }

    async fn until_ended(&mut self) -> (u32, String) {
        let status = self.child.wait().await;
        self.ended = true;
        (self.id, status.map_or_else(|error| error.to_string(), |status: ExitStatus| status.to_string()))
    }
}

fn spawn(
    args: &Args,
    cluster: &str,
    id: u32,
    address: SocketAddr,
    network: Option<&Network>,
) -> io::Result<ReplicaProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--supervised", "--id", &id.to_string()]);
    command.args(["--port", &args.port.to_string(), "--listen", &args.listen.to_string()]);
    command.args(["--max-clients", &args.max_clients.to_string()]);
    command.args(["--timeout", &args.timeout.to_string()]);
    match network {
        Some(network) => command.arg("--config").arg(network.file()),
        None => command.args(["--cluster", cluster]),
    };
    if let Some(file) = &args.password_file {
        command.arg("--password-file").arg(file);
    }
    if args.smoke {
        command.env_remove(PASSWORD);
    }
    // A group of its own, so that Ctrl-C reaches the supervisor alone, and one process decides.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let lifeline = child.stdin.take();
    Ok(ReplicaProcess { id, address, child, lifeline, ended: false })
}

/// Waits for the first of these to be ready, and removes it.
async fn first<F: Future>(waits: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|context| {
        for (index, wait) in waits.iter_mut().enumerate() {
            if let Poll::Ready(output) = wait.as_mut().poll(context) {
                drop(waits.swap_remove(index));
                return Poll::Ready(output);
            }
        }
        Poll::Pending
    })
    .await
}

/// A name that no other cluster of this host has.
fn fresh_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("kv-{}-{:x}", std::process::id(), now.as_nanos())
}

/// Tells the user. Without an output there is nobody to tell.
pub(crate) fn say(line: &str) {
    use io::Write;
    let _ = writeln!(io::stdout().lock(), "{line}");
}

/// The first of as many free ports in a row as there are replicas.
pub(crate) fn free_ports(args: &Args) -> Result<u16, String> {
    for _ in 0..100 {
        let any = listen(SocketAddr::new(args.listen, 0)).map_err(|error| error.to_string())?;
        let base = any.local_addr().map_err(|error| error.to_string())?.port();
        drop(any);
        let args = Args { port: base, ..args.clone() };
        if MEMBERS.iter().all(|&id| args.address(id).is_some_and(|address| listen(address).is_ok())) {
            return Ok(base);
        }
    }
    Err("no three free ports in a row were found".to_owned())
}
