//! The thread that carries out the transactions of a handle.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, SystemTime},
};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use squall_fabric::{Time, random, sync::Lock};
use squall_ordered::log::Hlc;

use super::{
    coordinator::{Coordinator, Effect},
    message::{TransactionAnswer, TransactionReply},
    replica::Transactional,
    request::{Ask, RequestFailure, RequestSuccess},
    service::TransactionService,
};
use crate::clients::client::{Call, Shards};

/// The time between two looks for transactions that nobody ends.
const WATCH: Duration = Duration::from_millis(100);

/// The time within which the thread ends what is under way, after the last handle is gone.
const CLOSE: Duration = Duration::from_secs(3);

/// A caller's way to its result.
pub(crate) type Tell = Box<dyn FnOnce(Option<Result<RequestSuccess, RequestFailure>>) + Send>;

/// The handle through which requests come in. The thread ends after it is dropped.
#[derive(Debug)]
pub(crate) struct Driver {
    requests: Option<Sender<Submission>>,
    thread: Thread,
}

struct Submission {
    ask: Ask,
    limit: Duration,
    tell: Told,
}

/// The right to tell a caller the result, which says so if there will be none.
struct Told(Option<Tell>);

impl Told {
    fn tell(mut self, result: Result<RequestSuccess, RequestFailure>) {
        if let Some(tell) = self.0.take() {
            tell(Some(result));
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(tell) = self.0.take() {
            tell(None);
        }
    }
}

impl Driver {
    /// Starts the thread. Fails if the system gives none, or no random number.
    pub(crate) fn start<S: TransactionService>(shards: Shards<Transactional<S>>) -> std::io::Result<Driver> {
        let (requests, submitted) = unbounded();
        let id = u128::from_ne_bytes(random::bytes()?);
        let run = move || Carrier::new(shards, id).run(&submitted);
        let thread = thread::Builder::new().name("squall-transact".to_owned()).spawn(run)?;
        Ok(Driver { requests: Some(requests), thread: thread.thread().clone() })
    }

    pub(crate) fn submit(&self, ask: Ask, limit: Duration, tell: Tell) {
        if let Some(requests) = &self.requests {
            // If the thread is gone, the dropped submission tells so.
            _ = requests.send(Submission { ask, limit, tell: Told(Some(tell)) });
            self.thread.unpark();
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.requests = None;
        self.thread.unpark();
    }
}

/// A call under way.
enum PendingMessage {
    Command(Call<TransactionReply>),
    Query(Call<TransactionAnswer>),
}

/// The calls that may have resolved.
struct Ready {
    calls: Lock<Vec<u64>>,
    thread: Thread,
}

struct CallWaker {
    call: u64,
    ready: Arc<Ready>,
}

impl Wake for CallWaker {
    fn wake(self: Arc<Self>) {
        self.ready.calls.lock().push(self.call);
        self.ready.thread.unpark();
    }
}

struct Carrier<S: TransactionService> {
    shards: Shards<Transactional<S>>,
    coordinator: Coordinator,
    calls: BTreeMap<u64, (PendingMessage, Waker)>,
    callers: BTreeMap<u64, Told>,
    ready: Arc<Ready>,
    watch_at: Time,
}

impl<S: TransactionService> Carrier<S> {
    fn new(shards: Shards<Transactional<S>>, id: u128) -> Carrier<S> {
        let now = Time::boot_clock();
        let ready = Arc::new(Ready { calls: Lock::default(), thread: thread::current() });
        let (count, wall) = (shards.len() as u32, Hlc::from(SystemTime::now()));
        let coordinator = Coordinator::new(id, count, now, wall, fastrand::Rng::new());
        Carrier { shards, coordinator, calls: BTreeMap::new(), callers: BTreeMap::new(), ready, watch_at: now + WATCH }
    }

    fn run(mut self, submitted: &Receiver<Submission>) {
        while self.turn(submitted) {
            self.wait();
        }
        self.coordinator.flush();
        let until = Time::boot_clock() + CLOSE;
        loop {
            self.carry_out();
            self.hear();
            self.coordinator.tick(Time::boot_clock());
            self.carry_out();
            if self.coordinator.is_idle() || Time::boot_clock() > until {
                break;
            }
            thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Does what there is to do. Returns false after the last handle was dropped.
    fn turn(&mut self, submitted: &Receiver<Submission>) -> bool {
        self.hear();
        let now = Time::boot_clock();
        loop {
            match submitted.try_recv() {
                Ok(Submission { ask, limit, tell }) => {
                    let request = self.coordinator.request(now, ask, limit);
                    self.callers.insert(request, tell);
                }
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
        if self.watch_at <= now {
            // All replicas of a shard look: their times are random, so that mostly one of them settles.
            self.watch_at = now + WATCH / 2 + Duration::from_nanos(fastrand::u64(0..=WATCH.as_nanos() as u64));
            let here = self.shards.iter().zip(0..).filter(|(shard, _)| shard.is_here());
            here.for_each(|(_, shard)| self.coordinator.watch(shard));
        }
        self.coordinator.tick(now);
        self.carry_out();
        true
    }

    fn wait(&self) {
        let at = self.coordinator.wake_at().map_or(self.watch_at, |at| at.min(self.watch_at));
        thread::park_timeout(at.since(Time::boot_clock()));
    }

    /// Hears the results of calls that have resolved.
    fn hear(&mut self) {
        loop {
            let ready = std::mem::take(&mut *self.ready.calls.lock());
            if ready.is_empty() {
                return;
            }
            ready.into_iter().for_each(|call| self.poll(call));
        }
    }

    fn poll(&mut self, call: u64) {
        let Some((pending, waker)) = self.calls.get_mut(&call) else { return };
        let mut context = Context::from_waker(waker);
        let now = Time::boot_clock();
        match pending {
            PendingMessage::Command(reply) => {
                let Poll::Ready(reply) = Pin::new(reply).poll(&mut context) else { return };
                self.coordinator.replied(now, call, reply);
            }
            PendingMessage::Query(answer) => {
                let Poll::Ready(answer) = Pin::new(answer).poll(&mut context) else { return };
                self.coordinator.answered(now, call, answer);
            }
        }
        self.calls.remove(&call);
    }

    fn carry_out(&mut self) {
        loop {
            let effects = self.coordinator.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                let (call, pending) = match effect {
                    Effect::Resolve { request, result } => {
                        if let Some(caller) = self.callers.remove(&request) {
                            caller.tell(result);
                        }
                        continue;
                    }
                    Effect::Command { call, shard, command, limit } => {
                        let shard = self.shards.shard(shard as usize).within(limit);
                        (call, PendingMessage::Command(shard.submit(&command)))
                    }
                    Effect::Query { call, shard, query, consistency, limit } => {
                        let shard = self.shards.shard(shard as usize).within(limit);
                        (call, PendingMessage::Query(shard.query_as(consistency, &query)))
                    }
                };
                let waker = Waker::from(Arc::new(CallWaker { call, ready: Arc::clone(&self.ready) }));
                self.calls.insert(call, (pending, waker));
                self.poll(call);
            }
        }
    }
}
