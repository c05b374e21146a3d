//! The threads of a client: one decides; each connection has one that reads and one that writes.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io::{self, BufReader, BufWriter, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use squall_fabric::{NodeId, Time, random};
use squall_services::{Caller, ControlStream, DialTarget, Service, StreamReader, StreamWriter, frame::FrameError};

use super::{
    call::{Call, Resolve},
    core::ClientCore,
    effect::{Ask, CallId, ClientEffect, MemberCall, WatchEvent, WatchId, WatchRequest},
    error::ClientError,
    watch_queue::WatchFeed,
};
use crate::clients::{
    contacts::Contacts,
    query::Portable,
    wire::{self, Members, ToClient, ToNode},
};

/// The limit of an attempt to connect.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The time after which a connection ends whose node reads nothing.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The longest reply or answer, in bytes.
const REPLY_BYTES: usize = 1 << 30;

enum DriverEvent {
    Call(CallId, Ask, Time, Resolve),
    Learn(Members),
    Watch(WatchId, WatchRequest, WatchFeed),
    Unwatch(WatchId),
    /// The application has taken changes of this cost.
    Taken(WatchId, u64),
    /// An established connection, with the number of the attempt.
    Connected(u64, Box<ControlStream>),
    Heard(u64, ToClient),
    Broken(u64, String),
    /// The result of a call to one member.
    ToldAt(NodeId, MemberCall, Result<Vec<u8>, ClientError>),
    Close,
}

/// Makes the generator of a client's keys. Members route answers by these alone, so no other client may draw them, not
/// even one in a child process.
fn generator() -> Result<fastrand::Rng, ClientError> {
    let seed = random::number().map_err(|error| ClientError::Start(error.to_string()))?;
    Ok(fastrand::Rng::with_seed(seed))
}

/// The handle through which calls enter a client. When it is dropped, the client ends.
pub(crate) struct Driver {
    events: Sender<DriverEvent>,
    next: AtomicU64,
    waiting: Arc<AtomicUsize>,
    max_waiting: usize,
}

impl Driver {
    /// Starts a client of a shard, by its [name](crate::clients::wire::ShardName).
    pub(crate) fn start(
        shard: &str,
        contacts: Contacts,
        caller: Caller,
        max_waiting: usize,
        silence: Duration,
    ) -> Result<Driver, ClientError> {
        let core = ClientCore::new(shard.to_owned(), contacts, generator()?);
        Driver::run(core, shard, caller, max_waiting, silence)
    }

    fn run(
        core: ClientCore,
        shard: &str,
        caller: Caller,
        max_waiting: usize,
        silence: Duration,
    ) -> Result<Driver, ClientError> {
        let (events, to_core) = unbounded();
        let waiting = Arc::new(AtomicUsize::new(0));
        let threads = Threads {
            core: core.with_silence(silence),
            shard: shard.to_owned(),
            silence,
            pinned: BTreeMap::new(),
            caller,
            to_self: events.clone(),
            calls: BTreeMap::new(),
            watches: BTreeMap::new(),
            waiting: Arc::clone(&waiting),
            attempt: 0,
            connection: None,
        };
        let spawned = thread::Builder::new().name("squall-client".to_owned()).spawn(move || threads.run(&to_core));
        spawned.map_err(|error| ClientError::Start(error.to_string()))?;
        Ok(Driver { events, next: AtomicU64::new(0), waiting, max_waiting })
    }

    /// Takes the members of a view that this process' own node has installed.
    pub(crate) fn learn(&self, members: Members) {
        let _ = self.events.send(DriverEvent::Learn(members));
    }

    /// Makes a call.
    pub(crate) fn call<T: Portable>(&self, ask: Ask, limit: Duration) -> Call<T> {
        let (call, resolve) = Resolve::new();
        self.call_into(ask, limit, resolve);
        call
    }

    /// Makes a call whose result another waits for.
    pub(crate) fn call_into(&self, ask: Ask, limit: Duration, resolve: Resolve) {
        let more = |waiting| (waiting < self.max_waiting).then_some(waiting + 1);
        if self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return resolve.resolve(Err(ClientError::Full { max: self.max_waiting }));
        }
        let id = CallId(self.next.fetch_add(1, Ordering::Relaxed));
        // A deadline beyond the clock's end is not observable.
        let deadline = Time::boot_clock() + limit.min(Duration::from_secs(u64::from(u32::MAX)));
        // If the client's thread is gone, the returned event is dropped, and that resolves the call.
        let _ = self.events.send(DriverEvent::Call(id, ask, deadline, resolve));
    }
}

impl Driver {
    /// Begins a watch. If the client's thread is gone, the returned event is dropped, and that ends the watch; so it
    /// is with the next two.
    pub(super) fn watch(&self, watch: WatchRequest, feed: WatchFeed) -> WatchId {
        let id = WatchId(self.next.fetch_add(1, Ordering::Relaxed));
        let _ = self.events.send(DriverEvent::Watch(id, watch, feed));
        id
    }

    pub(super) fn unwatch(&self, id: WatchId) {
        let _ = self.events.send(DriverEvent::Unwatch(id));
    }

    /// Notes that the application has taken changes of this cost.
    pub(super) fn taken(&self, id: WatchId, cost: u64) {
        let _ = self.events.send(DriverEvent::Taken(id, cost));
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // The thread may have ended by a panic.
        let _ = self.events.send(DriverEvent::Close);
    }
}

struct Threads {
    core: ClientCore,
    shard: String,
    silence: Duration,
    /// The connections to one member alone.
    pinned: BTreeMap<NodeId, Driver>,
    caller: Caller,
    to_self: Sender<DriverEvent>,
    calls: BTreeMap<CallId, Resolve>,
    watches: BTreeMap<WatchId, WatchFeed>,
    waiting: Arc<AtomicUsize>,
    /// The number of the latest attempt to connect: reports of earlier ones are out of date.
    attempt: u64,
    /// The messages for the connection's writer. When it is dropped, the writer writes the rest, and hangs up.
    connection: Option<Sender<ToNode>>,
}

impl Threads {
    fn run(mut self, events: &Receiver<DriverEvent>) {
        let mut effects = Vec::new();
        loop {
            let wait = self.core.deadline().map_or(Duration::from_secs(3600), |at| at.since(Time::boot_clock()));
            let event = events.recv_timeout(wait);
            let now = Time::boot_clock();
            match event {
                Ok(DriverEvent::Call(id, ask, deadline, resolve)) => {
                    self.calls.insert(id, resolve);
                    self.core.call(now, id, ask, deadline, &mut effects);
                }
                Ok(DriverEvent::Learn(members)) => self.core.learn(members),
                Ok(DriverEvent::ToldAt(node, call, result)) => {
                    self.core.told_at(now, node, call, result, &mut effects);
                }
                Ok(DriverEvent::Watch(id, watch, feed)) => {
                    self.watches.insert(id, feed);
                    self.core.watch(now, id, watch, &mut effects);
                }
                Ok(DriverEvent::Unwatch(id)) => {
                    self.watches.remove(&id);
                    self.core.unwatch(id, &mut effects);
                }
                Ok(DriverEvent::Taken(id, cost)) => self.core.taken(id, cost, &mut effects),
                Ok(DriverEvent::Connected(attempt, stream)) if attempt == self.attempt => {
                    match connect(*stream, attempt, &self.to_self) {
                        Ok(connection) => {
                            self.connection = Some(connection);
                            self.core.connected(now, &mut effects);
                        }
                        Err(error) => self.core.broken(now, error.to_string(), &mut effects),
                    }
                }
                Ok(DriverEvent::Heard(attempt, message)) if attempt == self.attempt => {
                    self.core.heard(now, message, &mut effects);
                }
                Ok(DriverEvent::Broken(attempt, why)) if attempt == self.attempt => {
                    self.hang_up();
                    self.core.broken(now, why, &mut effects);
                }
                Ok(DriverEvent::Connected(..) | DriverEvent::Heard(..) | DriverEvent::Broken(..)) => {}
                Err(RecvTimeoutError::Timeout) => self.core.tick(now, &mut effects),
                Ok(DriverEvent::Close) | Err(RecvTimeoutError::Disconnected) => {
                    self.core.close(&mut effects);
                    return self.carry_out(&mut effects);
                }
            }
            self.carry_out(&mut effects);
        }
    }

    fn carry_out(&mut self, effects: &mut Vec<ClientEffect>) {
        for effect in effects.drain(..) {
            match effect {
                ClientEffect::Dial(contact) => self.dial(contact),
                // A connection that is ending is reported by its reader.
                ClientEffect::Send(message) => {
                    let _ = self.connection.as_ref().map(|connection| connection.send(message));
                }
                ClientEffect::HangUp => self.hang_up(),
                ClientEffect::Resolve(id, result) => {
                    if let Some(resolve) = self.calls.remove(&id) {
                        self.waiting.fetch_sub(1, Ordering::Relaxed);
                        resolve.resolve(result);
                    }
                }
                ClientEffect::Sent(id, members) => {
                    if let Some(call) = self.calls.get(&id) {
                        call.sent(members);
                    }
                }
                ClientEffect::Reply(id, node, reply) => {
                    if let Some(call) = self.calls.get(&id) {
                        call.reply(node, reply);
                    }
                }
                ClientEffect::AskAt { call, member, ask, deadline } => self.ask_at(call, member, ask, deadline),
                ClientEffect::Forget(node) => _ = self.pinned.remove(&node),
                ClientEffect::Watch(id, event) => {
                    let is_over = matches!(event, WatchEvent::Ended(_));
                    if let Some(feed) = self.watches.get(&id) {
                        feed.feed(event);
                    }
                    if is_over {
                        self.watches.remove(&id);
                    }
                }
            }
        }
    }

    /// Asks one member, over a connection to it alone.
    fn ask_at(&mut self, call: MemberCall, member: DialTarget, ask: Ask, deadline: Time) {
        let Some(node) = member.node else { return };
        let events = self.to_self.clone();
        // The send fails only if the client has ended.
        let told = Resolve::then(move |result| _ = events.send(DriverEvent::ToldAt(node, call, result)));
        let driver = match self.pinned.entry(node) {
            Entry::Occupied(driver) => driver.into_mut(),
            Entry::Vacant(vacant) => {
                let driver = generator().and_then(|random| {
                    let core = ClientCore::pinned(self.shard.clone(), member, random);
                    Driver::run(core, &self.shard, self.caller.clone(), usize::MAX, self.silence)
                });
                match driver {
                    Ok(driver) => vacant.insert(driver),
                    Err(error) => return told.resolve(Err(error)),
                }
            }
        };
        driver.call_into(ask, deadline.since(Time::boot_clock()), told);
    }

    /// Connects on a thread of its own, since that may take long.
    fn dial(&mut self, contact: DialTarget) {
        self.attempt += 1;
        let (attempt, caller, events) = (self.attempt, self.caller.clone(), self.to_self.clone());
        let connect = move || {
            // The send fails only if the client has ended.
            let _ = events.send(match caller.dial(&contact, Service::Clients, ATTEMPT) {
                Ok(stream) => DriverEvent::Connected(attempt, Box::new(stream)),
                Err(error) => match error.denied() {
                    Some(why) => {
                        DriverEvent::Heard(attempt, ToClient::Denied { only_commands: false, why: why.to_owned() })
                    }
                    None => DriverEvent::Broken(attempt, error.to_string()),
                },
            });
        };
        if let Err(error) = thread::Builder::new().name("squall-client-d".to_owned()).spawn(connect) {
            let _ = self.to_self.send(DriverEvent::Broken(attempt, error.to_string()));
        }
    }

    fn hang_up(&mut self) {
        self.connection = None;
        self.attempt += 1;
    }
}

/// Starts the threads of a connection. Returns the queue of the one that writes.
fn connect(stream: ControlStream, attempt: u64, events: &Sender<DriverEvent>) -> io::Result<Sender<ToNode>> {
    let ControlStream { reader, writer, .. } = stream;
    writer.set_timeout(Some(WRITE_LIMIT))?;
    let hang_up = writer.hang_up();
    let (to_writer, messages) = unbounded();
    let of_reader = events.clone();
    let name = |half: &str| thread::Builder::new().name(format!("squall-client-{half}"));
    name("w").spawn(move || {
        if let Err(error) = write(writer, &messages) {
            tracing::debug!(%error, "a node does not listen");
        }
        // The reader reports the end.
        hang_up.now();
    })?;
    name("r").spawn(move || {
        let why = read(reader, attempt, &of_reader);
        let _ = of_reader.send(DriverEvent::Broken(attempt, why));
    })?;
    Ok(to_writer)
}

fn write(to: StreamWriter, messages: &Receiver<ToNode>) -> Result<(), FrameError> {
    let mut to = BufWriter::new(to);
    while let Ok(message) = messages.recv() {
        wire::write(&mut to, &message)?;
        // Waiting messages are written together.
        for message in messages.try_iter() {
            wire::write(&mut to, &message)?;
        }
        to.flush()?;
    }
    Ok(())
}

/// Reads until the end, and returns the reason for which it ended.
fn read(from: StreamReader, attempt: u64, events: &Sender<DriverEvent>) -> String {
    let mut from = BufReader::new(from);
    loop {
        match wire::read(&mut from, REPLY_BYTES) {
            Ok(message) => {
                if events.send(DriverEvent::Heard(attempt, message)).is_err() {
                    return String::new();
                }
            }
            Err(error) => return error.to_string(),
        }
    }
}
