//! The wait of a control thread for its descriptors.

use std::{
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// Descriptors to wait for, and the meaning of each.
pub(crate) struct Watched<'a, M> {
    meanings: Vec<M>,
    fds: Vec<PollFd<'a>>,
}

impl<'a, M> Watched<'a, M> {
    pub(crate) fn new() -> Watched<'a, M> {
        Watched { meanings: Vec::new(), fds: Vec::new() }
    }

    /// Adds a descriptor. The wait ends when it has something to read or, if `is_stuffed`, when it can be written to.
    /// `is_stuffed` says that bytes are queued which the descriptor had no room for.
    pub(crate) fn add(&mut self, meaning: M, fd: BorrowedFd<'a>, is_stuffed: bool) {
        let out = if is_stuffed { PollFlags::OUT } else { PollFlags::empty() };
        self.meanings.push(meaning);
        self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN | out));
    }

    /// Waits until a descriptor is ready, or until the time `until` if there is one. Returns the meaning and the events
    /// of each ready descriptor, in the order of their addition; none if the wait was interrupted or failed.
    pub(crate) fn wait(self, until: Option<Instant>) -> Vec<(M, PollFlags)> {
        let Watched { meanings, mut fds } = self;
        let left = until.map(|at| at.saturating_duration_since(Instant::now()));
        let timeout = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN) => return Vec::new(),
            Err(error) => {
                tracing::error!(%error, "polling sockets failed");
                // The system may be out of memory, so the next try waits.
                std::thread::sleep(Duration::from_millis(50));
                return Vec::new();
            }
        }
        let flags = fds.iter().map(PollFd::revents);
        meanings.into_iter().zip(flags).filter(|(_, flags)| !flags.is_empty()).collect()
    }
}
