//! Deadlines of submits, in the time of the threads that drive their group.
//!
//! A submit that is given a deadline leaves a [`Deadline`] with its group. A thread that knows the time (in the
//! simulator no other does) starts it, and lets it expire when it is due. That is the delivering thread, or the
//! engine's, since the other may hang. A deadline belongs to the submit and not to the slot of its reply, so a late one
//! expires in vain instead of hitting another submit.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use atomic_waker::AtomicWaker;
use squall_fabric::{Time, sync::Lock};

/// A deadline, which expires once.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    expired: AtomicBool,
    waker: AtomicWaker,
}

impl Deadline {
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.expired.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// A group's deadlines.
#[derive(Debug)]
pub(crate) struct Deadlines {
    fresh: Lock<Vec<(Duration, Arc<Deadline>)>>,
    /// The number of fresh deadlines, so that the lock is not taken when there are none.
    count: AtomicUsize,
    timers: Lock<TimerQueue>,
    /// The time at which the first deadline expires, in nanoseconds, for the same reason; [`NEVER`] if none runs.
    next: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Default for Deadlines {
    fn default() -> Deadlines {
        let (fresh, timers) = Default::default();
        Deadlines { fresh, count: AtomicUsize::new(0), timers, next: AtomicU64::new(NEVER) }
    }
}

impl Deadlines {
    /// Sets a deadline that expires when `after` has passed since the engine's or the delivering thread's next step.
    /// The engine must be woken.
    pub(crate) fn set(&self, after: Duration) -> Arc<Deadline> {
        let deadline = Arc::<Deadline>::default();
        let mut fresh = self.fresh.lock();
        fresh.push((after, Arc::clone(&deadline)));
        self.count.store(fresh.len(), Ordering::Release);
        deadline
    }

    /// Whether there are deadlines to be started.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Returns the time at which the first of the started deadlines expires.
    pub(crate) fn next(&self) -> Option<Time> {
        let next = self.next.load(Ordering::Relaxed);
        (next != NEVER).then(|| Time::from_nanos(next))
    }

    /// Starts fresh deadlines, and lets those expire that are due. The wakers of the submits that wait for them are
    /// handed to `wake`.
    pub(crate) fn expire(&self, now: Time, wake: impl FnMut(Waker)) {
        if !self.any() && self.next().is_none_or(|next| next > now) {
            return;
        }
        let mut due = Vec::new();
        let mut timers = self.timers.lock();
        timers.step(now, self, |waker| due.push(waker));
        self.next.store(timers.next().map_or(NEVER, Time::as_nanos), Ordering::Relaxed);
        drop(timers);
        // Called without the lock, since a waker may do anything.
        due.into_iter().for_each(wake);
    }
}

/// The deadlines that were started, by time.
#[derive(Debug, Default)]
struct TimerQueue {
    queue: BinaryHeap<Reverse<Timer>>,
    /// The number of deadlines started so far. It orders deadlines of the same time.
    started: u64,
    /// The number of deadlines at which the deadlines of submits that are gone are thrown away.
    sweep_at: usize,
}

#[derive(Debug)]
struct Timer {
    at: Time,
    number: u64,
    deadline: Arc<Deadline>,
}

impl TimerQueue {
    fn next(&self) -> Option<Time> {
        self.queue.peek().map(|Reverse(first)| first.at)
    }

    fn step(&mut self, now: Time, deadlines: &Deadlines, mut wake: impl FnMut(Waker)) {
        if deadlines.any() {
            self.start(now, deadlines);
        }
        while self.next().is_some_and(|at| at <= now) {
            let Some(Reverse(Timer { deadline, .. })) = self.queue.pop() else { break };
            deadline.expired.store(true, Ordering::Release);
            deadline.waker.take().into_iter().for_each(&mut wake);
        }
    }

    fn start(&mut self, now: Time, deadlines: &Deadlines) {
        let mut fresh = deadlines.fresh.lock();
        deadlines.count.store(0, Ordering::Release);
        for (after, deadline) in fresh.drain(..) {
            self.started += 1;
            self.queue.push(Reverse(Timer { at: now + after, number: self.started, deadline }));
        }
        drop(fresh);
        // Most submits get their replies long before their deadlines. Sweeping when the number has doubled costs little
        // for each. It keeps the heap below twice the number of deadlines that submits wait for.
        if self.queue.len() >= self.sweep_at {
            self.queue.retain(|Reverse(timer)| Arc::strong_count(&timer.deadline) > 1);
            self.sweep_at = (2 * self.queue.len()).max(64);
        }
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Timer {}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn is_expired(deadline: &Deadline) -> bool {
        deadline.poll(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn deadlines_expire_when_their_time_has_passed_since_the_step_that_started_them() {
        let (deadlines, mut timers) = (Deadlines::default(), TimerQueue::default());
        let (late, early) = (deadlines.set(Duration::from_nanos(20)), deadlines.set(Duration::from_nanos(10)));
        assert!(deadlines.any());
        timers.step(Time::from_nanos(100), &deadlines, |_| ());
        assert!(!deadlines.any());
        assert_eq!(timers.next(), Some(Time::from_nanos(110)));
        timers.step(Time::from_nanos(110), &deadlines, |_| ());
        assert!(is_expired(&early) && !is_expired(&late));
        timers.step(Time::from_nanos(500), &deadlines, |_| ());
        assert!(is_expired(&late));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn deadlines_that_nobody_waits_for_do_not_pile_up() {
        let (deadlines, mut timers) = (Deadlines::default(), TimerQueue::default());
        let kept = deadlines.set(Duration::from_secs(1));
        for _ in 0..10_000 {
            drop(deadlines.set(Duration::from_secs(1)));
            timers.step(Time::ZERO, &deadlines, |_| ());
        }
        assert!(timers.queue.len() <= 64, "{} deadlines", timers.queue.len());
        timers.step(Time::from_nanos(1_000_000_000), &deadlines, |_| ());
        assert!(is_expired(&kept));
    }
}
