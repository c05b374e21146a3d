//! Reads of this node's replica, mostly on the thread that delivers.

use std::{
    collections::VecDeque,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use squall_fabric::sync::Lock;
use squall_ordered::Submitter;
use squall_runtime::{
    BackoffProfile,
    blocking::{self, Applying},
};

use crate::{
    calls::{
        admission::{Admission, AdmissionState, EngineHandle},
        error::ReadError,
    },
    replica::replica_cell::ReplicaCell,
};

/// A read, in the form in which the delivering thread carries it out.
pub(crate) trait ReplicaRead<S>: Send {
    /// Looks at the replica, or takes note of the error for which it can't. A second call forgets the result of the
    /// first.
    fn look(&mut self, replica: Result<&S, ReadError>);

    /// Publishes the result, and returns the waker of the caller that waits for it.
    fn answer(self: Box<Self>) -> Option<Waker>;
}

pub(crate) type Job<S> = Box<dyn ReplicaRead<S>>;

/// The reads that wait for a group's delivering thread.
pub(crate) struct Reads<S> {
    replica: Arc<ReplicaCell<S>>,
    queue: Lock<ReadQueue<S>>,
    /// The number of waiting peeks, so that the lock is not taken when there are none.
    peeks: AtomicUsize,
    /// The number of looks that readers took on their own threads. Counted by the thread that holds the replica.
    direct: AtomicU64,
}

struct ReadQueue<S> {
    /// Linearizable reads: the current view's shard has counted as many as there are.
    linearizable: VecDeque<Job<S>>,
    /// The number of counted reads that were refused since. The shard will still call them answerable, and they come
    /// first.
    void: u64,
    /// The submitter that counts linearizable reads, or the reason for which there are none.
    counter: Result<Submitter, ReadError>,
    peeks: VecDeque<Job<S>>,
    /// The reason for which there are no peeks.
    over: Option<ReadError>,
}

impl<S> Reads<S> {
    pub(crate) fn new(replica: Arc<ReplicaCell<S>>) -> Reads<S> {
        let queue = ReadQueue {
            linearizable: VecDeque::new(),
            void: 0,
            counter: Err(ReadError::NotStarted),
            peeks: VecDeque::new(),
            over: None,
        };
        Reads { replica, queue: Lock::new(queue), peeks: AtomicUsize::new(0), direct: AtomicU64::new(0) }
    }

    pub(crate) fn replica(&self) -> &Arc<ReplicaCell<S>> {
        &self.replica
    }

    /// Returns the number of looks that readers took on their own threads.
    pub(crate) fn direct(&self) -> u64 {
        self.direct.load(Ordering::Relaxed)
    }

    /// Reads on this thread, linearizably, if the node's lease permits it, the replica has come far enough, and no
    /// thread holds it. Else the look comes back.
    pub(crate) fn read_here<T, L>(&self, admission: &Admission, look: L) -> Result<Result<T, ReadError>, L>
    where
        L: FnOnce(&S) -> T,
    {
        let Some(EngineHandle { waker, clock, .. }) = admission.engine() else { return Err(look) };
        let state = admission.state();
        let AdmissionState::Open { submitter, .. } = &*state else { return Err(look) };
        let now = clock.get();
        let Some(place) = submitter.lease(now) else { return Err(look) };
        if !submitter.has_reached(place) {
            return Err(look);
        }
        if submitter.keep_lease(now) {
            waker.wake();
        }
        // Only this thread changes the version while it looks, because it holds the replica.
        self.look_if(admission, look, || !admission.durable || submitter.globally_persisted() >= submitter.version())
    }

    /// Looks on this thread, if the group has started and no thread holds the replica. Else the look comes back.
    pub(crate) fn look_here<T, L>(&self, admission: &Admission, look: L) -> Result<Result<T, ReadError>, L>
    where
        L: FnOnce(&S) -> T,
    {
        self.look_if(admission, look, || true)
    }

    /// Looks as [`look_here`](Reads::look_here) does, if `may` says that the state may be shown.
    fn look_if<T, L>(
        &self,
        admission: &Admission,
        look: L,
        may: impl FnOnce() -> bool,
    ) -> Result<Result<T, ReadError>, L>
    where
        L: FnOnce(&S) -> T,
    {
        if admission.engine().is_none() {
            return Err(look);
        }
        let looked = self.replica.look(
            look,
            |look, replica| {
                if !may() {
                    return Err(look);
                }
                let _applying = Applying::enter();
                self.direct.store(self.direct.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                // A look changes nothing, so whatever happens in it, the replica and the thread go on.
                Ok(catch_unwind(AssertUnwindSafe(|| look(replica))).map_err(|_| ReadError::Panicked))
            },
            || admission.wake(),
        );
        looked.flatten()
    }

    /// Looks on this thread if the group has ended. No other thread looks for it then, so this waits until the present
    /// holder of the replica is done.
    pub(crate) fn look_at_the_last<T, L>(&self, admission: &Admission, mut look: L) -> Result<Result<T, ReadError>, L>
    where
        L: FnOnce(&S) -> T,
    {
        // A look within a look would wait for itself.
        while admission.is_ended() && !blocking::is_applying() && !self.replica.is_broken() {
            look = match self.look_here(admission, look) {
                Ok(answer) => return Ok(answer),
                Err(look) => look,
            };
            std::thread::yield_now();
        }
        Err(look)
    }

    /// Queues a linearizable read.
    ///
    /// The shard counts reads and knows nothing of them: once it says that n may be answered, the first n of the queue
    /// are. That is right because each read is queued before it is counted. So whenever n are counted, at least n are
    /// queued. And the n-th in the queue was queued no later than the n-th was counted. So a state that is new enough
    /// for the n-th count is new enough for the n-th in the queue.
    ///
    /// Each read is counted where it is queued, under one lock, so that a new view counts each that it finds once.
    pub(crate) fn push(&self, admission: &Admission, job: Job<S>) -> Result<(), ReadError> {
        let mut queue = self.queue.lock();
        let ReadQueue { linearizable, counter, .. } = &mut *queue;
        let submitter = counter.as_ref().map_err(ReadError::clone)?;
        linearizable.push_back(job);
        submitter.ask_read();
        drop(queue);
        admission.wake();
        Ok(())
    }

    /// Queues a look at the replica as it is.
    pub(crate) fn push_peek(&self, admission: &Admission, job: Job<S>) -> Result<(), ReadError> {
        let engine = admission.engine().ok_or(ReadError::NotStarted)?;
        let mut queue = self.queue.lock();
        if let Some(error) = &queue.over {
            return Err(error.clone());
        }
        queue.peeks.push_back(job);
        self.peeks.store(queue.peeks.len(), Ordering::Release);
        drop(queue);
        engine.waker.wake();
        Ok(())
    }

    /// Counts linearizable reads in a new view, first the ones that wait already. There must be no more answers from
    /// the view before.
    pub(crate) fn count_in(&self, submitter: Submitter) {
        let mut queue = self.queue.lock();
        queue.over = None;
        queue.void = 0;
        queue.linearizable.iter().for_each(|_| submitter.ask_read());
        queue.counter = Ok(submitter);
    }

    /// Accepts no more linearizable reads until they are [counted](Reads::count_in) again, and takes all that wait.
    /// Must not be called after the [end](Reads::end).
    pub(crate) fn refuse(&self, why: ReadError, into: &mut Vec<Job<S>>) {
        let mut queue = self.queue.lock();
        queue.over = None;
        queue.void += queue.linearizable.len() as u64;
        into.extend(queue.linearizable.drain(..));
        queue.counter = Err(why);
    }

    /// Whether peeks wait.
    pub(crate) fn any_peeks(&self) -> bool {
        self.peeks.load(Ordering::Acquire) > 0
    }

    /// Takes the oldest `count` linearizable reads, as far as they were not [refused](Reads::refuse).
    ///
    /// # Panics
    ///
    /// If there are fewer.
    pub(crate) fn take(&self, count: u64, into: &mut Vec<Job<S>>) {
        let mut queue = self.queue.lock();
        let void = count.min(queue.void);
        queue.void -= void;
        let count = count - void;
        assert!(count <= queue.linearizable.len() as u64, "each read is queued before it is counted");
        into.extend(queue.linearizable.drain(..count as usize));
    }

    pub(crate) fn take_peeks(&self, into: &mut Vec<Job<S>>) {
        let mut queue = self.queue.lock();
        into.extend(queue.peeks.drain(..));
        self.peeks.store(0, Ordering::Release);
    }

    /// Answers all waiting reads and peeks with the error `why`, since the delivering thread hangs. Later ones get it
    /// too, until that thread goes on.
    pub(crate) fn halt(&self, why: &ReadError) {
        let mut jobs = Vec::new();
        self.end(why.clone(), &mut jobs);
        for mut job in jobs {
            job.look(Err(why.clone()));
            job.answer().into_iter().for_each(Waker::wake);
        }
    }

    /// Accepts no more reads and peeks, and takes all that wait.
    pub(crate) fn end(&self, why: ReadError, into: &mut Vec<Job<S>>) {
        self.refuse(why.clone(), into);
        let mut queue = self.queue.lock();
        into.extend(queue.peeks.drain(..));
        queue.over = Some(why);
        self.peeks.store(0, Ordering::Release);
    }
}

/// A read whose caller waits for the answer.
struct PendingRead<T, L> {
    answer: Arc<ReadAnswer<T>>,
    look: Option<L>,
    /// The result; [`ReadError::Panicked`] from the beginning, for a look that panics or is not called.
    seen: Result<T, ReadError>,
}

impl<S, T: Send, L: FnOnce(&S) -> T + Send> ReplicaRead<S> for PendingRead<T, L> {
    fn look(&mut self, replica: Result<&S, ReadError>) {
        let look = self.look.take();
        if Arc::strong_count(&self.answer) == 1 {
            return;
        }
        self.seen = match (replica, look) {
            // A look changes nothing, so whatever happens in it, the replica and the thread go on.
            (Ok(replica), Some(look)) => {
                catch_unwind(AssertUnwindSafe(|| look(replica))).map_err(|_| ReadError::Panicked)
            }
            (Ok(_), None) => return,
            (Err(error), _) => Err(error),
        };
    }

    fn answer(self: Box<Self>) -> Option<Waker> {
        let PendingRead { answer, seen, .. } = *self;
        let before = std::mem::replace(&mut *answer.state.lock(), AnswerState::Answered(seen));
        answer.is_there.store(true, Ordering::Release);
        match before {
            AnswerState::Waiting(waker) => waker,
            AnswerState::Answered(_) | AnswerState::Taken => unreachable!("a read is answered once"),
        }
    }
}

/// A read that is under way, and its answer.
///
/// A future for any executor; on a plain thread, [`wait`](Read::wait). If it is dropped before its turn, the closure is
/// not called.
#[must_use = "a read whose future is dropped is not carried out"]
pub struct Read<T> {
    answer: Where<T>,
    backoff: BackoffProfile,
}

/// The place of the answer.
enum Where<T> {
    /// An answer in the `Read` itself, from the beginning; None once it was taken.
    Here(Option<Result<T, ReadError>>),
    /// An answer in memory shared with the delivering thread, which puts it there.
    There(Arc<ReadAnswer<T>>),
}

struct ReadAnswer<T> {
    state: Lock<AnswerState<T>>,
    /// Whether the answer has come, readable without the lock.
    is_there: AtomicBool,
}

enum AnswerState<T> {
    Waiting(Option<Waker>),
    Answered(Result<T, ReadError>),
    Taken,
}

impl<T: Send + 'static> Read<T> {
    /// A read that has its answer at once.
    pub(crate) fn answered(answer: Result<T, ReadError>) -> Read<T> {
        Read { answer: Where::Here(Some(answer)), backoff: BackoffProfile::NONE }
    }

    /// A read that waits for its job to be done.
    pub(crate) fn new<S: 'static>(
        backoff: BackoffProfile,
        look: impl FnOnce(&S) -> T + Send + 'static,
    ) -> (Read<T>, Job<S>) {
        let state = Lock::new(AnswerState::Waiting(None));
        let answer = Arc::new(ReadAnswer { state, is_there: AtomicBool::new(false) });
        let read = Read { answer: Where::There(Arc::clone(&answer)), backoff };
        let job = PendingRead { answer, look: Some(look), seen: Err(ReadError::Panicked) };
        (read, Box::new(job))
    }

    /// Blocks this thread until the answer has come.
    ///
    /// Inside `apply`, or another read's closure, a read that was not answered at once is the error
    /// [`ReadError::InsideApply`].
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(mut self) -> Result<T, ReadError> {
        if let Where::There(answer) = &self.answer {
            if blocking::is_applying() {
                return Err(ReadError::InsideApply);
            }
            self.backoff.wait(None, || answer.is_there.load(Ordering::Relaxed));
        }
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }
}

/// A `Read` pins nothing.
impl<T> Unpin for Read<T> {}

impl<T> Future for Read<T> {
    type Output = Result<T, ReadError>;

    /// Inside `apply`, or another read's closure, a read that would have to wait is the error
    /// [`ReadError::InsideApply`], as it is for [`wait`](Read::wait), and its closure is not called.
    ///
    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, ReadError>> {
        let this = self.get_mut();
        let polled = this.poll_answer(context);
        if polled.is_pending() && blocking::is_applying() {
            this.answer = Where::Here(None);
            return Poll::Ready(Err(ReadError::InsideApply));
        }
        polled
    }
}

impl<T> Read<T> {
    /// Polls as the future does, for a caller that never waits on this thread.
    pub(crate) fn poll_answer(&mut self, context: &Context<'_>) -> Poll<Result<T, ReadError>> {
        let answer = match &mut self.answer {
            Where::Here(answer) => return Poll::Ready(answer.take().expect("a Read was polled after it had resolved")),
            Where::There(answer) => answer,
        };
        let mut state = answer.state.lock();
        match std::mem::replace(&mut *state, AnswerState::Taken) {
            AnswerState::Waiting(_) => {
                *state = AnswerState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            AnswerState::Answered(result) => Poll::Ready(result),
            AnswerState::Taken => panic!("a Read was polled after it had resolved"),
        }
    }
}

impl<T> fmt::Debug for Read<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.answer {
            Where::Here(Some(_)) => "answered",
            Where::Here(None) => "taken",
            Where::There(answer) => match &*answer.state.lock() {
                AnswerState::Waiting(_) => "waiting",
                AnswerState::Answered(_) => "answered",
                AnswerState::Taken => "taken",
            },
        };
        write!(f, "Read({state})")
    }
}
