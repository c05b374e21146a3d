//! The channels between a control thread and the threads that it serves.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam::channel::{Receiver, Sender, TryRecvError, unbounded};
use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
};

use crate::BreakReason;

/// The way to a control thread, for any thread.
///
/// The channel has no bound, so that no thread waits. Each command is about an endpoint or a region that this process
/// holds, and the descriptors and memory that those take are bounded by the system.
pub(crate) struct Commands<C> {
    commands: Sender<C>,
    wake: Arc<OwnedFd>,
}

impl<C> Clone for Commands<C> {
    fn clone(&self) -> Commands<C> {
        Commands { commands: self.commands.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<C> Commands<C> {
    /// Sends commands, and wakes the thread if there were any. After its end they go nowhere, since no peer is left to
    /// be told.
    pub(crate) fn send(&self, commands: impl IntoIterator<Item = C>) {
        let mut any = false;
        for command in commands {
            any |= self.commands.send(command).is_ok();
        }
        if any {
            // A full eventfd is one that is signaled already.
            let _ = rustix::io::write(self.wake.as_fd(), &1u64.to_ne_bytes());
        }
    }
}

/// The control thread's end of its commands.
pub(crate) struct CommandReceiver<C> {
    commands: Receiver<C>,
    wake: Arc<OwnedFd>,
}

impl<C> CommandReceiver<C> {
    /// The next command, if there is one.
    pub(crate) fn next(&self) -> Option<C> {
        self.commands.try_recv().ok()
    }

    /// A descriptor that is readable after commands were sent, until [`calm`](CommandReceiver::calm).
    pub(crate) fn signal(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Takes the signal. Commands are to be taken after it.
    pub(crate) fn calm(&self) {
        // An empty eventfd is one that another turn has emptied.
        let _ = rustix::io::read(self.wake.as_fd(), &mut [0u8; 8]);
    }
}

/// Makes the channel to a control thread.
pub(crate) fn commands<C>() -> Result<(Commands<C>, CommandReceiver<C>), Errno> {
    let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = unbounded();
    Ok((Commands { commands: sender, wake: Arc::clone(&wake) }, CommandReceiver { commands: receiver, wake }))
}

/// A polling thread's end of the events.
pub(crate) struct Events<E> {
    events: Receiver<E>,
    pending: Arc<AtomicBool>,
}

impl<E> Events<E> {
    /// Whether there may be events: one load, and no more on a hot path.
    #[inline]
    pub(crate) fn are_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed)
    }

    /// Takes note of all events that there are so far; they are the next ones of [`next`](Events::next).
    pub(crate) fn begin(&self) {
        // An event that is sent after this sets the flag again.
        self.pending.swap(false, Ordering::Acquire);
    }

    /// The next event, if there is one. Once the control thread is no more, all endpoints end for the reason that comes
    /// as an error.
    pub(crate) fn next(&self) -> Result<Option<E>, BreakReason> {
        match self.events.try_recv() {
            Ok(event) => Ok(Some(event)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                // Endpoints that are connected from now on shall learn of it as well.
                self.pending.store(true, Ordering::Relaxed);
                Err(BreakReason::Failed("the control thread has ended; open the fabric again".to_owned()))
            }
        }
    }
}

/// The control thread's end of the events.
///
/// The channel has no bound, since the control thread must go on noticing deaths while the polling thread is busy. The
/// events that peers cause are bounded by the endpoints of this side, or else counted by an [`Untaken`].
pub(crate) struct EventSender<E> {
    events: Option<Sender<E>>,
    pending: Arc<AtomicBool>,
    bell: Box<dyn Fn() + Send + Sync>,
    unflushed: bool,
}

impl<E> EventSender<E> {
    pub(crate) fn send(&mut self, event: E) {
        if let Some(events) = &self.events {
            // The receiver goes with the fabric, after which no thread waits for events.
            let _ = events.send(event);
            self.unflushed = true;
        }
    }

    /// Tells the polling thread of events.
    pub(crate) fn flush(&mut self) {
        if std::mem::take(&mut self.unflushed) {
            self.pending.store(true, Ordering::Release);
            (self.bell)();
        }
    }
}

impl<E> Drop for EventSender<E> {
    /// Has the polling thread look and find the end, for whatever reason this thread ends.
    fn drop(&mut self) {
        self.events = None;
        self.unflushed = true;
        self.flush();
    }
}

/// Makes the channel to a polling thread. `bell` ends its wait, and is rung on the control thread after events were
/// sent.
pub(crate) fn events<E>(bell: impl Fn() + Send + Sync + 'static) -> (EventSender<E>, Events<E>) {
    let (sender, receiver) = unbounded();
    let pending = Arc::new(AtomicBool::new(false));
    let events = Events { events: receiver, pending: Arc::clone(&pending) };
    (EventSender { events: Some(sender), pending, bell: Box::new(bell), unflushed: false }, events)
}

/// A count of events, each of which holds a clone until it is taken.
#[derive(Clone, Default)]
pub(crate) struct Untaken(Arc<()>);

impl Untaken {
    pub(crate) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{OnceLock, atomic::AtomicUsize};

    use rustix::{
        event::{PollFd, PollFlags, poll},
        time::Timespec,
    };

    use super::*;

    fn is_readable(signal: impl AsFd) -> bool {
        poll(&mut [PollFd::new(&signal, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn commands_come_in_order_with_one_signal() {
        let (commands, receiver) = commands().unwrap();
        let signal = receiver.signal().try_clone_to_owned().unwrap();
        assert!(!is_readable(&signal));
        commands.send([1, 2]);
        assert!(is_readable(&signal));
        receiver.calm();
        assert!(!is_readable(&signal));
        commands.send([]);
        assert!(!is_readable(&signal));
        let other = commands.clone();
        drop(commands);
        other.send([3]);
        assert!(is_readable(&signal));
        receiver.calm();
        assert_eq!(std::iter::from_fn(|| receiver.next()).collect::<Vec<_>>(), [1, 2, 3]);
        drop(receiver);
        other.send([4]);
        assert!(!is_readable(&signal));
    }

    #[test]
    fn the_bell_is_rung_once_for_all_events_and_at_the_end() {
        let rung = Arc::new(AtomicUsize::new(0));
        let flag = Arc::new(OnceLock::<Arc<AtomicBool>>::new());
        let (bell, rings) = (Arc::clone(&flag), Arc::clone(&rung));
        let (mut sender, events) = events(move || {
            // A bell that is rung before the flag is set does not count.
            rings.fetch_add(bell.get().unwrap().load(Ordering::Relaxed).into(), Ordering::Relaxed);
        });
        flag.set(Arc::clone(&events.pending)).unwrap();
        sender.flush();
        assert!(!events.are_pending());
        let untaken = Untaken::default();
        sender.send((1, untaken.clone()));
        sender.send((2, untaken.clone()));
        sender.flush();
        assert!(events.are_pending());
        assert_eq!((rung.load(Ordering::Relaxed), untaken.count()), (1, 2));
        events.begin();
        assert!(!events.are_pending());
        assert_eq!(events.next().unwrap().map(|(number, _)| number), Some(1));
        assert_eq!(untaken.count(), 1);
        drop(sender);
        assert!(events.are_pending());
        events.begin();
        assert!(!events.are_pending());
        assert!(events.next().unwrap().is_some() && events.next().is_err());
        assert!(events.are_pending(), "the next look finds the end as well");
        assert_eq!((rung.load(Ordering::Relaxed), untaken.count()), (2, 0));
    }
}
