//! A replica that does what the test says.

use std::{
    cell::RefCell,
    collections::HashMap,
    rc::Rc,
    time::{Duration, Instant},
};

use super::{super::*, context};
use crate::{
    message::WatchedKey,
    server::{auth_delay::AuthDelays, clients::Clients, describe},
};

/// A replica whose commands are delivered, and whose looks are answered, when the test says so. Its answer to a write
/// is the write's number; to a read, minus the number of writes delivered.
#[derive(Clone, Default)]
pub(in crate::server::session) struct Puppet(pub(in crate::server::session) Rc<RefCell<Strings>>);

#[derive(Default)]
pub(in crate::server::session) struct Strings {
    /// The number of commands that find room.
    pub(in crate::server::session) room: usize,
    pub(in crate::server::session) submitted: Vec<StoreCommand>,
    pub(in crate::server::session) delivered: usize,
    pub(in crate::server::session) looks: Vec<usize>,
    pub(in crate::server::session) answers_looks: bool,
    pub(in crate::server::session) has_ended: bool,
    pub(in crate::server::session) is_out_of_memory: bool,
    /// Whether a watched key has changed, so that no transaction is carried out.
    pub(in crate::server::session) has_changed: bool,
    /// The number of times that a clock was read.
    pub(in crate::server::session) clock_reads: usize,
    /// The length of the answers to reads, in bytes; `None` for a number.
    pub(in crate::server::session) answer_bytes: usize,
    pub(in crate::server::session) password: Option<&'static str>,
    pub(in crate::server::session) auth_delays: Arc<AuthDelays>,
    pub(in crate::server::session) is_durable: bool,
    pub(in crate::server::session) holds_watches: bool,
    /// The time that has passed for timers.
    pub(in crate::server::session) passed: Duration,
    /// The answers to the commands that begin and end waits, in their order.
    pub(in crate::server::session) wait_answers: Vec<Reply>,
    pub(in crate::server::session) versions: HashMap<Vec<u8>, u64>,
    pub(in crate::server::session) uptime: Duration,
}

pub(in crate::server::session) struct FakeWrite {
    puppet: Puppet,
    command: Option<StoreCommand>,
    number: Option<usize>,
}

impl Future for FakeWrite {
    type Output = Result<Reply, Error>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let puppet = self.puppet.clone();
        let mut strings = puppet.0.borrow_mut();
        if strings.submitted.len() < strings.room
            && let Some(command) = self.command.take()
        {
            strings.submitted.push(command);
            self.number = Some(strings.submitted.len());
        }
        match self.number {
            Some(number) if number <= strings.delivered => Poll::Ready(Ok(match &strings.submitted[number - 1] {
                StoreCommand::Transaction { .. } if strings.has_changed => Reply::NullArray,
                StoreCommand::Transaction { requests, .. } => Reply::Array(vec![Reply::Integer(0); requests.len()]),
                command if is_of_wait(command) => {
                    let place = strings.submitted[..number - 1].iter().filter(|command| is_of_wait(command)).count();
                    strings.wait_answers[place].clone()
                }
                _ => Reply::Integer(number as i64),
            })),
            _ => Poll::Pending,
        }
    }
}

fn is_of_wait(command: &StoreCommand) -> bool {
    matches!(command, StoreCommand::Wait { .. } | StoreCommand::CancelWaits { .. })
}

impl Write for FakeWrite {
    fn is_accepted(&self) -> bool {
        self.number.is_some()
    }
}

pub(in crate::server::session) struct FakeLook(Puppet, Option<Look>);

impl Future for FakeLook {
    type Output = Result<Look, Error>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let puppet = self.0.clone();
        let strings = puppet.0.borrow();
        if !strings.answers_looks {
            return Poll::Pending;
        }
        let mut look = self.1.take().expect("a look is answered once");
        look.answer_by(|_, _| match strings.answer_bytes {
            0 => Reply::Integer(-(strings.delivered as i64)),
            bytes => Reply::Bytes(vec![0; bytes].into()),
        });
        Poll::Ready(Ok(look))
    }
}

pub(in crate::server::session) struct FakeWatch(Puppet, Vec<WatchedKey>);

impl Future for FakeWatch {
    type Output = Result<Vec<WatchedKey>, Error>;
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        let holds = self.0.0.borrow().holds_watches;
        if holds { Poll::Pending } else { Poll::Ready(Ok(mem::take(&mut self.1))) }
    }
}

/// A timer that ends once the test's clock says so.
pub(in crate::server::session) struct FakeTimer(Puppet, Duration);

impl Future for FakeTimer {
    type Output = ();
    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0.0.borrow().passed >= self.1 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Replica for Puppet {
    type Write = FakeWrite;
    type Look = FakeLook;
    type Watch = FakeWatch;
    type Info = std::future::Ready<Reply>;
    type Timer = FakeTimer;
    fn now_ms(&self) -> u64 {
        self.0.borrow_mut().clock_reads += 1;
        1
    }
    fn now_us(&self) -> u64 {
        1001
    }
    fn uptime(&self) -> Duration {
        self.0.borrow_mut().clock_reads += 1;
        self.0.borrow().uptime
    }
    fn timer(&self, after: Duration) -> FakeTimer {
        FakeTimer(self.clone(), self.0.borrow().passed + after)
    }
    fn is_durable(&self) -> bool {
        self.0.borrow().is_durable
    }
    fn write(&self, command: &StoreCommand) -> FakeWrite {
        let mut write = FakeWrite { puppet: self.clone(), command: Some(command.clone()), number: None };
        let _ = Pin::new(&mut write).poll(&mut context());
        write
    }
    fn look(&self, look: Look) -> FakeLook {
        self.0.borrow_mut().looks.push(look.left());
        FakeLook(self.clone(), Some(look))
    }
    fn watch(&self, keys: Vec<Vec<u8>>, _clock_ms: u64) -> Self::Watch {
        let version = |key: &[u8]| self.0.borrow().versions.get(key).copied();
        let watched = keys.into_iter().map(|key| {
            let version = version(&key);
            WatchedKey { key, present: version.is_some(), version: version.unwrap_or(0) }
        });
        FakeWatch(self.clone(), watched.collect())
    }
    fn info(&self, _: ServerReport) -> Self::Info {
        std::future::ready(Reply::Integer(self.0.borrow().delivered as i64))
    }
    fn local(&self, client: &ConnectedClient, spec: &Spec, words: &[&[u8]]) -> Reply {
        match spec.name {
            "client" => Clients::default().answer(client, words).into(),
            "command" => describe::answer(words).into(),
            "pubsub" => Hub::default().answer(words).into(),
            _ => Reply::status("LOCAL"),
        }
    }
    fn is_out_of_memory(&self) -> bool {
        self.0.borrow().is_out_of_memory
    }
    fn others(&self) -> usize {
        2
    }
    fn has_no_messages(&self) -> Option<Error> {
        self.0.borrow().has_ended.then_some(Error::fixed("CLUSTERDOWN it has ended"))
    }
    fn wants_password(&self) -> bool {
        self.0.borrow().password.is_some()
    }
    fn auth_wait(&self, client: &ConnectedClient, has_waited: bool) -> Option<Duration> {
        let strings = self.0.borrow();
        strings.auth_delays.wait(client.peer(), has_waited, Instant::now() + strings.passed)
    }
    fn admits(&self, client: &ConnectedClient, failures: u32, user: &[u8], password: &[u8]) -> Result<(), Duration> {
        let strings = self.0.borrow();
        let is_right = strings.password.is_none_or(|right| right.as_bytes() == password) && user == b"default";
        match strings.password {
            _ if is_right => strings.auth_delays.succeed(client.peer()),
            None => return Err(Duration::ZERO),
            Some(_) => {
                let now = Instant::now() + strings.passed;
                return Err(strings.auth_delays.fail(client.peer(), failures, now));
            }
        }
        Ok(())
    }
}
