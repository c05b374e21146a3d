//! An allocator that counts the memory in use, as Redis does: `used_memory`, and what `maxmemory` limits.
//!
//! The memory that the system reports for a process can't serve as a limit: it hardly shrinks when values are removed,
//! since the allocator keeps the room for later.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::atomic::{AtomicIsize, AtomicUsize, Ordering},
};

/// The number of counters. Threads share them evenly, so that few write to the same one.
const COUNTERS: usize = 32;

/// A counter in a pair of cache lines of its own.
#[repr(align(128))]
struct Counter(AtomicIsize);

/// The bytes in use. One counter may be negative: a thread may free what another has allocated.
static IN_USE: [Counter; COUNTERS] = [const { Counter(AtomicIsize::new(0)) }; COUNTERS];

/// The number of threads that have chosen a counter.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The counter of this thread; [`COUNTERS`] until it has chosen one.
    static OWN: Cell<usize> = const { Cell::new(COUNTERS) };
}

/// The system's allocator, with a count of the bytes in use. To be the `#[global_allocator]` of a program whose server
/// is to report and limit its memory.
#[derive(Debug)]
pub struct CountingAllocator;

/// The bytes in use, with the allocator's own. `None` if [`CountingAllocator`] is not the program's allocator.
pub fn used_bytes() -> Option<usize> {
    let bytes: isize = IN_USE.iter().map(|counter| counter.0.load(Ordering::Relaxed)).sum();
    // Threads count while this adds up, so the sum is near the truth at best.
    usize::try_from(bytes).ok().filter(|&bytes| bytes > 0)
}

/// The memory that an allocation takes: on 64-bit machines, glibc puts 8 bytes before it, and rounds to 16.
fn taken(bytes: usize) -> isize {
    (bytes.saturating_add(23) & !15).max(32).cast_signed()
}

fn count(bytes: isize) {
    // A thread that is ending has no counter of its own any more.
    let own = OWN.try_with(|own| {
        if own.get() == COUNTERS {
            own.set(THREADS.fetch_add(1, Ordering::Relaxed) % COUNTERS);
        }
        own.get()
    });
    IN_USE[own.unwrap_or(0)].0.fetch_add(bytes, Ordering::Relaxed);
}

// SAFETY: all calls are handed to the system's allocator as they are. Counting allocates nothing: the thread's counter
// is a constant without a destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        counted(unsafe { System.alloc(layout) }, layout)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        counted(unsafe { System.alloc_zeroed(layout) }, layout)
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-taken(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promises are passed on.
        let moved = unsafe { System.realloc(memory, layout, bytes) };
        if !moved.is_null() {
            count(taken(bytes) - taken(layout.size()));
        }
        moved
    }
}

/// Counts what was allocated, if it was.
fn counted(memory: *mut u8, layout: Layout) -> *mut u8 {
    if !memory.is_null() {
        count(taken(layout.size()));
    }
    memory
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicPtr;

    use super::*;

    #[test]
    fn what_is_freed_no_longer_counts_whichever_thread_frees_it() {
        // The tests' own allocator is the system's, so nothing but this test counts.
        assert_eq!(used_bytes(), None);
        let layout = Layout::from_size_align(100_000, 8).expect("it is a layout");
        // SAFETY: the layout has a size, and the memory is freed once, below, with the layout that it was given last.
        let memory = AtomicPtr::new(unsafe { CountingAllocator.alloc(layout) });
        assert_eq!(used_bytes(), Some(100_016));
        let freed = std::thread::spawn(move || {
            // SAFETY: as above.
            let memory = unsafe { CountingAllocator.realloc(memory.into_inner(), layout, 50_000) };
            let grown = used_bytes();
            // SAFETY: as above.
            unsafe { CountingAllocator.dealloc(memory, Layout::from_size_align_unchecked(50_000, 8)) };
            grown
        });
        assert_eq!(freed.join().expect("it does not panic"), Some(50_016));
        assert_eq!(used_bytes(), None);
    }

    #[test]
    fn small_allocations_count_with_what_the_allocator_adds() {
        assert_eq!([0, 1, 24, 25, 40, 41].map(taken), [32, 32, 32, 48, 48, 64]);
    }
}
