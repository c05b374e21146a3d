//! A timer that ends a wait at a time that only the fabric knows.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    event::Timespec,
    io::Errno,
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};

use crate::Time;

/// A timer that makes its descriptor readable.
pub(super) struct TimerFd {
    timer: OwnedFd,
    at: Option<Time>,
}

impl TimerFd {
    pub(super) fn new() -> Result<TimerFd, Errno> {
        let timer = timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK)?;
        Ok(TimerFd { timer, at: None })
    }

    /// Sets it (on [`Time::boot_clock`]), or stops it.
    pub(super) fn set(&mut self, at: Option<Time>) {
        if self.at == at {
            return;
        }
        self.at = at;
        // Zeros would stop it; with a time that has passed it goes off at once.
        let nanos = at.map_or(0, |at| at.as_nanos().max(1));
        let once = Timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = Itimerspec { it_interval: never, it_value: once };
        if let Err(error) = timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &spec) {
            tracing::error!(%error, "a timer could not be set");
        }
    }
}

impl AsFd for TimerFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}
