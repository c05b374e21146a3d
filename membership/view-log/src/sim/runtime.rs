//! openraft's simulated runtime, extended by the time of its next timer, so that no caller has to look whether one is
//! due.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use openraft::{AsyncRuntime, OptionalSend};
use openraft_rt_sim::{SimInstant, SimRuntime, SimSleep};

/// The due times of a runtime's timers that something waits for, each with a number of its own.
#[derive(Debug, Default)]
struct Timers {
    due: BTreeSet<(SimInstant, u64)>,
    numbers: u64,
}

type Shared = Arc<Mutex<Timers>>;

thread_local! {
    /// The timers of the runtime that runs on this thread.
    static CURRENT: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

fn lock(timers: &Shared) -> MutexGuard<'_, Timers> {
    timers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// [`SimRuntime`], with its timers in view.
#[derive(Debug)]
pub(crate) struct Runtime {
    inner: SimRuntime,
    timers: Shared,
}

impl Runtime {
    pub(crate) fn with_seed(seed: u64) -> Runtime {
        Runtime { inner: SimRuntime::with_seed(seed), timers: Shared::default() }
    }

    /// The time at which its next timer is due. Until then, it only acts when a caller asks for something.
    pub(crate) fn next_timer(&self) -> Option<SimInstant> {
        lock(&self.timers).due.first().map(|&(at, _)| at)
    }
}

/// A timer.
#[derive(Debug)]
pub(crate) struct Sleep {
    inner: SimSleep,
    at: SimInstant,
    /// Its number and the runtime's timers, once something waits for it.
    waits: Option<(u64, Shared)>,
}

impl Sleep {
    fn forget(&mut self) {
        if let Some((number, timers)) = self.waits.take() {
            lock(&timers).due.remove(&(self.at, number));
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let polled = Pin::new(&mut self.inner).poll(cx);
        if polled.is_ready() {
            self.forget();
        } else if self.waits.is_none()
            && let Some(timers) = CURRENT.with_borrow(Clone::clone)
        {
            let number = {
                let mut timers = lock(&timers);
                timers.numbers += 1;
                let number = timers.numbers;
                timers.due.insert((self.at, number));
                number
            };
            self.waits = Some((number, timers));
        }
        polled
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.forget();
    }
}

/// The error of a future that took longer than its time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the time is up")]
pub(crate) struct TimeUp;

/// A future with a time limit.
pub(crate) struct Timeout<F> {
    // Boxed, so that this can be polled without unsafe code.
    future: Pin<Box<F>>,
    sleep: Sleep,
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, TimeUp>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        Pin::new(&mut self.sleep).poll(cx).map(|()| Err(TimeUp))
    }
}

impl AsyncRuntime for Runtime {
    type JoinError = <SimRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <SimRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = Sleep;
    type Instant = SimInstant;
    type TimeoutError = TimeUp;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = Timeout<T>;
    type ThreadLocalRng = <SimRuntime as AsyncRuntime>::ThreadLocalRng;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        SimRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Sleep {
        let now = SimInstant::try_now().expect("timers are set by what a runtime runs");
        Runtime::sleep_until(now + duration)
    }

    fn sleep_until(at: SimInstant) -> Sleep {
        Sleep { inner: SimRuntime::sleep_until(at), at, waits: None }
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Runtime::sleep(duration) }
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: SimInstant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), sleep: Runtime::sleep_until(deadline) }
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        SimRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        SimRuntime::thread_rng()
    }

    type Mpsc = <SimRuntime as AsyncRuntime>::Mpsc;
    type Watch = <SimRuntime as AsyncRuntime>::Watch;
    type Oneshot = <SimRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <SimRuntime as AsyncRuntime>::Mutex<T>;

    fn new(_threads: usize) -> Runtime {
        Runtime::with_seed(0)
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        let before = CURRENT.replace(Some(Arc::clone(&self.timers)));
        let output = self.inner.block_on(future);
        CURRENT.set(before);
        output
    }

    fn spawn_blocking<F, T>(f: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        SimRuntime::spawn_blocking(f)
    }
}
