//! Types that can travel as messages.

use rkyv::{
    Archive, Serialize,
    api::high::{HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor,
    ser::allocator::ArenaHandle,
    util::AlignedVec,
};

/// A type that can travel as a message: any type that derives rkyv's `Archive` and `Serialize`. Never implemented by
/// hand.
///
/// A command is checked where it is received, before anything reads it. It is then used in place, without
/// deserialization.
pub trait Command:
    Archive<Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>>>
    + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>
{
}

impl<T> Command for T where
    T: Archive<Archived: for<'a> CheckBytes<HighValidator<'a, rancor::Error>>>
        + for<'a> Serialize<HighSerializer<AlignedVec, ArenaHandle<'a>, rancor::Error>>
{
}
