//! A group's handle, and how a group comes to life.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use squall_fabric::Waker;
use squall_ordered::{Deliverer, Mode, Submitter};

use crate::{
    blocking::Patience,
    clock::Now,
    config::Config,
    custody::Custody,
    delivery::{Delivery, Tally, Task},
    encode::Encoded,
    error::{ReadError, SubmitError},
    intake::Intake,
    read::{Read, Reads},
    replicated::Replicated,
    replies::Replies,
    room::Room,
    service::Service,
    status::GroupCounts,
    submit::{Sending, Shared, Submit},
};

/// A handle to a replicated service: submits commands, and reads this node's replica. Clones are handles to the same, for
/// any number of threads and tasks.
///
/// It works from the node's start to the group's end; before and after, everything fails at once, but for [`peek`](Group::peek),
/// which goes on showing the last state.
///
/// # Order
///
/// Messages that one thread has handed over one after the other, each accepted before the next was submitted, are delivered
/// in that order. One that waits for room ([`Submit::is_accepted`]) may be overtaken by a later one.
pub struct Group<R: Service> {
    shared: Arc<Shared<R::Reply>>,
    reads: Arc<Reads<R>>,
    mode: Mode,
}

impl<R: Replicated> Group<R> {
    /// Submits a command. The reply is that of this node's replica, when the command is delivered here.
    ///
    /// The command is serialized, and handed over if there is room, before this returns; else as soon as there is room while
    /// the [`Submit`] is awaited or waited for.
    pub fn submit(&self, command: &R::Command) -> Submit<R::Reply> {
        Submit::new(&self.shared, Encoded::command(command))
    }

    /// Submits a command if there is room, and fails with [`SubmitError::Full`] if there is none.
    pub fn try_submit(&self, command: &R::Command) -> Result<Submit<R::Reply>, SubmitError> {
        Ok(Submit::accepted(&self.shared, self.shared.accept(&Encoded::command(command)?)?))
    }

    /// Sends a command whose reply nobody needs. What is returned resolves once the command is accepted: from there on it is
    /// delivered exactly once, unless the group ends before.
    pub fn send(&self, command: &R::Command) -> Sending {
        Sending::new(&self.shared.intake, Encoded::command(command))
    }

    /// Sends a command whose reply nobody needs if there is room, and fails with [`SubmitError::Full`] if there is none.
    pub fn try_send(&self, command: &R::Command) -> Result<(), SubmitError> {
        self.shared.intake.accept(&Encoded::command(command)?, 0)
    }
}

/// What is the same whether messages are commands or mere bytes.
impl<R: Service> Group<R> {
    /// The group's name.
    pub fn name(&self) -> &str {
        &self.shared.intake.name
    }

    /// Looks at this node's replica, linearizably: it shows the effect of every command whose reply anyone, at any node, has
    /// seen before this call, and of everything that an earlier such read has shown.
    ///
    /// The closure runs between two commands, on this thread if it can, else on the one that delivers. Keep it short: while it
    /// runs nothing is delivered here, and once rings are full, nowhere; and hold no lock that it takes. The read
    /// takes no place in the order. It takes one exchange of messages with all members, which concurrent reads share, and
    /// which lasts: for a while (the configuration's `read_lease_ms`) this member answers by itself.
    pub fn read<T: Send + 'static>(&self, look: impl FnOnce(&R) -> T + Send + 'static) -> Read<T> {
        if self.mode == Mode::Unordered {
            return Read::answered(Err(ReadError::Unordered));
        }
        let look = match self.reads.read_here(&self.shared.intake, look) {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let (read, job) = Read::new(self.shared.intake.patience, look);
        match self.reads.push(&self.shared.intake, job) {
            Ok(()) => read,
            Err(error) => Read::answered(Err(error)),
        }
    }

    /// Looks at this node's replica as it is: it may be behind others, and behind what this node has been told, and shows at
    /// least what this node's own completed submits have done. Asks nobody, and works after the group's end as well, unless the
    /// replica broke in the middle of a command.
    pub fn peek<T: Send + 'static>(&self, look: impl FnOnce(&R) -> T + Send + 'static) -> Read<T> {
        let look = match self.reads.look_here(&self.shared.intake, look) {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let look = match self.reads.look_at_the_last(&self.shared.intake, look) {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let (read, job) = Read::new(self.shared.intake.patience, look);
        match self.reads.push_peek(&self.shared.intake, job) {
            Ok(()) => read,
            Err(error) => Read::answered(Err(error)),
        }
    }

    /// As [`submit`](Group::submit), of bytes.
    #[doc(hidden)]
    pub fn submit_bytes(&self, bytes: &[u8]) -> Submit<R::Reply> {
        Submit::new(&self.shared, Ok(Encoded::bytes(bytes)))
    }

    /// As [`try_submit`](Group::try_submit), of bytes.
    #[doc(hidden)]
    pub fn try_submit_bytes(&self, bytes: &[u8]) -> Result<Submit<R::Reply>, SubmitError> {
        Ok(Submit::accepted(&self.shared, self.shared.accept(&Encoded::bytes(bytes))?))
    }

    /// As [`send`](Group::send), of bytes.
    #[doc(hidden)]
    pub fn send_bytes(&self, bytes: &[u8]) -> Sending {
        Sending::new(&self.shared.intake, Ok(Encoded::bytes(bytes)))
    }

    /// As [`try_send`](Group::try_send), of bytes.
    #[doc(hidden)]
    pub fn try_send_bytes(&self, bytes: &[u8]) -> Result<(), SubmitError> {
        self.shared.intake.accept(&Encoded::bytes(bytes), 0)
    }
}

impl<R: Service> Clone for Group<R> {
    fn clone(&self) -> Group<R> {
        Group { shared: Arc::clone(&self.shared), reads: Arc::clone(&self.reads), mode: self.mode }
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

    /// Brings the group to life. `waker` wakes the node's engine, `clock` is what its core goes by.
    fn attach(
        self: Box<Self>,
        submitter: Submitter,
        deliverer: Deliverer,
        waker: Waker,
        clock: Now,
    ) -> (Box<dyn Task>, Arc<dyn GroupControl>);
}

/// A living group, as its node's engine sees it.
pub(crate) trait GroupControl: Send + Sync {
    /// The group's name.
    fn name(&self) -> &str;

    /// The own ring has more room.
    fn on_freed(&self);

    /// There is more room for bulk messages, and for small ones behind them.
    fn on_freed_bulk(&self);

    /// Whether somebody asked the delivering thread for what it does not notice by itself.
    fn wants_delivery(&self) -> bool;

    /// A batch of calls was longer than short calls are.
    fn count_overrun(&self);

    /// What was counted.
    fn counts(&self) -> GroupCounts;
}

/// Declares a group: its handle, and what the node's start will bring to life.
pub(crate) fn new_group<S: Service>(name: &str, service: S, config: &Config) -> (Group<S>, Box<dyn GroupSpec>) {
    let options = config.group(name);
    let patience = Patience::new(config.spin(), Room::here(config));
    let intake = Arc::new(Intake::new(name.to_owned(), patience));
    let shared = Arc::new(Shared { intake, replies: Replies::new(options.max_waiting) });
    let replica = Arc::new(Custody::new(service));
    let reads = Arc::new(Reads::new(Arc::clone(&replica)));
    let spec = Spec { replica, shared: Arc::clone(&shared), reads: Arc::clone(&reads) };
    (Group { shared, reads, mode: options.mode }, Box::new(spec))
}

struct Spec<S: Service> {
    replica: Arc<Custody<S>>,
    shared: Arc<Shared<S::Reply>>,
    reads: Arc<Reads<S>>,
}

impl<S: Service> GroupSpec for Spec<S> {
    fn name(&self) -> &str {
        &self.shared.intake.name
    }

    fn attach(
        self: Box<Self>,
        submitter: Submitter,
        deliverer: Deliverer,
        waker: Waker,
        clock: Now,
    ) -> (Box<dyn Task>, Arc<dyn GroupControl>) {
        let Spec { replica, shared, reads } = *self;
        shared.intake.start(submitter, waker, clock);
        let tally = Arc::new(Tally::default());
        let control = Control { shared: Arc::clone(&shared), reads: Arc::clone(&reads), tally: Arc::clone(&tally) };
        (Box::new(Delivery::new(replica, deliverer, shared, reads, tally)), Arc::new(control))
    }
}

impl<S: Service> fmt::Debug for Spec<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Spec({:?})", self.name())
    }
}

struct Control<S: Service> {
    shared: Arc<Shared<S::Reply>>,
    reads: Arc<Reads<S>>,
    tally: Arc<Tally>,
}

impl<S: Service> GroupControl for Control<S> {
    fn name(&self) -> &str {
        &self.shared.intake.name
    }

    fn on_freed(&self) {
        self.shared.intake.on_freed();
    }

    fn on_freed_bulk(&self) {
        self.shared.intake.on_freed_bulk();
    }

    fn wants_delivery(&self) -> bool {
        self.reads.any_peeks() || self.shared.intake.alarms.any() || self.reads.replica().is_left()
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
}
