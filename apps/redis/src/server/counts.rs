//! The counters of a server.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// The counts since the server started, or since `CONFIG RESETSTAT`.
#[derive(Debug, Default)]
pub(super) struct Counts {
    last_id: AtomicU64,
    pub(super) connections: AtomicU64,
    /// Connections that were refused, since there were too many.
    pub(super) rejected: AtomicU64,
    pub(super) commands: Counter,
    /// Passwords that were wrong.
    pub(super) denied: AtomicU64,
    pub(super) received: Traffic,
    pub(super) sent: Traffic,
}

/// The counts of keys at this replica. The engine's thread counts too.
#[derive(Debug, Default)]
pub(super) struct KeyCounts {
    /// Looked-up keys that were there, and those that were not.
    pub(super) hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) expired: AtomicU64,
}

impl KeyCounts {
    pub(super) fn reset(&self) {
        [&self.hits, &self.misses, &self.expired].into_iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

/// The traffic in one direction.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// The calls of the system that moved bytes.
    pub(super) calls: AtomicU64,
    pub(super) bytes: Counter,
}

/// A counter, and how fast it grows.
#[derive(Debug, Default)]
pub(super) struct Counter {
    count: AtomicU64,
    /// The count at the last sample, and the growth between the last two, in a second.
    last: AtomicU64,
    per_second: AtomicU64,
}

impl Counts {
    /// Counts a connection. Returns its id, which no other has.
    pub(super) fn next_id(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed);
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes how fast the counters grew since the last call, which was so long ago.
    pub(super) fn sample(&self, time: Duration) {
        [&self.commands, &self.received.bytes, &self.sent.bytes].into_iter().for_each(|counter| counter.sample(time));
    }

    pub(super) fn reset(&self) {
        let Counts { last_id: _, connections, rejected, commands, denied, received, sent } = self;
        for count in [connections, rejected, denied, &received.calls, &sent.calls] {
            count.store(0, Ordering::Relaxed);
        }
        [commands, &received.bytes, &sent.bytes].into_iter().for_each(Counter::reset);
    }
}

impl Traffic {
    /// Counts bytes that were moved by one call.
    pub(super) fn count(&self, bytes: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.add(bytes as u64);
    }
}

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.count.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The growth in a second, between the last two samples.
    pub(super) fn per_second(&self) -> u64 {
        self.per_second.load(Ordering::Relaxed)
    }

    fn sample(&self, time: Duration) {
        let count = self.get();
        let grown = count.saturating_sub(self.last.swap(count, Ordering::Relaxed));
        let per_second = (grown as f64 / time.as_secs_f64().max(1e-3)) as u64;
        self.per_second.store(per_second, Ordering::Relaxed);
    }

    fn reset(&self) {
        [&self.count, &self.last, &self.per_second].into_iter().for_each(|number| number.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_between_two_samples() {
        let counts = Counts::default();
        counts.commands.add(10);
        counts.received.count(300);
        counts.sample(Duration::from_secs(2));
        let rates =
            || [counts.commands.per_second(), counts.received.bytes.per_second(), counts.sent.bytes.per_second()];
        assert_eq!(rates(), [5, 150, 0]);
        counts.commands.add(1);
        counts.sample(Duration::from_millis(500));
        assert_eq!((rates(), counts.commands.get()), ([2, 0, 0], 11));
        assert_eq!([counts.next_id(), counts.next_id()], [1, 2]);
        counts.reset();
        assert_eq!((rates(), counts.commands.get(), counts.received.bytes.get()), ([0; 3], 0, 0));
        assert_eq!(counts.next_id(), 3, "an id is never given twice");
    }
}
