//! A group's handle.

use std::sync::{Arc, Weak};

use squall_ordered::Mode;
use squall_runtime::blocking;

use crate::{
    calls::{
        envelope::Envelope,
        error::{ReadError, SubmitError},
        read::{Read, Reads},
        submit::{GroupShared, Sending, Submit},
    },
    durable::history::History,
    replica::{replicated::Replicated, service::Service},
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
#[derive(derive_more::Debug)]
#[debug("Group({:?})", self.name())]
pub struct Group<R: Service> {
    pub(super) shared: Arc<GroupShared<R::Reply>>,
    pub(super) reads: Arc<Reads<R>>,
    pub(super) history: Arc<History>,
    pub(super) mode: Mode,
}

/// A handle to a group for the group's own service, which does not keep the replica: a [`Group`] inside its own service
/// would never be dropped, and neither would the service.
///
/// See [`NodeBuilder::group_with`](crate::NodeBuilder::group_with).
#[derive(derive_more::Debug)]
#[debug("WeakGroup({:?})", self.shared.admission.name)]
pub struct WeakGroup<R: Service> {
    pub(super) shared: Arc<GroupShared<R::Reply>>,
    pub(super) reads: Weak<Reads<R>>,
    pub(super) history: Arc<History>,
    pub(super) mode: Mode,
}

impl<R: Service> WeakGroup<R> {
    /// Returns the group's handle. None before the service is made, and once all handles are dropped and the node has
    /// ended. None also while `apply` is called again for commands of the log, to build a state that there was: what
    /// they made the service send was sent then.
    ///
    /// A thread of the service drops it between its uses: as long as it lives, so does the service.
    pub fn upgrade(&self) -> Option<Group<R>> {
        let reads = self.reads.upgrade().filter(|_| !blocking::is_replaying())?;
        let WeakGroup { shared, history, mode, .. } = self;
        Some(Group { shared: Arc::clone(shared), reads, history: Arc::clone(history), mode: *mode })
    }
}

impl<R: Service> Clone for WeakGroup<R> {
    fn clone(&self) -> WeakGroup<R> {
        let WeakGroup { shared, reads, history, mode } = self;
        WeakGroup { shared: Arc::clone(shared), reads: Weak::clone(reads), history: Arc::clone(history), mode: *mode }
    }
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

    /// Sends a command whose reply the caller does not need. The returned [`Sending`] resolves once the command is
    /// accepted. From there on it is delivered exactly once, unless the group ends before.
    pub fn send(&self, command: &R::Command) -> Sending {
        Sending::new(&self.shared.admission, Envelope::command(command))
    }

    /// Sends a command whose reply the caller does not need, if there is room. Fails with [`SubmitError::Full`] if
    /// there is none.
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

    /// Looks at this node's replica, linearizably. The read shows the effect of every command whose reply any caller,
    /// at any node, has seen before this call, and of everything that an earlier such read has shown.
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
        let (read, job) = Read::new(self.shared.admission.backoff, look);
        self.reads.push(&self.shared.admission, job).map_or_else(|error| Read::answered(Err(error)), |()| read)
    }

    /// Looks at this node's replica as it is. It may be behind others, and behind what this node has been told. It
    /// shows at least the effect of this node's own completed submits.
    ///
    /// It asks no other node, and works after the group's end as well, unless the replica broke in the middle of a
    /// command. In a durable group it may show a state that is not on all disks yet, which a crash of all members would
    /// undo. [`read`](Group::read) waits for the disks.
    pub fn peek<T: Send + 'static>(&self, look: impl FnOnce(&R) -> T + Send + 'static) -> Read<T> {
        let (reads, admission) = (&self.reads, &self.shared.admission);
        let looked = reads.look_here(admission, look).or_else(|look| reads.look_at_the_last(admission, look));
        let look = match looked {
            Ok(answer) => return Read::answered(answer),
            Err(look) => look,
        };
        let (read, job) = Read::new(admission.backoff, look);
        reads.push_peek(admission, job).map_or_else(|error| Read::answered(Err(error)), |()| read)
    }

    /// Submits bytes as [`submit`](Group::submit) does a command.
    #[doc(hidden)]
    pub fn submit_bytes(&self, bytes: &[u8]) -> Submit<R::Reply> {
        Submit::new(&self.shared, Ok(Envelope::bytes(bytes)))
    }

    /// Submits bytes as [`try_submit`](Group::try_submit) does a command.
    #[doc(hidden)]
    pub fn try_submit_bytes(&self, bytes: &[u8]) -> Result<Submit<R::Reply>, SubmitError> {
        Ok(Submit::accepted(&self.shared, self.shared.accept(&Envelope::bytes(bytes))?))
    }

    /// Sends bytes as [`send`](Group::send) does a command.
    #[doc(hidden)]
    pub fn send_bytes(&self, bytes: &[u8]) -> Sending {
        Sending::new(&self.shared.admission, Ok(Envelope::bytes(bytes)))
    }

    /// Sends bytes as [`try_send`](Group::try_send) does a command.
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
