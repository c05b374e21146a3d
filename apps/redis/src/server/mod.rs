//! The server: a replica's clients, and the path of their requests to the group.
//!
//! A connection reads bytes, in which requests are found. Its session hands them to the group in the connection's
//! order, and keeps the answers that are owed. Answers are encoded as they become known. Requests that concern only the
//! server are answered by it, whether or not the group lives.

mod auth;
mod auth_delay;
mod cancellation;
mod client_filter;
mod clients;
mod config_command;
mod connected_client;
mod connection;
mod counts;
mod describe;
mod expiry;
mod front_end;
mod info;
mod inline;
mod listen;
mod local;
mod mail;
mod memory;
mod memory_report;
mod monitor;
mod operations;
mod reception;
mod replica;
mod resp;
mod session;
mod settings;
mod subscriptions;
mod tls;
mod transaction;
mod view_changes;
mod waits;
mod wake;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use squall::{Config, Mode, Node, ReadError, ServeOptions, ServedGroup, Unavailable};
use tokio::net::TcpListener;

pub use self::{
    auth::{Password, PasswordError},
    front_end::FrontEnd,
    listen::{BACKLOG, ListenError, check_protected, listen},
    operations::ShutdownMode,
    subscriptions::Hub,
    tls::{ClientTls, ClientTlsError},
};
use self::{reception::Reception, replica::OwnReplica};
use crate::{Store, value::MAX_VALUE_BYTES};

/// The name of the replicated group, in configurations `[groups.kv]`.
pub const GROUP: &str = "kv";

/// The version of Redis whose protocol and texts are followed; clients look at it.
const VERSION: &str = "7.2.0";

/// The bytes that a replica reserves by default for each replica's large commands: enough for the longest value with
/// the longest reasonable key. They take memory only while there are such commands.
pub const BULK_RESERVE: usize = MAX_VALUE_BYTES + (16 << 20);

/// The most bytes of the answers that are kept for a front end until it has received them. So a request is carried out
/// once, even if the front end repeats it at another replica.
const KEPT_ANSWER_BYTES: u32 = 64 << 20;

/// The most requests that a front end has under way.
const FRONT_END_WINDOW: u32 = 4096;

/// The options with which a group serves [front ends](FrontEnd). `max_command_bytes` is its longest command, in bytes.
pub fn serve_options(max_command_bytes: usize) -> ServeOptions {
    ServeOptions {
        // One certificate, which all front ends may have, gets 72.
        max_sessions: 192,
        window: FRONT_END_WINDOW,
        reply_bytes: KEPT_ANSWER_BYTES,
        request_bytes: max_command_bytes,
        // A look's answers, which are some MiB unless one value is longer.
        unread_bytes: 2 * MAX_VALUE_BYTES,
        ..ServeOptions::default()
    }
}

/// The time after which the system asks a silent client whether it is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(300);

/// The pause between a replica's looks whether it still lacks the group's data.
const CATCHING_UP: Duration = Duration::from_millis(5);

/// The options of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address on which it listens.
    pub listen: SocketAddr,
    /// The most connections that wait to be accepted.
    pub backlog: u16,
    /// The most clients that it serves at once.
    pub max_clients: usize,
    /// The seconds without traffic after which a client is disconnected; 0 for never.
    pub timeout_seconds: u64,
    /// The password that clients must give before any other request.
    pub password: Option<Password>,
    /// The keys with which it talks TLS to its clients; None: it talks in the clear.
    pub tls: Option<ClientTls>,
    /// The bytes in use beyond which writes that need memory are refused; 0 for no limit. They are known if the
    /// program's allocator is the [`CountingAllocator`](crate::allocator::CountingAllocator); if it is not, the memory
    /// that the system has given to the process counts.
    pub max_memory: usize,
    /// The time in microseconds from which a request is in `SLOWLOG`; -1 for none.
    pub slower_than_us: i64,
    /// The most requests in `SLOWLOG`.
    pub slow_log_len: usize,
    /// The time in milliseconds from which an event is in `LATENCY`; 0 for none.
    pub latency_threshold_ms: u64,
}

/// Locks a mutex. No code panics while it holds one.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A running replica and its clients.
#[derive(Debug)]
pub struct Server {
    node: Node,
    group: ServedGroup<Store>,
    config: Config,
    reception: Arc<Reception>,
}

impl Server {
    /// A server of a node's group. `hub` is where the replica's store [publishes](Store::set_publisher).
    pub fn new(node: Node, group: ServedGroup<Store>, config: Config, hub: Arc<Hub>, options: ServerOptions) -> Server {
        let group_config = config.group(GROUP);
        let is_durable = group_config.mode == Mode::Durable;
        let reception = Arc::new(Reception::new(options, hub, group_config.max_message_bytes(), is_durable));
        Server { node, group, config, reception }
    }

    /// The node that the replica runs on.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.reception.listen
    }

    /// Waits while this replica lacks the group's data. A replica that joins a running group, or comes back to it with
    /// an older log, first gets the data from the others.
    pub async fn until_caught_up(&self) {
        let joining = ReadError::Unavailable { why: Unavailable::Joining };
        while self.group.read(|_| ()).await == Err(joining.clone()) {
            tokio::time::sleep(CATCHING_UP).await;
        }
    }

    /// Serves clients for ever, on a runtime of one thread.
    pub async fn serve(self: Arc<Server>, listener: TcpListener) {
        let clients = Arc::clone(&self.reception).serve(listener, OwnReplica(Arc::clone(&self)));
        tokio::join!(expiry::watch(&self), view_changes::watch(&self), cancellation::watch(&self), clients);
    }

    /// Waits until a client asks this server to end.
    pub async fn shutdown_asked(&self) -> ShutdownMode {
        self.reception.operations.shutdown.asked().await
    }

    /// Ends the clients' connections, each once its requests so far are answered, and leaves the group. Returns whether
    /// it has left within `limit`. It has not if no other replica can go on with the state, or too few of the others
    /// can be reached.
    pub async fn leave(self: Arc<Server>, limit: Duration) -> bool {
        self.reception.close(limit / 2).await;
        tokio::task::spawn_blocking(move || self.node.leave(limit)).await.unwrap_or(false)
    }
}
