//! The use that this process makes of its processors.

use std::{fs, path::PathBuf};

use rustix::time::{ClockId, clock_gettime};

/// The number of times that this process' threads gave up their cores by themselves; 0 if the system does not say.
pub(crate) fn switches() -> u64 {
    let of = |path: PathBuf| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse::<u64>().ok())
    };
    let Ok(threads) = fs::read_dir("/proc/self/task") else { return 0 };
    threads.flatten().filter_map(|thread| of(thread.path())).sum()
}

/// Processor time that this process has taken, in seconds.
pub(crate) fn processor_seconds() -> f64 {
    let taken = clock_gettime(ClockId::ProcessCPUTime);
    taken.tv_sec as f64 + taken.tv_nsec as f64 * 1e-9
}
