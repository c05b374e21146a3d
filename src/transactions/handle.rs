//! The handle with which a program submits transactions.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use squall_fabric::sync::Lock;
use squall_runtime::blocking;

use super::{
    driver::Driver,
    error::TransactionError,
    replica::Transactional,
    request::{Ask, RequestFailure, RequestSuccess},
    script::{ReplyPlaces, Script, decode},
    service::TransactionService,
};
use crate::clients::{
    client::{ClientError, Shards, encode},
    partition::Partitioned,
    wire::Consistency,
};

/// The handle with which a program submits transactions over the shards of a group. Clones are handles to the same
/// thread, which carries them out.
///
/// A member's handle also ends transactions of others that nobody ends any more, in the shards that the member holds.
/// So members keep one as long as they run, also if they submit nothing.
#[derive(derive_more::Debug)]
#[debug("Transactions({shards:?})")]
#[must_use = "a member's handle ends the transactions of clients that are gone"]
pub struct Transactions<S: TransactionService> {
    shards: Shards<Transactional<S>>,
    driver: Arc<Driver>,
    timeout: Duration,
}

impl<S: TransactionService> Transactions<S> {
    /// The time from a call to its deadline, unless it is set.
    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Makes the handle of a client, or of a member. Fails if the system gives no thread.
    pub fn new(shards: &Shards<Transactional<S>>) -> Result<Transactions<S>, ClientError> {
        let driver = Driver::start(shards.clone()).map_err(|error| ClientError::Start(error.to_string()))?;
        Ok(Transactions { shards: shards.clone(), driver: Arc::new(driver), timeout: Self::TIMEOUT })
    }

    /// Returns a handle whose calls have this long until their deadlines.
    pub fn within(&self, timeout: Duration) -> Transactions<S> {
        Transactions { timeout, ..self.clone() }
    }

    /// The group's shards.
    pub fn shards(&self) -> &Shards<Transactional<S>> {
        &self.shards
    }

    /// Begins a transaction, to which commands are added. Nothing is sent before it is
    /// [submitted](Transaction::submit).
    pub fn begin(&self) -> Transaction<'_, S> {
        Transaction { handle: self, script: Script::default() }
    }

    /// Submits a command of one shard. It is applied at once, where no transaction has locked its keys, and waits for
    /// the others otherwise.
    pub fn submit(&self, shard: u32, command: &S::Command) -> PendingTransaction<S::Reply, S::Reply> {
        self.begin().command(shard, command).send(|places, result| match places.replies(result) {
            Ok(replies) => replies.into_iter().next().ok_or(TransactionError::NoReplies { shard: 0 }),
            // Its check is the command's own word.
            Err(TransactionError::Aborted { reply, .. }) => Ok(reply),
            Err(error) => Err(error),
        })
    }

    /// Asks a linearizable query of one shard. It waits for the transactions that write what it reads.
    pub fn query(&self, shard: u32, query: &S::Query) -> PendingTransaction<S::Answer, S::Reply> {
        self.query_as(Consistency::Linearizable, shard, query)
    }

    /// Asks a query of one shard. A local one waits for no transaction, and may show one that is carried out here and
    /// not yet in another shard.
    pub fn query_as(
        &self,
        consistency: Consistency,
        shard: u32,
        query: &S::Query,
    ) -> PendingTransaction<S::Answer, S::Reply> {
        let ask = encode(query).map_err(|error| error.to_string());
        let ask = ask.and_then(|query| self.existing(shard).map(|shard| Ask::Query { shard, query, consistency }));
        self.call(ask, move |result| match result {
            Ok(RequestSuccess::Answered(bytes)) => decode(&bytes).ok_or(TransactionError::Invalid { shard }),
            Ok(RequestSuccess::Applied(_)) => Err(TransactionError::Invalid { shard }),
            Err(failure) => Err(TransactionError::of(failure, decode, |_, _| 0)),
        })
    }

    fn existing(&self, shard: u32) -> Result<u32, String> {
        let shards = self.shards.len();
        let trouble = || format!("there is no shard {shard}, since the group has {shards}");
        ((shard as usize) < shards).then_some(shard).ok_or_else(trouble)
    }

    fn call<T: Send + 'static>(
        &self,
        ask: Result<Ask, String>,
        typed: impl FnOnce(Result<RequestSuccess, RequestFailure>) -> Result<T, TransactionError<S::Reply>> + Send + 'static,
    ) -> PendingTransaction<T, S::Reply> {
        let slot: Arc<Slot<T, S::Reply>> = Arc::default();
        let pending = PendingTransaction { slot: Arc::clone(&slot) };
        match ask {
            Err(trouble) => fill(&slot, Err(TransactionError::Unsendable(trouble))),
            Ok(ask) => {
                let tell = move |result: Option<_>| fill(&slot, result.map_or(Err(TransactionError::Closed), typed));
                self.driver.submit(ask, self.timeout, Box::new(tell));
            }
        }
        pending
    }
}

impl<S: TransactionService + Partitioned> Transactions<S> {
    /// Returns the shard of a key.
    pub fn shard_of(&self, key: &S::Key) -> u32 {
        S::shard_of(key, self.shards.len() as u32)
    }
}

impl<S: TransactionService> Clone for Transactions<S> {
    fn clone(&self) -> Transactions<S> {
        Transactions { shards: self.shards.clone(), driver: Arc::clone(&self.driver), timeout: self.timeout }
    }
}

/// A transaction that is being put together.
#[derive(derive_more::Debug)]
#[debug("Transaction({script:?})")]
#[must_use = "nothing is sent before it is submitted"]
pub struct Transaction<'a, S: TransactionService> {
    handle: &'a Transactions<S>,
    script: Script,
}

impl<S: TransactionService> Transaction<'_, S> {
    /// Adds a command of a shard. It may use no key that an earlier command of the transaction writes.
    pub fn command(mut self, shard: u32, command: &S::Command) -> Self {
        self.script.add(shard, self.handle.shards.len(), command);
        self
    }

    /// Submits the commands: all of them are applied, or none. The replies come in the order of the commands.
    ///
    /// A transaction that meets others at its keys is tried again, until the handle's deadline. One that was submitted
    /// is carried out, or not, also if its result is dropped.
    pub fn submit(self) -> PendingTransaction<Vec<S::Reply>, S::Reply> {
        self.send(|places, result| places.replies(result))
    }

    fn send<T: Send + 'static>(self, typed: Typed<T, S::Reply>) -> PendingTransaction<T, S::Reply> {
        let (ask, places) = match self.script.ask() {
            Ok((ask, places)) => (Ok(ask), Some(places)),
            Err(trouble) => (Err(trouble), None),
        };
        self.handle.call(ask, move |result| match places {
            Some(places) => typed(places, result),
            None => Err(TransactionError::Closed),
        })
    }
}

/// The result of a transaction that becomes of the shards' answers.
type Typed<T, R> = fn(ReplyPlaces, Result<RequestSuccess, RequestFailure>) -> Result<T, TransactionError<R>>;

impl<S: TransactionService + Partitioned> Transaction<'_, S> {
    /// Adds a command of the shard of a key, as [`command`](Transaction::command) does.
    pub fn on(self, key: &S::Key, command: &S::Command) -> Self {
        let shard = self.handle.shard_of(key);
        self.command(shard, command)
    }
}

type Slot<T, R> = Lock<SlotState<T, R>>;

/// The state of a transaction's result.
enum SlotState<T, R> {
    Empty(Option<Waker>),
    Full(Result<T, TransactionError<R>>),
    Taken,
}

impl<T, R> Default for SlotState<T, R> {
    fn default() -> SlotState<T, R> {
        SlotState::Empty(None)
    }
}

fn fill<T, R>(slot: &Slot<T, R>, result: Result<T, TransactionError<R>>) {
    let before = std::mem::replace(&mut *slot.lock(), SlotState::Full(result));
    if let SlotState::Empty(Some(waker)) = before {
        waker.wake();
    }
}

/// A transaction or a query under way, and the result that will come.
///
/// It is a future for any executor; a plain thread calls [`wait`](PendingTransaction::wait). It always resolves, at its
/// deadline at the latest.
#[derive(derive_more::Debug)]
#[debug("PendingTransaction")]
#[must_use = "only the result says whether the transaction took effect"]
pub struct PendingTransaction<T, R> {
    slot: Arc<Slot<T, R>>,
}

impl<T, R> PendingTransaction<T, R> {
    /// Blocks this thread until the result has come. Inside `apply`, or a read's closure, it fails with
    /// [`TransactionError::InsideApply`] instead.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(mut self) -> Result<T, TransactionError<R>> {
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }
}

impl<T, R> Future for PendingTransaction<T, R> {
    type Output = Result<T, TransactionError<R>>;

    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.slot.lock();
        match std::mem::replace(&mut *state, SlotState::Taken) {
            SlotState::Empty(_) if blocking::is_applying() => Poll::Ready(Err(TransactionError::InsideApply)),
            SlotState::Empty(_) => {
                *state = SlotState::Empty(Some(context.waker().clone()));
                Poll::Pending
            }
            SlotState::Full(result) => Poll::Ready(result),
            SlotState::Taken => panic!("a PendingTransaction was polled after it had resolved"),
        }
    }
}
