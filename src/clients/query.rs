//! Services that answer queries, and the types that can travel.

use std::ops::Range;

use rkyv::{Archived, Deserialize, api::high::HighDeserializer, rancor};

use crate::replica::{command::Command, replicated::Replicated};

/// A type that can travel and be decoded at the other end: any that derives rkyv's `Archive`, `Serialize` and
/// `Deserialize`. Never implemented by hand.
pub trait Portable: Command<Archived: Deserialize<Self, HighDeserializer<rancor::Error>>> + Sized {}

impl<T> Portable for T where T: Command<Archived: Deserialize<T, HighDeserializer<rancor::Error>>> {}

/// A service that programs other than the group's members use: see [`NodeBuilder::serve`](crate::NodeBuilder::serve).
///
/// ```
/// use rkyv::Archived;
/// use squall::{Applied, QueryService, Replicated};
///
/// struct Counter(i64);
///
/// impl Replicated for Counter {
///     type Command = i64;
///     type Reply = i64;
///
///     fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 {
///         self.0 += add.to_native();
///         self.0
///     }
/// }
///
/// /// Is the count at least this?
/// impl QueryService for Counter {
///     type Query = i64;
///     type Answer = bool;
///
///     fn answer(&self, query: &Archived<i64>) -> bool {
///         self.0 >= query.to_native()
///     }
/// }
/// ```
///
/// A service without queries has `()` as `Query` and `Answer`.
pub trait QueryService: Replicated<Reply: Portable> {
    /// The type of a query.
    type Query: Command;
    /// The type of an answer.
    type Answer: Portable + Send + 'static;

    /// Answers a query, without a change of the state. It runs where `apply` does, between two commands: keep it short.
    fn answer(&self, query: &Archived<Self::Query>) -> Self::Answer;

    /// The follow-ups that the state asks for, by number: from the first that was not applied to the end of those that
    /// are due.
    ///
    /// A *follow-up* is a command that the member that leads submits because of what all replicas have applied. That is
    /// for work that replicas must not do alike: a call to the outside, a look at a clock, a random number. It is
    /// applied exactly once, whichever members fail meanwhile, since all replicas apply a follow-up only where its
    /// number is the first of these. `apply` of a follow-up must therefore count the first number up by one.
    ///
    /// It must follow from the state alone, numbers must never be used again, and it must be quick: it is asked for
    /// after each batch of commands. Follow-ups are for ordered and durable groups.
    fn follow_ups(&self) -> Range<u64> {
        0..0
    }

    /// Makes the command of a follow-up, on the member that leads alone. None if it can't be made yet: it is asked for
    /// again within 10 ms, and whenever something is applied.
    ///
    /// The call runs where `apply` does, and must be quick. For work that takes long it starts a thread or a task, or
    /// asks one, and returns the command once that has it. If the leader fails meanwhile, the next one does the work
    /// again: what is done to the outside may happen twice, the command is applied once.
    ///
    /// In a durable group it is called once no crash can undo that the follow-up is due.
    fn follow_up(&self, _number: u64) -> Option<Self::Command> {
        None
    }
}
