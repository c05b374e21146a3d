//! Blocking on plain threads, and the threads that must not.

use std::{
    cell::Cell,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Instant,
};

thread_local! {
    static APPLYING: Cell<bool> = const { Cell::new(false) };
    static REPLAYING: Cell<bool> = const { Cell::new(false) };
    static UNPARK: Waker = Waker::from(Arc::new(Unpark(thread::current())));
}

/// A sign, as long as it lives, that this thread runs application code. All that the thread could wait for depends on
/// that code.
#[derive(Debug)]
pub struct Applying {
    before: bool,
}

impl Applying {
    /// Begins application code on this thread.
    pub fn enter() -> Applying {
        Applying { before: APPLYING.replace(true) }
    }
}

impl Drop for Applying {
    fn drop(&mut self) {
        APPLYING.set(self.before);
    }
}

/// A sign, as long as it lives, that this thread runs application code that has run before: it is to build a state, and
/// to do nothing else.
#[derive(Debug)]
pub struct Replaying {
    before: bool,
    _applying: Applying,
}

impl Replaying {
    /// Begins application code that has run before.
    pub fn enter() -> Replaying {
        Replaying { before: REPLAYING.replace(true), _applying: Applying::enter() }
    }
}

impl Drop for Replaying {
    fn drop(&mut self) {
        REPLAYING.set(self.before);
    }
}

/// Whether this thread runs application code that has run before.
pub fn is_replaying() -> bool {
    REPLAYING.get()
}

/// Runs code that is no application's, such as callers' wakers, in the middle of application code.
pub fn outside_apply<T>(code: impl FnOnce() -> T) -> T {
    let _applying = Applying { before: APPLYING.replace(false) };
    code()
}

/// Whether this thread must not wait.
pub fn is_applying() -> bool {
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

/// Blocks until `poll` is ready, or until the deadline.
pub fn block_on<T>(until: Option<Instant>, mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Option<T> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wait_keeps_its_deadline() {
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
        assert!(!outside_apply(is_applying) && is_applying());
        drop(outer);
        assert!(!is_applying());
    }
}
