//! A hazard cell under loom. Its value lies in a cell that loom watches, and the thread that drops it writes to it. So
//! a use that goes on after that is reported as a race.
//!
//! `RUSTFLAGS="--cfg squall_loom" cargo test --release -p squall --lib hazard_cell`

use std::sync::Arc;

use loom::{cell::UnsafeCell, thread};

use super::{HazardCell, Slots};

struct Watched(UnsafeCell<u32>);

// SAFETY: loom fails the model if the cell is accessed while, or without knowing that, another thread writes it.
unsafe impl Sync for Watched {}
// SAFETY: as above.
unsafe impl Send for Watched {}

impl Drop for Watched {
    fn drop(&mut self) {
        // SAFETY: see the implementation of Sync.
        self.0.with_mut(|cell| unsafe { *cell = 0 });
    }
}

fn watched(number: u32) -> Watched {
    Watched(UnsafeCell::new(number))
}

#[test]
fn what_is_used_is_not_dropped() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (cell, slots) = (Arc::new(HazardCell::new(watched(1))), Arc::new(Slots::new()));
        let slot = slots.take();
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                for _ in 0..2 {
                    let guard = cell.note(slot);
                    // SAFETY: see the implementation of Sync.
                    let number = guard.0.with(|cell| unsafe { *cell });
                    assert!((1..=3).contains(&number));
                }
            })
        };
        cell.replace(watched(2), &slots);
        cell.replace(watched(3), &slots);
        reader.join().expect("no panic");
        cell.replace(watched(4), &slots);
        assert!(super::lock(&cell.owned).before.is_empty(), "no thread uses anything");
    });
}
