//! Submitting and sending, as futures that plain threads can wait for too.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use squall_runtime::blocking;

use crate::calls::{
    admission::{Admission, WaitingMessage},
    deadline::Deadline,
    envelope::Envelope,
    error::{Outcome, SubmitError},
    reply_slots::{Lost, ReplySlots, Ticket, Wakeups},
};

/// The state that all handles of a group share with the delivering thread.
pub(crate) struct GroupShared<T> {
    pub(crate) admission: Arc<Admission>,
    pub(crate) replies: ReplySlots<Result<T, Unapplied>>,
}

/// The reason for which a message got no reply from the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unapplied {
    /// Bytes that are no command.
    Invalid,
    /// A message that was not delivered here.
    Failed(Box<SubmitError>),
}

impl<T> GroupShared<T> {
    /// Accepts a message whose submitter waits for the reply, if there is room.
    pub(crate) fn accept(&self, message: &Envelope) -> Result<Ticket, SubmitError> {
        let ticket = self.replies.claim().ok_or_else(|| self.admission.full())?;
        match self.admission.accept(message, ticket.get()) {
            Ok(()) => Ok(ticket),
            Err(error) => {
                self.carry_out(self.replies.put_back(ticket));
                Err(error)
            }
        }
    }

    pub(crate) fn carry_out(&self, wakeups: Wakeups) {
        self.carry_out_with(wakeups, Waker::wake);
    }

    /// Brings the reply to a message of this node. Hands the waker of the submit that waits for it to `wake`.
    #[inline]
    pub(crate) fn complete(&self, ticket: u32, reply: Result<T, Unapplied>, wake: impl FnOnce(Waker)) {
        self.carry_out_with(self.replies.complete(ticket, reply), wake);
    }

    #[inline]
    fn carry_out_with(&self, wakeups: Wakeups, wake: impl FnOnce(Waker)) {
        if wakeups.room {
            blocking::outside_apply(|| self.admission.on_reply_slot());
        }
        if let Some(waker) = wakeups.wake {
            wake(waker);
        }
    }

    fn poll(&self, ticket: Ticket, context: &Context<'_>) -> Poll<Result<T, SubmitError>> {
        self.replies.poll(ticket, context).map(|(reply, wakeups)| {
            self.carry_out(wakeups);
            match reply {
                Ok(Ok(reply)) => Ok(reply),
                Ok(Err(Unapplied::Invalid)) => Err(SubmitError::Invalid),
                Ok(Err(Unapplied::Failed(error))) => Err(*error),
                Err(Lost::Closed | Lost::Stalled) => {
                    Err(self.admission.failed(Outcome::Unknown { held_by: Vec::new() }))
                }
            }
        })
    }
}

/// A message on its way, and the reply that this node's replica will give when the message is delivered here.
///
/// A future for any executor; on a plain thread, [`wait`](Submit::wait). Once it resolves with a reply, the message is
/// delivered by this member, so every member has received it.
///
/// The message is handed over as soon as there is room, if possible before this value even exists
/// ([`is_accepted`](Submit::is_accepted)). From then on it is delivered exactly once, unless the group ends before.
///
/// # Dropping
///
/// - *Accepted*: the message goes its way. Dropping the `Submit` neither loses nor repeats it; only the reply is lost.
/// - *Not accepted yet*: the message is not sent. A caller that submits in a fixed order and drops such a `Submit` must
///   know that the messages after it may go all the same.
#[derive(derive_more::Debug)]
#[must_use = "a submit that was not accepted at once is not sent unless it is awaited or waited for"]
pub struct Submit<T> {
    #[debug(skip)]
    shared: Arc<GroupShared<T>>,
    stage: SubmitStage,
    limit: Limit,
}

#[derive(Debug)]
enum SubmitStage {
    Waiting(WaitingMessage),
    Accepted(Ticket),
    /// A message that was not accepted, and will not be.
    Failed(SubmitError),
    /// The end: the future has resolved.
    Over {
        accepted: bool,
    },
}

impl SubmitStage {
    fn is_accepted(&self) -> bool {
        matches!(self, SubmitStage::Accepted(_) | SubmitStage::Over { accepted: true })
    }

    /// Leaves it over, and returns the stage before.
    fn finish(&mut self) -> SubmitStage {
        let accepted = self.is_accepted();
        std::mem::replace(self, SubmitStage::Over { accepted })
    }
}

#[derive(Debug)]
enum Limit {
    None,
    /// The limit begins with the first poll.
    After(Duration),
    Running(Arc<Deadline>),
}

impl<T> Submit<T> {
    pub(crate) fn new(shared: &Arc<GroupShared<T>>, message: Result<Envelope, SubmitError>) -> Submit<T> {
        let stage = message.and_then(|message| match shared.accept(&message) {
            Ok(ticket) => Ok(SubmitStage::Accepted(ticket)),
            Err(SubmitError::Full) => Ok(SubmitStage::Waiting(WaitingMessage::new(message))),
            Err(error) => Err(error),
        });
        let stage = stage.unwrap_or_else(SubmitStage::Failed);
        Submit { shared: Arc::clone(shared), stage, limit: Limit::None }
    }

    pub(crate) fn accepted(shared: &Arc<GroupShared<T>>, ticket: Ticket) -> Submit<T> {
        Submit { shared: Arc::clone(shared), stage: SubmitStage::Accepted(ticket), limit: Limit::None }
    }

    /// Whether the message was accepted, so that it goes its way whatever becomes of this value.
    pub fn is_accepted(&self) -> bool {
        self.stage.is_accepted()
    }

    /// The reason for which the message was not accepted, and will not be.
    pub(crate) fn failure(&self) -> Option<&SubmitError> {
        if let SubmitStage::Failed(error) = &self.stage { Some(error) } else { None }
    }

    /// Gives up after `limit`, counted from the first poll or from the call of [`wait`](Submit::wait).
    ///
    /// The error is [`SubmitError::Full`] if the message was not accepted by then, and so not sent; else
    /// [`SubmitError::Deadline`].
    pub fn deadline(mut self, limit: Duration) -> Submit<T> {
        self.limit_to(limit);
        self
    }

    pub(crate) fn limit_to(&mut self, limit: Duration) {
        self.limit = Limit::After(limit);
    }

    /// Blocks this thread until the reply has come.
    ///
    /// Inside `apply`, or a read's closure, this is the error [`SubmitError::InsideApply`]; a message that was accepted
    /// goes its way.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(mut self) -> Result<T, SubmitError> {
        if blocking::is_applying() {
            return Err(SubmitError::InsideApply);
        }
        let until = match self.limit {
            Limit::After(limit) => {
                self.limit = Limit::None;
                // A time beyond the range of the clock is no limit.
                Instant::now().checked_add(limit)
            }
            // A running deadline wakes this thread.
            Limit::None | Limit::Running(_) => None,
        };
        if matches!(self.limit, Limit::None) {
            self.stage = match self.stage.finish() {
                SubmitStage::Waiting(waiting) => {
                    let shared = &self.shared;
                    SubmitStage::Accepted(waiting.wait(&shared.admission, until, |message| shared.accept(message))?)
                }
                other => other,
            };
        }
        if let SubmitStage::Accepted(ticket) = self.stage {
            let shared = &self.shared;
            shared.admission.backoff.wait(until, || shared.replies.is_ready(ticket));
        }
        let waited = blocking::block_on(until, |context| Pin::new(&mut self).poll(context));
        waited.unwrap_or(Err(SubmitError::Deadline))
    }
}

impl<T> Future for Submit<T> {
    type Output = Result<T, SubmitError>;

    /// Inside `apply`, or a read's closure, a submit that would have to wait is the error
    /// [`SubmitError::InsideApply`], as it is for [`wait`](Submit::wait).
    ///
    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, SubmitError>> {
        let this = &mut *self;
        if let SubmitStage::Waiting(waiting) = &mut this.stage {
            match waiting.poll(&this.shared.admission, context, |message| this.shared.accept(message)) {
                Poll::Ready(Ok(ticket)) => this.stage = SubmitStage::Accepted(ticket),
                Poll::Ready(Err(error)) => this.stage = SubmitStage::Failed(error),
                Poll::Pending => {}
            }
        }
        let late = match &mut this.stage {
            SubmitStage::Waiting(_) => SubmitError::Full,
            SubmitStage::Accepted(ticket) => {
                if let Poll::Ready(reply) = this.shared.poll(*ticket, context) {
                    this.stage.finish();
                    return Poll::Ready(reply);
                }
                SubmitError::Deadline
            }
            SubmitStage::Failed(error) => {
                let error = error.clone();
                this.stage.finish();
                return Poll::Ready(Err(error));
            }
            SubmitStage::Over { .. } => panic!("a Submit was polled after it had resolved"),
        };
        let error = if blocking::is_applying() {
            SubmitError::InsideApply
        } else {
            std::task::ready!(this.limit.poll(&this.shared.admission, context));
            late
        };
        this.give_up();
        Poll::Ready(Err(error))
    }
}

impl<T> Submit<T> {
    fn give_up(&mut self) {
        if let SubmitStage::Accepted(ticket) = self.stage.finish() {
            self.shared.carry_out(self.shared.replies.abandon(ticket));
        }
    }
}

impl<T> Drop for Submit<T> {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Limit {
    /// Ready once the limit has passed.
    fn poll(&mut self, admission: &Admission, context: &Context<'_>) -> Poll<()> {
        if let Limit::After(limit) = *self {
            *self = Limit::Running(admission.deadlines.set(limit));
            admission.wake();
        }
        match self {
            Limit::Running(deadline) => deadline.poll(context),
            _ => Poll::Pending,
        }
    }
}

/// A message on its way whose reply no caller waits for. Resolves once it is accepted.
///
/// A future for any executor; on a plain thread, [`wait`](Sending::wait). The rules of [`Submit`] for dropping hold
/// here too.
#[must_use = "a message that was not accepted at once is not sent unless this is awaited or waited for"]
#[derive(Debug)]
pub struct Sending {
    admission: Arc<Admission>,
    stage: SendingStage,
}

#[derive(Debug)]
enum SendingStage {
    Waiting(WaitingMessage),
    Accepted,
    /// A message that was not accepted, and will not be.
    Failed(SubmitError),
}

impl SendingStage {
    fn of(result: Result<(), SubmitError>) -> SendingStage {
        match result {
            Ok(()) => SendingStage::Accepted,
            Err(error) => SendingStage::Failed(error),
        }
    }
}

impl Sending {
    pub(crate) fn new(admission: &Arc<Admission>, message: Result<Envelope, SubmitError>) -> Sending {
        let stage = match message {
            Ok(message) => match admission.accept(&message, 0) {
                Err(SubmitError::Full) => SendingStage::Waiting(WaitingMessage::new(message)),
                result => SendingStage::of(result),
            },
            Err(error) => SendingStage::Failed(error),
        };
        Sending { admission: Arc::clone(admission), stage }
    }

    /// Whether the message was accepted, so that it goes its way whatever becomes of this value.
    pub fn is_accepted(&self) -> bool {
        matches!(self.stage, SendingStage::Accepted)
    }

    /// Blocks this thread until the message is accepted.
    ///
    /// Inside `apply`, or a read's closure, a message that was not accepted at once is not sent, and this is the error
    /// [`SubmitError::InsideApply`].
    pub fn wait(self) -> Result<(), SubmitError> {
        match self.stage {
            SendingStage::Waiting(_) if blocking::is_applying() => Err(SubmitError::InsideApply),
            SendingStage::Waiting(waiting) => {
                waiting.wait(&self.admission, None, |message| self.admission.accept(message, 0))
            }
            SendingStage::Accepted => Ok(()),
            SendingStage::Failed(error) => Err(error),
        }
    }
}

impl Future for Sending {
    type Output = Result<(), SubmitError>;

    /// Inside `apply`, or a read's closure, a message that would have to wait is not sent, as with
    /// [`wait`](Sending::wait).
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SubmitError>> {
        let this = &mut *self;
        if let SendingStage::Waiting(waiting) = &mut this.stage {
            let admission = &this.admission;
            this.stage = match waiting.poll(admission, context, |message| admission.accept(message, 0)) {
                Poll::Ready(result) => SendingStage::of(result),
                Poll::Pending if blocking::is_applying() => SendingStage::Failed(SubmitError::InsideApply),
                Poll::Pending => return Poll::Pending,
            };
        }
        Poll::Ready(match &this.stage {
            SendingStage::Failed(error) => Err(error.clone()),
            SendingStage::Accepted | SendingStage::Waiting(_) => Ok(()),
        })
    }
}
