//! The fetch of a replica's state from another member, on a thread of its own.

use std::{
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use squall_fabric::{
    NodeId,
    sync::{Condition, Lock},
};
use squall_membership::{ShardId, View};
use squall_ordered::log::{Damage, Position};
use squall_services::{Caller, DialTarget, HangUp};

use crate::{
    capture::{exchange::ReplicaStatus, state::RestoreError},
    durable::recovery,
    state_transfer::control::ReplicaControl,
    state_transfer::wire::{Fetch, OfferKind, RequestedPart, TransferProgress, TransferRequest},
};

/// A replica's state on its way to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetching {
    /// The member that gives it.
    pub source: NodeId,
    /// Bytes that have arrived and were checked.
    pub received: u64,
    /// The approximate number of bytes of the whole, if the application said so: see
    /// [`Snapshot::of_about`](crate::Snapshot::of_about).
    pub bytes: Option<u64>,
}

/// The time to wait after all sources have failed, at first; twice as long each time, up to the limit.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// The number of bytes between two reports of progress.
const TELL_EVERY: u64 = 64 << 20;

/// Fetches one shard's state, from a member that has it in the view at hand. Dropping it gives up, and waits until the
/// thread has noticed.
#[derive(Debug)]
pub(crate) struct Fetcher {
    began: Instant,
    shared: Arc<FetcherShared>,
    thread: Option<JoinHandle<()>>,
}

/// The state that the thread shares with its watchers.
#[derive(Debug)]
struct FetcherShared {
    stopped: AtomicBool,
    /// Whether the state was fetched.
    succeeded: AtomicBool,
    way: Lock<FetchSources>,
    changed: Condition,
}

#[derive(Debug)]
struct FetchSources {
    /// The latest view: its complete members are the sources.
    view: Arc<View>,
    /// The transfer, if one is under way, and the handle that ends it.
    under_way: Option<(Fetching, HangUp)>,
}

impl FetcherShared {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Notes a transfer that has begun. From here on a caller that stops the fetch cuts this transfer.
    fn begin(&self, source: NodeId, transfer: HangUp) {
        let mut way = self.way.lock();
        way.under_way = Some((Fetching { source, received: 0, bytes: None }, transfer));
        if self.is_stopped() || way.view.rank_of(source).is_none() {
            cut(&way);
        }
    }

    fn progress(&self, progress: TransferProgress) {
        if let Some((fetching, _)) = &mut self.way.lock().under_way {
            (fetching.received, fetching.bytes) = (progress.received, progress.bytes);
        }
    }
}

fn cut(way: &FetchSources) {
    if let Some((_, transfer)) = &way.under_way {
        transfer.now();
    }
}

impl Fetcher {
    /// Starts to ask the shard's complete members, one after the other, until the state is here or is not needed any
    /// more. None if there is no thread.
    pub(crate) fn start(
        caller: Caller,
        control: Arc<dyn ReplicaControl>,
        shard: ShardId,
        view: Arc<View>,
    ) -> Option<Fetcher> {
        let shared = Arc::new(FetcherShared {
            stopped: AtomicBool::new(false),
            succeeded: AtomicBool::new(false),
            way: Lock::new(FetchSources { view, under_way: None }),
            changed: Condition::new(),
        });
        let of_thread = Arc::clone(&shared);
        let body = move || run(&caller, &*control, shard, &of_thread);
        match thread::Builder::new().name(format!("squall-fetch-{}", shard.0)).spawn(body) {
            Ok(thread) => Some(Fetcher { began: Instant::now(), shared, thread: Some(thread) }),
            Err(error) => {
                tracing::warn!(%error, "there is no thread to get a replica's state");
                None
            }
        }
    }

    /// Notes that a view is in force: its complete members are asked from now on.
    pub(crate) fn learn(&self, view: &Arc<View>) {
        let mut way = self.shared.way.lock();
        if way.view.epoch == view.epoch {
            return;
        }
        way.view = Arc::clone(view);
        // The source's stream may stay open for long, if its process only stands still.
        if way.under_way.as_ref().is_some_and(|(fetching, _)| view.rank_of(fetching.source).is_none()) {
            cut(&way);
        }
        self.shared.changed.notify_all();
    }

    /// The progress of the state, while it is being fetched.
    pub(crate) fn progress(&self) -> Option<Fetching> {
        self.shared.way.lock().under_way.as_ref().map(|(fetching, _)| *fetching)
    }

    /// The time since the start.
    pub(crate) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether the thread has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Whether the thread has ended without the state.
    pub(crate) fn has_failed(&self) -> bool {
        self.is_over() && !self.shared.succeeded.load(Ordering::SeqCst)
    }

    /// Gives up, without waiting.
    pub(crate) fn stop(&self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Under the lock, so that a thread that is about to wait notices.
        cut(&self.shared.way.lock());
        self.shared.changed.notify_all();
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

fn run(caller: &Caller, control: &dyn ReplicaControl, shard: ShardId, shared: &Arc<FetcherShared>) {
    let mut wait = AGAIN;
    loop {
        let view = Arc::clone(&shared.way.lock().view);
        let complete = view.shard(shard).map(|shard| shard.complete.as_slice()).unwrap_or_default();
        let mut sources: Vec<NodeId> = complete.iter().copied().filter(|&node| node != caller.node()).collect();
        // Shuffled, so that several nodes that join at once do not all ask the same one.
        fastrand::shuffle(&mut sources);
        for source in sources {
            if shared.is_stopped() || !matches!(control.replica_status(), ReplicaStatus::Incomplete { .. }) {
                return;
            }
            match fetch(caller, control, shard, &view, source, shared) {
                Ok(bytes) => {
                    tracing::info!(group = control.name(), %source, bytes, "the replica's state is here");
                    return shared.succeeded.store(true, Ordering::SeqCst);
                }
                Err(error) => tracing::warn!(group = control.name(), %source, error, "no state from this member"),
            }
            if shared.way.lock().view.epoch != view.epoch {
                wait = AGAIN;
                break;
            }
        }
        if shared.is_stopped() {
            return;
        }
        let goes_on = |way: &mut FetchSources| way.view.epoch == view.epoch && !shared.is_stopped();
        drop(shared.changed.wait_timeout_while(shared.way.lock(), wait, goes_on));
        wait = (2 * wait).min(AGAIN_AT_MOST);
    }
}

fn fetch(
    caller: &Caller,
    control: &dyn ReplicaControl,
    shard: ShardId,
    view: &View,
    source: NodeId,
    shared: &Arc<FetcherShared>,
) -> Result<u64, String> {
    let contact = contact(view, source)?;
    let (group, watched) = (Arc::<str>::from(control.name()), Arc::clone(shared));
    let mut told = TELL_EVERY;
    let progress = move |progress: TransferProgress| {
        watched.progress(progress);
        if progress.received >= told {
            told = progress.received + TELL_EVERY;
            tracing::info!(group = &*group, received = progress.received, of = ?progress.bytes, "a replica's state is on its way");
        }
    };
    let mut repair = |damage: &Damage| {
        let log_writer = control.log_writer().ok_or("the group has no log")?;
        recovery::repair(log_writer, damage, |from, to| fetch_records(caller, &contact, shard, from, to))
    };
    let have = control.prepare(&mut repair).map_err(|error| error.to_string())?;
    let part = RequestedPart::State { epoch: view.epoch, have };
    let begin = |part, progress| {
        Fetch::begin(caller, &contact, TransferRequest { shard, part }, progress).map_err(|error| error.to_string())
    };
    let mut fetch = begin(part, progress.clone())?;
    let mut restored = take(control, &mut fetch, source, shared);
    if let Err(RestoreError::Differs(at)) = &restored {
        tracing::warn!(group = control.name(), %at, "this node's log is another one than the source's: it gets a state");
        fetch = begin(RequestedPart::State { epoch: view.epoch, have: None }, progress)?;
        restored = take(control, &mut fetch, source, shared);
    }
    restored.map_err(|error| error.to_string())
}

/// Takes the state that a source gives. Returns its size in bytes.
fn take(
    control: &dyn ReplicaControl,
    fetch: &mut Fetch,
    source: NodeId,
    shared: &Arc<FetcherShared>,
) -> Result<u64, RestoreError> {
    shared.begin(source, fetch.hang_up());
    let restored = control.restore(fetch.offer, fetch);
    // An application need not read to the end, and the source waits until that is taken. Each chunk was checked before.
    if restored.is_ok() {
        let _ = io::copy(fetch, &mut io::sink());
    }
    let ended = shared.way.lock().under_way.take();
    restored.map(|()| ended.map_or(0, |(fetching, _)| fetching.received))
}

/// Returns the addresses of a view's member.
pub(crate) fn contact(view: &View, node: NodeId) -> Result<DialTarget, &'static str> {
    let rank = view.rank_of(node).ok_or("it is no member")?;
    Ok(DialTarget { node: Some(node), addresses: view.members[rank.index()].addresses.clone() })
}

/// Fetches the records between two places of a shard's log from another node.
pub(crate) fn fetch_records(
    caller: &Caller,
    source: &DialTarget,
    shard: ShardId,
    from: Position,
    to: Position,
) -> Result<Vec<u8>, String> {
    let part = RequestedPart::records(from, to);
    let mut fetch =
        Fetch::begin(caller, source, TransferRequest { shard, part }, |_| {}).map_err(|error| error.to_string())?;
    let is_asked = fetch.offer == OfferKind::Records;
    let mut records = Vec::new();
    fetch.read_to_end(&mut records).map_err(|error| error.to_string())?;
    is_asked.then_some(records).ok_or_else(|| "the source has given something else".to_owned())
}
