//! Checks that the way of a message, from a blocking sender to its reply, takes no memory from the heap.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use super::*;

/// The system's allocator, with a count of each thread's requests.
struct PerThread;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: all calls are handed to the system's allocator as they are.
unsafe impl GlobalAlloc for PerThread {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no counter any more, and no test.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: PerThread = PerThread;

/// The number of requests for memory by 100 runs of `work`, once everything is warm.
fn allocations(mut work: impl FnMut()) -> u64 {
    for _ in 0..10 {
        work();
    }
    let before = ALLOCATIONS.get();
    for _ in 0..100 {
        work();
    }
    ALLOCATIONS.get() - before
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 100);
}

#[test]
fn a_message_and_its_reply_take_no_memory() {
    let mut solo = Solo::new(|_| ());
    let entry = Entry::Add(1);
    let text = Entry::Text("longer than what a command holds in place".into());
    assert_eq!(
        allocations(|| {
            let submits: [_; 8] = std::array::from_fn(|_| solo.group.submit(&entry));
            solo.group.try_send(&entry).unwrap();
            solo.settle();
            for submit in submits {
                submit.wait().unwrap();
            }
        }),
        0,
        "submit and try_send"
    );
    assert_eq!(
        allocations(|| {
            let submit = solo.group.try_submit(&entry).unwrap();
            let mut waiting = solo.group.submit(&entry);
            assert!(poll(&mut waiting).is_pending());
            solo.settle();
            submit.wait().unwrap();
            assert!(poll(&mut waiting).is_ready());
        }),
        0,
        "try_submit, and a future that is polled"
    );
    // Its replica keeps the text, which takes one request; everything else takes none.
    let kept = allocations(|| {
        solo.group.send(&text).wait().unwrap();
        solo.settle();
    });
    assert!((100..=110).contains(&kept), "{kept} times for 100 texts");
}

#[test]
fn a_thread_that_waits_for_room_takes_no_memory() {
    let mut solo = Solo::new(|group| _ = group.ring_bytes(1024));
    let filler = solo.group.clone();
    // The first waiter takes memory for the list of waiters.
    while filler.try_send(&Entry::Add(1)).is_ok() {}
    let mut first = solo.group.submit(&Entry::Add(1));
    while poll(&mut first).is_pending() {
        solo.settle();
    }

    let group = solo.group.clone();
    let producer = std::thread::spawn(move || allocations(|| _ = group.submit(&Entry::Add(1)).wait().unwrap()));
    while !producer.is_finished() {
        // Keeps the ring full, so that the producer mostly waits for room.
        while filler.try_send(&Entry::Add(1)).is_ok() {}
        solo.settle();
    }
    assert_eq!(producer.join().unwrap(), 0);
}
