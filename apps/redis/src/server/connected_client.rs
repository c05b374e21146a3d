//! A connection, as others see it.

use std::{
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use super::{lock, waits::WaitFlag, wake::Bell};
use crate::encode::Protocol;

/// A connection, as others see it.
#[derive(Debug)]
pub(super) struct ConnectedClient {
    pub(super) id: u64,
    pub(super) peer: SocketAddr,
    pub(super) here: SocketAddr,
    pub(super) since: Instant,
    pub(super) bell: Arc<Bell>,
    pub(super) details: Mutex<Details>,
    /// Whether its request waits for an element.
    pub(super) waits: WaitFlag,
    /// Whether something was read from it or sent to it since the second was last counted.
    pub(super) is_active: AtomicBool,
    pub(super) idle_seconds: AtomicU64,
    is_killed: AtomicBool,
    is_leaving: AtomicBool,
}

/// The facts that `CLIENT` shows of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Details {
    pub(super) name: String,
    pub(super) library: String,
    pub(super) library_version: String,
    pub(super) protocol: Protocol,
    pub(super) channels: usize,
    pub(super) patterns: usize,
    /// The number of requests in its transaction, if it has begun one.
    pub(super) queued: Option<usize>,
    /// The name of the last command.
    pub(super) command: &'static str,
    /// Whether it sees the requests of all clients.
    pub(super) is_monitor: bool,
}

impl ConnectedClient {
    pub(super) fn new(id: u64, peer: SocketAddr, here: SocketAddr, bell: Arc<Bell>) -> ConnectedClient {
        ConnectedClient {
            id,
            peer,
            here,
            since: Instant::now(),
            bell,
            details: Mutex::default(),
            waits: WaitFlag::default(),
            is_active: AtomicBool::new(true),
            idle_seconds: AtomicU64::new(0),
            is_killed: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
        }
    }

    pub(super) fn details(&self) -> MutexGuard<'_, Details> {
        lock(&self.details)
    }

    /// The client's address.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(super) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Notes that something was read from the client or sent to it.
    pub(super) fn touch(&self) {
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Notes the client's last command, and the number of requests in its transaction, if it has begun one.
    pub(super) fn note(&self, command: &'static str, queued: Option<usize>) {
        let mut details = self.details();
        (details.command, details.queued) = (command, queued);
    }

    /// Ends the connection at once.
    pub(super) fn kill(&self) {
        self.is_killed.store(true, Ordering::Release);
        self.bell.ring();
    }

    pub(super) fn is_killed(&self) -> bool {
        self.is_killed.load(Ordering::Acquire)
    }

    /// Ends the connection once all requests so far were answered.
    pub(super) fn leave(&self) {
        self.is_leaving.store(true, Ordering::Release);
        self.bell.ring();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving.load(Ordering::Acquire)
    }

    pub(super) fn is_listener(&self) -> bool {
        let details = self.details();
        details.channels + details.patterns > 0
    }

    /// Whether it may be silent for long.
    pub(super) fn is_sent_more(&self) -> bool {
        self.is_listener() || self.details().is_monitor
    }

    pub(super) fn line(&self) -> String {
        let Details { name, library, library_version, protocol, channels, patterns, queued, command, is_monitor } =
            self.details().clone();
        let mut line = format!("id={} addr={} laddr={} fd=0 name={name}", self.id, self.peer, self.here);
        let flags = match (channels + patterns > 0, queued) {
            _ if is_monitor => "O",
            _ if self.waits.is_set() => "b",
            (true, _) => "P",
            (false, Some(_)) => "x",
            (false, None) => "N",
        };
        let resp = if protocol == Protocol::Resp3 { 3 } else { 2 };
        let multi = queued.map_or(-1, |queued| queued as i64);
        // Writing to a string can't fail.
        let _ = write!(
            line,
            " age={} idle={} flags={flags} db=0 sub={channels} psub={patterns} ssub=0 multi={multi} cmd={command} \
             user=default redir=-1 resp={resp} lib-name={library} lib-ver={library_version}",
            self.since.elapsed().as_secs(),
            self.idle_seconds.load(Ordering::Relaxed),
        );
        line
    }
}
