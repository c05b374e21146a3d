//! Getting a replica's state from another member, on a thread of its own.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use squall_fabric::NodeId;
use squall_membership::{ShardId, View};

use crate::{
    control::{
        Caller, Contact, HangUp,
        transfer::{Ask, Fetch, Progress},
    },
    group::GroupControl,
    transfer::Standing,
};

/// How long to wait after all sources have failed, at first; twice as long each time, up to the limit.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// How often progress is told.
const TELL_EVERY: u64 = 64 << 20;

/// Gets one shard's state in one view. Dropping it gives up, and waits until the thread has noticed.
#[derive(Debug)]
pub(crate) struct Fetcher {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

/// How a fetch is ended from another thread.
#[derive(Debug, Default)]
struct Stop {
    stopped: AtomicBool,
    under_way: Mutex<Option<HangUp>>,
}

impl Stop {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, Option<HangUp>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// From here on whoever stops it cuts this transfer.
    fn begin(&self, transfer: HangUp) {
        *self.lock() = Some(transfer);
        if self.is_stopped() {
            self.cut();
        }
    }

    fn end(&self) {
        *self.lock() = None;
    }

    fn cut(&self) {
        if let Some(transfer) = self.lock().take() {
            transfer.now();
        }
    }
}

impl Fetcher {
    /// Starts to ask the shard's complete members, one after the other, until the state is here or is not needed any more. None
    /// if there is no thread.
    pub(crate) fn start(
        caller: Caller,
        control: Arc<dyn GroupControl>,
        shard: ShardId,
        view: Arc<View>,
    ) -> Option<Fetcher> {
        let stop = Arc::new(Stop::default());
        let stopped = Arc::clone(&stop);
        let body = move || run(&caller, &*control, shard, &view, &stopped);
        match thread::Builder::new().name(format!("squall-fetch-{}", shard.0)).spawn(body) {
            Ok(thread) => Some(Fetcher { stop, thread: Some(thread) }),
            Err(error) => {
                tracing::warn!(%error, "there is no thread to get a replica's state");
                None
            }
        }
    }

    /// Whether the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Gives up, without waiting.
    pub(crate) fn stop(&self) {
        self.stop.stop();
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.stop();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread that got a replica's state panicked");
        }
    }
}

fn run(caller: &Caller, control: &dyn GroupControl, shard: ShardId, view: &View, stop: &Stop) {
    let complete = view.shard(shard).map(|shard| shard.complete.as_slice()).unwrap_or_default();
    let mut sources: Vec<NodeId> = complete.iter().copied().filter(|&node| node != caller.node()).collect();
    // Several who join at once shall not all ask the same.
    fastrand::shuffle(&mut sources);
    let mut wait = AGAIN;
    loop {
        for &source in &sources {
            if stop.is_stopped() || !matches!(control.standing(), Standing::Incomplete { .. }) {
                return;
            }
            match fetch(caller, control, shard, view, source, stop) {
                Ok(bytes) => {
                    return tracing::info!(group = control.name(), %source, bytes, "the replica's state is here");
                }
                Err(error) => tracing::warn!(group = control.name(), %source, error, "no state from this member"),
            }
        }
        let until = Instant::now() + wait;
        while Instant::now() < until && !stop.is_stopped() {
            thread::sleep(AGAIN.min(wait));
        }
        wait = (2 * wait).min(AGAIN_AT_MOST);
    }
}

fn fetch(
    caller: &Caller,
    control: &dyn GroupControl,
    shard: ShardId,
    view: &View,
    source: NodeId,
    stop: &Stop,
) -> Result<u64, String> {
    let rank = view.rank_of(source).ok_or("it is no member")?;
    let contact = Contact { node: Some(source), addresses: view.members[rank.index()].addresses.clone() };
    let (group, mut told) = (control.name().to_owned(), TELL_EVERY);
    let received = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&received);
    let progress = move |progress: Progress| {
        count.store(progress.received, Ordering::Relaxed);
        if progress.received >= told {
            told = progress.received + TELL_EVERY;
            tracing::info!(group, received = progress.received, of = ?progress.bytes, "a replica's state is on its way");
        }
    };
    let mut fetch = Fetch::begin(caller, &contact, Ask { shard, epoch: view.epoch }, progress)
        .map_err(|error| error.to_string())?;
    stop.begin(fetch.hang_up());
    let restored = control.restore(&mut fetch);
    // An application need not look for the end, which the source waits to see taken. Each chunk was checked before.
    if restored.is_ok() {
        let _ = io::copy(&mut fetch, &mut io::sink());
    }
    stop.end();
    restored.map_err(|error| error.to_string())?;
    Ok(received.load(Ordering::Relaxed))
}
