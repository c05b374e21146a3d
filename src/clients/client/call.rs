//! The result of a call, on its way to the caller.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use squall_fabric::{NodeId, Time, sync::Lock};
use squall_runtime::blocking;

use super::{error::ClientError, gathering::Gathering};
use crate::{
    calls::{deadline::Deadline, error::SubmitError, submit::Submit},
    clients::query::{self, Portable},
};

/// A command or query under way, and the reply or answer that will come.
///
/// It is a future for any executor; a plain thread calls [`wait`](Call::wait). It always resolves, at its deadline at
/// the latest. Dropping it withdraws nothing: a command may still be applied. (Only one that this process' own member
/// has not accepted yet is not sent.)
#[derive(derive_more::Debug)]
#[must_use = "only the result says whether the command was applied"]
#[debug("Call")]
pub struct Call<T> {
    slot: Arc<Lock<CallState>>,
    /// The command's way through this process' own member, as long as it may go that way.
    own: Option<OwnSubmit<T>>,
    /// The deadline that ends the call, unless it has resolved before.
    deadline: Option<Arc<Deadline>>,
    decode: fn(Vec<u8>) -> Result<T, ClientError>,
}

/// The state of a call's result.
#[derive(Debug, Default)]
pub(crate) enum CallState {
    #[default]
    Nobody,
    Waiting(Waker),
    Resolved(Result<Vec<u8>, ClientError>),
    Taken,
}

/// A command that goes through this process' own member, and the way that it takes where that can't send it.
pub(crate) struct OwnSubmit<T> {
    pub(crate) submit: Submit<T>,
    /// The time at which it is given up, until it is polled for the first time.
    pub(crate) deadline: Option<Time>,
    pub(crate) otherwise: Box<dyn FnOnce(Resolve) + Send>,
}

/// The right to resolve a call.
#[derive(derive_more::Debug)]
pub(crate) enum Resolve {
    Call(Arc<Lock<CallState>>),
    All(Arc<Gathering>),
    /// None once it is resolved.
    #[debug("Then")]
    Then(Lock<Option<Then>>),
}

type Then = Box<dyn FnOnce(Result<Vec<u8>, ClientError>) + Send>;

impl Resolve {
    pub(crate) fn new<T: Portable>() -> (Call<T>, Resolve) {
        Resolve::of(|bytes| decode(&bytes))
    }

    /// Makes a call whose result are the bytes as they travelled.
    pub(crate) fn raw() -> (Call<Vec<u8>>, Resolve) {
        Resolve::of(Ok)
    }

    fn of<T>(decode: fn(Vec<u8>) -> Result<T, ClientError>) -> (Call<T>, Resolve) {
        let slot = Arc::new(Lock::default());
        (Call { slot: Arc::clone(&slot), own: None, deadline: None, decode }, Resolve::Call(slot))
    }

    /// Makes the right to resolve a call whose result goes on into a closure.
    pub(crate) fn then(then: impl FnOnce(Result<Vec<u8>, ClientError>) + Send + 'static) -> Resolve {
        Resolve::Then(Lock::new(Some(Box::new(then))))
    }

    /// Notes that a command for all was sent.
    pub(crate) fn sent(&self, members: Vec<NodeId>) {
        if let Resolve::All(gathering) = self {
            gathering.sent(members);
        }
    }

    /// Takes the reply of a member to a command for all.
    pub(crate) fn reply(&self, node: NodeId, reply: Result<Vec<u8>, ClientError>) {
        if let Resolve::All(gathering) = self {
            gathering.reply(node, reply);
        }
    }

    /// Puts the result in, if it is the first.
    pub(crate) fn resolve(&self, result: Result<Vec<u8>, ClientError>) {
        let slot = match self {
            Resolve::Call(slot) => slot,
            // Of a success each reply has come before.
            Resolve::All(gathering) => return result.err().iter().for_each(|error| gathering.fail(error)),
            Resolve::Then(then) => {
                let then = then.lock().take();
                return then.map_or((), |then| then(result));
            }
        };
        let mut state = slot.lock();
        if matches!(*state, CallState::Resolved(_) | CallState::Taken) {
            return;
        }
        if let CallState::Waiting(waker) = std::mem::replace(&mut *state, CallState::Resolved(result)) {
            drop(state);
            waker.wake();
        }
    }
}

impl Drop for Resolve {
    fn drop(&mut self) {
        self.resolve(Err(ClientError::Closed { sent: true }));
    }
}

impl<T: Portable> Call<T> {
    /// Makes the call end with the deadline at the latest.
    pub(crate) fn until(self, deadline: Arc<Deadline>) -> Call<T> {
        Call { deadline: Some(deadline), ..self }
    }

    pub(crate) fn failed(error: ClientError) -> Call<T> {
        let (call, resolve) = Resolve::new();
        resolve.resolve(Err(error));
        call
    }

    /// Makes a call of a command that this process' own member sends.
    pub(crate) fn own(own: OwnSubmit<T>) -> Call<T> {
        let slot = Arc::new(Lock::default());
        if own.submit.failure().is_some_and(SubmitError::is_elsewhere) {
            (own.otherwise)(Resolve::Call(Arc::clone(&slot)));
            return Call { slot, own: None, deadline: None, decode: |bytes| decode(&bytes) };
        }
        Call { slot, own: Some(own), deadline: None, decode: |bytes| decode(&bytes) }
    }

    /// Polls the submit of this process' own member. Pending, without it, once the command goes another way.
    fn poll_own(&mut self, context: &mut Context<'_>) -> Poll<Result<T, ClientError>> {
        let Some(own) = &mut self.own else { return Poll::Pending };
        if let Some(deadline) = own.deadline.take() {
            own.submit.limit_to(deadline.since(Time::boot_clock()));
        }
        let result = std::task::ready!(Pin::new(&mut own.submit).poll(context));
        let own = self.own.take();
        match (result, own) {
            (Err(error), Some(OwnSubmit { otherwise, .. })) if error.is_elsewhere() => {
                otherwise(Resolve::Call(Arc::clone(&self.slot)));
                Poll::Pending
            }
            (result, _) => {
                *self.slot.lock() = CallState::Taken;
                Poll::Ready(result.map_err(ClientError::from))
            }
        }
    }

    /// Blocks this thread until the result has come. Inside `apply`, or a read's closure, it fails with
    /// [`ClientError::InsideApply`] instead.
    ///
    /// # Panics
    ///
    /// If the call was polled before, and has resolved.
    pub fn wait(mut self) -> Result<T, ClientError> {
        if blocking::is_applying() {
            return Err(ClientError::InsideApply);
        }
        blocking::block_on(None, |context| Pin::new(&mut self).poll(context)).expect("there is no deadline")
    }
}

impl<T: Portable> Future for Call<T> {
    type Output = Result<T, ClientError>;

    /// Inside `apply`, or a read's closure, a call without its result fails with [`ClientError::InsideApply`], as with
    /// [`wait`](Call::wait).
    ///
    /// # Panics
    ///
    /// If it is polled again after it has resolved.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, ClientError>> {
        if let Poll::Ready(result) = self.poll_own(context) {
            return Poll::Ready(result);
        }
        if self.own.is_some() {
            return Poll::Pending;
        }
        let mut state = self.slot.lock();
        match std::mem::replace(&mut *state, CallState::Taken) {
            CallState::Nobody | CallState::Waiting(_) if blocking::is_applying() => {
                Poll::Ready(Err(ClientError::InsideApply))
            }
            CallState::Nobody | CallState::Waiting(_) => {
                *state = CallState::Waiting(context.waker().clone());
                drop(state);
                match &self.deadline {
                    Some(deadline) => deadline.poll(context).map(|()| {
                        let trouble = "this node did not come to it".to_owned();
                        Err(ClientError::Deadline { sent: false, trouble })
                    }),
                    None => Poll::Pending,
                }
            }
            CallState::Resolved(result) => {
                drop(state);
                Poll::Ready(result.and_then(self.decode))
            }
            CallState::Taken => panic!("a Call was polled after it had resolved"),
        }
    }
}

/// A call may move after it was polled, since nothing in it is pinned.
impl<T> Unpin for Call<T> {}

/// Decodes a value that travelled as bytes.
pub(crate) fn decode<T: Portable>(bytes: &[u8]) -> Result<T, ClientError> {
    query::decode(bytes).map_err(ClientError::Reply)
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_call_polled_inside_apply_fails_and_its_result_goes_nowhere() {
        let (mut call, resolve) = Resolve::new::<i64>();
        let mut poll = || Pin::new(&mut call).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        let applying = blocking::Applying::enter();
        assert!(matches!(poll(), Poll::Ready(Err(ClientError::InsideApply))));
        drop(applying);
        resolve.resolve(Ok(Vec::new()));
    }
}
