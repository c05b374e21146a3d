//! Exclusive access to a replica, for the thread that delivers or one that reads.
//!
//! No thread waits for it. A reader that finds it taken lets the delivering thread answer instead. If the delivering
//! thread finds it taken, it goes on with other things. The reader then leaves it free for that thread, and wakes it.

#[cfg(all(test, squall_loom))]
mod loom_tests;

use std::ops::{Deref, DerefMut};

use super::sync::{AtomicU32, Ordering, UnsafeCell};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// The delivering thread wants the value; readers keep off.
const WANTED: u32 = 2;
/// A thread that changed the value left it half changed.
const BROKEN: u32 = 4;

/// A cell for a replica, to which one thread at a time has access.
pub(crate) struct ReplicaCell<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the thread that made `state` TAKEN, so by one thread at a time; and it may
// change threads.
unsafe impl<T: Send> Send for ReplicaCell<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for ReplicaCell<T> {}

impl<T> ReplicaCell<T> {
    pub(crate) fn new(value: T) -> ReplicaCell<T> {
        ReplicaCell { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Takes it, for the delivering thread, of which there is one. None while a reader has it, which will wake that
    /// thread.
    pub(crate) fn take(&self) -> Option<ReplicaGuard<'_, T>> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            let (next, free) = match state {
                FREE | WANTED => (TAKEN, true),
                taken => (taken | WANTED, false),
            };
            match self.state.compare_exchange_weak(state, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) if free => return Some(ReplicaGuard { cell: self, changes: true }),
                Ok(_) => return None,
                Err(now) => state = now,
            }
        }
    }

    /// Takes it to change it, for a thread other than the delivering one. None while another thread has it or the
    /// delivering thread wants it; the caller may ask again.
    ///
    /// The delivering thread must be woken afterwards, if the value [was left](ReplicaCell::is_left).
    pub(crate) fn borrow(&self) -> Option<ReplicaGuard<'_, T>> {
        let free = self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        // Made only on success: dropping a `ReplicaGuard` gives back the value, which another thread may have.
        free.is_ok().then(|| ReplicaGuard { cell: self, changes: true })
    }

    /// Whether the delivering thread could take it. If not, a reader has it, and will wake that thread.
    pub(crate) fn is_takeable(&self) -> bool {
        // Setting WANTED again does no harm.
        self.state.load(Ordering::Relaxed) & TAKEN == 0 || self.state.fetch_or(WANTED, Ordering::Relaxed) & TAKEN == 0
    }

    /// Notes that the delivering thread never wants it again.
    pub(crate) fn leave(&self) {
        self.state.fetch_and(!WANTED, Ordering::Relaxed);
    }

    /// Whether it was left half changed, so that no thread will see it again.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.load(Ordering::Relaxed) & BROKEN != 0
    }

    /// Whether a reader left it for the delivering thread.
    pub(crate) fn is_left(&self) -> bool {
        self.state.load(Ordering::Relaxed) == WANTED
    }

    /// Looks at it, for a reader. `needs` comes back if it is taken. `wake` wakes the delivering thread.
    pub(crate) fn look<N, R>(&self, needs: N, look: impl FnOnce(N, &T) -> R, wake: impl FnOnce()) -> Result<R, N> {
        if self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return Err(needs);
        }
        let guard = ReplicaGuard { cell: self, changes: false };
        let result = look(needs, &guard);
        drop(guard);
        // From now on, a thread that wanted it meanwhile finds WANTED alone.
        if self.is_left() {
            wake();
        }
        Ok(result)
    }
}

/// Access to the value, until this is dropped. A panic while it is held for changing leaves the value taken for ever,
/// since it may be half changed.
pub(crate) struct ReplicaGuard<'a, T> {
    cell: &'a ReplicaCell<T>,
    /// Whether the holder may change it.
    changes: bool,
}

impl<T> ReplicaGuard<'_, T> {
    /// Marks it as left half changed: no thread shall see it again.
    pub(crate) fn spoil(self) {
        self.cell.state.fetch_or(BROKEN, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl<T> Deref for ReplicaGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the state is TAKEN, by this.
        self.cell.value.with(|value| unsafe { &*value })
    }
}

impl<T> DerefMut for ReplicaGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the state is TAKEN, by this, which is borrowed exclusively.
        self.cell.value.with_mut(|value| unsafe { &mut *value })
    }
}

impl<T> Drop for ReplicaGuard<'_, T> {
    fn drop(&mut self) {
        if !self.changes || !std::thread::panicking() {
            self.cell.state.fetch_and(!TAKEN, Ordering::Release);
        } else {
            self.cell.state.fetch_or(BROKEN, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_off_what_the_delivering_thread_wants_and_wakes_it() {
        let cell = ReplicaCell::new(1);
        let mut woken = false;
        let seen = cell.look(
            (),
            |(), value| {
                assert!(cell.take().is_none());
                assert!(!cell.is_takeable());
                *value
            },
            || woken = true,
        );
        assert_eq!((seen.ok(), woken), (Some(1), true));
        assert!(cell.look((), |(), _| (), || ()).is_err(), "it is the delivering thread's turn");
        assert!(cell.is_left() && cell.is_takeable());
        *cell.take().expect("it was left") += 1;
        assert_eq!(cell.look((), |(), value| *value, || panic!("no thread waits")).ok(), Some(2));
    }

    #[test]
    fn who_finds_it_taken_leaves_it_so() {
        let cell = ReplicaCell::new(1);
        let guard = cell.borrow().expect("it is free");
        assert!(cell.borrow().is_none());
        assert!(cell.borrow().is_none() && cell.take().is_none(), "the attempt before has freed it");
        drop(guard);
        assert!(cell.borrow().is_none(), "it is the delivering thread's turn");
        assert!(cell.take().is_some());
        assert!(cell.borrow().is_some());
    }

    #[test]
    fn what_a_panic_left_half_changed_is_seen_by_nobody() {
        let cell = ReplicaCell::new(1);
        let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut guard = cell.take().expect("it is free");
            *guard = 2;
            panic!("in the middle");
        }));
        assert!(broken.is_err());
        assert!(cell.look((), |(), _| (), || ()).is_err());
    }
}
