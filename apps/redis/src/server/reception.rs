//! The part of a server that faces its clients: it accepts connections, and bounds their number and memory.

use std::{
    mem,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, TcpStream},
    time::timeout,
};

use super::{
    KEEP_ALIVE, ServerOptions,
    auth::Password,
    auth_delay::AuthDelays,
    clients::Clients,
    connected_client::ConnectedClient,
    connection,
    counts::Counts,
    listen,
    memory::Budget,
    operations::Operations,
    session::{Replica, Session, Write},
    settings::Settings,
    subscriptions::Hub,
    tls::ClientTls,
    wake::{Bell, Bells},
};
use crate::keyspace::WaitEnd;

/// The pause when the system gives no more sockets.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The time for a client's TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The pause between two looks whether all clients have gone.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// A replica whose futures may move between threads.
pub(super) trait Back:
    Replica<Write: Write + Send, Look: Send, Watch: Send, Info: Send, Timer: Send> + Clone + Send + Sync + 'static
{
}

impl<R> Back for R where
    R: Replica<Write: Write + Send, Look: Send, Watch: Send, Info: Send, Timer: Send> + Clone + Send + Sync + 'static
{
}

/// The clients of a server, and the state that it keeps for them.
#[derive(Debug)]
pub(super) struct Reception {
    pub(super) listen: SocketAddr,
    pub(super) backlog: u16,
    password: Option<Password>,
    auth_delays: AuthDelays,
    tls: Option<ClientTls>,
    pub(super) settings: Settings,
    pub(super) hub: Arc<Hub>,
    pub(super) since: Instant,
    pub(super) counts: Counts,
    pub(super) clients: Clients,
    pub(super) budget: Budget,
    pub(super) operations: Arc<Operations>,
    bells: Arc<Bells>,
    /// The longest command that the group takes, in bytes.
    max_command_bytes: usize,
}

impl Reception {
    /// The clients of a server, none yet. `is_durable` says whether its data is on disk.
    pub(super) fn new(options: ServerOptions, hub: Arc<Hub>, max_command_bytes: usize, is_durable: bool) -> Reception {
        let (operations, since) = (Arc::new(Operations::new(&options, is_durable)), Instant::now());
        hub.set_operations(&operations, since);
        Reception {
            operations,
            listen: options.listen,
            backlog: options.backlog,
            password: options.password,
            auth_delays: AuthDelays::default(),
            tls: options.tls,
            settings: Settings::new(options.max_clients, options.timeout_seconds),
            hub,
            since,
            counts: Counts::default(),
            clients: Clients::default(),
            budget: Budget::default(),
            bells: Arc::default(),
            max_command_bytes,
        }
    }

    /// Serves clients for ever, on a runtime of one thread. Their requests go to `back`.
    pub(super) async fn serve(self: Arc<Reception>, listener: TcpListener, back: impl Back) {
        // A task of its own, since it is woken most often.
        tokio::spawn(Arc::clone(&self.bells).run());
        listen::warn_of_short_backlog(self.backlog);
        let pauses = self.operations.pause.watch(|| self.clients.wake_all());
        tokio::join!(self.watch_clients(&back), pauses, Arc::clone(&self).accept(listener, &back));
    }

    async fn accept(self: Arc<Reception>, listener: TcpListener, back: &impl Back) {
        loop {
            match listener.accept().await {
                Ok((stream, peer)) => self.welcome(stream, peer, back),
                Err(error) => {
                    tracing::warn!(%error, "no client can be accepted for now");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn welcome(self: &Arc<Reception>, stream: TcpStream, peer: SocketAddr, back: &impl Back) {
        let id = self.counts.next_id();
        // The server's own address may stand for all addresses of the host.
        let here = stream.local_addr().unwrap_or(self.listen);
        let client = ConnectedClient::new(id, peer, here, Bell::new(&self.bells));
        if self.clients.count() >= self.settings.max_clients() {
            self.counts.rejected.fetch_add(1, Ordering::Relaxed);
            // Nothing was sent on this connection yet, so there is room. The client may be gone already.
            if self.tls.is_none() {
                let _ = stream.try_write(b"-ERR max number of clients reached\r\n");
            }
            return;
        }
        let guest = self.clients.enter(client);
        let (reception, back) = (Arc::clone(self), back.clone());
        tokio::spawn(async move {
            let _leaving = Leaving { reception: &reception, id };
            // If this fails, answers are only later.
            let _ = stream.set_nodelay(true);
            // If this fails, a client whose host is gone stays for ever.
            let _ = sockopt::set_socket_keepalive(&stream, true);
            let _ = sockopt::set_tcp_keepidle(&stream, KEEP_ALIVE);
            let Reception { counts, budget, hub, operations, max_command_bytes, .. } = &*reception;
            let session = Session::new(back, &guest, hub, operations, *max_command_bytes);
            let served = match &reception.tls {
                None => connection::serve(stream, session, &guest, counts, budget, *max_command_bytes).await,
                Some(tls) => match timeout(HANDSHAKE, tls.accept(stream, &guest)).await {
                    Ok(Ok(stream)) => {
                        connection::serve(stream, session, &guest, counts, budget, *max_command_bytes).await
                    }
                    Ok(Err(error)) => Err(error),
                    Err(late) => Err(late.into()),
                },
            };
            if let Err(error) = served {
                tracing::debug!(%error, %peer, "a connection broke");
            }
        });
    }

    async fn watch_clients(&self, back: &impl Back) {
        let mut sampled = Instant::now();
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let last = mem::replace(&mut sampled, Instant::now());
            self.counts.sample(sampled.duration_since(last));
            // Notes the peak.
            self.operations.memory.used();
            // A client whose requests are paused is not idle.
            let timeout = self.settings.timeout_seconds().filter(|_| !self.operations.pause.holds(true));
            self.clients.count_second(timeout);
            self.end_waits_outside(back);
            let Some(reason) = back.has_no_messages() else { continue };
            self.hub.waits.end_all(&WaitEnd::Lost);
            // A listener asks nothing, and would wait for ever without learning why.
            if let clients @ 1.. = self.clients.dismiss_listeners() {
                tracing::warn!(%reason, clients, "closing the subscribers' connections");
            }
        }
    }

    /// Ends the waits at a replica that its group has gone on without for a second: it may be long until it is back.
    fn end_waits_outside(&self, back: &impl Replica) {
        if self.hub.waits.are_any() {
            self.hub.waits.look_outside(back.is_outside());
        }
    }

    /// Ends all connections, each once its requests so far are answered. Waits until they are gone, for `limit` at
    /// most.
    pub(super) async fn close(&self, limit: Duration) {
        let all_gone = async {
            while self.clients.dismiss_all() > 0 {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
        };
        // A client that does not read for longer is cut off by the end of the process.
        let _ = timeout(limit, all_gone).await;
    }

    /// Whether clients must give a password.
    pub(super) fn wants_password(&self) -> bool {
        self.password.is_some()
    }

    /// The time for which a password of a client waits before it is looked at, or once more if it `has_waited`.
    pub(super) fn auth_wait(&self, client: &ConnectedClient, has_waited: bool) -> Option<Duration> {
        self.auth_delays.wait(client.peer(), has_waited, Instant::now())
    }

    /// Whether a user and a password are right. If not, the answer is held for the time that is returned, and the
    /// client has given so many wrong ones, this one included.
    pub(super) fn admits(
        &self,
        client: &ConnectedClient,
        failures: u32,
        user: &[u8],
        password: &[u8],
    ) -> Result<(), Duration> {
        let is_right = self.password.as_ref().is_none_or(|right| right.is(password));
        if is_right && user == b"default" {
            self.auth_delays.succeed(client.peer());
            return Ok(());
        }
        if !self.wants_password() {
            // There is nothing to guess.
            return Err(Duration::ZERO);
        }
        let denied = self.counts.denied.fetch_add(1, Ordering::Relaxed) + 1;
        // Logged ever more rarely, since a client may try any number.
        if denied.is_power_of_two() {
            tracing::warn!(denied, "a client gave a wrong password");
        }
        Err(self.auth_delays.fail(client.peer(), failures, Instant::now()))
    }
}

/// Removes a client from the list, however its task ends.
struct Leaving<'a> {
    reception: &'a Reception,
    id: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.reception.clients.leave(self.id);
    }
}
