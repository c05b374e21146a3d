//! The sleep of a thread until the fabric has something for it. Only runtimes see this.

use std::{io, sync::Arc};

use rustix::{
    event::{PollFd, Timespec, poll},
    io::Errno,
};

use crate::time::Time;

/// A fabric that a thread can wait on.
///
/// Peers and [`Waker`]s do not signal a thread that is awake, so falling asleep takes three steps, in this order:
/// [`arm`](Wait::arm); look once more for work (poll, and read the memory that peers write); then [`wait`](Wait::wait)
/// if there was none, or [`disarm`](Wait::disarm). Anything that was written, posted or woken after `arm` ends the
/// wait.
pub trait Wait {
    /// Announces that this thread is about to sleep: from now on, a process that gives it work signals it.
    fn arm(&mut self);

    /// Takes the announcement back.
    fn disarm(&mut self);

    /// Sleeps until signaled or until `until` (on [`Time::boot_clock`]; [`Time::MAX`] for no limit), and disarms.
    fn wait(&mut self, until: Time);

    /// A handle with which any thread ends the wait.
    fn waker(&self) -> Waker;
}

/// The time from now to `until`, for the system; none without a limit.
pub(crate) fn timeout(until: Time) -> Option<Timespec> {
    let left = |until: Time| Timespec::try_from(until.since(Time::boot_clock())).ok();
    Some(until).filter(|until| *until != Time::MAX).and_then(left)
}

/// The error of the system call that this thread made last, outside of `rustix`.
pub(crate) fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

/// Waits until one of the descriptors is readable, or it is `until`. Returns how many are.
pub(crate) fn wait_for(signals: &mut [PollFd<'_>], until: Time) -> Result<usize, Errno> {
    let ready = poll(signals, timeout(until).as_ref());
    if let Err(error) = ready
        && error != Errno::INTR
    {
        tracing::error!(%error, "waiting failed");
    }
    ready
}

/// Ends a thread's [`Wait::wait`], from any thread. Cheap when that thread is awake.
#[derive(Clone, derive_more::Debug)]
#[debug("Waker")]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that calls `wake`. It must end a wait that began, or was armed, before the call.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Waker {
        Waker(Arc::new(wake))
    }

    /// Wakes the thread, if it sleeps or is about to.
    pub fn wake(&self) {
        (self.0)();
    }
}
