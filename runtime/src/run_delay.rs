//! The time for which this thread was ready to run and had no core.

use std::{fs::File, os::unix::fs::FileExt, time::Duration};

/// The kernel's count for one thread. With it, a call that took long because its thread had lost its core is not blamed
/// for that.
#[derive(Debug)]
pub struct RunDelay(Option<File>);

impl RunDelay {
    /// The count for the calling thread.
    pub fn of_this_thread() -> RunDelay {
        // Some kernels do not count it; then nothing is excused.
        RunDelay(File::open("/proc/thread-self/schedstat").ok())
    }

    /// Returns the total so far. Takes a system call, of some microseconds.
    pub fn total(&self) -> Duration {
        let mut text = [0; 64];
        let read = |file: &File| file.read_at(&mut text, 0).ok();
        let bytes = self.0.as_ref().and_then(read).unwrap_or(0);
        // «time on a core in ns, time without one in ns, number of turns»
        let nanos = std::str::from_utf8(&text[..bytes]).ok().and_then(|text| text.split(' ').nth(1)?.parse().ok());
        Duration::from_nanos(nanos.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_falls_and_is_less_than_the_time_that_passed() {
        let (began, delay) = (std::time::Instant::now(), RunDelay::of_this_thread());
        let first = delay.total();
        std::thread::yield_now();
        let second = delay.total();
        assert!(second >= first && second - first <= began.elapsed(), "{first:?}, {second:?}");
    }
}
