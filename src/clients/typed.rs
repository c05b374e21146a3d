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
        client::{Call, Client, ClientError},
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

impl<P: PendingReply, T> TypedCall<P, T> {
    /// Blocks this thread until the result has come, as `wait` of the call that it holds does.
    ///
    /// # Panics
    ///
    /// If it was polled before, and has resolved.
    pub fn wait(self) -> Result<T, P::Error> {
        let reply = self.pending.wait()?;
        (self.typed)(reply).ok_or_else(P::no_result)
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

impl<P: PendingReply, T> Future for TypedCall<P, T> {
    type Output = Result<T, P::Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T, P::Error>> {
        let typed = self.typed;
        let reply = Pin::new(&mut self.pending).poll(context);
        reply.map(|reply| typed(reply?).ok_or_else(P::no_result))
    }
}

/// A future of a reply that is of one of several methods.
pub trait PendingReply: Future<Output = Result<Self::Reply, Self::Error>> + Unpin + Sized {
    /// The type of the reply.
    type Reply;
    /// The type of the errors.
    type Error;

    /// Blocks this thread until the reply has come.
    fn wait(self) -> Result<Self::Reply, Self::Error>;

    /// The error of a reply without the method's result: it is of another method, or its arguments were undecodable.
    fn no_result() -> Self::Error;
}

impl<T: Portable> PendingReply for Call<T> {
    type Reply = T;
    type Error = ClientError;

    fn wait(self) -> Result<T, ClientError> {
        Call::wait(self)
    }

    fn no_result() -> ClientError {
        ClientError::Reply("it has no result of this method".to_owned())
    }
}

impl<T> PendingReply for Submit<T> {
    type Reply = T;
    type Error = SubmitError;

    fn wait(self) -> Result<T, SubmitError> {
        Submit::wait(self)
    }

    /// Returns [`SubmitError::Invalid`]: the reply comes from this program, so that it is of the method, if of any.
    fn no_result() -> SubmitError {
        SubmitError::Invalid
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
