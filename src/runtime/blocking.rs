//! Waiting on plain threads.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

use crate::{config::Spin, runtime::core_budget::CoreBudget};

thread_local! {
    static APPLYING: Cell<bool> = const { Cell::new(false) };
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// A mark, as long as it lives, that this thread runs application code. All that the thread could wait for depends on
/// that code.
#[derive(Debug)]
pub(crate) struct Applying {
    before: bool,
}

impl Applying {
    pub(crate) fn enter() -> Applying {
        Applying { before: APPLYING.replace(true) }
    }
}

impl Drop for Applying {
    fn drop(&mut self) {
        APPLYING.set(self.before);
    }
}

/// Whether this thread must not wait.
pub(crate) fn is_applying() -> bool {
    APPLYING.get()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// The time for which a thread looks again and again before it sleeps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The number of looks, of some 10 to 40 ns each; `u32::MAX` for ever.
    looks: u32,
    /// Whether it lets other threads run between two looks.
    yields: bool,
}

/// The number of looks that take about as long as waking a thread that sleeps on an idle core.
const LOOKS: u32 = 1000;

impl Patience {
    /// No looks at all.
    pub(crate) const NONE: Patience = Patience { looks: 0, yields: false };

    pub(crate) fn new(spin: Spin, budget: CoreBudget) -> Patience {
        let looks = match (spin, budget) {
            (Spin::Never, _) | (Spin::Auto, CoreBudget::Shared | CoreBudget::Oversubscribed) => 0,
            (Spin::Auto, CoreBudget::Spare) => LOOKS,
            (Spin::Always, _) => u32::MAX,
        };
        Patience { looks, yields: budget != CoreBudget::Spare }
    }

    /// Waits for `done`, for a moment and without sleeping.
    pub(crate) fn spin(self, until: Option<Instant>, mut done: impl FnMut() -> bool) {
        let mut looks = 0;
        while looks < self.looks && !done() {
            if self.yields {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            if self.looks != u32::MAX {
                looks += 1;
            } else if until.is_some_and(|until| Instant::now() >= until) {
                return;
            }
        }
    }
}

/// Blocks until `poll` is ready, or until the deadline.
pub(crate) fn block_on<T>(until: Option<Instant>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
    UNPARK.with(|waker| {
        let mut context = Context::from_waker(waker);
        loop {
            if let Poll::Ready(output) = poll(&mut context) {
                return Some(output);
            }
            match until {
                None => thread::park(),
                Some(until) => match until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
                    Some(left) => thread::park_timeout(left),
                    None => return None,
                },
            }
        }
    })
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_thread_spins_only_where_an_engine_could_not_run_instead() {
        for (spin, nodes, cores, looks) in [
            (Spin::Auto, 2, 4, LOOKS),
            (Spin::Auto, 3, 4, 0),
            (Spin::Always, 1, 2, u32::MAX),
            (Spin::Always, 2, 2, u32::MAX),
            (Spin::Never, 1, 64, 0),
        ] {
            let patience = Patience::new(spin, CoreBudget::of(nodes, cores));
            assert_eq!(patience.looks, looks, "{spin:?} with {nodes} nodes on {cores} cores");
            assert_eq!(patience.yields, 2 * nodes > cores);
        }
    }

    #[test]
    fn a_thread_that_never_sleeps_still_keeps_its_deadline() {
        let patience = Patience::new(Spin::Always, CoreBudget::Spare);
        patience.spin(Some(Instant::now() + Duration::from_millis(1)), || false);
        assert_eq!(block_on(Some(Instant::now() + Duration::from_millis(1)), |_| Poll::<()>::Pending), None);
    }

    #[test]
    fn a_wake_from_another_thread_ends_the_wait() {
        let mut polls = 0;
        let woken = block_on(None, |context| {
            polls += 1;
            if polls == 3 {
                return Poll::Ready(polls);
            }
            let waker = context.waker().clone();
            thread::spawn(move || waker.wake());
            Poll::Pending
        });
        assert!(woken >= Some(3));
    }

    #[test]
    fn applying_ends_with_its_guard_also_when_nested() {
        assert!(!is_applying());
        let outer = Applying::enter();
        drop(Applying::enter());
        assert!(is_applying());
        drop(outer);
        assert!(!is_applying());
    }
}
