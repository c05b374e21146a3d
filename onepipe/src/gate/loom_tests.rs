//! The gate under loom: whatever a closing returns, the rank has accepted exactly that, and accepts no more.
//!
//! `RUSTFLAGS="--cfg squall_loom" cargo test --release -p squall-onepipe --lib loom`

use std::sync::Arc;

use loom::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use super::Gate;

/// Raises the gate by one, if it is open.
fn raise(gate: &Gate, accepted: &mut u64) {
    *accepted += u64::from(gate.raise(*accepted, *accepted + 1));
}

#[test]
fn a_rank_has_accepted_what_its_closed_gate_says() {
    loom::model(|| {
        let gate = Arc::new(Gate::default());
        // Only the gate may order the engine's actions and what the rank sees of them.
        let (is_settled, said) = (Arc::new(AtomicBool::new(false)), Arc::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let engine = {
            let (gate, is_settled, said) = (Arc::clone(&gate), Arc::clone(&is_settled), Arc::clone(&said));
            thread::spawn(move || {
                said[0].store(gate.close(0), Ordering::Relaxed);
                is_settled.store(true, Ordering::Relaxed);
                said[1].store(gate.close(1), Ordering::Relaxed);
            })
        };
        let mut accepted = 0;
        raise(&gate, &mut accepted);
        raise(&gate, &mut accepted);
        while !is_settled.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        let before = accepted;
        gate.open(1);
        raise(&gate, &mut accepted);
        raise(&gate, &mut accepted);
        engine.join().expect("it does not panic");
        assert_eq!(said[0].load(Ordering::Relaxed), before);
        assert_eq!(said[1].load(Ordering::Relaxed), accepted);
        assert!(!gate.raise(accepted, accepted + 1), "it stays closed");
    });
}
