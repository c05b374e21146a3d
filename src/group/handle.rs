//! A group's handle, and how a group comes to life.

use std::{
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
use squall_membership as membership;
use squall_ordered::{Mode, log::ChainValue};

use crate::{
    clients::log_service::LogSource,
    config::Config,
    delivery::{Delivery, Links, Tally, Task, replica_cell::ReplicaCell},
    durable::{
        history::{History, Policy},
        log_writer::{DiskLog, LogWriter},
        recovery::{self, Rebuilt, RecoverError},
    },
    group::{
        admission::Admission,
        clock_bound::ClockBound,
        envelope::Envelope,
        error::{ReadError, SubmitError, Unavailable},
        read::{Read, Reads},
        replicated::Replicated,
        reply_slots::ReplySlots,
        schema::Schema,
        service::Service,
        submit::{GroupShared, Sending, Submit},
    },
    node::status::GroupCounts,
    runtime::{blocking::Patience, clock::Now, core_budget::CoreBudget},
    state_transfer::{
        exchange::{CaptureReply, ReplicaStatus, StateExchange, Wanted},
        install::{Installer, Repair},
        state::{self, Head, RestoreError},
        wire::{LogEnd, OfferKind},
    },
};

/// A handle to a replicated service, which submits commands and reads this node's replica. Clones are handles to the
/// same group, for any number of threads and tasks.
///
/// It works from the node's start to the group's end, through all views. Before and after, every call fails at once,
/// except [`peek`](Group::peek), which goes on showing the last state.
///
/// # When members come and go
///
/// A caller sees a new view only as a moment without answers. A message that was accepted and not delivered in the old
/// view is sent again by itself, before anything new, and reads are asked again. While this node can't serve the group,
/// all calls but `peek` fail at once with [`SubmitError::Unavailable`] or [`ReadError::Unavailable`], which say why.
/// Then the handle goes on by itself.
///
/// # Order
///
/// Messages that one thread has handed over one after the other, each accepted before the next was submitted, are
/// delivered in that order. One that waits for room ([`Submit::is_accepted`]) may be overtaken by a later one.
pub struct Group<R: Service> {
    shared: Arc<GroupShared<R::Reply>>,
    reads: Arc<Reads<R>>,
    history: Arc<History>,
    mode: Mode,
}

impl<R: Replicated> Group<R> {
    /// Submits a command. The reply is that of this node's replica, when the command is delivered here.
    ///
    /// The command is serialized before this returns. It is handed over then if there is room, else as soon as there is
    /// room while the [`Submit`] is awaited or waited for.
    pub fn submit(&self, command: &R::Command) -> Submit<R::Reply> {
        Submit::new(&self.shared, Envelope::command(command))
    }

    /// Submits a command if there is room, and fails with [`SubmitError::Full`] if there is none.
    pub fn try_submit(&self, command: &R::Command) -> Result<Submit<R::Reply>, SubmitError> {
        Ok(Submit::accepted(&self.shared, self.shared.accept(&Envelope::command(command)?)?))
    }

    /// Sends a command whose reply nobody needs. The returned [`Sending`] resolves once the command is accepted. From
    /// there on it is delivered exactly once, unless the group ends before.
    pub fn send(&self, command: &R::Command) -> Sending {
        Sending::new(&self.shared.admission, Envelope::command(command))
    }

    /// Sends a command whose reply nobody needs, if there is room. Fails with [`SubmitError::Full`] if there is none.
    pub fn try_send(&self, command: &R::Command) -> Result<(), SubmitError> {
        self.shared.admission.try_send(Envelope::command(command)?)
    }
}

/// Operations that are the same whether messages are commands or mere bytes.
impl<R: Service> Group<R> {
    /// The group's name.
    pub fn name(&self) -> &str {
        &self.shared.admission.name
    }

    /// Looks at this node's replica, linearizably. The read shows the effect of every command whose reply anyone, at
    /// any node, has seen before this call, and of everything that an earlier such read has shown.
    ///
    /// The closure runs between two commands, on this thread if possible, else on the delivering thread. Keep it short:
    /// while it runs nothing is delivered here, and once rings are full, nowhere. The caller must hold no lock that the
    /// closure takes.
    ///
    /// The read takes no place in the order. It takes one exchange of messages with all members, which concurrent reads
    /// share. The exchange lasts: for a while (the configuration's `read_lease_ms`) this member answers by itself.
    pub fn read<T: Send + 'static>(&self, look: impl FnOnce(&R) -> T + Send + 'static) -> Read<T> {
        if self.mode == Mode::Unordered {
            return Read::answered(Err(ReadError::Unordered));
        }
        let look = match self.reads.read_here(&self.shared.admission, look) {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let (read, job) = Read::new(self.shared.admission.patience, look);
        match self.reads.push(&self.shared.admission, job) {
            Ok(()) => read,
            Err(error) => Read::answered(Err(error)),
        }
    }

    /// Looks at this node's replica as it is. It may be behind others, and behind what this node has been told. It
    /// shows at least the effect of this node's own completed submits.
    ///
    /// It asks no other node, and works after the group's end as well, unless the replica broke in the middle of a
    /// command. In a durable group it may show a state that is not on all disks yet, which a crash of all members would
    /// undo. [`read`](Group::read) waits for the disks.
    pub fn peek<T: Send + 'static>(&self, look: impl FnOnce(&R) -> T + Send + 'static) -> Read<T> {
        let look = match self.reads.look_here(&self.shared.admission, look) {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let look = match self.reads.look_at_the_last(&self.shared.admission, look) {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let (read, job) = Read::new(self.shared.admission.patience, look);
        match self.reads.push_peek(&self.shared.admission, job) {
            Ok(()) => read,
            Err(error) => Read::answered(Err(error)),
        }
    }

    /// As [`submit`](Group::submit), of bytes.
    #[doc(hidden)]
    pub fn submit_bytes(&self, bytes: &[u8]) -> Submit<R::Reply> {
        Submit::new(&self.shared, Ok(Envelope::bytes(bytes)))
    }

    /// As [`try_submit`](Group::try_submit), of bytes.
    #[doc(hidden)]
    pub fn try_submit_bytes(&self, bytes: &[u8]) -> Result<Submit<R::Reply>, SubmitError> {
        Ok(Submit::accepted(&self.shared, self.shared.accept(&Envelope::bytes(bytes))?))
    }

    /// As [`send`](Group::send), of bytes.
    #[doc(hidden)]
    pub fn send_bytes(&self, bytes: &[u8]) -> Sending {
        Sending::new(&self.shared.admission, Ok(Envelope::bytes(bytes)))
    }

    /// As [`try_send`](Group::try_send), of bytes.
    #[doc(hidden)]
    pub fn try_send_bytes(&self, bytes: &[u8]) -> Result<(), SubmitError> {
        self.shared.admission.try_send(Envelope::bytes(bytes))
    }
}

impl<R: Service> Group<R> {
    /// Returns the state that the group's handles share with the delivering thread.
    pub(crate) fn shared(&self) -> &Arc<GroupShared<R::Reply>> {
        &self.shared
    }

    /// Returns the group's part that concerns its log.
    pub(crate) fn history(&self) -> &Arc<History> {
        &self.history
    }
}

impl<R: Service> Clone for Group<R> {
    fn clone(&self) -> Group<R> {
        let Group { shared, reads, history, mode } = self;
        Group { shared: Arc::clone(shared), reads: Arc::clone(reads), history: Arc::clone(history), mode: *mode }
    }
}

impl<R: Service> fmt::Debug for Group<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({:?})", self.name())
    }
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
pub(crate) trait GroupControl: Send + Sync {
    /// The group's name.
    fn name(&self) -> &str;

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

    /// Whether this node's replica is one of the group's. The engine is woken when that changes in the middle of a
    /// view.
    fn replica_status(&self) -> ReplicaStatus;

    /// Hands the replica's state, as it is between two messages, to `reply`, on the thread that delivers.
    fn capture(&self, wanted: Wanted, reply: CaptureReply);

    /// The log, of a durable group.
    fn log_writer(&self) -> Option<&Arc<LogWriter>>;

    /// The group's past at this node.
    fn history(&self) -> &Arc<History>;

    /// In a durable group, takes the replica to the end of this node's log, or to the first place that can't be read
    /// and is not repaired.
    ///
    /// Returns that place, if there is anything that another member's log could go on from. Blocks, as
    /// [`restore`](GroupControl::restore) does.
    fn prepare(&self, repair: Repair<'_>) -> Result<Option<LogEnd>, RestoreError>;

    /// In a durable group, removes from the log all that lies behind a place. Takes the replica back to there if
    /// `rebuilds`; else that is left to a later [`prepare`](GroupControl::prepare). Blocks. Nothing may be delivered
    /// meanwhile.
    fn cut(&self, to: membership::OrderEnd, rebuilds: bool) -> Result<(), RestoreError>;

    /// In a durable group, returns what this node can report in a restart as its own, once all that was appended is on
    /// disk. Blocks. None if the log has failed. Nothing may be delivered meanwhile.
    fn held(&self) -> Option<membership::HeldCopy>;

    /// Replaces the replica's state by one that [`Captured::write`](crate::state_transfer::state::Captured::write)
    /// wrote, or takes it further by another log's records, while the replica's
    /// [status](GroupControl::replica_status) is that it needs one.
    ///
    /// Blocks the calling thread, which must not be a delivering one, until the application has read all of it. The
    /// status shows whether that was enough: it becomes complete, or asks for another state.
    fn restore(&self, offer: OfferKind, from: &mut dyn ReadBytes) -> Result<(), RestoreError>;
}

/// Declares a group: returns its handle, and the specification that the node's start brings to life.
pub(crate) fn new_group<S: Service>(name: &str, service: S, config: &Config) -> (Group<S>, Box<dyn GroupSpec>) {
    let options = config.group(name);
    let patience = Patience::new(config.spin(), CoreBudget::here(config));
    let admission = Arc::new(Admission::new(name.to_owned(), patience, options.mode == Mode::Durable));
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
        let control = ReplicaControl {
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

struct ReplicaControl<S: Service> {
    shared: Arc<GroupShared<S::Reply>>,
    reads: Arc<Reads<S>>,
    exchange: Arc<StateExchange>,
    tally: Arc<Tally>,
    log_writer: Option<Arc<LogWriter>>,
    history: Arc<History>,
}

impl<S: Service> ReplicaControl<S> {
    /// The object that takes in states and records, in a durable group.
    fn installer(&self) -> Option<Installer<'_, S>> {
        let log_writer = self.log_writer.as_ref()?;
        Some(Installer { replica: self.reads.replica(), exchange: &self.exchange, log_writer })
    }
}

impl<S: Service> GroupControl for ReplicaControl<S> {
    fn name(&self) -> &str {
        &self.shared.admission.name
    }

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
        let ReplicaControl { shared, reads, history, .. } = self;
        Some(Arc::new(Group {
            shared: Arc::clone(shared),
            reads: Arc::clone(reads),
            history: Arc::clone(history),
            mode: Mode::Durable,
        }))
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
