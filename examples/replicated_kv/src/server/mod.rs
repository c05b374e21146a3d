//! The server: a replica's clients, and how their requests reach the group.
//!
//! A connection reads bytes, in which requests are found; its session hands them to the group in the connection's order, and
//! keeps what is owed; answers are encoded as they become known. What concerns only the server is answered by it, whether
//! the group lives or not.

mod auth;
mod clients;
mod connection;
mod counts;
mod describe;
mod expiry;
mod info;
mod inline;
mod listen;
mod local;
mod memory;
mod replica;
mod resp;
mod session;
mod settings;
mod subscriptions;
mod transaction;
mod wake;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rustix::net::sockopt;
use squall::{Config, Group, Node};
use tokio::net::{TcpListener, TcpStream};

pub use self::{
    auth::{Password, PasswordError},
    listen::{ListenError, listen},
    subscriptions::Hub,
};
use self::{
    clients::{Client, Clients},
    counts::Counts,
    memory::Budget,
    replica::OwnReplica,
    session::Session,
    settings::Settings,
    wake::{Bell, Bells},
};
use crate::{Store, store::MAX_VALUE_BYTES};

/// The name of the replicated group, in configurations `[groups.kv]`.
pub const GROUP: &str = "kv";

/// What a replica reserves for each replica's large commands where no configuration says it, in bytes: the longest value with
/// the longest key that is reasonable. It takes memory only while there are such commands.
pub const BULK_RESERVE: usize = MAX_VALUE_BYTES + (16 << 20);

/// How long to wait when the system gives no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// After how long a silent client is asked by the system whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(300);

/// What may be chosen of a server.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens.
    pub listen: SocketAddr,
    /// How many clients it serves at once.
    pub max_clients: usize,
    /// After how many seconds in which nothing was sent a client is disconnected; 0 for never.
    pub timeout_seconds: u64,
    /// What clients must say before anything else.
    pub password: Option<Password>,
}

/// A running replica and its clients.
#[derive(Debug)]
pub struct Server {
    node: Node,
    group: Group<Store>,
    config: Config,
    listen: SocketAddr,
    password: Option<Password>,
    settings: Settings,
    hub: Arc<Hub>,
    since: Instant,
    counts: Counts,
    clients: Clients,
    budget: Budget,
    bells: Arc<Bells>,
}

impl Server {
    /// A server of a node's group. `hub` is where the replica's store [publishes](Store::set_publisher).
    pub fn new(node: Node, group: Group<Store>, config: Config, hub: Arc<Hub>, options: Options) -> Server {
        Server {
            node,
            group,
            config,
            listen: options.listen,
            password: options.password,
            settings: Settings::new(options.max_clients, options.timeout_seconds),
            hub,
            since: Instant::now(),
            counts: Counts::default(),
            clients: Clients::default(),
            budget: Budget::default(),
            bells: Arc::default(),
        }
    }

    /// The node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.listen
    }

    /// Serves clients for ever, on a runtime of one thread.
    pub async fn serve(self: Arc<Server>, listener: TcpListener) {
        // A task of its own, since it is woken most often.
        tokio::spawn(Arc::clone(&self.bells).run());
        tokio::join!(expiry::watch(&self), self.watch_clients(), Arc::clone(&self).accept(listener),);
    }

    async fn accept(self: Arc<Server>, listener: TcpListener) {
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
        let id = self.counts.next_id();
        let server = Arc::clone(self);
        // Where it listens may stand for all addresses of the host.
        let here = stream.local_addr().unwrap_or(self.listen);
        let client = Client::new(id, peer, here, Bell::new(&self.bells));
        if self.clients.count() >= self.settings.max_clients() {
            self.counts.rejected.fetch_add(1, Ordering::Relaxed);
            // Nothing was sent on this connection yet, so there is room; and who is turned away may be gone already.
            let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            return;
        }
        let guest = self.clients.enter(client);
        tokio::spawn(async move {
            let _leaving = Leaving { server: &server, id };
            // Without it answers are only later.
            let _ = stream.set_nodelay(true);
            // Without it a client whose host is gone stays for ever.
            let _ = sockopt::set_socket_keepalive(&stream, true);
            let _ = sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE);
            let max_bytes = server.max_command_bytes();
            let session = Session::new(OwnReplica(Arc::clone(&server)), &guest, &server.hub, max_bytes);
            let Server { counts, budget, .. } = &*server;
            if let Err(error) = connection::serve(stream, session, &guest, counts, budget, max_bytes).await {
                tracing::debug!(%error, %peer, "a connection broke");
            }
        });
    }

    async fn watch_clients(&self) {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            self.clients.count_second(self.settings.timeout_seconds());
            // Who listens asks nothing, and would wait for ever without learning why.
            if let Some(reason) = self.node.end_reason()
                && let clients @ 1.. = self.clients.dismiss_listeners()
            {
                tracing::warn!(%reason, clients, "closing the subscribers' connections: the group has ended");
            }
        }
    }

    /// The longest command that the group takes, in bytes.
    fn max_command_bytes(&self) -> usize {
        self.config.group(GROUP).max_message_bytes()
    }
}

/// Strikes a client off the list, however its task ends.
struct Leaving<'a> {
    server: &'a Server,
    id: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.server.clients.leave(self.id);
    }
}
