//! Earlier states of a group.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    thread,
};

use squall_fabric::sync::Lock;
use squall_ordered::log::{Body, End, Hlc, Position, ReadError, snapshots};
use squall_runtime::blocking;

use super::{History, HistoryError, ask, logged, reader::read_behind};
use crate::{
    durable::{
        log_writer::LogWriter,
        recovery::{ReplayError, replay},
        snapshot_store::SnapshotStore,
    },
    replica::{replicated::Logged, service::Service},
};

/// The number of earlier states of a group that are built at once: each needs memory for a state, and a busy thread.
const AT_ONCE: usize = 2;

/// The most requests that wait for that.
const MAX_WAITING: usize = 256;

/// The number of attempts to build a state when trimming overtakes them.
const ATTEMPTS: usize = 3;

/// The moment of an earlier state.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Moment {
    Version(u64),
    Time(Hlc),
}

type Job = Box<dyn FnOnce() + Send>;

/// The pool of threads that rebuild earlier states of a group.
#[derive(Default)]
pub(super) struct RebuildPool(Lock<RebuildQueue>);

#[derive(Default)]
struct RebuildQueue {
    waiting: VecDeque<Job>,
    threads: usize,
}

impl RebuildPool {
    /// Queues a job, for a thread that ends when no job waits.
    fn push(self: &Arc<RebuildPool>, job: Job) -> Result<(), HistoryError> {
        let mut queue = self.0.lock();
        if queue.waiting.len() >= MAX_WAITING {
            return Err(HistoryError::Busy(MAX_WAITING));
        }
        queue.waiting.push_back(job);
        if queue.threads == AT_ONCE {
            return Ok(());
        }
        let pool = Arc::clone(self);
        let body = move || {
            while let Some(job) = pool.next() {
                job();
            }
        };
        match thread::Builder::new().name("squall-past".to_owned()).spawn(body) {
            Ok(_) => queue.threads += 1,
            // The threads that run already will take it.
            Err(_) if queue.threads > 0 => {}
            Err(error) => {
                queue.waiting.pop_back();
                return Err(HistoryError::NoThread(error));
            }
        }
        Ok(())
    }

    /// Returns the next job of the calling thread; None if the thread is to end.
    fn next(&self) -> Option<Job> {
        let mut queue = self.0.lock();
        let job = queue.waiting.pop_front();
        if job.is_none() {
            queue.threads -= 1;
        }
        job
    }
}

/// A look at an earlier state that is under way, and its result; see [`Group::at_version`](crate::Group::at_version).
///
/// It is a future for any executor; a plain thread calls [`wait`](Past::wait). If it is dropped before its turn, no
/// state is built.
#[derive(derive_more::Debug)]
#[must_use = "an earlier state that no caller waits for is not built"]
#[debug("Past")]
pub struct Past<T>(Arc<Lock<PastState<T>>>);

enum PastState<T> {
    Waiting(Option<Waker>),
    Answered(Result<T, HistoryError>),
    Taken,
}

impl<T> Past<T> {
    /// Blocks this thread until the answer has come. Fails inside `apply` or a read's closure, and for any reason for
    /// which the earlier state can't be built.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(mut self) -> Result<T, HistoryError> {
        if blocking::is_applying() {
            return Err(HistoryError::InsideApply);
        }
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }
}

impl<T> Future for Past<T> {
    type Output = Result<T, HistoryError>;

    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, HistoryError>> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, PastState::Taken) {
            PastState::Waiting(_) => {
                *state = PastState::Waiting(Some(context.waker().clone()));
                Poll::Pending
            }
            PastState::Answered(result) => Poll::Ready(result),
            PastState::Taken => panic!("a Past was polled after it had resolved"),
        }
    }
}

/// Queues a call of `look` with the state at a moment.
pub(crate) fn look<S: Service, T: Send + 'static>(
    group: &str,
    history: &Arc<History>,
    moment: Moment,
    blank: S,
    look: impl FnOnce(&S, Logged) -> T + Send + 'static,
) -> Past<T> {
    let past = Past(Arc::new(Lock::new(PastState::Waiting(None))));
    let (answer, name, of_job) = (Arc::downgrade(&past.0), group.to_owned(), Arc::clone(history));
    let job = move || {
        // The caller has dropped its handle.
        let Some(answer) = answer.upgrade() else { return };
        // Unwind safety: a panic can only break the job's own values.
        let build = || {
            let mut service = blank;
            let at = build(&name, of_job.log_writer()?, moment, &mut service)?;
            Ok(look(&service, at))
        };
        let result = catch_unwind(AssertUnwindSafe(build)).unwrap_or(Err(HistoryError::Panicked));
        if let PastState::Waiting(Some(waker)) = std::mem::replace(&mut *answer.lock(), PastState::Answered(result)) {
            waker.wake();
        }
    };
    let pushed = history.log_writer().map(drop).and_then(|()| history.past.push(Box::new(job)));
    if let Err(error) = pushed {
        *past.0.lock() = PastState::Answered(Err(error));
    }
    past
}

/// Brings a service to the state at a moment.
fn build<S: Service>(
    group: &str,
    log_writer: &LogWriter,
    moment: Moment,
    service: &mut S,
) -> Result<Logged, HistoryError> {
    let version = match moment {
        Moment::Version(version) => version,
        Moment::Time(time) => end_at(group, log_writer, time)?.version,
    };
    for _ in 1..ATTEMPTS {
        match build_version(group, log_writer, version, service) {
            // The log was trimmed meanwhile.
            Err(HistoryError::Unreadable(ReadError::Gone { .. } | ReadError::Trimmed { .. })) => {}
            result => return result,
        }
    }
    build_version(group, log_writer, version, service)
}

fn build_version<S: Service>(
    group: &str,
    log_writer: &LogWriter,
    version: u64,
    service: &mut S,
) -> Result<Logged, HistoryError> {
    let globally_persisted = log_writer.globally_persisted().min(log_writer.on_disk().version);
    if version > globally_persisted {
        return Err(HistoryError::NotYet { group: group.to_owned(), asked: version, globally_persisted });
    }
    let to = position_behind(group, log_writer, version)?;
    let (store, begin) = ask(log_writer, |log| (SnapshotStore::of(log), log.begin().position))?;
    let found = store.newest(begin, to).map_err(HistoryError::snapshot)?;
    for error in found.refused {
        tracing::warn!(group, %error, "a snapshot of the state can't be used, so an older one is");
    }
    let Some(mut snapshot) = found.snapshot else {
        let first = first_state(&store, begin).unwrap_or(log_writer.end().version);
        return Err(HistoryError::Trimmed { group: group.to_owned(), asked: version, first });
    };
    let (from, view) = (snapshot.at, snapshot.view.take());
    let mut reader = ask(log_writer, move |log| log.read(from.position, to))?.map_err(HistoryError::Unreadable)?;
    service.restore(&mut snapshot).map_err(HistoryError::snapshot)?;
    let replayed = replay(service, &mut reader, from, view, &log_writer.skips()).map_err(|error| match error {
        ReplayError::Read(error) => HistoryError::Unreadable(error),
        error => HistoryError::Replay(Box::new(error)),
    })?;
    match replayed.damage {
        Some(damage) => Err(HistoryError::Damaged(damage)),
        None => Ok(logged(replayed.end)),
    }
}

/// Returns the position of the log behind a version's message.
fn position_behind(group: &str, log_writer: &LogWriter, version: u64) -> Result<Position, HistoryError> {
    if version == log_writer.begin().version {
        return Ok(log_writer.begin().position);
    }
    let mut reader = read_behind(group, log_writer, version)?;
    loop {
        match reader.next_record().map_err(|error| HistoryError::reading(group, version, error))? {
            Some(record) if matches!(record.body, Body::Message { .. }) => return Ok(record.end()),
            Some(_) => {}
            None => {
                let globally_persisted = log_writer.globally_persisted();
                return Err(HistoryError::NotYet { group: group.to_owned(), asked: version, globally_persisted });
            }
        }
    }
}

/// Returns the first version of which the state can be built.
fn first_state(store: &SnapshotStore, begin: Position) -> Option<u64> {
    let mut positions = snapshots(&store.disk).ok()?.into_iter().filter(|&at| at >= begin);
    positions.find_map(|at| store.open(at).ok()).map(|snapshot| snapshot.at.version)
}

/// Returns the last command that is globally persisted and not later than a time.
pub(crate) fn end_at(group: &str, log_writer: &LogWriter, time: Hlc) -> Result<Logged, HistoryError> {
    let globally_persisted = log_writer.globally_persisted().min(log_writer.on_disk().version);
    let found: Result<End, ReadError> = ask(log_writer, move |log| log.at_time(time))?;
    let end = found.map_err(|error| match error {
        ReadError::NotYet { .. } => HistoryError::Before { first: log_writer.begin().version + 1 },
        error => HistoryError::reading(group, 0, error),
    })?;
    if end.version <= globally_persisted {
        return Ok(logged(end));
    }
    let found: Result<End, ReadError> = ask(log_writer, move |log| log.at_version(globally_persisted))?;
    found.map(logged).map_err(|error| HistoryError::reading(group, globally_persisted, error))
}
