//! The system's figures of this process.

use std::{fs, time::Duration};

use rustix::param::clock_ticks_per_second;

/// The memory that the system has given to this process, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::server) struct Process {
    /// Its pages in memory, the ring and the engine included.
    pub(in crate::server) resident: u64,
    /// The memory of the host.
    pub(in crate::server) total_of_host: u64,
}

impl Process {
    /// Reads the figures; those that the system does not tell are 0.
    pub(in crate::server) fn read() -> Process {
        Process {
            resident: kibibytes("/proc/self/status", "VmRSS:") << 10,
            total_of_host: kibibytes("/proc/meminfo", "MemTotal:") << 10,
        }
    }
}

fn kibibytes(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

/// The time that the system and the user's code took, as a file such as `/proc/self/stat` has it. `None` if it can't
/// be read.
pub(in crate::server) fn cpu_times(file: &str) -> Option<(Duration, Duration)> {
    let text = fs::read_to_string(file).ok()?;
    // A name in parentheses may have spaces.
    let (_, fields) = text.rsplit_once(") ")?;
    let mut ticks = fields.split(' ').skip(11).map(str::parse::<u64>);
    let (user, system) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    let time = |ticks: u64| Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second().max(1) as f64);
    Some((time(system), time(user)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_this_process_are_read() {
        let Process { resident, total_of_host } = Process::read();
        assert!((1 << 20..1 << 40).contains(&resident) && total_of_host > resident, "{resident} of {total_of_host}");
        let used = || cpu_times("/proc/self/stat").map(|(system, user)| system + user).expect("it can be read");
        let before = used();
        let begun = std::time::Instant::now();
        while used() == before {
            assert!(begun.elapsed() < Duration::from_secs(20), "no time is counted");
        }
        assert_eq!(cpu_times("/proc/self/nosuch"), None);
    }
}
