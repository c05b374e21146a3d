//! What an application implements to be replicated.

use rkyv::{
    Archive, Archived, Serialize,
    api::high::{HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor,
    ser::allocator::ArenaHandle,
    util::AlignedVec,
};
use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};

/// A state machine, of which every member of a group holds a replica.
///
/// All replicas begin alike and apply the same commands in the same order, so they stay alike.
///
/// # To ensure correctness
///
/// [`apply`](Replicated::apply) must depend on nothing but the replica, the command and where it stands in the order: no
/// clock, no random numbers, no iteration over a `HashMap` of the standard library, whose order differs between processes.
///
/// # Where it runs
///
/// `apply` and the closures of reads run on the node's engine thread, which meanwhile serves nobody else; calls that take
/// longer than the configuration's `short_limit_us` move the group to a thread of its own. They must not block for
/// long, and must not wait for what the same node is to deliver: [`Submit::wait`](crate::Submit::wait) within them fails,
/// while submitting is fine. A panic in `apply` leaves a replica that is like no other, so it ends the group.
///
/// ```
/// use rkyv::{Archive, Archived, Serialize};
/// use squall::{Applied, Replicated};
///
/// #[derive(Default)]
/// struct Account {
///     balance: u64,
/// }
///
/// #[derive(Archive, Serialize)]
/// enum Move {
///     Deposit(u64),
///     Withdraw(u64),
/// }
///
/// impl Replicated for Account {
///     type Command = Move;
///     /// The balance, or None if it was too small.
///     type Reply = Option<u64>;
///
///     fn apply(&mut self, command: &Archived<Move>, _at: &Applied) -> Option<u64> {
///         self.balance = match command {
///             Archived::<Move>::Deposit(sum) => self.balance.checked_add(sum.to_native())?,
///             Archived::<Move>::Withdraw(sum) => self.balance.checked_sub(sum.to_native())?,
///         };
///         Some(self.balance)
///     }
/// }
/// ```
pub trait Replicated: Send + 'static {
    /// What changes a replica.
    type Command: Command;
    /// What the submitter learns from its own node's replica.
    type Reply: Send + 'static;

    /// Applies a command, in place where it was received.
    fn apply(&mut self, command: &Archived<Self::Command>, at: &Applied) -> Self::Reply;
}

/// A type that can travel as a message: whatever derives rkyv's `Archive` and `Serialize`. Never implemented by hand.
///
/// A command is checked where it is received, before anything reads it, and then used where it lies; it is not deserialized.
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

/// Where in a group's history a command was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Applied {
    /// The view in which it was ordered.
    pub epoch: Epoch,
    /// Its place in that view's order. Places of turns that a sender gave up are missing; in unordered mode it tells messages
    /// apart and orders those of one sender.
    pub seq: Seq,
    /// Who submitted it.
    pub sender: NodeId,
}
