//! The resources that a process uses.

use std::{fmt, fs, time::Duration};

/// The resources that one process uses at a moment. All 0 once it is gone.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) resident_bytes: u64,
    descriptors: usize,
    threads: u64,
}

impl Usage {
    pub(crate) fn of(process: u32) -> Usage {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
        };
        let descriptors = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
        Usage { resident_bytes: number("VmRSS:") << 10, descriptors, threads: number("Threads:") }
    }
}

impl fmt::Display for Usage {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} MiB, {} fds, {} threads", self.resident_bytes >> 20, self.descriptors, self.threads)
    }
}

/// Returns the median of each process's memory in the second and in the last quarter of the time, in bytes. None if a
/// quarter has no sample.
pub(crate) fn growth(samples: &[(Duration, Vec<Usage>)], lasted: Duration) -> Option<Vec<(u64, u64)>> {
    let processes = samples.first()?.1.len();
    let median = |quarter: u32, process: usize| {
        let within = lasted * quarter / 4..=lasted * (quarter + 1) / 4;
        let in_quarter = samples.iter().filter(|(at, _)| within.contains(at));
        let mut bytes: Vec<u64> = in_quarter.map(|(_, usage)| usage[process].resident_bytes).collect();
        bytes.sort_unstable();
        bytes.get(bytes.len() / 2).copied()
    };
    (0..processes).map(|process| Some((median(1, process)?, median(3, process)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_compares_the_medians_of_the_second_and_the_last_quarter() {
        let sample = |second: u64, resident_bytes| {
            (Duration::from_secs(second), vec![Usage { resident_bytes, ..Usage::default() }])
        };
        // The first quarter fills the store, and one outlier does not change a median.
        let bytes = [1, 2, 3, 10, 11, 99, 12, 12, 12, 20, 21, 0];
        let samples: Vec<_> = (1..).step_by(2).zip(bytes).map(|(second, bytes)| sample(second, bytes)).collect();
        assert_eq!(growth(&samples, Duration::from_secs(24)), Some(vec![(11, 20)]));
        assert_eq!(growth(&samples[..3], Duration::from_secs(24)), None, "nothing of the second quarter");
    }
}
