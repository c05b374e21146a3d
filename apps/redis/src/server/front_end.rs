//! A server that is no member of the group. As the group's client it follows its views, and survives its members.

use std::{
    future::{Ready, ready},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, ready as ready_or_return},
    time::Duration,
};

use squall::{
    Consistency,
    client::{Call, Client, ClientError},
};
use tokio::{
    net::TcpListener,
    time::{Sleep, sleep},
};

use super::{
    ServerOptions, connected_client,
    connection::too_large,
    info::{self, Facts},
    local,
    operations::ShutdownMode,
    reception::Reception,
    replica::{now_ms, now_us},
    session::{Look, Replica, ServerReport, Write},
    subscriptions::Hub,
};
use crate::{
    Error, Reply, Store,
    command::Spec,
    message::{AnsweredBy, Query, QueryAnswer, StoreCommand, WatchedKey},
};

/// The pause between two questions whether the replica takes writes that need memory.
const MEMORY_PERIOD: Duration = Duration::from_millis(100);

/// A server that stands outside the group, and asks any member that serves.
#[derive(Debug)]
pub struct FrontEnd {
    reception: Arc<Reception>,
    back: Backstage,
}

impl FrontEnd {
    /// A front end that asks the group through `client`. Commands are no longer than `max_command_bytes`. `others` is
    /// the number of replicas besides the one that answers, for `WAIT`.
    pub fn new(client: Client<Store>, options: ServerOptions, max_command_bytes: usize, others: usize) -> FrontEnd {
        let reception = Arc::new(Reception::new(options, Arc::new(Hub::default()), max_command_bytes, false));
        let back =
            Backstage { reception: Arc::clone(&reception), client, max_command_bytes, others, memory: Arc::default() };
        FrontEnd { reception, back }
    }

    /// Serves clients for ever, on a runtime of one thread.
    pub async fn serve(&self, listener: TcpListener) {
        let clients = Arc::clone(&self.reception).serve(listener, self.back.clone());
        tokio::join!(clients, self.watch_memory());
    }

    /// Asks the replica again and again whether it takes writes that need memory, while the answer may be of use.
    async fn watch_memory(&self) {
        loop {
            sleep(MEMORY_PERIOD).await;
            if self.back.memory.is_due(self.reception.counts.commands.get()) {
                let answer = self.back.client.query_as(Consistency::Local, &Query::Memory).await;
                self.back.memory.note(&answer);
            }
        }
    }

    /// Waits until a client asks this front end to end.
    pub async fn shutdown_asked(&self) -> ShutdownMode {
        self.reception.operations.shutdown.asked().await
    }
}

/// The replica's last answer to whether it takes writes that need memory.
#[derive(Debug, Default)]
struct ReplicaMemory {
    /// Whether more was in use than the limit.
    is_exceeded: AtomicBool,
    /// The number of the clients' requests when it was last found out whether to ask.
    commands: AtomicU64,
}

impl ReplicaMemory {
    /// Whether the replica is to be asked, now that clients have asked so many requests.
    fn is_due(&self, commands: u64) -> bool {
        let is_idle = self.commands.swap(commands, Ordering::Relaxed) == commands;
        // Memory may be freed through other servers, and the next request here may be a write.
        !is_idle || self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Notes an answer. An error says nothing about memory: it may come of too many requests.
    fn note(&self, answer: &Result<QueryAnswer, ClientError>) {
        if let Ok(QueryAnswer::Memory { is_exceeded }) = answer {
            self.is_exceeded.store(*is_exceeded, Ordering::Relaxed);
        }
    }
}

/// The group, as a front end's sessions use it.
#[derive(Clone, Debug)]
struct Backstage {
    reception: Arc<Reception>,
    client: Client<Store>,
    max_command_bytes: usize,
    others: usize,
    memory: Arc<ReplicaMemory>,
}

impl Replica for Backstage {
    type Write = Writing;
    type Look = Looking;
    type Watch = Watching;
    type Info = Ready<Reply>;
    type Timer = Pin<Box<Sleep>>;

    fn now_ms(&self) -> u64 {
        now_ms()
    }

    fn now_us(&self) -> u64 {
        now_us()
    }

    fn uptime(&self) -> Duration {
        self.reception.since.elapsed()
    }

    fn timer(&self, after: Duration) -> Pin<Box<Sleep>> {
        Box::pin(sleep(after))
    }

    fn may_wait(&self) -> Result<(), Error> {
        Err(Error::fixed("ERR no request waits at a front end: ask a replica, or ask without waiting"))
    }

    fn answered_by(&self) -> AnsweredBy {
        AnsweredBy::All
    }

    fn write(&self, command: &StoreCommand) -> Writing {
        let bytes = command.bytes();
        if bytes > self.max_command_bytes {
            return Writing::Refused(Some(too_large(bytes, self.max_command_bytes)));
        }
        Writing::Called(self.client.submit(command))
    }

    fn look(&self, look: Look) -> Looking {
        let query = Query::Look { clock_ms: look.clock_ms, requests: look.unanswered() };
        Looking { call: self.client.query(&query), look: Some(look) }
    }

    fn watch(&self, keys: Vec<Vec<u8>>, clock_ms: u64) -> Watching {
        Watching(self.client.query(&Query::Watch { clock_ms, keys }))
    }

    fn info(&self, report: ServerReport) -> Ready<Reply> {
        ready(info::answer(&report, &Facts { reception: &self.reception, member: None }))
    }

    fn local(&self, client: &connected_client::ConnectedClient, spec: &Spec, words: &[&[u8]]) -> Reply {
        local::answer(&self.reception, client, spec, words).into()
    }

    fn is_out_of_memory(&self) -> bool {
        self.memory.is_exceeded.load(Ordering::Relaxed)
    }

    fn others(&self) -> usize {
        self.others
    }

    fn has_no_messages(&self) -> Option<Error> {
        Some(Error::fixed("ERR a front end has no channels to listen to: subscribe at a replica"))
    }

    fn wants_password(&self) -> bool {
        self.reception.wants_password()
    }

    fn auth_wait(&self, client: &connected_client::ConnectedClient, has_waited: bool) -> Option<Duration> {
        self.reception.auth_wait(client, has_waited)
    }

    fn admits(
        &self,
        client: &connected_client::ConnectedClient,
        failures: u32,
        user: &[u8],
        password: &[u8],
    ) -> Result<(), Duration> {
        self.reception.admits(client, failures, user, password)
    }
}

/// The error for a request that the group did not answer.
fn failed(error: &ClientError) -> Error {
    let code = if error.is_not_applied() { "CLUSTERDOWN" } else { "UNKNOWN" };
    match error {
        ClientError::Full { max } => {
            Error::new(format!("{code} {max} requests of this front end wait already, as many as may: try again later"))
        }
        ClientError::NoReply => {
            Error::fixed("ERR the command was carried out, but its answer was too long to be kept: don't send it again")
        }
        error => Error::new(format!("{code} {error}")),
    }
}

/// A command on its way through the group.
#[derive(Debug)]
enum Writing {
    Called(Call<Reply>),
    Refused(Option<Error>),
}

impl Future for Writing {
    type Output = Result<Reply, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Writing::Called(call) => Pin::new(call).poll(context).map_err(|error| failed(&error)),
            Writing::Refused(error) => Poll::Ready(Err(error.take().expect("it is polled no more once it is ready"))),
        }
    }
}

impl Write for Writing {
    /// Calls are made in the order in which they were queued.
    fn is_accepted(&self) -> bool {
        true
    }
}

/// Requests that only look, on their way to a member.
#[derive(Debug)]
struct Looking {
    call: Call<QueryAnswer>,
    look: Option<Look>,
}

impl Future for Looking {
    type Output = Result<Look, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready_or_return!(Pin::new(&mut self.call).poll(context)).map_err(|error| failed(&error))?;
        let QueryAnswer::Looked(replies) = answer else { return Poll::Ready(Err(other_version())) };
        let mut look = self.look.take().expect("it is polled no more once it is ready");
        let done = look.take_answers(replies);
        Poll::Ready(if done { Ok(look) } else { Err(other_version()) })
    }
}

/// Keys that are to be watched.
#[derive(Debug)]
struct Watching(Call<QueryAnswer>);

impl Future for Watching {
    type Output = Result<Vec<WatchedKey>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready_or_return!(Pin::new(&mut self.0).poll(context)).map_err(|error| failed(&error))?;
        Poll::Ready(match answer {
            QueryAnswer::Watched(watched) => Ok(watched),
            _ => Err(other_version()),
        })
    }
}

fn other_version() -> Error {
    Error::fixed("ERR the replicas and this front end run different versions of this program")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(is_exceeded: bool) -> Result<QueryAnswer, ClientError> {
        Ok(QueryAnswer::Memory { is_exceeded })
    }

    #[test]
    fn what_was_said_of_memory_stays_until_a_replica_says_otherwise() {
        let memory = ReplicaMemory::default();
        let is_exceeded = || memory.is_exceeded.load(Ordering::Relaxed);
        memory.note(&answer(true));
        for no_answer in [Err(ClientError::Full { max: 1 }), Err(ClientError::NoReply), Ok(QueryAnswer::Looked(vec![]))]
        {
            memory.note(&no_answer);
            assert!(is_exceeded(), "{no_answer:?}");
        }
        memory.note(&answer(false));
        memory.note(&Err(ClientError::Full { max: 1 }));
        assert!(!is_exceeded());
    }

    #[test]
    fn a_replica_is_asked_while_clients_ask_or_it_has_no_memory() {
        let memory = ReplicaMemory::default();
        assert_eq!([0, 1, 1].map(|commands| memory.is_due(commands)), [false, true, false]);
        memory.note(&answer(true));
        assert!(memory.is_due(1) && memory.is_due(1), "memory may have been freed elsewhere");
        memory.note(&answer(false));
        assert!(!memory.is_due(1));
    }
}
