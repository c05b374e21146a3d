//! One worker's counters, shared between the thread that sends and the one that delivers.

use std::{
    sync::{
        Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use crossbeam::utils::CachePadded;
use hdrhistogram::Histogram;

use super::{job::Go, latency};

/// Counters of one worker.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Messages of all senders that were delivered here.
    delivered: CachePadded<AtomicU64>,
    /// The messages among these that this node sent.
    own: CachePadded<AtomicU64>,
    /// The count of `own` that the sender waits for; [`u64::MAX`] while it does not wait.
    awaited: CachePadded<AtomicU64>,
    sender: OnceLock<Thread>,
    /// The begin of the latency of each own message under way, at its number modulo the length; 0 if it is not timed.
    began: Box<[AtomicU64]>,
    /// The time within which a latency must begin to count.
    counted: OnceLock<Go>,
    latencies: Mutex<Histogram<u64>>,
    garbled: AtomicBool,
}

impl Tally {
    /// Counters for at most `window` own messages under way.
    pub(crate) fn new(window: usize) -> Tally {
        Tally {
            delivered: CachePadded::default(),
            own: CachePadded::default(),
            awaited: CachePadded::new(AtomicU64::new(u64::MAX)),
            sender: OnceLock::new(),
            began: (0..window.next_power_of_two()).map(|_| AtomicU64::new(0)).collect(),
            counted: OnceLock::new(),
            latencies: Mutex::new(latency::histogram()),
            garbled: AtomicBool::new(false),
        }
    }

    /// Sets the time within which latencies count. To be called once, before the first message.
    pub(crate) fn begin(&self, go: Go) {
        self.counted.set(go).expect("a worker measures once");
    }

    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }

    pub(crate) fn own(&self) -> u64 {
        self.own.load(Ordering::SeqCst)
    }

    /// Whether a message was delivered that is not as it was sent.
    pub(crate) fn is_garbled(&self) -> bool {
        self.garbled.load(Ordering::Relaxed)
    }

    pub(crate) fn latencies(&self) -> MutexGuard<'_, Histogram<u64>> {
        self.latencies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that the sender is about to send its message with this number. Its latency begins at `began`, if it is
    /// timed.
    pub(crate) fn sending(&self, number: u64, began: Option<u64>) {
        self.slot(number).store(began.unwrap_or(0), Ordering::Relaxed);
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        &self.began[number as usize & (self.began.len() - 1)]
    }

    /// Lets the sender, which calls this, sleep until `count` of its messages are delivered, or 100 ms have passed.
    pub(crate) fn wait_for_own(&self, count: u64) {
        self.sender.get_or_init(thread::current);
        self.awaited.store(count, Ordering::SeqCst);
        if self.own() < count {
            thread::park_timeout(Duration::from_millis(100));
        }
        self.awaited.store(u64::MAX, Ordering::Relaxed);
    }

    /// Counts a message that was delivered. One thread calls this.
    pub(crate) fn on_delivered(&self) {
        self.delivered.store(self.delivered.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Counts a message of this node that was delivered; `now` gives the time. The same thread calls this.
    pub(crate) fn on_own_delivered(&self, now: impl Fn() -> u64) {
        let own = self.own.load(Ordering::Relaxed);
        // Relaxed suffices: the message itself came after the store.
        let began = self.slot(own).load(Ordering::Relaxed);
        if began != 0 && self.counted.get().is_some_and(|go| (go.from..go.until).contains(&began)) {
            self.latencies().saturating_record(now().saturating_sub(began));
        }
        self.own.store(own + 1, Ordering::SeqCst);
        if own + 1 >= self.awaited.load(Ordering::SeqCst)
            && self.awaited.swap(u64::MAX, Ordering::SeqCst) != u64::MAX
            && let Some(sender) = self.sender.get()
        {
            sender.unpark();
        }
    }

    pub(crate) fn on_garbled(&self) {
        self.garbled.store(true, Ordering::Relaxed);
    }
}
