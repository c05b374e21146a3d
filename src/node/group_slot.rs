//! A group at its node: the place where its application runs, and the fetcher of its state.

use std::{sync::Arc, time::Duration};

use squall_fabric::Time;

use crate::{
    clients::admin::TrafficReport,
    delivery::{Task, delivery_thread::DeliveryThread, shard_change::ShardChange},
    group::control::{GroupControl, GroupCounts},
    node::rates::RateMeter,
    state_transfer::fetcher::{Fetcher, Fetching},
};

/// A group, as its engine sees it.
pub(crate) struct GroupSlot {
    pub(crate) control: Arc<dyn GroupControl>,
    pub(super) home: Home,
    /// The number of overruns since it has been watched.
    pub(super) overruns: u32,
    pub(super) watched_until: Time,
    /// The fetcher of the replica's state, where this node lacks it, with the number of the need that it serves.
    pub(super) fetcher: Option<(u32, Fetcher)>,
    /// Fetchers that are no longer needed, until their threads have noticed.
    retired: Vec<Fetcher>,
    /// The rates of messages delivered and their bytes, of the node's own among them and their bytes, and of reads.
    rates: RateMeter<5>,
}

/// The place where a group's application runs.
pub(super) enum Home {
    Engine(Box<dyn Task>),
    Thread(DeliveryThread),
    /// The task goes no further, and waits for its end.
    Stuck(Box<dyn Task>),
    Ended,
}

impl GroupSlot {
    pub(crate) fn new(task: Box<dyn Task>, control: Arc<dyn GroupControl>) -> GroupSlot {
        GroupSlot {
            control,
            home: Home::Engine(task),
            overruns: 0,
            watched_until: Time::ZERO,
            fetcher: None,
            retired: Vec::new(),
            rates: RateMeter::default(),
        }
    }

    /// Looks at the counters, for the rates.
    pub(super) fn look(&mut self, now: Time) {
        let GroupCounts { applied, applied_bytes, own, own_bytes, reads, .. } = self.control.counts();
        self.rates.look(now, [applied, applied_bytes, own, own_bytes, reads]);
    }

    /// The messages since the node's start, and their rates.
    pub(super) fn traffic(&self) -> TrafficReport {
        let counts = self.control.counts();
        let [delivered, delivered_bytes, submitted, submitted_bytes, reads] = self.rates.per_second();
        TrafficReport {
            delivered: counts.applied,
            delivered_bytes: counts.applied_bytes,
            submitted: counts.own,
            submitted_bytes: counts.own_bytes,
            skipped: counts.skipped,
            reads: counts.reads,
            delivered_per_second: delivered,
            delivered_bytes_per_second: delivered_bytes,
            submitted_per_second: submitted,
            submitted_bytes_per_second: submitted_bytes,
            reads_per_second: reads,
        }
    }

    /// The time for which the replica's state has been fetched; None if it is not being fetched.
    pub(super) fn fetched_for(&self) -> Option<Duration> {
        self.fetcher.as_ref().map(|(_, fetcher)| fetcher.waited())
    }

    /// The progress of the state that is being fetched.
    pub(crate) fn fetching(&self) -> Option<Fetching> {
        self.fetcher.as_ref().and_then(|(_, fetcher)| fetcher.progress())
    }

    /// Whether nothing is on its way to its log, nor will be by itself.
    pub(super) fn is_still(&mut self) -> bool {
        self.retire();
        let is_told = !matches!(&self.home, Home::Thread(thread) if !thread.is_up_to_date());
        is_told && self.retired.is_empty()
    }

    /// Stops the fetcher: the replica needs no state any more, or another one.
    pub(super) fn retire(&mut self) {
        if let Some((_, fetcher)) = self.fetcher.take() {
            fetcher.stop();
            self.retired.push(fetcher);
        }
        if !self.retired.is_empty() {
            self.retired.retain(|fetcher| !fetcher.is_over());
        }
    }

    pub(super) fn tell(&mut self, change: ShardChange) {
        let is_end = matches!(change, ShardChange::End { .. });
        if matches!(change, ShardChange::Outside { .. }) {
            // A node that comes back gets other messages, and another state.
            self.home = match std::mem::replace(&mut self.home, Home::Ended) {
                Home::Stuck(task) => Home::Engine(task),
                home => home,
            };
        }
        match &mut self.home {
            // A task that met a faulty sender goes no further in its view.
            Home::Stuck(task) if is_end => task.change(change),
            Home::Stuck(_) | Home::Ended => return,
            Home::Engine(task) => task.change(change),
            // The thread stays until the node goes, since its application may be in the middle of a call.
            Home::Thread(thread) => return thread.tell(change),
        }
        if is_end {
            self.home = Home::Ended;
        }
    }
}
