//! Deadlines of submits, in the delivering thread's time.
//!
//! A submit that is given a deadline leaves an [`Alarm`] with its group; the delivering thread, which alone knows the time
//! (in the simulator there is no other), starts it at its next step and rings it when it is due. An alarm belongs to the
//! submit and not to the slot of its reply, so a late one rings in vain instead of hitting another submit.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use atomic_waker::AtomicWaker;
use squall_fabric::Time;

/// Rings once.
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

/// Alarms on their way to the delivering thread.
#[derive(Debug, Default)]
pub(crate) struct Alarms {
    fresh: Mutex<Vec<(Duration, Arc<Alarm>)>>,
    /// How many are fresh, so that nobody takes the lock when there are none.
    count: AtomicUsize,
}

impl Alarms {
    /// An alarm that rings when `after` has passed since the delivering thread's next step. That thread must be woken.
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
}

/// The delivering thread's part: the alarms that it has started.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    running: BinaryHeap<Reverse<Running>>,
    /// Orders alarms of the same time.
    started: u64,
    /// When there are this many, those that nobody waits for any more are thrown away.
    sweep_at: usize,
}

#[derive(Debug)]
struct Running {
    at: Time,
    number: u64,
    alarm: Arc<Alarm>,
}

impl Clock {
    /// When the first alarm rings.
    pub(crate) fn next(&self) -> Option<Time> {
        self.running.peek().map(|Reverse(first)| first.at)
    }

    /// Starts fresh alarms, and rings those that are due: who waits for them is handed to `wake`.
    pub(crate) fn step(&mut self, now: Time, alarms: &Alarms, mut wake: impl FnMut(Waker)) {
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
        // Most submits get their replies long before their deadlines. Sweeping when the number has doubled costs little for
        // each, and keeps those in the heap below twice the number that is waited for.
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
