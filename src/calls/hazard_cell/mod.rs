//! A value that any thread may use at any time, and that one thread replaces now and then.
//!
//! A thread that uses the value notes that in a word of its own (a hazard pointer: M. Michael, IEEE TPDS 15(6), 2004),
//! without an atomic read-modify-write and without a fence. The thread that replaces the value lays a fence into all
//! threads at once (`membarrier`) before it looks at the words. Then it drops the old values that no word notes.
//!
//! `arc-swap` does the same with an atomic exchange in each read. Its reads took 7 times as long (nine rounds of 20
//! million each, in turns), and each submit and each read of a group is one.

#[cfg(all(test, squall_loom))]
mod loom_tests;

use std::{marker::PhantomData, ops::Deref, ptr::NonNull, sync::Arc};

use self::sync::{AtomicPtr, Fences, Mutex, Ordering, lock, own_slot, slots};

/// The word in which a thread notes the value that it uses; null if it uses none.
struct Slot(AtomicPtr<()>);

/// The words of all threads, and the ones that no thread has. They live for ever; a thread that ends leaves its word to
/// the next that begins.
struct Slots(Mutex<(Vec<&'static Slot>, Vec<&'static Slot>)>);

#[cfg_attr(squall_loom, allow(dead_code, reason = "a model's threads do not end"))]
impl Slots {
    fn new() -> Slots {
        Slots(Mutex::new((Vec::new(), Vec::new())))
    }

    fn take(&self) -> &'static Slot {
        let (all, free) = &mut *lock(&self.0);
        free.pop().unwrap_or_else(|| {
            all.push(Box::leak(Box::new(Slot(AtomicPtr::new(std::ptr::null_mut())))));
            all[all.len() - 1]
        })
    }

    fn put_back(&self, slot: &'static Slot) {
        lock(&self.0).1.push(slot);
    }

    /// Returns the notes of all threads.
    fn noted(&self) -> Vec<*mut ()> {
        // Acquire: a thread that has let go of a value has finished all its accesses to it.
        lock(&self.0).0.iter().map(|slot| slot.0.load(Ordering::Acquire)).collect()
    }
}

/// A cell whose value one thread replaces while others use it, with a hazard pointer per thread.
#[derive(derive_more::Debug)]
#[debug("HazardCell({:?})", &*self.get())]
#[debug(bound(T: std::fmt::Debug))]
pub(crate) struct HazardCell<T> {
    value: AtomicPtr<T>,
    fences: Fences,
    owned: Mutex<Owned<T>>,
}

struct Owned<T> {
    now: Arc<T>,
    /// Values that a thread still used when they were replaced. They are looked at again at the next replacement.
    before: Vec<Arc<T>>,
}

impl<T> HazardCell<T> {
    pub(crate) fn new(value: T) -> HazardCell<T> {
        let now = Arc::new(value);
        let value = AtomicPtr::new(Arc::as_ptr(&now).cast_mut());
        HazardCell { value, fences: Fences::new(), owned: Mutex::new(Owned { now, before: Vec::new() }) }
    }

    /// Returns the value, for use on this thread. It is the current one at the time of the call, and stays valid while
    /// it is used.
    #[inline]
    pub(crate) fn get(&self) -> HazardGuard<'_, T> {
        match own_slot() {
            // Relaxed: it is this thread's own word.
            Some(slot) if slot.0.load(Ordering::Relaxed).is_null() => self.note(slot),
            _ => self.keep(),
        }
    }

    #[inline]
    fn note(&self, slot: &'static Slot) -> HazardGuard<'_, T> {
        let mut value = self.value.load(Ordering::Acquire);
        loop {
            // Release: a thread that finds this note instead of the one before it also finds all that was done under
            // that one done.
            slot.0.store(value.cast(), Ordering::Release);
            // Pairs with the fence in `replace`: either `replace` finds the note, or this finds another value.
            self.fences.light();
            let now = self.value.load(Ordering::Acquire);
            if now == value {
                let value = NonNull::new(value).expect("an Arc's address");
                return HazardGuard { value, hold: Hold::Note(slot), of: PhantomData };
            }
            value = now;
        }
    }

    /// Guards the value as `get` does, where the thread's word is in use, or the thread is ending.
    #[cold]
    fn keep(&self) -> HazardGuard<'_, T> {
        let kept = Arc::clone(&lock(&self.owned).now);
        HazardGuard { value: NonNull::from(&*kept), hold: Hold::Arc(kept), of: PhantomData }
    }

    /// Replaces the value. The old one is dropped here, unless a thread uses it. It is then dropped by a later
    /// replacement that finds it unused.
    pub(crate) fn set(&self, value: T) {
        self.replace(value, &slots());
    }

    fn replace(&self, value: T, slots: &Slots) {
        let value = Arc::new(value);
        let mut owned = lock(&self.owned);
        self.value.store(Arc::as_ptr(&value).cast_mut(), Ordering::Release);
        let old = std::mem::replace(&mut owned.now, value);
        owned.before.push(old);
        // Pairs with the fence in `note`.
        self.fences.heavy();
        let noted = slots.noted();
        let is_used = |old: &mut Arc<T>| noted.contains(&Arc::as_ptr(old).cast_mut().cast());
        let unused: Vec<_> = owned.before.extract_if(.., |old| !is_used(old)).collect();
        drop(owned);
        drop(unused);
    }
}

/// A value in use by this thread.
pub(crate) struct HazardGuard<'a, T> {
    value: NonNull<T>,
    hold: Hold<T>,
    /// The raw pointer keeps it on its thread.
    of: PhantomData<(&'a HazardCell<T>, *const T)>,
}

/// The hold on a value that is in use.
enum Hold<T> {
    Note(&'static Slot),
    Arc(#[expect(dead_code, reason = "it is there to be dropped")] Arc<T>),
}

impl<T> Deref for HazardGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: it comes from an Arc, one of which exists as long as this: its own, or the one that `replace` keeps
        // while the note is there.
        unsafe { self.value.as_ref() }
    }
}

impl<T> Drop for HazardGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if let Hold::Note(slot) = self.hold {
            slot.0.store(std::ptr::null_mut(), Ordering::Release);
        }
    }
}

#[cfg(not(squall_loom))]
mod sync {
    pub(super) use std::sync::{
        Mutex,
        atomic::{AtomicPtr, Ordering},
    };
    use std::{
        cell::Cell,
        ops::Deref,
        sync::{
            LazyLock, MutexGuard, PoisonError,
            atomic::{compiler_fence, fence},
        },
    };

    use rustix::thread::{MembarrierCommand, membarrier};

    use super::{Slot, Slots};

    static SLOTS: LazyLock<Slots> = LazyLock::new(Slots::new);

    thread_local! {
        /// The thread's word. Apart from its owner, since a thread-local without a destructor is found faster.
        static SLOT: Cell<Option<&'static Slot>> = const { Cell::new(None) };
        static OWNER: OwnSlot = OwnSlot(SLOTS.take());
    }

    /// A thread's word, until the thread ends.
    struct OwnSlot(&'static Slot);

    impl Drop for OwnSlot {
        fn drop(&mut self) {
            SLOT.set(None);
            SLOTS.put_back(self.0);
        }
    }

    /// Returns the slot of this thread; None when the thread is ending.
    #[inline]
    pub(super) fn own_slot() -> Option<&'static Slot> {
        SLOT.get().or_else(take_slot)
    }

    #[cold]
    fn take_slot() -> Option<&'static Slot> {
        let slot = OWNER.try_with(|own| own.0).ok();
        SLOT.set(slot);
        slot
    }

    pub(super) fn slots() -> impl Deref<Target = Slots> {
        &*SLOTS
    }

    /// Two fences. Each makes sure that the other's thread finds the values that were stored before it.
    pub(super) struct Fences {
        /// Whether the heavy fence holds for all threads. Where the kernel refuses, the light fence is one too.
        one_sided: bool,
    }

    impl Fences {
        pub(super) fn new() -> Fences {
            Fences { one_sided: membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok() }
        }

        #[inline]
        pub(super) fn light(&self) {
            if self.one_sided {
                compiler_fence(Ordering::SeqCst);
            } else {
                fence(Ordering::SeqCst);
            }
        }

        pub(super) fn heavy(&self) {
            fence(Ordering::SeqCst);
            if self.one_sided {
                // Cannot fail once registered.
                let fenced = membarrier(MembarrierCommand::PrivateExpedited);
                debug_assert!(fenced.is_ok(), "{fenced:?}");
            }
        }
    }

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        // Nothing panics while holding it.
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The module above with loom's fences instead of the kernel's.
#[cfg(squall_loom)]
mod sync {
    use std::ops::Deref;

    pub(super) use loom::sync::{
        Mutex,
        atomic::{AtomicPtr, Ordering},
    };
    use loom::sync::{MutexGuard, atomic::fence};

    use super::{Slot, Slots};

    /// Models pass their own slots.
    pub(super) fn own_slot() -> Option<&'static Slot> {
        None
    }

    pub(super) fn slots() -> impl Deref<Target = Slots> {
        Box::new(Slots::new())
    }

    pub(super) struct Fences;

    impl Fences {
        pub(super) fn new() -> Fences {
            Fences
        }

        pub(super) fn light(&self) {
            fence(Ordering::SeqCst);
        }

        pub(super) fn heavy(&self) {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect("nothing panics while holding it")
    }
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicU64},
        thread,
    };

    use super::*;

    #[test]
    fn what_is_replaced_is_dropped_at_once_or_with_the_next_if_it_is_in_use() {
        let current = HazardCell::new(Arc::new(1));
        let using = current.get();
        let first = Arc::downgrade(&using);
        current.set(Arc::new(2));
        assert_eq!(**using, 1, "it stays while it is used");
        let nested = current.get();
        let second = Arc::downgrade(&nested);
        assert_eq!(**nested, 2, "another use sees the new one");
        drop((using, nested));
        assert!(first.upgrade().is_some() && second.upgrade().is_some());
        current.set(Arc::new(3));
        assert!(first.upgrade().is_none() && second.upgrade().is_none());
    }

    #[test]
    fn threads_use_what_is_current_while_it_is_replaced() {
        /// A number that is 0 once it is dropped.
        struct Valid(AtomicU64);

        impl Drop for Valid {
            fn drop(&mut self) {
                *self.0.get_mut() = 0;
            }
        }

        let (current, stop) = (HazardCell::new(Valid(AtomicU64::new(1))), AtomicBool::new(false));
        thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut last = 0;
                        while !stop.load(Ordering::Relaxed) {
                            let now = current.get().0.load(Ordering::Relaxed);
                            assert!(now >= last && now > 0, "{now} after {last}");
                            last = now;
                        }
                    })
                })
                .collect();
            for number in 2..2000 {
                current.set(Valid(AtomicU64::new(number)));
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().for_each(|reader| reader.join().expect("what it uses is valid"));
        });
        assert!(lock(&current.owned).before.len() <= 3, "no more are kept than there are readers");
    }
}
