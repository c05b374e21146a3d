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

    /// Adds a descriptor to be read from, and to be written to if bytes wait for room in it.
    pub(crate) fn add(&mut self, meaning: M, fd: BorrowedFd<'a>, is_stuffed: bool) {
        let out = if is_stuffed { PollFlags::OUT } else { PollFlags::empty() };
        self.meanings.push(meaning);
        self.fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN | out));
    }

    /// Waits until some are ready or it is time, and returns those that are ready, in the order of their addition.
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
