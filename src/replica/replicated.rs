//! The trait of a replicated state machine, and the place of a command in a group's history.

use std::io::{self, Read};

use rkyv::Archived;
use squall_fabric::NodeId;
use squall_membership::{Epoch, Seq};
use squall_ordered::{
    Message,
    log::{End, Hlc},
};

use crate::replica::{command::Command, schema::Schema, snapshot::Snapshot, view_change::ViewChange};

/// A state machine, of which every member of a group holds a replica.
///
/// All replicas begin alike and apply the same commands in the same order, so they stay alike.
///
/// # To ensure correctness
///
/// [`apply`](Replicated::apply) must depend on nothing but the replica, the command and its place in the order: no
/// clock, no random numbers, no iteration over a `HashMap` of the standard library, whose order differs between
/// processes.
///
/// # Where it runs
///
/// `apply`, `snapshot`, `view_changed` and the closures of reads run on the node's engine thread, which meanwhile
/// serves nothing else. A read's closure may also run on the reading thread. Calls that take longer than the
/// configuration's `short_limit_us` move the group to a thread of its own.
///
/// They must not block for long, and must not wait for a message that the same node is to deliver:
/// [`Submit::wait`](crate::Submit::wait) within them fails, while submitting is fine.
///
/// A panic in `apply` leaves a replica that is like no other, so it ends this node's part in all groups. The other
/// members apply the same command, so it ends theirs too. In a durable group each start would end so: the end names the
/// command, and `squall log skip` lets the group go on without it.
///
/// ```
/// use std::io;
///
/// use rkyv::{Archive, Archived, Serialize};
/// use squall::{Applied, Replicated, Snapshot};
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
///
///     fn snapshot(&self) -> Snapshot {
///         Snapshot::of_bytes(self.balance.to_le_bytes())
///     }
///
///     fn restore(&mut self, from: &mut dyn io::Read) -> io::Result<()> {
///         let mut bytes = [0; 8];
///         from.read_exact(&mut bytes)?;
///         self.balance = u64::from_le_bytes(bytes);
///         Ok(())
///     }
/// }
/// ```
pub trait Replicated: Send + 'static {
    /// The type of the commands, which change a replica.
    type Command: Command;
    /// The type of the replies, which the submitter gets from its own node's replica.
    type Reply: Send + 'static;

    /// The name and version of the commands and of the contents of snapshots, which all members of a group, and their
    /// logs, must have alike.
    ///
    /// A program whose commands or snapshots change needs it, or in which a replica is [woken](Replicated::woken) at
    /// other times, or does something else then: without it, only the size and alignment of commands are compared.
    const SCHEMA: Schema = Schema::UNDECLARED;

    /// Applies a command, in place where it was received.
    fn apply(&mut self, command: &Archived<Self::Command>, at: &Applied) -> Self::Reply;

    /// Captures the replica's state, for a member that has just joined. That member gets the bytes that the snapshot
    /// writes, and [restores](Replicated::restore) them.
    ///
    /// Called between two commands, so it must be quick, a copy or a shared reference. Work that takes long belongs
    /// into the snapshot, which is written on another thread while commands go on. A panic is reported to the caller
    /// that asked, and the group goes on.
    ///
    /// Without it no node can join the group after it has begun, nor come back to it.
    fn snapshot(&self) -> Snapshot {
        Snapshot::unsupported()
    }

    /// Replaces the state by the one that another replica's snapshot wrote; it ends at the end of `from`.
    ///
    /// It runs on a thread of its own while nothing else uses the replica. After an error the replica is not used until
    /// another call has succeeded, with the same state from the beginning or a newer one. A panic ends the node's part
    /// in the group.
    fn restore(&mut self, _from: &mut dyn Read) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "the service does not implement `Replicated::restore`"))
    }

    /// Tells of a new view, in order with commands: all replicas that go on see the same change at the same place. So
    /// it may change the replica as `apply` may, by the same rules.
    ///
    /// The first call tells of the view in which the group began. A replica that joins is told of the views that follow
    /// the one in which its state was captured.
    fn view_changed(&mut self, _change: &ViewChange) {}

    /// Returns the time, in the [group's time](Applied::time), from which on the replica is to be
    /// [woken](Replicated::woken); None if it waits for no time. It must follow from the replica's state alone.
    ///
    /// It is asked for after each batch of commands, so it must be quick. Members of unordered groups are never woken.
    fn wake_at(&self) -> Option<Hlc> {
        None
    }

    /// Wakes the replica, in order with commands: all replicas at the same place, whose time is at or behind
    /// [`wake_at`](Replicated::wake_at). It may change the replica as `apply` may, by the same rules.
    ///
    /// It is called again until `wake_at` returns a later time, or none: mostly once a millisecond at most. It may be
    /// late, by what the clock of the view's first sender is behind, and by a view change.
    fn woken(&mut self, _at: &Applied) {}
}

/// The place in a group's history at which a command was applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Applied {
    /// The view in which it was ordered.
    pub epoch: Epoch,
    /// Its place in that view's order. Places of turns that a sender gave up are missing. In unordered mode the place
    /// tells messages apart and orders those of one sender.
    pub seq: Seq,
    /// The node that submitted it.
    pub sender: NodeId,
    /// The group's time there. It is the sender's wall clock when the message was accepted, as of its engine's last
    /// look and in whole milliseconds. Where the time of the message before is later, it is just behind that.
    ///
    /// So it is alike at all members, and never stands still or goes back. The clocks of senders bound it
    /// (`clock_limit_ms`). In unordered mode the sender's clock alone counts, as of its latest message where that clock
    /// was set back.
    pub time: Hlc,
    /// The number in the log of a durable group, from 1 on: the version of the state behind it. It is alike at all
    /// members and across views and restarts.
    pub version: Option<u64>,
    /// The number of the [follow-up](crate::QueryService::follow_ups) that it is; None of all other commands. A service
    /// whose follow-ups nobody else may submit refuses their commands without it.
    pub follow_up: Option<u64>,
}

/// The time of a message, and its place in its group's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The group's time at the message. See [`Applied::time`].
    pub time: Hlc,
    /// Durable groups: the message's number in the log.
    pub version: Option<u64>,
}

impl Stamp {
    /// The stamp of a durable group's message, behind which its log ends at `End`.
    pub(crate) fn logged(End { version, time, .. }: End) -> Stamp {
        Stamp { time, version: Some(version) }
    }

    /// Returns the place of `message`, which must be the one that this stamp is of.
    pub fn of(self, message: &Message<'_>) -> Applied {
        let (Stamp { time, version }, &Message { epoch, seq, sender, .. }) = (self, message);
        Applied { epoch, seq, sender, time, version, follow_up: None }
    }
}

/// The place of a command in a durable group's log, alike at all members and across views and restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Logged {
    /// Its number in the log, from 1 on: the version of the state behind it.
    pub version: u64,
    /// The time at which its sender submitted it, or just behind the time of the command before where that is later.
    pub time: Hlc,
}
