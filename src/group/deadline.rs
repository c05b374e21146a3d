//! Deadlines of submits, in the time of the threads that drive their group.
//!
//! A submit that is given a deadline leaves an [`Alarm`] with its group. A thread that knows the time (in the simulator
//! no other does) starts it, and rings it when it is due. That is the delivering thread, or the engine's, since the
//! other may hang. An alarm belongs to the submit and not to the slot of its reply, so a late one rings in vain instead
//! of hitting another submit.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use atomic_waker::AtomicWaker;
use squall_fabric::Time;

/// A deadline, which rings once.
pub(crate) struct Alarm {
    rung: AtomicBool,
    waker: AtomicWaker,
}

impl Alarm {
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        self.waker.register(context.waker());
        if self.rung.load(Ordering::Acquire) { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl fmt::Debug for Alarm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Alarm").field("rung", &self.rung).finish_non_exhaustive()
    }
}

/// A group's alarms.
#[derive(Debug)]
pub(crate) struct Alarms {
    fresh: Mutex<Vec<(Duration, Arc<Alarm>)>>,
    /// The number of fresh alarms, so that the lock is not taken when there are none.
    count: AtomicUsize,
    clock: Mutex<Clock>,
    /// The time at which the first alarm rings, in nanoseconds, for the same reason; [`NEVER`] if none runs.
    next: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl Default for Alarms {
    fn default() -> Alarms {
        let (fresh, clock) = Default::default();
        Alarms { fresh, count: AtomicUsize::new(0), clock, next: AtomicU64::new(NEVER) }
    }
}

impl Alarms {
    /// Sets an alarm that rings when `after` has passed since the engine's or the delivering thread's next step. The
    /// engine must be woken.
    pub(crate) fn set(&self, after: Duration) -> Arc<Alarm> {
        let alarm = Arc::new(Alarm { rung: AtomicBool::new(false), waker: AtomicWaker::new() });
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.push((after, Arc::clone(&alarm)));
        self.count.store(fresh.len(), Ordering::Release);
        alarm
    }

    /// Whether there are alarms to be started.
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// Returns the time at which the first of the started alarms rings.
    pub(crate) fn next(&self) -> Option<Time> {
        let next = self.next.load(Ordering::Relaxed);
        (next != NEVER).then(|| Time::from_nanos(next))
    }

    /// Starts fresh alarms, and rings those that are due. The wakers of the submits that wait for them are handed to
    /// `wake`.
    pub(crate) fn ring(&self, now: Time, wake: impl FnMut(Waker)) {
        if !self.any() && self.next().is_none_or(|next| next > now) {
            return;
        }
        let mut due = Vec::new();
        let mut clock = self.clock.lock().unwrap_or_else(PoisonError::into_inner);
        clock.step(now, self, |waker| due.push(waker));
        self.next.store(clock.next().map_or(NEVER, Time::as_nanos), Ordering::Relaxed);
        drop(clock);
        // Called without the lock, since a waker may do anything.
        due.into_iter().for_each(wake);
    }
}

/// The alarms that were started.
#[derive(Debug, Default)]
struct Clock {
    running: BinaryHeap<Reverse<Running>>,
    /// The number of alarms started so far. It orders alarms of the same time.
    started: u64,
    /// The number of alarms at which the alarms of submits that are gone are thrown away.
    sweep_at: usize,
}

#[derive(Debug)]
struct Running {
    at: Time,
    number: u64,
    alarm: Arc<Alarm>,
}

impl Clock {
    fn next(&self) -> Option<Time> {
        self.running.peek().map(|Reverse(first)| first.at)
    }

    fn step(&mut self, now: Time, alarms: &Alarms, mut wake: impl FnMut(Waker)) {
        if alarms.any() {
            self.start(now, alarms);
        }
        while self.next().is_some_and(|at| at <= now) {
            let Some(Reverse(Running { alarm, .. })) = self.running.pop() else { break };
            alarm.rung.store(true, Ordering::Release);
            alarm.waker.take().into_iter().for_each(&mut wake);
        }
    }

    fn start(&mut self, now: Time, alarms: &Alarms) {
        let mut fresh = alarms.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        alarms.count.store(0, Ordering::Release);
        for (after, alarm) in fresh.drain(..) {
            self.started += 1;
            self.running.push(Reverse(Running { at: now + after, number: self.started, alarm }));
        }
        drop(fresh);
        // Most submits get their replies long before their deadlines. Sweeping when the number has doubled costs little
        // for each. It keeps the heap below twice the number of alarms that submits wait for.
        if self.running.len() >= self.sweep_at {
            self.running.retain(|Reverse(running)| Arc::strong_count(&running.alarm) > 1);
            self.sweep_at = (2 * self.running.len()).max(64);
        }
    }
}

impl Ord for Running {
    fn cmp(&self, other: &Running) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Running) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Running {
    fn eq(&self, other: &Running) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Running {}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    fn is_ringing(alarm: &Alarm) -> bool {
        alarm.poll(&Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn alarms_ring_when_their_time_has_passed_since_the_step_that_started_them() {
        let (alarms, mut clock) = (Alarms::default(), Clock::default());
        let (late, early) = (alarms.set(Duration::from_nanos(20)), alarms.set(Duration::from_nanos(10)));
        assert!(alarms.any());
        clock.step(Time::from_nanos(100), &alarms, |_| ());
        assert!(!alarms.any());
        assert_eq!(clock.next(), Some(Time::from_nanos(110)));
        clock.step(Time::from_nanos(110), &alarms, |_| ());
        assert!(is_ringing(&early) && !is_ringing(&late));
        clock.step(Time::from_nanos(500), &alarms, |_| ());
        assert!(is_ringing(&late));
        assert_eq!(clock.next(), None);
    }

    #[test]
    fn alarms_that_nobody_waits_for_do_not_pile_up() {
        let (alarms, mut clock) = (Alarms::default(), Clock::default());
        let kept = alarms.set(Duration::from_secs(1));
        for _ in 0..10_000 {
            drop(alarms.set(Duration::from_secs(1)));
            clock.step(Time::ZERO, &alarms, |_| ());
        }
        assert!(clock.running.len() <= 64, "{} alarms", clock.running.len());
        clock.step(Time::from_nanos(1_000_000_000), &alarms, |_| ());
        assert!(is_ringing(&kept));
    }
}
