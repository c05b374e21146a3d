//! Services that answer queries, the types that can travel, and the forms in which they do.

use std::ops::Range;

use rkyv::{Archived, Deserialize, api::high::HighDeserializer, rancor, util::AlignedVec};
use serde::{Serialize, de::DeserializeOwned};

use super::changes::Changes;
use crate::replica::{command::Command, replicated::Replicated};

/// A type that can travel and be decoded at the other end: any that derives rkyv's `Archive`, `Serialize` and
/// `Deserialize`. Never implemented by hand.
pub trait Portable: Command<Archived: Deserialize<Self, HighDeserializer<rancor::Error>>> + Sized {}

impl<T> Portable for T where T: Command<Archived: Deserialize<T, HighDeserializer<rancor::Error>>> {}

/// Decodes a value that travelled as bytes.
pub(crate) fn decode<T: Portable>(bytes: &[u8]) -> Result<T, String> {
    let mut aligned: AlignedVec = AlignedVec::with_capacity(bytes.len());
    aligned.extend_from_slice(bytes);
    rkyv::from_bytes::<T, rancor::Error>(&aligned).map_err(|error| error.to_string())
}

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

    /// The form in JSON of what clients send and get, for programs in other languages. None by default: then there are
    /// clients in Rust only. [`service`](macro@crate::service) writes it where its arguments say `json`.
    const JSON: Option<JsonForm> = None;

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
    /// after each batch of commands. Follow-ups are for ordered and durable groups that serve clients
    /// ([`NodeBuilder::serve`](crate::NodeBuilder::serve) and `serve_sharded`): in other groups there are none.
    ///
    /// The command of a follow-up is one of the service's commands, which members and clients can submit too. A service
    /// that trusts only its leader looks at [`Applied::follow_up`](crate::Applied::follow_up).
    fn follow_ups(&self) -> Range<u64> {
        0..0
    }

    /// Makes the command of a follow-up, on the member that leads alone. None if it can't be made yet: it is asked for
    /// again within 10 ms, and whenever something is applied.
    ///
    /// The call runs where `apply` does, and must be quick. For work that takes long it starts a thread or a task, or
    /// asks one, and returns the command once that has it. If the leader fails meanwhile, the next one does the work
    /// again: what is done to the outside may happen twice, the command is applied once. A leader is asked for each
    /// once, but for one that is too large to be sent.
    ///
    /// In a durable group it is called once no crash can undo the command because of which the follow-up is due.
    fn follow_up(&self, _number: u64) -> Option<Self::Command> {
        None
    }

    /// Reports the changes since the last call, for clients that [watch](Watched). It is called after each command and
    /// each [view](Replicated::view_changed), and after the replica was [woken](Replicated::woken).
    ///
    /// The changes must follow from what was applied alone, as the state does, and are no part of the
    /// [snapshot](Replicated::snapshot). What a service has to report as it is made, or
    /// [restored](Replicated::restore), is dropped.
    ///
    /// A program that reports what an earlier one did not report, in a group that has state already, must begin with
    /// that at the same command at all members: at a [time](crate::Applied::time), say. Else members number changes
    /// differently, since each restores its own snapshot, and watches that move between members fail or miss changes.
    fn take_changes(&mut self, _into: &mut Changes) {}
}

/// A service whose changes clients can watch ([`Client::watch`](crate::client::Client::watch)): the type of what
/// [`QueryService::take_changes`] reports.
///
/// ```
/// use rkyv::Archived;
/// use squall::{Applied, Changes, QueryService, Replicated, Watched};
///
/// #[derive(Default)]
/// struct Counter {
///     count: i64,
///     told: i64,
/// }
///
/// impl Replicated for Counter {
///     type Command = i64;
///     type Reply = i64;
///
///     fn apply(&mut self, add: &Archived<i64>, _at: &Applied) -> i64 {
///         self.count += add.to_native();
///         self.count
///     }
/// }
///
/// impl QueryService for Counter {
///     type Query = ();
///     type Answer = i64;
///
///     fn answer(&self, _query: &()) -> i64 {
///         self.count
///     }
///
///     fn take_changes(&mut self, into: &mut Changes) {
///         if self.told != self.count {
///             self.told = self.count;
///             into.push("count", &self.count);
///         }
///     }
/// }
///
/// /// The new count.
/// impl Watched for Counter {
///     type Change = i64;
/// }
/// ```
pub trait Watched: QueryService {
    /// The type of a change.
    type Change: Portable;
}

/// Writes bytes in another form. Fails with a sentence.
pub(crate) type Transcode = fn(&[u8]) -> Result<Vec<u8>, String>;

/// The form in JSON of a service's commands, replies, queries and answers, by their serde implementations.
///
/// A member takes JSON of the clients that ask for it, turns it into rkyv's bytes where it receives it, and turns
/// replies and answers into JSON where it sends them. The group and its sessions have rkyv's bytes only.
#[derive(Clone, Copy, Debug)]
pub struct JsonForm {
    /// From JSON.
    pub(crate) command: Transcode,
    pub(crate) query: Transcode,
    /// Into JSON.
    pub(crate) reply: Transcode,
    pub(crate) answer: Transcode,
}

impl JsonForm {
    /// Returns the form of a service whose types have serde's implementations: see [`QueryService::JSON`].
    pub const fn of<R>() -> JsonForm
    where
        R: QueryService,
        R::Command: DeserializeOwned,
        R::Query: DeserializeOwned,
        R::Reply: Serialize,
        R::Answer: Serialize,
    {
        JsonForm {
            command: from_json::<R::Command>,
            query: from_json::<R::Query>,
            reply: to_json::<R::Reply>,
            answer: to_json::<R::Answer>,
        }
    }
}

/// The most characters of a sentence that says what is wrong with a client's JSON, which it quotes.
const MOST_SAID: usize = 300;

fn from_json<T: Command + DeserializeOwned>(json: &[u8]) -> Result<Vec<u8>, String> {
    let refused = |error: serde_json::Error| {
        format!("it is no JSON of this group's: {error}").chars().take(MOST_SAID).collect::<String>()
    };
    let value: T = serde_json::from_slice(json).map_err(refused)?;
    let bytes = rkyv::to_bytes::<rancor::Error>(&value);
    bytes.map(|bytes| bytes.to_vec()).map_err(|error| format!("it could not be serialized: {error}"))
}

fn to_json<T: Portable + Serialize>(bytes: &[u8]) -> Result<Vec<u8>, String> {
    serde_json::to_vec(&decode::<T>(bytes)?).map_err(|error| format!("it has no form in JSON: {error}"))
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_quotes_a_part_of_long_json() {
        let long = format!("{:?}", "ä".repeat(100_000));
        let why = from_json::<u64>(long.as_bytes()).unwrap_err();
        assert!(why.chars().count() == MOST_SAID && why.contains("ääää"), "{why}");
        let why = from_json::<u64>(b"-1").unwrap_err();
        assert!(why.ends_with("at line 1 column 2"), "{why}");
    }

    #[test]
    fn numbers_are_those_that_were_sent() {
        for number in [12437.153548214319, 0.1, f64::MIN_POSITIVE, -f64::MAX, 5e-324] {
            let json = format!("{number:?}").into_bytes();
            let back = to_json::<f64>(&from_json::<f64>(&json).unwrap()).unwrap();
            assert_eq!(String::from_utf8(back).unwrap().parse(), Ok(number));
        }
    }
}
