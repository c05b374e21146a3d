//! Typed calls: the methods that `squall::service` gives to clients and to members' handles.
//!
//! Outside, this module is `squall::__macro`, with the names that the attribute writes and users do not.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

pub use rkyv;
use rkyv::rancor;
pub use serde;

use crate::{
    calls::{error::SubmitError, submit::Submit},
    clients::{
        client::{Call, Client, ClientError, Everywhere, Replies, SubmitAll},
        query::{Portable, QueryService},
        serve::Served,
    },
    group::handle::Group,
    replica::replicated::Replicated,
};

/// A call of one method of a service that [`service`](macro@crate::service) has made. It resolves to the method's own
/// result.
///
/// It is a future for any executor; a plain thread calls [`wait`](TypedCall::wait). All else is as the call that it
/// holds says: a [`Call`] of a client, a [`Submit`] of a member.
#[derive(derive_more::Debug)]
#[debug("TypedCall {{ pending: {pending:?} }}")]
#[must_use = "only the result says whether the method was called, and a command may be sent only while it is waited for"]
pub struct TypedCall<P: PendingReply, T> {
    pending: P,
    typed: fn(P::Reply) -> Option<T>,
}

impl<P: PendingReply, T: 'static> TypedCall<P, T> {
    /// Blocks this thread until the result has come, as `wait` of the call that it holds does.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(self) -> Result<P::Typed<T>, P::Error> {
        P::typed(self.pending.wait()?, self.typed)
    }
}

impl<R, T> TypedCall<Submit<R>, T> {
    /// Whether the command was accepted: see [`Submit::is_accepted`].
    pub fn is_accepted(&self) -> bool {
        self.pending.is_accepted()
    }

    /// Gives up after `limit`: see [`Submit::deadline`].
    pub fn deadline(self, limit: Duration) -> TypedCall<Submit<R>, T> {
        TypedCall { pending: self.pending.deadline(limit), ..self }
    }
}

impl<P: PendingReply, T: 'static> Future for TypedCall<P, T> {
    type Output = Result<P::Typed<T>, P::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<P::Typed<T>, P::Error>> {
        let typed = self.typed;
        let resolved = Pin::new(&mut self.pending).poll(context);
        resolved.map(|resolved| P::typed(resolved?, typed))
    }
}

/// A future of a reply that is of one of several methods, or of several such replies.
pub trait PendingReply: Future<Output = Result<Self::Resolved, Self::Error>> + Unpin + Sized {
    /// The type of a reply.
    type Reply;
    /// The type to which it resolves: the reply, or replies.
    type Resolved;
    /// The same, with the result of one method for each reply.
    type Typed<T: 'static>;
    /// The type of the errors.
    type Error;

    /// Blocks this thread until it has resolved.
    fn wait(self) -> Result<Self::Resolved, Self::Error>;

    /// Takes the method's result out of each reply. A reply without it, of another method or to arguments that were
    /// undecodable, is an error.
    fn typed<T: 'static>(
        resolved: Self::Resolved,
        typed: fn(Self::Reply) -> Option<T>,
    ) -> Result<Self::Typed<T>, Self::Error>;
}

fn no_result() -> ClientError {
    ClientError::Reply("it has no result of this method".to_owned())
}

impl<T: Portable> PendingReply for Call<T> {
    type Reply = T;
    type Resolved = T;
    type Typed<U: 'static> = U;
    type Error = ClientError;

    fn wait(self) -> Result<T, ClientError> {
        Call::wait(self)
    }

    fn typed<U: 'static>(reply: T, typed: fn(T) -> Option<U>) -> Result<U, ClientError> {
        typed(reply).ok_or_else(no_result)
    }
}

impl<T: Portable + 'static> PendingReply for SubmitAll<T> {
    type Reply = T;
    type Resolved = Replies<T>;
    type Typed<U: 'static> = Replies<U>;
    type Error = ClientError;

    fn wait(self) -> Result<Replies<T>, ClientError> {
        SubmitAll::wait(self)
    }

    fn typed<U: 'static>(replies: Replies<T>, typed: fn(T) -> Option<U>) -> Result<Replies<U>, ClientError> {
        Ok(replies.typed(typed, no_result))
    }
}

impl<T> PendingReply for Submit<T> {
    type Reply = T;
    type Resolved = T;
    type Typed<U: 'static> = U;
    type Error = SubmitError;

    fn wait(self) -> Result<T, SubmitError> {
        Submit::wait(self)
    }

    /// Without the method's result it is [`SubmitError::Invalid`]: the reply comes from this program, so that it is of
    /// the method, if of any.
    fn typed<U: 'static>(reply: T, typed: fn(T) -> Option<U>) -> Result<U, SubmitError> {
        typed(reply).ok_or(SubmitError::Invalid)
    }
}

/// A handle that submits a service's commands.
#[diagnostic::on_unimplemented(
    message = "`{Self}` submits no commands of `{R}`",
    note = "a `Client` of the service does, and a member's handle: a `Group` or a `ServedGroup`"
)]
pub trait Commands<R: Replicated> {
    /// The type of a command's reply under way.
    type Pending: PendingReply<Reply = R::Reply>;

    /// Submits a command.
    fn submit_command(&self, command: &R::Command) -> Self::Pending;

    /// Calls a method that is a command. `typed` takes the method's result out of the reply.
    fn call_command<T>(&self, command: &R::Command, typed: fn(R::Reply) -> Option<T>) -> TypedCall<Self::Pending, T> {
        TypedCall { pending: self.submit_command(command), typed }
    }
}

impl<R: QueryService> Commands<R> for Client<R> {
    type Pending = Call<R::Reply>;

    fn submit_command(&self, command: &R::Command) -> Call<R::Reply> {
        self.submit(command)
    }
}

impl<R: QueryService> Commands<R> for Everywhere<R> {
    type Pending = SubmitAll<R::Reply>;

    fn submit_command(&self, command: &R::Command) -> SubmitAll<R::Reply> {
        self.0.submit_all(command)
    }
}

impl<R: Replicated> Commands<R> for Group<R> {
    type Pending = Submit<R::Reply>;

    fn submit_command(&self, command: &R::Command) -> Submit<R::Reply> {
        self.submit(command)
    }
}

impl<R: QueryService> Commands<R> for Group<Served<R>> {
    type Pending = Submit<R::Reply>;

    fn submit_command(&self, command: &R::Command) -> Submit<R::Reply> {
        self.submit(command)
    }
}

/// A handle that asks a service's queries.
#[diagnostic::on_unimplemented(
    message = "`{Self}` asks no queries of `{R}`",
    note = "a `Client` does; a member looks at its own replica: `group.read(|replica| replica.query())`"
)]
pub trait Queries<R: QueryService> {
    /// Calls a method that is a query. `typed` takes the method's result out of the answer.
    fn call_query<T>(&self, query: &R::Query, typed: fn(R::Answer) -> Option<T>) -> TypedCall<Call<R::Answer>, T>;
}

impl<R: QueryService> Queries<R> for Client<R> {
    fn call_query<T>(&self, query: &R::Query, typed: fn(R::Answer) -> Option<T>) -> TypedCall<Call<R::Answer>, T> {
        TypedCall { pending: self.query(query), typed }
    }
}

/// Decodes what has passed the check of its bytes. A type's own `Deserialize` may refuse it still.
pub fn decode<T: Portable>(archived: &T::Archived) -> Option<T> {
    rkyv::deserialize::<T, rancor::Error>(archived).ok()
}
