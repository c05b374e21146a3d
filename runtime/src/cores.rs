//! Placement of threads on cores.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Moves the calling thread to one of the cores that it may use. Threads that are numbered by `index` are spread
/// evenly. The kernel may move the thread on from there.
#[cold]
pub fn spread(index: usize) {
    // Where that is not possible, the thread stays on its core.
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let count = (allowed.count() as usize).max(1);
    let Some(core) = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).nth(index % count) else { return };
    let mut own = CpuSet::new();
    own.set(core);
    if sched_setaffinity(None, &own).is_ok() {
        let _ = sched_setaffinity(None, &allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn afterwards_a_thread_may_use_the_cores_that_it_might_before() {
        let before = sched_getaffinity(None).expect("it has some");
        for index in [0, 1, 7000] {
            spread(index);
            assert_eq!(sched_getaffinity(None).as_ref(), Ok(&before));
        }
    }
}
