//! A mutex and a condition variable that panics of other threads do not make unusable.
//!
//! Nothing that is guarded by them is left half changed by a panic: the code that holds a lock does not call
//! applications.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError, WaitTimeoutResult},
    time::Duration,
};

/// A mutex that can be locked even if a thread panicked while it held it.
#[derive(Debug, Default)]
pub struct Lock<T: ?Sized>(Mutex<T>);

impl<T> Lock<T> {
    /// A lock around a value.
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }
}

impl<T: ?Sized> Lock<T> {
    /// Takes the lock, if no other thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Blocks until no other thread holds the lock, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A condition variable for threads that hold a [`Lock`]. Waits may end for no reason.
#[derive(Debug, Default)]
pub struct Condition(Condvar);

impl Condition {
    /// A condition that nothing waits for.
    pub const fn new() -> Condition {
        Condition(Condvar::new())
    }

    /// Lets go of the lock, waits to be notified, and takes the lock again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`wait`](Condition::wait) does, for `limit` at most. The result says whether that was reached.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.0.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as [`wait_timeout`](Condition::wait_timeout) does, again and again as long as `condition` is true of the
    /// value.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        self.0.wait_timeout_while(guard, limit, condition).unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the wait of one thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Ends the waits of all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use super::*;

    #[test]
    fn a_lock_survives_a_panic_of_its_holder_and_a_wait_ends_when_it_is_told_to() {
        let shared = Arc::new((Lock::new(1), Condition::new()));
        let other = Arc::clone(&shared);
        let panicked = thread::spawn(move || {
            let _guard = other.0.lock();
            panic!("while it holds the lock");
        });
        assert!(panicked.join().is_err());
        let other = Arc::clone(&shared);
        let told = thread::spawn(move || {
            *other.0.lock() += 1;
            other.1.notify_all();
        });
        let mut value = shared.0.lock();
        while *value == 1 {
            value = shared.1.wait(value);
        }
        assert_eq!(*value, 2);
        let (value, waited) = shared.1.wait_timeout_while(value, Duration::from_millis(1), |value| *value == 2);
        assert!(waited.timed_out() && *value == 2);
        drop(value);
        told.join().unwrap();
    }
}
