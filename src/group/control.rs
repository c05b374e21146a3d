//! A group as its node's engine and other threads see it, and how a group comes to life.

use std::{
    collections::BTreeMap,
    fmt,
    io::Read as ReadBytes,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use squall_fabric::{NodeId, Waker};
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
    delivery::{Delivery, GroupHandles, Tally, Task},
    durable::{
        history::{History, Policy},
        log_writer::{DiskLog, LogWriter},
        recovery::{self, Rebuilt, RecoverError},
    },
    group::{
        handle::{Group, WeakGroup},
        log_source::LogSource,
    },
    replica::{replica_cell::ReplicaCell, schema::Schema, service::Service},
    state_transfer::{
        control::ReplicaControl,
        install::{self, Installer, Repair},
        wire::{LogEnd, OfferKind},
    },
};

/// A node's counts of a group, since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounts {
    /// Messages applied.
    pub applied: u64,
    /// Their bytes.
    pub applied_bytes: u64,
    /// The messages of this node among those applied.
    pub own: u64,
    /// Their bytes.
    pub own_bytes: u64,
    /// Messages that no correct member sends, and that all members skip alike.
    pub skipped: u64,
    /// Reads answered, linearizable and stale.
    pub reads: u64,
    /// Batches of calls that were longer than the limit for short calls.
    pub overruns: u64,
}

/// A group that was declared, and waits for its node's start.
pub(crate) trait GroupSpec: fmt::Debug + Send {
    fn name(&self) -> &str;

    /// The identity of its messages and of its state.
    fn schema(&self) -> Schema;

    /// Takes the replica of a durable group to the end of the log, before the group comes to life, if the log is of the
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
    /// The admission of the group's messages. The delivering thread lets deadlines there expire too, unless it hangs.
    fn admission(&self) -> &Admission;

    /// Tells callers why they must not wait while the delivering thread hangs.
    fn halt(&self, why: &Unavailable);

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
    new_group_with(name, config, |_| service)
}

/// Declares a group, as [`new_group`] does, whose service is made with a handle of the group.
pub(crate) fn new_group_with<S: Service>(
    name: &str,
    config: &Config,
    service: impl FnOnce(WeakGroup<S>) -> S,
) -> (Group<S>, Box<dyn GroupSpec>) {
    let options = config.group(name);
    let backoff = BackoffProfile::caller(config.spin(), CoreBudget::of_this_host(config.members_here()));
    let admission = Arc::new(Admission::new(name.to_owned(), backoff, options.mode == Mode::Durable));
    let shared = Arc::new(GroupShared { admission, replies: ReplySlots::new(options.max_waiting) });
    let mode = options.mode;
    let history = History::new(name, (mode == Mode::Durable).then(|| Policy::of(&options)));
    let reads = Arc::new_cyclic(|reads| {
        let (shared, reads, history) = (Arc::clone(&shared), Weak::clone(reads), Arc::clone(&history));
        Reads::new(Arc::new(ReplicaCell::new(service(WeakGroup { shared, reads, history, mode }))))
    });
    let group = Group { shared, reads, history, mode };
    (group.clone(), Box::new(group))
}

impl<S: Service> GroupSpec for Group<S> {
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
        let mut service = self.reads.replica().borrow().ok_or_else(|| failed("it is in use".to_owned()))?;
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
        let (tally, exchange) = <(Arc<Tally>, Arc<StateExchange>)>::default();
        if let Some(log_writer) = &log_writer {
            self.history.start(Arc::clone(log_writer), Arc::clone(&exchange), waker.clone());
        }
        self.shared.admission.start(waker, clock, bound);
        let Group { shared, reads, mode, .. } = (*self).clone();
        let replica = Arc::clone(reads.replica());
        let control = Control {
            group: *self,
            exchange: Arc::clone(&exchange),
            tally: Arc::clone(&tally),
            log_writer: log_writer.clone(),
        };
        let handles = GroupHandles { shared, reads, exchange, tally, log_writer };
        (Box::new(Delivery::new(me, mode, replica, handles)), Arc::new(control))
    }
}

struct Control<S: Service> {
    group: Group<S>,
    exchange: Arc<StateExchange>,
    tally: Arc<Tally>,
    log_writer: Option<Arc<LogWriter>>,
}

impl<S: Service> Control<S> {
    /// The object that takes in states and records, in a durable group.
    fn installer(&self) -> Option<Installer<'_, S>> {
        let log_writer = self.log_writer.as_ref()?;
        Some(Installer { replica: self.group.reads.replica(), exchange: &self.exchange, log_writer })
    }
}

impl<S: Service> ReplicaControl for Control<S> {
    fn name(&self) -> &str {
        &self.group.shared.admission.name
    }

    fn replica_status(&self) -> ReplicaStatus {
        self.exchange.replica_status()
    }

    fn capture(&self, wanted: Wanted, reply: CaptureReply) {
        self.exchange.ask(wanted, reply);
        self.group.shared.admission.wake();
    }

    fn log_writer(&self) -> Option<&Arc<LogWriter>> {
        self.log_writer.as_ref()
    }

    fn history(&self) -> &Arc<History> {
        &self.group.history
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
            self.group.shared.admission.wake();
            return taken;
        }
        let Head { reached, .. } = state::read_head(from)?;
        let mut guard = install::borrow(self.group.reads.replica())?;
        let exchange = &self.exchange;
        // A panic breaks the replica, because `guard` is dropped while it unwinds.
        let restored = catch_unwind(AssertUnwindSafe(move || {
            let fetch = exchange.begin_restoring().ok_or(RestoreError::NotNeeded)?;
            guard.restore(from)?;
            exchange.restored(fetch, reached);
            Ok(())
        }));
        // The delivering thread must see the restored state, and answer the callers that want the replica.
        self.group.shared.admission.wake();
        restored.unwrap_or(Err(RestoreError::Panicked))
    }
}

impl<S: Service> GroupControl for Control<S> {
    fn admission(&self) -> &Admission {
        &self.group.shared.admission
    }

    fn halt(&self, why: &Unavailable) {
        self.group.shared.admission.halt(why.clone());
        self.group.shared.replies.stall(|waker| waker.wake());
        self.group.reads.halt(&ReadError::Unavailable { why: why.clone() });
    }

    fn wants_delivery(&self) -> bool {
        let admission = &self.group.shared.admission;
        self.group.reads.any_peeks()
            || admission.deadlines.any()
            || admission.may_resubmit()
            || self.exchange.any()
            || self.group.reads.replica().is_left()
    }

    fn count_overrun(&self) {
        self.tally.overruns.fetch_add(1, Ordering::Relaxed);
    }

    fn counts(&self) -> GroupCounts {
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let Tally { applied, applied_bytes, own, own_bytes, skipped, reads, overruns } = &*self.tally;
        GroupCounts {
            applied: get(applied),
            applied_bytes: get(applied_bytes),
            own: get(own),
            own_bytes: get(own_bytes),
            skipped: get(skipped),
            reads: get(reads) + self.group.reads.direct(),
            overruns: get(overruns),
        }
    }

    fn log_source(&self) -> Option<Arc<dyn LogSource>> {
        self.log_writer.as_ref().map(|_| Arc::new(self.group.clone()) as Arc<dyn LogSource>)
    }
}
