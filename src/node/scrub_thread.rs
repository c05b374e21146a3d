//! The thread that scrubs a node's logs while the node runs.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crossbeam::sync::{Parker, Unparker};
use squall_fabric::{NodeId, Time};
use squall_membership::{ShardId, View};
use squall_ordered::log::{self, Storage};
use squall_services::Caller;

use crate::{
    calls::clock::Now,
    durable::{
        scrub::{ScrubRate, Scrubbing},
        status::AsideStatus,
    },
    group::control::GroupControl,
    node::watch::NodeWatch,
    state_transfer::fetcher::{contact, fetch_records},
};

/// The shortest rest between two rounds.
const PAUSE: Duration = Duration::from_millis(2);

/// The longest rest between two rounds.
const LOOKS: Duration = Duration::from_secs(1);

/// Reads the logs of durable groups again, until it is dropped.
#[derive(Debug)]
pub(crate) struct ScrubThread {
    stop: Arc<AtomicBool>,
    unparker: Unparker,
    thread: Option<JoinHandle<()>>,
}

struct ScrubbedLog {
    shard: ShardId,
    control: Arc<dyn GroupControl>,
    scrubbing: Scrubbing,
    next: Time,
    /// The number of changes of its end when the records that were set aside were last listed.
    changes: Option<u64>,
}

impl ScrubThread {
    /// Starts to scrub the logs of these groups.
    pub(crate) fn start(
        caller: Caller,
        watch: Arc<NodeWatch>,
        groups: impl Iterator<Item = (ShardId, Arc<dyn GroupControl>)>,
        bytes_per_second: u64,
    ) -> io::Result<ScrubThread> {
        let rate = ScrubRate::of_node(bytes_per_second);
        let now = Time::boot_clock();
        let kept = |(shard, control): (ShardId, Arc<dyn GroupControl>)| {
            let log_writer = Arc::clone(control.log_writer()?);
            let scrubbing = Scrubbing::new(control.name().to_owned(), log_writer, rate, now);
            Some(ScrubbedLog { shard, control, scrubbing, next: now, changes: None })
        };
        let mut logs: Vec<ScrubbedLog> = groups.filter_map(kept).collect();
        let parker = Parker::new();
        let unparker = parker.unparker().clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let body = move || {
            while !stopped.load(Ordering::Acquire) {
                let now = Time::boot_clock();
                let view = watch.view();
                for kept in &mut logs {
                    kept.look_aside();
                    // Before the first view there is no member to ask.
                    if let Some(view) = view.as_deref().filter(|_| kept.next <= now) {
                        kept.step(now, &caller, view);
                    }
                }
                let next = logs.iter().map(|kept| kept.next).min().unwrap_or(Time::MAX);
                parker.park_timeout(next.since(now).clamp(PAUSE, LOOKS));
            }
        };
        let thread = thread::Builder::new().name("squall-scrub".to_owned()).spawn(body)?;
        Ok(ScrubThread { stop, unparker, thread: Some(thread) })
    }
}

impl Drop for ScrubThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.unparker.unpark();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that read the logs again panicked");
        }
    }
}

impl ScrubbedLog {
    fn step(&mut self, now: Time, caller: &Caller, view: &View) {
        let complete = view.shard(self.shard).map(|shard| shard.complete.as_slice()).unwrap_or_default();
        let others: Vec<NodeId> = complete.iter().copied().filter(|node| *node != caller.node()).collect();
        let shard = self.shard;
        let fetch = |other, from, to| fetch_records(caller, &contact(view, other)?, shard, from, to);
        self.next = self.scrubbing.step((now, Now::Boot.wall()), &others, fetch);
    }

    /// Lists the records that were set aside, when they may have changed.
    fn look_aside(&mut self) {
        let Some(log_writer) = self.control.log_writer() else { return };
        let changes = log_writer.changes();
        if self.changes == Some(changes) {
            return;
        }
        let Some(storage) = log_writer.run_at_once(|log| log.storage().clone()) else { return };
        let names = log::asides(&storage).unwrap_or_default();
        let status = |name: &String| {
            let log::AsideSummary { name, first, last, bytes } = log::summary_of(&storage, name).ok().flatten()?;
            Some(AsideStatus { name, first, last, bytes, directory: storage.path("").display().to_string() })
        };
        *log_writer.asides.lock() = names.iter().filter_map(status).collect();
        self.changes = Some(changes);
    }
}
