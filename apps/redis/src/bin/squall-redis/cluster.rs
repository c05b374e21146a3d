//! All replicas as processes of this host, and the supervisor that watches them.

use std::{
    fs,
    future::poll_fn,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    process::{ExitStatus, Stdio},
    task::Poll,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use squall_command::say;
use squall_redis::server::{BACKLOG, ListenError, listen};
use tokio::{
    io::AsyncReadExt,
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, sleep_until, timeout},
};

use crate::{
    args::{Args, Fabric, NoPort, PASSWORD, ProtectionError},
    network::{ClusterNetwork, NetworkError, write_new},
    replica::{READY, stop_asked},
};

/// The time that a replica may take to stop before it is killed.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// The pause before a replica that has died is started again: this at first, up to the most.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
const MOST_RESTART_PAUSE: Duration = Duration::from_secs(10);

/// The reason why a cluster could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClusterError {
    #[error(transparent)]
    NoPort(#[from] NoPort),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("the directory {} could not be used: {error}", directory.display())]
    Directory { directory: PathBuf, error: io::Error },
    #[error("this program could not be started again as replica {id}: {error}")]
    Spawn { id: u32, error: io::Error },
    #[error("replica {id} did not come up ({status}): see above for what it said, or set RUST_LOG=info")]
    NotUp { id: u32, status: String },
    #[error(
        "all replicas have died, and the data with them: start the cluster again (--durable DIR keeps the data on disk)"
    )]
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
        replica.announce();
    }
    say(format_args!("their cluster is {:?}; Ctrl-C stops them", cluster.name));
    let watched = tokio::select! {
        watched = cluster.watch(args) => watched,
        () = &mut stop => Ok(()),
    };
    cluster.stop().await;
    watched
}

/// The replicas of one cluster. Replicas that still run when it is dropped are killed.
pub(crate) struct Cluster {
    name: String,
    replicas: Vec<ReplicaProcess>,
    /// The factor of all time limits.
    patience: u32,
    /// The replicas' configuration and keys, in files that a restarted replica reads again.
    network: ClusterNetwork,
}

struct ReplicaProcess {
    id: u32,
    address: SocketAddr,
    child: Child,
    /// The replica runs as long as this is open. It also closes when this process is killed.
    lifeline: Option<ChildStdin>,
    state: ReplicaState,
    /// The replica's standard output, and the bytes read from it so far.
    output: ChildStdout,
    said: Vec<u8>,
    /// The pause before the next restart, and the time of that restart.
    pause: Duration,
    due: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplicaState {
    Starting,
    Serving,
    Ended,
    /// It was asked to end, so that it is not started again.
    ShutDown,
}

/// A change in a replica's state.
enum ReplicaChange {
    Serves(usize),
    Died(usize, String),
    /// It has ended well, as SHUTDOWN or a signal makes it do.
    ShutDown(usize),
    /// The time to start the replica again.
    Due(usize),
}

impl Cluster {
    /// Starts all replicas, and waits until they serve.
    pub(crate) async fn start(args: &Args) -> Result<Cluster, ClusterError> {
        let mut places = Vec::new();
        for id in args.members() {
            let address = args.address(id)?;
            // Checked here, before the other replicas are started in vain: a replica would fail in the same way.
            args.limits.protection.load(address)?;
            drop(listen(address, args.limits.tcp_backlog)?);
            places.push((id, address));
        }
        let name = match &args.durable {
            Some(directory) => kept_name(directory, args.cluster.as_deref())
                .map_err(|error| ClusterError::Directory { directory: directory.clone(), error })?,
            None => args.cluster.clone().unwrap_or_else(fresh_name),
        };
        let network = ClusterNetwork::make(&name, args)?;
        let mut replicas = Vec::new();
        for (id, address) in places {
            replicas
                .push(spawn(args, &name, id, address, &network).map_err(|error| ClusterError::Spawn { id, error })?);
        }
        let mut cluster = Cluster { replicas, patience: args.patience, network, name };
        cluster.until_ready().await?;
        Ok(cluster)
    }

    /// Waits until the replicas serve that are starting, in any order: if one fails, the others wait for it in vain.
    async fn until_ready(&mut self) -> Result<(), ClusterError> {
        let starting = self.replicas.iter_mut().filter(|replica| replica.state == ReplicaState::Starting);
        let mut waits: Vec<_> = starting.map(|replica| Box::pin(replica.until_ready())).collect();
        while !waits.is_empty() {
            first(&mut waits).await?;
        }
        Ok(())
    }

    /// The addresses at which the replicas listen.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(|replica| replica.address).collect()
    }

    /// The replicas' process ids, in the order of their nodes; 0 for one that has ended.
    pub(crate) fn processes(&self) -> Vec<u32> {
        self.replicas.iter().map(ReplicaProcess::pid).collect()
    }

    /// Starts replicas again that die, and reports it, until no replica is left that has the data, or all were shut
    /// down.
    async fn watch(&mut self, args: &Args) -> Result<(), ClusterError> {
        loop {
            let has = |state| self.replicas.iter().any(|replica| replica.state == state);
            let is_starting_again = has(ReplicaState::Ended) || has(ReplicaState::Starting);
            match (has(ReplicaState::Serving), is_starting_again) {
                (true, _) => {}
                (false, false) => return Ok(()),
                (false, true) if args.durable.is_some() => {}
                (false, true) => return Err(ClusterError::AllDied),
            }
            let replicas = self.replicas.iter_mut().enumerate();
            let mut waits: Vec<_> = replicas.map(|(index, replica)| Box::pin(replica.news(index))).collect();
            let news = first(&mut waits).await;
            drop(waits);
            match news {
                ReplicaChange::Serves(index) => {
                    let replica = &mut self.replicas[index];
                    (replica.state, replica.pause) = (ReplicaState::Serving, RESTART_PAUSE);
                    replica.announce();
                }
                ReplicaChange::Died(index, status) => {
                    let replica = &mut self.replicas[index];
                    replica.state = ReplicaState::Ended;
                    say(format_args!(
                        "replica {} has died ({status}); it is started again in {} ms",
                        replica.id,
                        replica.pause.as_millis()
                    ));
                }
                ReplicaChange::ShutDown(index) => {
                    let replica = &mut self.replicas[index];
                    replica.state = ReplicaState::ShutDown;
                    say(format_args!("replica {} was stopped, and is not started again", replica.id));
                }
                ReplicaChange::Due(index) => self.restart(args, index)?,
            }
        }
    }

    fn restart(&mut self, args: &Args, index: usize) -> Result<(), ClusterError> {
        let ReplicaProcess { id, address, pause, .. } = self.replicas[index];
        let spawned = spawn(args, &self.name, id, address, &self.network);
        let spawned = spawned.map_err(|error| ClusterError::Spawn { id, error })?;
        self.replicas[index] = ReplicaProcess { pause: (2 * pause).min(MOST_RESTART_PAUSE), ..spawned };
        Ok(())
    }

    /// Kills the replica at this place, as an accident would.
    pub(crate) async fn kill(&mut self, index: usize) -> io::Result<()> {
        let replica = &mut self.replicas[index];
        replica.state = ReplicaState::Ended;
        replica.child.kill().await
    }

    /// Starts all replicas again that were killed, and waits until they serve.
    pub(crate) async fn start_again(&mut self, args: &Args) -> Result<(), ClusterError> {
        for index in 0..self.replicas.len() {
            if self.replicas[index].state == ReplicaState::Ended {
                self.restart(args, index)?;
            }
        }
        self.until_ready().await
    }

    /// Asks all replicas to stop, and waits until they have. Returns the ids of the replicas that did not end well.
    pub(crate) async fn stop(mut self) -> Vec<u32> {
        for replica in &mut self.replicas {
            replica.lifeline = None;
        }
        let mut failed = Vec::new();
        for replica in self.replicas.iter_mut().filter(|replica| replica.runs()) {
            match timeout(STOP_PATIENCE * self.patience, replica.child.wait()).await {
                Ok(Ok(status)) if status.success() => {}
                Ok(Ok(status)) => {
                    eprintln!("squall-redis: replica {} ended badly ({status})", replica.id);
                    failed.push(replica.id);
                }
                Ok(Err(_)) | Err(_) => {
                    eprintln!("squall-redis: replica {} does not stop, so it is killed", replica.id);
                    failed.push(replica.id);
                    // Dropping the process kills it once more.
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

    fn runs(&self) -> bool {
        matches!(self.state, ReplicaState::Starting | ReplicaState::Serving)
    }

    fn announce(&self) {
        say(format_args!("replica {} serves redis-cli -p {} (process {})", self.id, self.address.port(), self.pid()));
    }

    /// Waits until the replica says that it serves.
    async fn until_ready(&mut self) -> Result<(), ClusterError> {
        if self.says_ready().await? {
            self.state = ReplicaState::Serving;
            return Ok(());
        }
        let status = self.child.wait().await?;
        Err(ClusterError::NotUp { id: self.id, status: status.to_string() })
    }

    /// Whether the replica's first line says that it serves; the replica may also end first. The future may be dropped,
    /// and the call repeated.
    async fn says_ready(&mut self) -> io::Result<bool> {
        while !self.said.ends_with(b"\n") && self.output.read_buf(&mut self.said).await? > 0 {}
        Ok(self.said.trim_ascii_end() == READY.as_bytes())
    }

    /// The replica's next change of state. The future may be dropped, and the call repeated.
    async fn news(&mut self, index: usize) -> ReplicaChange {
        if self.state == ReplicaState::Starting && self.says_ready().await.unwrap_or(false) {
            return ReplicaChange::Serves(index);
        }
        match self.state {
            ReplicaState::Starting | ReplicaState::Serving => {
                let status = self.child.wait().await;
                if status.as_ref().is_ok_and(ExitStatus::success) {
                    return ReplicaChange::ShutDown(index);
                }
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                ReplicaChange::Died(index, status)
            }
            ReplicaState::ShutDown => std::future::pending().await,
            ReplicaState::Ended => {
                let due = *self.due.get_or_insert_with(|| Instant::now() + self.pause);
                sleep_until(due).await;
                ReplicaChange::Due(index)
            }
        }
    }
}

fn spawn(
    args: &Args,
    cluster: &str,
    id: u32,
    address: SocketAddr,
    network: &ClusterNetwork,
) -> io::Result<ReplicaProcess> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--supervised", "--id", &id.to_string()]);
    command.args(["--port", &args.port.to_string(), "--listen", &args.listen.to_string()]);
    command.args(["--max-clients", &args.max_clients.to_string()]);
    command.args(["--timeout", &args.timeout.to_string()]);
    command.args(args.limits.options());
    command.args(network.options(cluster, id));
    if args.fabric == Fabric::Shm {
        command.args(["--replicas", &args.replicas.to_string()]);
    }
    if args.smoke {
        command.env_remove(PASSWORD);
    }
    // A process group of its own, so that Ctrl-C reaches the supervisor alone, which then decides.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let lifeline = child.stdin.take();
    let output = child.stdout.take().expect("its output is piped");
    let (said, pause) = (Vec::new(), RESTART_PAUSE);
    Ok(ReplicaProcess { id, address, child, lifeline, state: ReplicaState::Starting, output, said, pause, due: None })
}

/// Waits for the first of these futures to be ready, and removes it.
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

/// The given name of the cluster whose data is in a directory, or else the one in a file there. A directory without
/// such a file gets one, with the given name or a fresh one.
fn kept_name(directory: &Path, given: Option<&str>) -> io::Result<String> {
    let file = directory.join("cluster");
    let kept = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let name = given.map_or_else(fresh_name, str::to_owned);
            fs::create_dir_all(directory)?;
            write_new(&file, &name)?;
            name
        }
        kept => kept?.trim().to_owned(),
    };
    // A name that is not the directory's is refused by the replicas, which give the reason.
    Ok(given.map_or(kept, str::to_owned))
}

/// The first of a row of free ports, as many as there are replicas.
pub(crate) fn free_ports(args: &Args) -> Result<u16, String> {
    for _ in 0..100 {
        let any = listen(SocketAddr::new(args.listen, 0), BACKLOG).map_err(|error| error.to_string())?;
        let base = any.local_addr().map_err(|error| error.to_string())?.port();
        drop(any);
        let args = Args { port: base, ..args.clone() };
        if args.members().all(|id| args.address(id).is_ok_and(|address| listen(address, BACKLOG).is_ok())) {
            return Ok(base);
        }
    }
    Err(format!("no {} free ports in a row were found", args.replicas))
}
