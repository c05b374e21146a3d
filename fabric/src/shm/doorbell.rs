//! The signal of work for a thread that sleeps; one that is awake is left alone.
//!
//! Each node has a word in shared memory, its *watch*, and eventfds: one that its own threads signal, and one for each
//! peer, see [`signals`](super::signals). The watch counts: odd while the node's thread is
//! about to sleep or sleeps ("armed"), even while it is awake. Only the node itself writes it; peers map it read-only.
//! A *ringer* is a thread that gives the node work. It looks at the watch afterwards, and signals the eventfd if the
//! watch is armed and the ringer has not done so for that very count.
//!
//! # No wake-up is lost
//!
//! The sleeper stores the watch (odd), passes a sequentially consistent fence, looks for work, and sleeps if it found
//! none. A ringer stores work, passes such a fence, and loads the watch. Of two such fences one comes first. If it is
//! the sleeper's, the ringer's load sees the odd count, or a later one; if it is the ringer's, the sleeper's look finds
//! the work. So a thread that sleeps without having seen the work is signaled:
//!
//! - The ringer sees this sleep's count and has not rung for it: it signals.
//! - It sees this count and has rung for it: that signal came after the sleeper armed, and signals are consumed only
//!   by a sleep, which they end, and when it has disarmed; so this one is still there, or the sleep is over.
//! - It sees a later count: this sleep is over.
//!
//! The threads of the node's own process ring for every message, while the node arms only when it runs out of work. So
//! where the kernel can (`membarrier`), the sleeper's fence is made to hold for all threads of its process, and their
//! fences cost nothing.
//!
//! No word is shared by ringers: a ringer that is stopped or killed between its look and its signal delays no other
//! ringer's signal. loom checks a model of this, in `loom_tests`.

use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, compiler_fence, fence},
    },
};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::Errno,
    thread::{MembarrierCommand, membarrier},
};

use super::{
    memory::{self, Access, ForeignError},
    news::{self, PAGE_BYTES, Seen},
    signals::{OwnSignal, PeerSignal},
};
use crate::{NodeId, mapping::Mapping};

/// The atomics of the watch and of news: those of shared memory, or loom's in the model.
pub(super) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, count: u64, order: Ordering);
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    #[inline]
    fn store(&self, count: u64, order: Ordering) {
        AtomicU64::store(self, count, order);
    }

    #[inline]
    fn fence(order: Ordering) {
        fence(order);
    }
}

/// The operations on a watch.
pub(super) mod watch {
    use super::{Ordering, Word};

    pub(in super::super) fn is_armed<W: Word>(watch: &W) -> bool {
        watch.load(Ordering::Relaxed) % 2 == 1
    }

    /// Announces a sleep. The caller looks for work after this.
    pub(in super::super) fn arm<W: Word>(watch: &W) {
        watch.store(watch.load(Ordering::Relaxed) | 1, Ordering::Relaxed);
        W::fence(Ordering::SeqCst);
    }

    /// Ends a sleep.
    pub(in super::super) fn disarm<W: Word>(watch: &W) {
        let count = watch.load(Ordering::Relaxed);
        watch.store(count + count % 2, Ordering::Relaxed);
    }

    /// The count that a ringer must ring for now, if it must; it last rang for the count `rung`. A fence must lie
    /// between the work and this.
    pub(in super::super) fn must_ring<W: Word>(watch: &W, rung: u64) -> Option<u64> {
        Some(watch.load(Ordering::Relaxed)).filter(|count| count % 2 == 1 && *count != rung)
    }
}

/// Signals an eventfd of this process alone. An eventfd that is full is signaled already.
fn signal(eventfd: BorrowedFd<'_>) {
    match rustix::io::write(eventfd, &1u64.to_ne_bytes()) {
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(error) => tracing::error!(%error, "a sleeping thread could not be signaled"),
    }
}

/// Takes all signals from an eventfd or a timer of this process alone.
#[cfg(feature = "verbs")]
pub(crate) fn drain(eventfd: BorrowedFd<'_>) {
    match rustix::io::read(eventfd, &mut [0; 8]) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
        Err(error) => tracing::error!(%error, "an eventfd could not be read"),
    }
}

/// A new eventfd whose reads and writes never block.
fn new_eventfd() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// A node's own doorbell, and its news for peers.
pub(crate) struct Doorbell {
    page: Mapping,
    pub(super) watch_fd: Arc<OwnedFd>,
    /// The eventfd that this process signals. No other has it.
    pub(crate) eventfd: Arc<OwnedFd>,
    /// The last count for which a thread of this process rang.
    rung: AtomicU64,
    /// Whether this process' threads rely on the sleeper's fence.
    one_sided: bool,
}

impl Doorbell {
    pub(crate) fn new() -> Result<Doorbell, Errno> {
        let (watch_fd, page) = memory::create("squall-doorbell", PAGE_BYTES, Access::ReadOnly)?;
        let eventfd = new_eventfd()?;
        // Where the kernel refuses, each thread has a fence of its own.
        let one_sided = membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok();
        let (watch_fd, eventfd, rung) = (Arc::new(watch_fd), Arc::new(eventfd), AtomicU64::new(0));
        Ok(Doorbell { page, watch_fd, eventfd, rung, one_sided })
    }

    #[inline]
    fn watch(&self) -> &AtomicU64 {
        watch_of(&self.page)
    }

    /// Tells a peer, for its next look, that it was handed descriptors. Only the polling thread calls this.
    #[inline]
    pub(super) fn tell(&self, peer: NodeId) {
        news::tell(&self.page, peer);
    }

    pub(crate) fn is_armed(&self) -> bool {
        watch::is_armed(self.watch())
    }

    pub(crate) fn arm(&self) {
        watch::arm(self.watch());
        if self.one_sided {
            // This can't fail once registered.
            let fenced = membarrier(MembarrierCommand::PrivateExpedited);
            debug_assert!(fenced.is_ok(), "{fenced:?}");
        }
    }

    pub(crate) fn disarm(&self) {
        watch::disarm(self.watch());
    }

    /// Wakes this node's thread, from any thread of this process.
    pub(crate) fn wake(&self) {
        if self.one_sided {
            compiler_fence(Ordering::SeqCst);
        } else {
            <AtomicU64 as Word>::fence(Ordering::SeqCst);
        }
        if let Some(count) = watch::must_ring(self.watch(), self.rung.load(Ordering::Relaxed)) {
            // The signal precedes the store: another thread that sees `rung` must find the signal given. Both may give
            // it.
            signal(self.eventfd.as_fd());
            self.rung.store(count, Ordering::Release);
        }
    }
}

fn watch_of(page: &Mapping) -> &AtomicU64 {
    // SAFETY: the mapping begins at a page, holds one, and lives as long as the reference. Only the node that owns it
    // stores to it, by atomics. In peers' mappings, which are read-only, all loads are relaxed.
    unsafe { AtomicU64::from_ptr(page.base().as_ptr().cast()) }
}

/// The doorbell of a peer, and its news for this node.
#[derive(Debug)]
pub(super) struct PeerBell {
    page: Mapping,
    signal: PeerSignal,
    own: OwnSignal,
    rung: u64,
    seen: Seen,
}

/// The reason for which a peer's doorbell can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum BellError {
    #[error(transparent)]
    Memory(#[from] ForeignError),
    #[error("its doorbell is a descriptor that may block")]
    NoEventfd,
}

impl PeerBell {
    /// Maps the doorbell that a peer handed over to `node`, this one, which gave it `own`.
    pub(super) fn map(
        watch: BorrowedFd<'_>,
        eventfd: OwnedFd,
        own: OwnSignal,
        node: NodeId,
    ) -> Result<PeerBell, BellError> {
        let page = memory::map_foreign(watch, PAGE_BYTES as u64, Access::ReadOnly)?;
        let signal = PeerSignal::new(eventfd).ok_or(BellError::NoEventfd)?;
        Ok(PeerBell { page, signal, own, rung: 0, seen: Seen::nothing(node) })
    }

    /// The peer's way to signal this node, as long as this lives.
    pub(super) fn own(&self) -> &OwnSignal {
        &self.own
    }

    /// Whether the peer has handed over descriptors since the last time. The caller looks at its rings after this.
    #[inline]
    pub(super) fn has_news(&mut self) -> bool {
        self.seen.catch_up(&self.page)
    }

    /// Wakes the peer's thread if it sleeps or is about to. The caller has passed a sequentially consistent fence since
    /// it gave the peer work. Returns whether it had to be signaled.
    #[inline]
    pub(super) fn ring(&mut self) -> bool {
        let Some(count) = watch::must_ring(watch_of(&self.page), self.rung) else { return false };
        self.rung = count;
        self.signal.give();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::signals::Signals;

    const NODE: NodeId = NodeId(7);

    fn mapped(bell: &Doorbell) -> PeerBell {
        let own = Arc::new(Signals::new(bell).unwrap()).for_peer().unwrap();
        PeerBell::map(bell.watch_fd.as_fd(), bell.eventfd.try_clone().unwrap(), own, NODE).unwrap()
    }

    #[test]
    fn news_are_news_once_and_for_those_they_are_for() {
        let bell = Doorbell::new().unwrap();
        let mut peer = mapped(&bell);
        assert!(!peer.has_news());
        for _ in 0..3 {
            bell.tell(NODE);
            assert!(peer.has_news());
            assert!(!peer.has_news(), "seen");
            bell.tell(NodeId(8));
            assert!(!peer.has_news(), "another's");
        }
        bell.tell(NodeId(u32::MAX));
        bell.tell(NODE);
        assert!(mapped(&bell).has_news(), "a thread that comes later looks once");
    }

    #[test]
    fn an_awake_node_is_not_signaled_and_a_sleeper_once_by_each_ringer() {
        let bell = Doorbell::new().unwrap();
        let mut peers: Vec<PeerBell> = (0..2).map(|_| mapped(&bell)).collect();
        assert!(!peers[0].ring(), "awake");
        for _ in 0..3 {
            bell.arm();
            assert!(peers[0].ring());
            assert!(!peers[0].ring(), "once is enough");
            assert!(peers[1].ring(), "the first ringer might have been stopped before its signal");
            bell.disarm();
            assert!(!peers[0].ring());
        }
    }
}

#[cfg(all(test, squall_loom))]
mod loom_tests {
    use std::sync::atomic::Ordering;

    use loom::{
        sync::{
            Arc, Condvar, Mutex,
            atomic::{AtomicU64, fence},
        },
        thread,
    };

    use super::{Word, watch};

    impl Word for AtomicU64 {
        fn load(&self, order: Ordering) -> u64 {
            AtomicU64::load(self, order)
        }

        fn store(&self, count: u64, order: Ordering) {
            AtomicU64::store(self, count, order);
        }

        fn fence(order: Ordering) {
            fence(order);
        }
    }

    /// A node's memory, watch and eventfd.
    #[derive(Default)]
    struct Node {
        work: [AtomicU64; 2],
        watch: AtomicU64,
        signals: Mutex<u64>,
        signaled: Condvar,
    }

    impl Node {
        /// Sleeps, as the contract of `Wait` says, until all of `goal` is there.
        fn sleep_until(&self, goal: [u64; 2]) {
            let done = || self.work.iter().zip(goal).all(|(work, goal)| work.load(Ordering::Relaxed) >= goal);
            loop {
                watch::arm(&self.watch);
                if done() {
                    watch::disarm(&self.watch);
                    return;
                }
                let mut signals = self.signals.lock().unwrap();
                while *signals == 0 {
                    // A lost wake-up is a deadlock here, which loom reports.
                    signals = self.signaled.wait(signals).unwrap();
                }
                drop(signals);
                watch::disarm(&self.watch);
                *self.signals.lock().unwrap() = 0;
            }
        }

        /// Gives `ringer`'s work `times` times, and rings after each.
        fn give(&self, ringer: usize, times: u64) {
            let mut rung = 0;
            for count in 1..=times {
                self.work[ringer].store(count, Ordering::Relaxed);
                <AtomicU64 as Word>::fence(Ordering::SeqCst);
                if let Some(count) = watch::must_ring(&self.watch, rung) {
                    rung = count;
                    *self.signals.lock().unwrap() += 1;
                    self.signaled.notify_one();
                }
            }
        }
    }

    fn check(times: [u64; 2], preemptions: usize) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(move || {
            let node = Arc::new(Node::default());
            let ringers: Vec<_> = (0..2)
                .filter(|&ringer| times[ringer] > 0)
                .map(|ringer| {
                    let node = Arc::clone(&node);
                    thread::spawn(move || node.give(ringer, times[ringer]))
                })
                .collect();
            node.sleep_until(times);
            for ringer in ringers {
                ringer.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_no_wake_up_of_one_ringer_is_lost() {
        check([2, 0], 5);
    }

    #[test]
    fn loom_no_wake_up_of_two_ringers_is_lost() {
        check([1, 1], 3);
    }
}
