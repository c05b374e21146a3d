//! Services that answer queries, and the types that can travel.

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
}
