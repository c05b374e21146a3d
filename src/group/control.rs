//! A group as its node's engine and other threads see it, and how a group comes to life.

use std::{
    collections::BTreeMap,
    fmt,
    io::Read as ReadBytes,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use squall_fabric::{NodeId, Time, Waker};
use squall_membership::{self as membership, ShardId};
use squall_ordered::{Mode, log::ChainValue};
use squall_runtime::{BackoffProfile, CoreBudget};

use crate::{
    calls::{
        admission::Admission,
        clock::Now,
        clock_bound::ClockBound,
        error::{ReadError, Unavailable},
        read::Reads,
        reply_slots::ReplySlots,
        submit::GroupShared,
    },
    capture::{
        exchange::{CaptureReply, ReplicaStatus, StateExchange, Wanted},
        state::{self, Head, RestoreError},
    },
    config::Config,
    delivery::{Delivery, Links, Tally, Task},
    durable::{
        history::{History, Policy},
        log_writer::{DiskLog, LogWriter},
        recovery::{self, Rebuilt, RecoverError},
    },
    group::{handle::Group, log_source::LogSource},
    replica::{replica_cell::ReplicaCell, schema::Schema, service::Service},
    state_transfer::{
        control::ReplicaControl,
        install::{Installer, Repair},
        wire::{LogEnd, OfferKind},
    },
};

/// A node's counts of a group, since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Messages applied.
    pub applied: u64,
    /// Messages that no correct member sends, and that all members skip alike.
    pub skipped: u64,
    /// Reads answered, linearizable and stale.
    pub reads: u64,
    /// Batches of calls that were longer than the limit for short calls.
    pub overruns: u64,
}

/// A group that was declared, and waits for its node's start.
pub(crate) trait GroupSpec: fmt::Debug + Send {
    /// The group's name.
    fn name(&self) -> &str;

    /// The identity of its messages and of its state.
    fn schema(&self) -> Schema;

    /// In a durable group, before it comes to life: takes the replica to the end of the log, if the log is of the
    /// group's schema.
    fn recover(&self, log: &mut DiskLog) -> Result<Rebuilt, RecoverError>;

    /// Brings the group to life, outside any view. `waker` wakes the node's engine, `clock` is the clock that the
    /// node's core goes by, and `log_writer` is the log of a durable group.
    fn attach(
        self: Box<Self>,
        me: NodeId,
        waker: Waker,
        clock: Now,
        bound: Arc<ClockBound>,
        log_writer: Option<Arc<LogWriter>>,
    ) -> (Box<dyn Task>, Arc<dyn GroupControl>);
}

/// A living group, as its node's engine sees it.
pub(crate) trait GroupControl: ReplicaControl {
    /// Notes that this node's ring has more room.
    fn on_freed(&self);

    /// Notes that there is more room for bulk messages, and for small ones behind them.
    fn on_freed_bulk(&self);

    /// Notes that the other members' clocks are known.
    fn on_stamps(&self);

    /// Tells callers why they must not wait while the delivering thread hangs.
    fn halt(&self, why: &Unavailable);

    /// Lets deadlines expire that are due, and starts new ones. The delivering thread does that too, unless it hangs.
    fn expire_deadlines(&self, now: Time);

    /// Returns the time of the next deadline.
    fn next_deadline(&self) -> Option<Time>;

    /// Whether the delivering thread is asked for work that it does not notice by itself.
    fn wants_delivery(&self) -> bool;

    /// Counts a batch of calls that was longer than the limit for short calls.
    fn count_overrun(&self);

    /// The counts of the delivering thread.
    fn counts(&self) -> GroupCounts;

    /// The log, for readers from outside, if there is one.
    fn log_source(&self) -> Option<Arc<dyn LogSource>>;
}

/// A node's groups, as threads other than the engine's use them.
pub(crate) type Controls = BTreeMap<ShardId, Arc<dyn GroupControl>>;

/// Declares a group: returns its handle, and the specification that the node's start brings to life.
pub(crate) fn new_group<S: Service>(name: &str, service: S, config: &Config) -> (Group<S>, Box<dyn GroupSpec>) {
    let options = config.group(name);
    let backoff = BackoffProfile::caller(config.spin(), CoreBudget::of_this_host(config.members_here()));
    let admission = Arc::new(Admission::new(name.to_owned(), backoff, options.mode == Mode::Durable));
    let shared = Arc::new(GroupShared { admission, replies: ReplySlots::new(options.max_waiting) });
    let replica = Arc::new(ReplicaCell::new(service));
    let reads = Arc::new(Reads::new(Arc::clone(&replica)));
    let mode = options.mode;
    let history = History::new(name, (mode == Mode::Durable).then(|| Policy::of(&options)));
    let spec =
        Spec { replica, shared: Arc::clone(&shared), reads: Arc::clone(&reads), history: Arc::clone(&history), mode };
    (Group { shared, reads, history, mode }, Box::new(spec))
}

struct Spec<S: Service> {
    replica: Arc<ReplicaCell<S>>,
    shared: Arc<GroupShared<S::Reply>>,
    reads: Arc<Reads<S>>,
    history: Arc<History>,
    mode: Mode,
}

impl<S: Service> GroupSpec for Spec<S> {
    fn name(&self) -> &str {
        &self.shared.admission.name
    }

    fn schema(&self) -> Schema {
        S::schema()
    }

    fn recover(&self, log: &mut DiskLog) -> Result<Rebuilt, RecoverError> {
        recovery::claim(log, S::schema())?;
        let group = || self.shared.admission.name.clone();
        let failed = |why: String| RecoverError::State { group: group(), why };
        let mut service = self.replica.borrow().ok_or_else(|| failed("it is in use".to_owned()))?;
        recovery::begin(&mut *service, log).map_err(|error| failed(error.to_string()))
    }

    fn attach(
        self: Box<Self>,
        me: NodeId,
        waker: Waker,
        clock: Now,
        bound: Arc<ClockBound>,
        log_writer: Option<Arc<LogWriter>>,
    ) -> (Box<dyn Task>, Arc<dyn GroupControl>) {
        let Spec { replica, shared, reads, history, mode } = *self;
        let (tally, exchange) = <(Arc<Tally>, Arc<StateExchange>)>::default();
        if let Some(log_writer) = &log_writer {
            history.start(Arc::clone(log_writer), Arc::clone(&exchange), waker.clone());
        }
        shared.admission.start(waker, clock, bound);
        let control = Control {
            shared: Arc::clone(&shared),
            reads: Arc::clone(&reads),
            exchange: Arc::clone(&exchange),
            tally: Arc::clone(&tally),
            log_writer: log_writer.clone(),
            history,
        };
        let links = Links { shared, reads, exchange, tally, log_writer };
        (Box::new(Delivery::new(me, mode, replica, links)), Arc::new(control))
    }
}

impl<S: Service> fmt::Debug for Spec<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({:?})", self.name())
    }
}

struct Control<S: Service> {
    shared: Arc<GroupShared<S::Reply>>,
    reads: Arc<Reads<S>>,
    exchange: Arc<StateExchange>,
    tally: Arc<Tally>,
    log_writer: Option<Arc<LogWriter>>,
    history: Arc<History>,
}

impl<S: Service> Control<S> {
    /// The object that takes in states and records, in a durable group.
    fn installer(&self) -> Option<Installer<'_, S>> {
        let log_writer = self.log_writer.as_ref()?;
        Some(Installer { replica: self.reads.replica(), exchange: &self.exchange, log_writer })
    }
}

impl<S: Service> ReplicaControl for Control<S> {
    fn name(&self) -> &str {
        &self.shared.admission.name
    }

    fn replica_status(&self) -> ReplicaStatus {
        self.exchange.replica_status()
    }

    fn capture(&self, wanted: Wanted, reply: CaptureReply) {
        self.exchange.ask(wanted, reply);
        self.shared.admission.wake();
    }

    fn log_writer(&self) -> Option<&Arc<LogWriter>> {
        self.log_writer.as_ref()
    }

    fn history(&self) -> &Arc<History> {
        &self.history
    }

    fn held(&self) -> Option<membership::HeldCopy> {
        self.installer()?.held()
    }

    fn prepare(&self, repair: Repair<'_>) -> Result<Option<LogEnd>, RestoreError> {
        self.installer().map_or(Ok(None), |installer| installer.prepare(repair))
    }

    fn cut(&self, to: membership::OrderEnd, rebuilds: bool) -> Result<(), RestoreError> {
        self.installer().map_or(Ok(()), |installer| installer.cut(to, rebuilds))
    }

    fn restore(&self, offer: OfferKind, from: &mut dyn ReadBytes) -> Result<(), RestoreError> {
        if !matches!(self.exchange.replica_status(), ReplicaStatus::Incomplete { .. }) {
            return Err(RestoreError::NotNeeded);
        }
        if let Some(installer) = self.installer() {
            let taken = match offer {
                OfferKind::State { chain, .. } => installer.take_state(chain.map(ChainValue), from),
                OfferKind::Suffix(divergence) => installer.take_suffix(divergence, from),
                OfferKind::Records => Err(RestoreError::Foreign("these are only some records of a log")),
            };
            self.shared.admission.wake();
            return taken;
        }
        let Head { reached, .. } = state::read_head(from)?;
        let replica = self.reads.replica();
        let mut guard = loop {
            if replica.is_broken() {
                return Err(RestoreError::Panicked);
            }
            match replica.borrow() {
                Some(guard) => break guard,
                // A reader holds the replica, and looks are short.
                None => thread::yield_now(),
            }
        };
        let exchange = &self.exchange;
        // A panic breaks the replica, because `guard` is dropped while it unwinds.
        let restored = catch_unwind(AssertUnwindSafe(move || {
            let fetch = exchange.begin_restoring().ok_or(RestoreError::NotNeeded)?;
            guard.restore(from)?;
            exchange.restored(fetch, reached);
            Ok(())
        }));
        // The delivering thread must see the restored state, and answer the callers that want the replica.
        self.shared.admission.wake();
        restored.unwrap_or(Err(RestoreError::Panicked))
    }
}

impl<S: Service> GroupControl for Control<S> {
    fn on_freed(&self) {
        self.shared.admission.on_freed();
    }

    fn on_freed_bulk(&self) {
        self.shared.admission.on_freed_bulk();
    }

    fn on_stamps(&self) {
        self.shared.admission.on_stamps();
    }

    fn halt(&self, why: &Unavailable) {
        self.shared.admission.halt(why.clone());
        self.shared.replies.stall(|waker| waker.wake());
        self.reads.halt(&ReadError::Unavailable { why: why.clone() });
    }

    fn expire_deadlines(&self, now: Time) {
        self.shared.admission.deadlines.expire(now, |waker| waker.wake());
    }

    fn next_deadline(&self) -> Option<Time> {
        self.shared.admission.deadlines.next()
    }

    fn wants_delivery(&self) -> bool {
        let admission = &self.shared.admission;
        self.reads.any_peeks()
            || admission.deadlines.any()
            || admission.may_resubmit()
            || self.exchange.any()
            || self.reads.replica().is_left()
    }

    fn count_overrun(&self) {
        self.tally.overruns.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> GroupCounts {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let Tally { applied, skipped, reads, overruns } = &*self.tally;
        let reads = get(reads) + self.reads.direct();
        GroupCounts { applied: get(applied), skipped: get(skipped), reads, overruns: get(overruns) }
    }

    fn log_source(&self) -> Option<Arc<dyn LogSource>> {
        self.log_writer.as_ref()?;
        let Control { shared, reads, history, .. } = self;
        Some(Arc::new(Group {
            shared: Arc::clone(shared),
            reads: Arc::clone(reads),
            history: Arc::clone(history),
            mode: Mode::Durable,
        }))
    }
}
