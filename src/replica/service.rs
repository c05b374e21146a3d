//! The trait of a replica that takes messages as bytes, as the delivering thread calls it.

use std::{
    io::{self, Read},
    ops::Range,
};

use rkyv::{Archived, rancor, util::AlignedVec};
use squall_ordered::{Message, Payload, log::Hlc};

use crate::replica::{
    replicated::{Applied, Replicated, Stamp},
    schema::Schema,
    snapshot::Snapshot,
    view_change::ViewChange,
};

/// A replica that takes a group's messages as bytes. Every [`Replicated`] is one; benchmarks, which need no commands,
/// implement it directly.
pub trait Service: Send + 'static {
    /// The type of the replies, which submitters get.
    type Reply: Send + 'static;

    /// Takes a message. `scratch` is memory to use again and again; its contents mean nothing. Returns None for a
    /// message to which no member's submit waits for a reply.
    fn take(
        &mut self,
        message: &Message<'_>,
        stamp: Stamp,
        scratch: &mut AlignedVec,
    ) -> Result<Option<Self::Reply>, Invalid>;

    /// Passes over a message that no member applies, on an operator's word, at all members alike. The framework's own
    /// part of the message is carried out.
    fn skip(&mut self, _message: &Message<'_>, _stamp: Stamp, _scratch: &mut AlignedVec) -> Result<(), Invalid> {
        Ok(())
    }

    /// The identity of the messages and of the contents of snapshots.
    fn schema() -> Schema
    where
        Self: Sized,
    {
        Schema::UNDECLARED
    }

    /// Durable groups: notes that a crash of all members can't undo the state of this version any more. From now on
    /// nodes other than submitters may be told the outcome of its messages. Only grows.
    fn globally_persisted(&mut self, _version: u64) {}

    /// The bytes that a durable group's log keeps instead of a message, if taking either leaves the same state behind.
    /// Asked just before the message is [taken](Service::take).
    fn logged_as(&self, _message: &[u8]) -> Option<Vec<u8>> {
        None
    }

    /// The part of a message that is the application's command, if it has one.
    fn command_of(message: &[u8]) -> Option<&[u8]>
    where
        Self: Sized,
    {
        Some(message)
    }

    /// Returns the state, as [`Replicated::snapshot`] does.
    fn snapshot(&self) -> Snapshot {
        Snapshot::unsupported()
    }

    /// Replaces the state, as [`Replicated::restore`] does.
    fn restore(&mut self, _from: &mut dyn Read) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The time at which the replica is to be woken, as [`Replicated::wake_at`] says.
    fn wake_at(&self) -> Option<Hlc> {
        None
    }

    /// The bytes of a message that says nothing but the group's time, which are no command.
    fn tick() -> &'static [u8]
    where
        Self: Sized,
    {
        &[]
    }

    /// The numbers of the follow-ups that are due, as [`QueryService::follow_ups`](crate::QueryService::follow_ups)
    /// says. Plain groups have none.
    fn follow_ups(&self) -> Range<u64> {
        0..0
    }

    /// Makes the message of a follow-up, on the member that leads. None if it can't be made yet.
    fn follow_up(&self, _number: u64) -> Option<Vec<u8>> {
        None
    }

    /// Takes note of a view, as [`Replicated::view_changed`] does.
    fn view_changed(&mut self, _change: &ViewChange) {}
}

/// The error that the bytes are no command. All members have the same bytes, so all come to this.
#[derive(Debug, thiserror::Error)]
#[error("not a command: {0}")]
pub struct Invalid(#[from] rancor::Error);

/// A payload's bytes, aligned, which no sender changes any more. They are copied into `scratch` if they lie in a ring:
/// a faulty sender could change them there between their check and their use.
#[inline]
pub(crate) fn settled<'a>(payload: &'a Payload<'_>, scratch: &'a mut AlignedVec) -> &'a [u8] {
    payload.as_slice().unwrap_or_else(|| {
        scratch.resize(payload.len(), 0);
        payload.read(scratch);
        scratch
    })
}

/// Wakes a replica, if the group's time has reached the time for which it asks.
pub(crate) fn wake<R: Replicated>(replica: &mut R, at: &Applied) {
    if Replicated::wake_at(replica).is_some_and(|wake_at| wake_at <= at.time) {
        replica.woken(at);
    }
}

impl<R: Replicated> Service for R {
    type Reply = R::Reply;

    fn schema() -> Schema {
        R::SCHEMA.of_commands::<R::Command>()
    }

    fn take(
        &mut self,
        message: &Message<'_>,
        stamp: Stamp,
        scratch: &mut AlignedVec,
    ) -> Result<Option<R::Reply>, Invalid> {
        let (bytes, at) = (settled(&message.payload, scratch), stamp.of(message));
        if bytes == Self::tick() {
            wake(self, &at);
            return Ok(None);
        }
        let command = rkyv::access::<Archived<R::Command>, rancor::Error>(bytes)?;
        Ok(Some(self.apply(command, &at)))
    }

    fn command_of(message: &[u8]) -> Option<&[u8]> {
        (message != Self::tick()).then_some(message)
    }

    fn wake_at(&self) -> Option<Hlc> {
        Replicated::wake_at(self)
    }

    /// Returns bytes that are too few for a command, or too many where commands have none.
    fn tick() -> &'static [u8] {
        if size_of::<Archived<R::Command>>() == 0 { &[0] } else { &[] }
    }

    fn snapshot(&self) -> Snapshot {
        Replicated::snapshot(self)
    }

    fn restore(&mut self, from: &mut dyn Read) -> io::Result<()> {
        Replicated::restore(self, from)
    }

    fn view_changed(&mut self, change: &ViewChange) {
        Replicated::view_changed(self, change);
    }
}
