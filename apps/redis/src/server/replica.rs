//! The group, as sessions use it.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use squall::{Mode, Read, ReadError, Served, Submit, SubmitError, Unavailable};
use tokio::{
    task::JoinHandle,
    time::{Sleep, sleep},
};

use super::{
    GROUP, Server,
    connected_client::ConnectedClient,
    connection::too_large,
    info::{self, Facts, Membership},
    local,
    session::{Look, Replica, ServerReport, Write},
};
use crate::{
    Error, Reply, Store,
    command::Spec,
    message::{StoreCommand, WatchedKey},
};

/// The system's clock, in milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    since_1970().as_millis() as u64
}

/// The system's clock, in microseconds since 1970.
pub(super) fn now_us() -> u64 {
    since_1970().as_micros() as u64
}

fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// This node's replica.
#[derive(Clone)]
pub(super) struct OwnReplica(pub(super) Arc<Server>);

impl Replica for OwnReplica {
    type Write = Writing;
    type Look = Reading<Look>;
    type Watch = Reading<Vec<WatchedKey>>;
    type Info = Pin<Box<dyn Future<Output = Reply> + Send>>;
    type Timer = Pin<Box<Sleep>>;

    fn now_ms(&self) -> u64 {
        now_ms()
    }

    fn now_us(&self) -> u64 {
        now_us()
    }

    fn uptime(&self) -> Duration {
        self.0.reception.since.elapsed()
    }

    fn timer(&self, after: Duration) -> Pin<Box<Sleep>> {
        Box::pin(sleep(after))
    }

    fn is_durable(&self) -> bool {
        self.0.config.group(GROUP).mode == Mode::Durable
    }

    fn write(&self, command: &StoreCommand) -> Writing {
        Writing::Submitted(self.0.group.submit(command))
    }

    fn write_large(&self, command: StoreCommand) -> Writing {
        let group = self.0.group.clone();
        Writing::Copying(tokio::task::spawn_blocking(move || group.submit(&command)))
    }

    fn look(&self, mut look: Look) -> Reading<Look> {
        Reading(self.0.group.read(move |store: &Served<Store>| {
            look.answer(store);
            look
        }))
    }

    fn watch(&self, keys: Vec<Vec<u8>>, clock_ms: u64) -> Reading<Vec<WatchedKey>> {
        Reading(
            self.0.group.read(move |store: &Served<Store>| keys.iter().map(|key| store.watch(key, clock_ms)).collect()),
        )
    }

    fn info(&self, report: ServerReport) -> Self::Info {
        let server = Arc::clone(&self.0);
        Box::pin(async move {
            let now_ms = now_ms();
            // After the group's end, the store stays as it was. A replica that broke can't be read.
            let store = server.group.peek(move |store: &Served<Store>| info::look(store, now_ms)).await.ok();
            let asked = Arc::clone(&server);
            // The engine answers this, and it may be busy.
            let status = tokio::task::spawn_blocking(move || asked.node.status()).await.ok().flatten();
            let member = Some(Membership { server: &server, status, store, unserved: unserved(&server) });
            info::answer(&report, &Facts { reception: &server.reception, member })
        })
    }

    fn local(&self, client: &ConnectedClient, spec: &Spec, words: &[&[u8]]) -> Reply {
        local::answer(&self.0.reception, client, spec, words).into()
    }

    fn is_outside(&self) -> bool {
        let why = unserved(&self.0);
        matches!(why, Some(ReadError::Unavailable { why: Unavailable::Dropped { .. } | Unavailable::Joining }))
    }

    fn others(&self) -> usize {
        self.0.node.view().members.len() - 1
    }

    fn has_no_messages(&self) -> Option<Error> {
        let reason = self.0.node.end_reason()?;
        Some(Error::new(format!("CLUSTERDOWN the group has ended: {reason}")))
    }

    fn wants_password(&self) -> bool {
        self.0.reception.wants_password()
    }

    fn auth_wait(&self, client: &ConnectedClient, has_waited: bool) -> Option<Duration> {
        self.0.reception.auth_wait(client, has_waited)
    }

    fn admits(&self, client: &ConnectedClient, failures: u32, user: &[u8], password: &[u8]) -> Result<(), Duration> {
        self.0.reception.admits(client, failures, user, password)
    }
}

/// The reason why a replica can't serve its group now, if it can't.
fn unserved(server: &Server) -> Option<ReadError> {
    let mut read = server.group.read(|_: &Served<Store>| ());
    // While the group is served here, the read is at most pending.
    match Pin::new(&mut read).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Err(error)) => Some(error),
        Poll::Ready(Ok(())) | Poll::Pending => None,
    }
}

/// A command on its way through the group.
pub(super) enum Writing {
    Submitted(Submit<Reply>),
    /// A thread copies the command and hands it over.
    Copying(JoinHandle<Submit<Reply>>),
}

impl Future for Writing {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Writing::Copying(copying) = &mut *self {
            match std::task::ready!(Pin::new(copying).poll(context)) {
                Ok(submit) => *self = Writing::Submitted(submit),
                Err(error) => {
                    return Poll::Ready(Err(Error::new(format!("ERR the command was not handed over: {error}"))));
                }
            }
        }
        let Writing::Submitted(submit) = &mut *self else { unreachable!("it was just submitted") };
        Pin::new(submit).poll(context).map_err(|error| refused(&error))
    }
}

/// The error for a command that the group did not answer. Its code says whether the command may have been carried out.
fn refused(error: &SubmitError) -> Error {
    match error {
        SubmitError::TooLarge { bytes, max } => too_large(*bytes, *max),
        SubmitError::Ended { .. } | SubmitError::Unavailable { .. } | SubmitError::ViewEnded { .. } => {
            let code = if error.is_not_applied() { "CLUSTERDOWN" } else { "UNKNOWN" };
            Error::new(format!("{code} {error}"))
        }
        other => Error::new(format!("ERR {other}")),
    }
}

impl Write for Writing {
    fn is_accepted(&self) -> bool {
        matches!(self, Writing::Submitted(submit) if submit.is_accepted())
    }
}

/// A look at this node's replica.
pub(super) struct Reading<T>(Read<T>);

impl<T> Future for Reading<T>
where
    Read<T>: Future<Output = Result<T, ReadError>> + Unpin,
{
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|error| match error {
            ReadError::Ended { .. } | ReadError::Unavailable { .. } => Error::new(format!("CLUSTERDOWN {error}")),
            other => Error::new(format!("ERR {other}")),
        })
    }
}
