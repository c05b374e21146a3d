//! A replica cell under loom. The value lies in a cell that loom watches, so two threads that have it at once are
//! reported as a race. A delivering thread that is never woken is reported as a deadlock.
//!
//! `RUSTFLAGS="--cfg squall_loom" cargo test --release -p squall --lib replica_cell`

use std::sync::Arc;

use loom::{sync::Notify, thread};

use super::ReplicaCell;

#[test]
fn one_at_a_time_has_it_and_who_wants_it_is_woken() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let cell = Arc::new(ReplicaCell::new(0));
        let notify = Arc::new(Notify::new());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (cell, notify) = (Arc::clone(&cell), Arc::clone(&notify));
                thread::spawn(move || cell.look((), |(), value| *value, || notify.notify()).ok())
            })
            .collect();
        for _ in 0..2 {
            loop {
                if let Some(mut held) = cell.take() {
                    *held += 1;
                    break;
                }
                notify.wait();
            }
        }
        for reader in readers {
            assert!(reader.join().expect("it does not panic").is_none_or(|seen| seen <= 2));
        }
        assert_eq!(*cell.take().expect("all readers are gone"), 2);
    });
}

#[test]
fn who_borrows_it_has_it_alone() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let cell = Arc::new(ReplicaCell::new(0));
        let borrowers: Vec<_> = (0..2)
            .map(|_| {
                let cell = Arc::clone(&cell);
                thread::spawn(move || cell.borrow().map(|mut held| *held += 1).is_some())
            })
            .collect();
        let mut changes = i32::from(cell.take().map(|mut held| *held += 1).is_some());
        for borrower in borrowers {
            changes += i32::from(borrower.join().expect("it does not panic"));
        }
        assert_eq!(*cell.take().expect("no thread has it any more"), changes);
    });
}
