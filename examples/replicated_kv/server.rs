//! One replica: its node of the group, and the clients that it serves.

use std::{
    collections::BTreeMap,
    io::{self, ErrorKind},
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use squall::{Config, Group, Node, Read, ReadError, Submit, SubmitError};
use tokio::net::{TcpListener, TcpStream};

use crate::{
    command::{Client, Local},
    connection,
    info::{self, Facts},
    reply::Answer,
    session::{Replica, Session, Write},
    store::{Command, Query, Reply, Store},
};

/// The name of the replicated group, in configurations `[groups.kv]`.
pub(crate) const GROUP: &str = "kv";

/// How long to wait when the system gives no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why a replica can't listen. The sentence names the option that helps.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListenError {
    #[error(
        "port {} of {} is in use: stop the program that listens there (`ss -ltnp` names it), or choose other ports with --port",
        .0.port(), .0.ip()
    )]
    InUse(SocketAddr),
    #[error("{} is no address of this host: give one that is with --listen", .0.ip())]
    NoAddress(SocketAddr),
    #[error("this user may not listen on port {}: choose ports from 1024 on with --port", .0.port())]
    NotPermitted(SocketAddr),
    #[error("listening on {0} failed: {1}")]
    Other(SocketAddr, io::Error),
}

/// Begins to listen, also where an earlier replica's connections are not quite over.
pub(crate) fn listen(on: SocketAddr) -> Result<std::net::TcpListener, ListenError> {
    // On Unix the standard library sets SO_REUSEADDR.
    std::net::TcpListener::bind(on).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => ListenError::InUse(on),
        ErrorKind::AddrNotAvailable => ListenError::NoAddress(on),
        ErrorKind::PermissionDenied => ListenError::NotPermitted(on),
        _ => ListenError::Other(on, error),
    })
}

/// A running replica.
pub(crate) struct Server {
    pub(crate) node: Node,
    pub(crate) group: Group<Store>,
    pub(crate) config: Config,
    pub(crate) listen: SocketAddr,
    pub(crate) max_clients: usize,
    pub(crate) since: Instant,
    pub(crate) counts: Counts,
    clients: Mutex<BTreeMap<u64, ClientEntry>>,
}

/// What a replica counts since it started.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) connections: AtomicU64,
    pub(crate) rejected: AtomicU64,
}

#[derive(Debug)]
struct ClientEntry {
    peer: SocketAddr,
    name: String,
    since: Instant,
}

impl Server {
    pub(crate) fn new(
        node: Node,
        group: Group<Store>,
        config: Config,
        listen: SocketAddr,
        max_clients: usize,
    ) -> Server {
        Server {
            node,
            group,
            config,
            listen,
            max_clients,
            since: Instant::now(),
            counts: Counts::default(),
            clients: Mutex::default(),
        }
    }

    /// Accepts clients for ever.
    pub(crate) async fn accept(self: Arc<Server>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.welcome(stream, peer),
                Err(error) => {
                    tracing::warn!(%error, "no client can be accepted for now");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn welcome(self: &Arc<Server>, stream: TcpStream, peer: SocketAddr) {
        let id = self.counts.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let Some(guest) = Guest::enter(self, id, peer) else {
            self.counts.rejected.fetch_add(1, Ordering::Relaxed);
            // Nothing was sent on this connection yet, so there is room; and who is turned away may be gone already.
            let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            return;
        };
        tokio::spawn(async move {
            // Without it answers are only later.
            let _ = stream.set_nodelay(true);
            let session = Session::new(Arc::clone(&guest.server), id);
            if let Err(error) = connection::serve(stream, session, guest.server.max_command_bytes()).await {
                tracing::debug!(%error, %peer, "a connection broke");
            }
        });
    }

    /// The longest command that the group takes, in bytes.
    fn max_command_bytes(&self) -> usize {
        self.config.group(GROUP).ring_bytes / 4
    }

    /// How many clients are connected.
    pub(crate) fn client_count(&self) -> usize {
        self.clients().len()
    }

    fn clients(&self) -> MutexGuard<'_, BTreeMap<u64, ClientEntry>> {
        // Nothing panics while holding it.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self, id: u64, request: &Client) -> Answer {
        let mut clients = self.clients();
        let line = |(id, entry): (&u64, &ClientEntry)| {
            let ClientEntry { peer, name, since } = entry;
            format!("id={id} addr={peer} laddr={} name={name} age={} db=0\n", self.listen, since.elapsed().as_secs())
        };
        match request {
            Client::Id => Answer::Integer(id as i64),
            Client::List => Answer::Verbatim(clients.iter().map(line).collect()),
            Client::Ignored => Answer::Simple("OK"),
            Client::Info => Answer::Verbatim(clients.get_key_value(&id).map(line).unwrap_or_default()),
            Client::GetName => match clients.get(&id) {
                Some(entry) if !entry.name.is_empty() => Answer::bulk(&entry.name),
                _ => Answer::Null,
            },
            Client::SetName(name) => {
                if let Some(entry) = clients.get_mut(&id) {
                    entry.name.clone_from(name);
                }
                Answer::Simple("OK")
            }
        }
    }
}

/// A place among the clients, as long as the connection lasts.
struct Guest {
    server: Arc<Server>,
    id: u64,
}

impl Guest {
    fn enter(server: &Arc<Server>, id: u64, peer: SocketAddr) -> Option<Guest> {
        let mut clients = server.clients();
        if clients.len() >= server.max_clients {
            return None;
        }
        clients.insert(id, ClientEntry { peer, name: String::new(), since: Instant::now() });
        Some(Guest { server: Arc::clone(server), id })
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.server.clients().remove(&self.id);
    }
}

impl Replica for Arc<Server> {
    type Write = Writing;
    type Read = Reading;
    type Info = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn write(&self, command: &Command) -> Writing {
        Writing(self.group.submit(command))
    }

    fn read(&self, queries: Vec<Query>) -> Reading {
        Reading(self.group.read(move |store| queries.iter().map(|query| store.answer(query)).collect()))
    }

    fn info(&self, sections: Vec<String>) -> Self::Info {
        let server = Arc::clone(self);
        Box::pin(async move {
            // Of a group that has ended, the replica can't be seen any more.
            let store = server.group.peek(info::look).await.ok();
            let asked = Arc::clone(&server);
            // The engine answers this, and it may be busy.
            let status = tokio::task::spawn_blocking(move || asked.node.status()).await.ok().flatten();
            Answer::Verbatim(info::text(&sections, &Facts { server: &server, status, store }))
        })
    }

    fn local(&self, client: u64, request: &Local) -> Answer {
        match request {
            Local::Ping(None) => Answer::Simple("PONG"),
            Local::Ping(Some(text)) | Local::Echo(text) => Answer::bulk(text),
            Local::Select => Answer::Simple("OK"),
            Local::Client(request) => self.client(client, request),
            Local::Hello(hello) => {
                if let Some(name) = &hello.name {
                    self.client(client, &Client::SetName(name.clone()));
                }
                info::hello(hello.protocol.unwrap_or_default(), client)
            }
            Local::Reset => {
                self.client(client, &Client::SetName(String::new()));
                Answer::Simple("RESET")
            }
            Local::Describe(what) => info::describe(what),
            Local::ConfigGet(patterns) => info::settings(self, patterns),
            Local::Time => info::time(),
            Local::Info(_) | Local::Quit | Local::CrossProtocol => unreachable!("the session does this itself"),
        }
    }
}

/// A command on its way through the group.
pub(crate) struct Writing(Submit<Reply>);

impl Future for Writing {
    type Output = Result<Reply, Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|error| match error {
            SubmitError::Ended { reason, outcome } => {
                Answer::Error(format!("CLUSTERDOWN The group has ended: {reason}; {outcome}"))
            }
            SubmitError::TooLarge { bytes, max } => Answer::Error(format!(
                "ERR a command of {bytes} bytes can't be replicated: it may have {max} bytes, a quarter of a replica's ring \
                 (ring_bytes)"
            )),
            other => Answer::Error(format!("ERR {other}")),
        })
    }
}

impl Write for Writing {
    fn is_accepted(&self) -> bool {
        self.0.is_accepted()
    }
}

/// A look at this node's replica.
pub(crate) struct Reading(Read<Vec<Reply>>);

impl Future for Reading {
    type Output = Result<Vec<Reply>, Answer>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|error| match error {
            ReadError::Ended { reason } => Answer::Error(format!("CLUSTERDOWN The group has ended: {reason}")),
            other => Answer::Error(format!("ERR {other}")),
        })
    }
}
