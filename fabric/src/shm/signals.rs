//! The eventfds by which peers end a node's sleep, and that sleep.
//!
//! Processes that have an eventfd share its count and its flags: a peer may empty or fill the count, and clear
//! `O_NONBLOCK`. So a node makes an eventfd for each peer, and neither side does anything with it that blocks, whatever
//! its state:
//!
//! - The node never reads it. It is watched for edges, and each write is one. Its count is 1 from the beginning, since
//!   an empty eventfd is not reported.
//! - The peer writes 0, for which there is room at any count that writes reach. (The kernel's own signals, of
//!   asynchronous I/O, reach one more: a process of the same user that goes to such lengths can make the write wait.)
//!
//! A peer that misuses its eventfd wakes the node in vain, or not at all; the others have theirs.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    event::{
        EventfdFlags, PollFd, PollFlags, Timespec,
        epoll::{self, EventData, EventFlags},
        eventfd,
    },
    fs::{FileType, fstat},
    io::Errno,
};

use super::doorbell::Doorbell;
use crate::{Time, wait};

/// The number of signals that end one sleep, more than a host has nodes. Others end the next.
const READY: usize = 64;

/// The eventfds that end a node's sleep.
#[derive(Debug)]
pub(super) struct Signals(OwnedFd);

impl Signals {
    /// A set of the eventfd that this process' own threads signal.
    pub(super) fn new(bell: &Doorbell) -> Result<Signals, Errno> {
        let signals = Signals(epoll::create(epoll::CreateFlags::CLOEXEC)?);
        signals.add(bell.eventfd.as_fd())?;
        Ok(signals)
    }

    fn add(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.0, eventfd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)
    }

    /// A new eventfd for a peer to signal.
    pub(super) fn for_peer(self: &Arc<Signals>) -> Result<OwnSignal, Errno> {
        let eventfd = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        self.add(eventfd.as_fd())?;
        Ok(OwnSignal { eventfd, signals: Arc::clone(self) })
    }

    /// Sleeps until there is a signal, or it is `until`. Takes the signals, and returns how many there were.
    pub(super) fn sleep(&self, until: Time) -> Result<usize, Errno> {
        let timeout = wait::timeout(until);
        match self.take(timeout.as_ref()) {
            // A kernel before Linux 5.11, or a sandbox that does not know the call, whatever it answers.
            Err(error) if error != Errno::INTR => self.sleep_by_poll(until),
            taken => taken,
        }
    }

    /// Takes the signals that there are. None of them may be for a sleep to come.
    pub(super) fn discard(&self) {
        if let Err(error) = self.take_now() {
            tracing::error!(%error, "the signals of a sleep that is over could not be taken");
        }
    }

    fn take_now(&self) -> Result<usize, Errno> {
        let mut ready = [const { MaybeUninit::uninit() }; READY];
        epoll::wait(&self.0, &mut ready, Some(&Timespec::default())).map(|(ready, _)| ready.len())
    }

    /// Sleeps as [`sleep`](Signals::sleep) does, by older calls.
    fn sleep_by_poll(&self, until: Time) -> Result<usize, Errno> {
        wait::wait_for(&mut [PollFd::new(&self.0, PollFlags::IN)], until)?;
        self.take_now()
    }

    /// Waits by `epoll_pwait2`, whose timeout is as fine as the clock.
    fn take(&self, timeout: Option<&Timespec>) -> Result<usize, Errno> {
        let mut ready = [MaybeUninit::<libc::epoll_event>::uninit(); READY];
        // SAFETY: the kernel writes at most `READY` events to `ready`, and reads the timeout, which has the form of its
        // own 64-bit type. There is no mask of signals.
        let taken = unsafe {
            libc::syscall(
                libc::SYS_epoll_pwait2,
                self.0.as_raw_fd(),
                ready.as_mut_ptr(),
                READY,
                timeout.map_or(ptr::null(), ptr::from_ref),
                ptr::null::<libc::sigset_t>(),
                0usize,
            )
        };
        usize::try_from(taken).map_err(|_| wait::last_error())
    }
}

impl AsFd for Signals {
    /// A descriptor that is readable while there are signals.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The eventfd by which one peer ends this node's sleep, as long as this lives.
#[derive(Debug)]
pub(super) struct OwnSignal {
    eventfd: OwnedFd,
    signals: Arc<Signals>,
}

impl AsFd for OwnSignal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Drop for OwnSignal {
    fn drop(&mut self) {
        // The peer has the eventfd still, so that closing it here does not end the watch.
        if let Err(error) = epoll::delete(&self.signals.0, &self.eventfd) {
            tracing::error!(%error, "the signal of a peer is still watched");
        }
    }
}

/// The eventfd by which this node ends a peer's sleep.
#[derive(Debug)]
pub(super) struct PeerSignal {
    eventfd: OwnedFd,
    /// Whether it can't be signaled: it was no eventfd.
    is_useless: AtomicBool,
}

impl PeerSignal {
    /// Takes an eventfd that a peer handed over; none if it may be something else, where writes may block.
    pub(super) fn new(eventfd: OwnedFd) -> Option<PeerSignal> {
        let mode = fstat(&eventfd).ok()?.st_mode;
        // Pipes, sockets, devices and files have a type. What has none is of the kernel's own making, like an eventfd.
        let is_useless = AtomicBool::new(false);
        (FileType::from_raw_mode(mode) == FileType::Unknown).then_some(PeerSignal { eventfd, is_useless })
    }

    pub(super) fn give(&self) {
        // Any other count may have to wait for room.
        if !self.is_useless.load(Ordering::Relaxed)
            && let Err(error) = rustix::io::write(&self.eventfd, &0u64.to_ne_bytes())
            && error != Errno::AGAIN
        {
            // A peer that hands over something else is not to fill the log.
            self.is_useless.store(true, Ordering::Relaxed);
            tracing::error!(%error, "a sleeping thread could not be signaled");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{OFlags, fcntl_setfl};

    use super::*;

    fn is_signaled(signals: &Signals) -> bool {
        signals.sleep(Time::ZERO).unwrap() > 0
    }

    #[test]
    fn a_sleep_by_older_calls_takes_the_same_signals() {
        let signals = Arc::new(Signals::new(&Doorbell::new().unwrap()).unwrap());
        let own = signals.for_peer().unwrap();
        let peer = PeerSignal::new(own.as_fd().try_clone_to_owned().unwrap()).unwrap();
        is_signaled(&signals);
        peer.give();
        assert_eq!([(); 2].map(|()| signals.sleep_by_poll(Time::ZERO)), [Ok(1), Ok(0)]);
        let soon = Time::boot_clock() + Duration::from_micros(300);
        assert_eq!(signals.sleep_by_poll(soon), Ok(0));
        assert!(Time::boot_clock() >= soon);
    }

    #[test]
    fn each_signal_is_taken_once_and_a_peer_that_is_gone_gives_none() {
        let bell = Doorbell::new().unwrap();
        let signals = Arc::new(Signals::new(&bell).unwrap());
        let own = signals.for_peer().unwrap();
        let peer = PeerSignal::new(own.as_fd().try_clone_to_owned().unwrap()).unwrap();
        is_signaled(&signals);
        assert!(!is_signaled(&signals));
        for _ in 0..3 {
            peer.give();
            peer.give();
            assert!(is_signaled(&signals));
            assert!(!is_signaled(&signals));
        }
        peer.give();
        signals.discard();
        assert!(!is_signaled(&signals), "discarded");
        let soon = Time::boot_clock() + Duration::from_micros(300);
        assert_eq!(signals.sleep(soon), Ok(0));
        assert!((soon..soon + Duration::from_secs(5)).contains(&Time::boot_clock()));
        drop(own);
        peer.give();
        assert!(!is_signaled(&signals));
        bell.arm();
        bell.wake();
        assert!(is_signaled(&signals));
    }

    #[test]
    fn an_eventfd_that_is_full_and_blocks_is_signaled_and_taken_at_once() {
        let signals = Arc::new(Signals::new(&Doorbell::new().unwrap()).unwrap());
        let own = signals.for_peer().unwrap();
        let peer = PeerSignal::new(own.as_fd().try_clone_to_owned().unwrap()).unwrap();
        rustix::io::write(&own, &(u64::MAX - 2).to_ne_bytes()).unwrap();
        fcntl_setfl(&own, OFlags::empty()).unwrap();
        is_signaled(&signals);
        peer.give();
        assert!(is_signaled(&signals));
    }

    #[test]
    fn descriptors_whose_writes_may_block_are_refused() {
        let (_reader, writer) = std::io::pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        assert!([writer.into(), file.into()].into_iter().all(|other| PeerSignal::new(other).is_none()));
    }
}
