//! One replica in this process, from its configuration to its end.

use std::{
    io::{self, Read, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use squall::{Config, ConfigError, Mode, Node, NodeId, StartError, config::GroupBuilder};
use squall_redis::{
    Store,
    server::{BULK_RESERVE, GROUP, Hub, ListenError, Server, ShutdownMode, listen, serve_options},
};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
};

use crate::args::{Args, CLUSTER, NoPort, ProtectionError};

/// The time that a replica that is stopped may take to leave the group.
const LEAVE_PATIENCE: Duration = Duration::from_secs(4);

/// The bytes of the log before the newest state on disk that are kept. A replica that lacks more gets the state.
const RETAIN_BYTES: usize = 1 << 30;

/// The reason why a replica could not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(
        "[groups.{GROUP}] has mode = \"unordered\", in which replicas differ: give \"ordered\" or \"durable\", or leave it out"
    )]
    Unordered,
    #[error(transparent)]
    NoPort(#[from] NoPort),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error(transparent)]
    Protection(#[from] ProtectionError),
    #[error("replica {id} did not start: {error}")]
    Start { id: u32, error: StartError },
    #[error("replica {id} failed: {error}")]
    Io { id: u32, error: io::Error },
}

/// Runs the replica of node `id` until it is asked to stop.
pub(crate) async fn run(args: &Args, id: u32) -> Result<(), ReplicaError> {
    let io = |error| ReplicaError::Io { id, error };
    let stop = stop_asked(args.supervised).map_err(io)?;
    let hangup = signal(SignalKind::hangup()).map_err(io)?;
    let config = configure(args, id)?;
    if config.group(GROUP).mode == Mode::Unordered {
        return Err(ReplicaError::Unordered);
    }
    let address = args.address(id)?;
    let protection = args.limits.protection.load(address)?;
    // Before the group is formed, so that a port in use is reported at once. Clients that come early wait.
    let listener = listen(address, args.limits.tcp_backlog)?;
    listener.set_nonblocking(true).map_err(io)?;
    let listener = TcpListener::from_std(listener).map_err(io)?;

    let mut builder = Node::builder(config.clone());
    let hub = Arc::new(Hub::default());
    let mut store = Store::at(NodeId(id));
    store.set_publisher(Arc::clone(&hub) as _);
    let group = builder.serve(GROUP, store, serve_options(config.group(GROUP).max_message_bytes()));
    let starting = tokio::task::spawn_blocking(move || builder.start());
    tokio::pin!(stop);
    let node = tokio::select! {
        started = starting => started.map_err(|error| io(error.into()))?.map_err(|error| ReplicaError::Start { id, error })?,
        () = &mut stop => return Ok(()),
    };
    let options = args.limits.server(address, (args.max_clients, args.timeout), protection);
    let server = Arc::new(Server::new(node, group, config, hub, options));
    tokio::spawn(reload_on_hangup(Arc::clone(&server), hangup));
    // Clients are answered from now on. While the replica lacks the group's data, the answer is that it is joining.
    let announced = async {
        server.until_caught_up().await;
        match announce(args, &server) {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let leaves = tokio::select! {
        error = announced => return Err(io(error)),
        () = Arc::clone(&server).serve(listener) => false,
        // A supervisor stops all replicas at once, so no other would go on.
        () = &mut stop => !args.supervised,
        mode = server.shutdown_asked() => {
            tracing::info!(?mode, "a client asked this replica to stop");
            mode == ShutdownMode::Leave
        }
    };
    if leaves && server.node().view().members.len() > 1 && !server.leave(LEAVE_PATIENCE).await {
        tracing::warn!("the others did not let this replica leave: they must find out that it is gone");
    }
    Ok(())
}

/// Reads the node's keys again at each SIGHUP.
async fn reload_on_hangup(server: Arc<Server>, mut hangup: Signal) {
    while hangup.recv().await.is_some() {
        let reloading = Arc::clone(&server);
        // The disk of the keys may hang.
        let reloaded = tokio::task::spawn_blocking(move || reloading.node().reload_keys()).await;
        if let Ok(Err(error)) = reloaded {
            tracing::warn!(%error, "the keys were not read again");
        }
    }
}

fn configure(args: &Args, id: u32) -> Result<Config, ReplicaError> {
    let Some(path) = &args.config else {
        let cluster = args.cluster.as_deref().unwrap_or(CLUSTER);
        let mut config = Config::builder(cluster, id);
        if args.join.is_empty() {
            config = config.members(args.members());
        } else {
            config = config.join(&args.join);
        }
        if let Some(directory) = &args.storage {
            config = config.storage(directory);
        }
        if let Some(directory) = &args.durable {
            config = config.storage(directory.join(id.to_string()));
        }
        let options = |group: &mut GroupBuilder<'_>| {
            group.bulk_reserve(BULK_RESERVE);
            if args.durable.is_some() {
                group.mode(Mode::Durable).retain(RETAIN_BYTES);
            }
        };
        return Ok(config.group(GROUP, options).build()?);
    };
    // The file says which nodes to ask if this node is not in its list.
    Ok(Config::load_as(path, id)?)
}

fn announce(args: &Args, server: &Server) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if args.supervised {
        writeln!(out, "{READY}")?;
    } else {
        let port = server.address().port();
        writeln!(out, "replica {} serves redis-cli -p {port}; Ctrl-C stops it", server.node().id().0)?;
    }
    out.flush()
}

/// The word by which a supervised replica says that it serves.
pub(crate) const READY: &str = "ready";

/// Resolves when this process is asked to stop: by Ctrl-C, by SIGTERM, or, if it is supervised, by the end of its
/// input. The input ends however the supervisor ends.
pub(crate) fn stop_asked(supervised: bool) -> io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (say, over) = oneshot::channel();
    let mut say = Some(say);
    if supervised {
        let say = say.take();
        thread::Builder::new().name("lifeline".into()).spawn(move || {
            let mut input = io::stdin().lock();
            while input.read(&mut [0; 64]).is_ok_and(|bytes| bytes > 0) {}
            // Without a receiver, the process is about to end.
            let _ = say.map(|say| say.send(()));
        })?;
    }
    Ok(async move {
        // Unsupervised, it is never used. It is not dropped either, which would resolve the receiver.
        let _unused = say;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = over => {}
        }
    })
}
