//! The messages between clients and nodes: [frames](squall_services::frame) of these, on a stream of
//! [`Service::Clients`](squall_services::Service).
//!
//! ```text
//!  client                              node
//!    Hello ───────────────────────────▶
//!    ◀──────────────────────── Shards    of a group that has several
//!    ◀─────────────────────── Welcome    or Away: somewhere else; or Denied
//!    Open (or Resume) ────────────────▶
//!    ◀──────────────────────── Opened
//!    Request, Request, … ─────────────▶  each is ordered among all messages of the group
//!    ◀──── Answered, Refused, …          in the order of delivery, by number
//!    Query … ─────────────────────────▶
//!    ◀─────────────────────── Told …
//!    ◀────────────── Holders, Members    whenever there is another view; Holders before Welcome, too
//!    Listen ──────────────────────────▶  at each member, for the answers of all
//!    ◀───────── Answered, NotApplied …
//!    Watch ───────────────────────────▶
//!    ◀───────────── Watching, Changes …  as far as the watch's credit reaches
//!    More ────────────────────────────▶
//!    Ping ────────────────────────────▶
//!    ◀────────────────────────── Pong
//! ```

use std::{
    io::{Read, Write},
    time::Duration,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use squall_services::frame::{self, FrameError};

use super::changes::ChangePlace;
use crate::calls::session::{Refusal, RequestOutcome, SessionId};

/// The version of these messages.
pub(crate) const VERSION: u32 = 5;

/// The time of a client's silence after which a node closes the connection. Clients ping more often.
pub(crate) const NODE_SILENCE: Duration = Duration::from_secs(30);

/// The size of a frame besides the command, query, reply or answer in it, in bytes; and the longest of all other
/// frames.
const OVERHEAD_BYTES: usize = 64 << 10;

/// A message of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToNode {
    /// The group that the client wants to talk to, or a [shard](ShardName) of it, and maybe the codec of the
    /// application's bytes. The first message, in this form in all versions.
    Hello { version: u32, group: String },
    /// Opens a session.
    Open { key: u64 },
    /// Asks that the answers of this session come here.
    Resume { session: SessionId },
    /// A command.
    Request { session: SessionId, number: u64, acknowledged: u64, command: Vec<u8> },
    /// The client is still there.
    Touch { session: SessionId, acknowledged: u64 },
    /// The client leaves.
    Close { session: SessionId },
    /// A query for the node's replica. The number is the client's, and comes back with the answer.
    Query { number: u64, consistency: Consistency, query: Vec<u8> },
    /// Asks for a sign of life.
    Ping,
    /// Asks that the answers which this node gives to the requests of the session come here, too: from this number on,
    /// those that it has given and those that it will give.
    Listen { session: SessionId, first: u64 },
    /// Asks for the changes of keys that begin with `prefix`. The number is the client's, and comes back with them. The
    /// node sends them while the credit, in bytes, is not used up. It is negative if what waits at the client exceeds
    /// what may.
    Watch { number: u64, prefix: Vec<u8>, start: WatchStart, credit: i64 },
    /// More credit for a watch, in bytes.
    More { number: u64, credit: u64 },
    /// The end of a watch.
    Unwatch { number: u64 },
}

/// The place at which a watch begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WatchStart {
    /// The end of what has changed.
    Now,
    /// Behind this place.
    Behind(ChangePlace),
    /// The place of the state that answers this query.
    Query(Vec<u8>),
}

/// A message of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToClient {
    /// The node serves the group.
    Welcome {
        members: Members,
        /// The time without a message after which a session may end, in milliseconds.
        session_timeout_ms: u64,
        /// The longest command or query, in bytes.
        request_bytes: u64,
    },
    /// The group has other members now.
    Members(Members),
    /// The node does not serve the group now, for this reason. The last message.
    Away { why: String, members: Members },
    /// A session is open.
    Opened { session: SessionId, window: u32 },
    /// A refusal to open a session now, for this reason.
    NotOpened { key: u64, why: String },
    /// A request was delivered, now or before.
    Answered { number: u64, result: WireOutcome },
    /// A request was delivered and not applied.
    Refused { number: u64, why: Refusal },
    /// A request could not be sent by this node or any other: no node delivers this copy of it.
    Rejected { number: u64, why: String },
    /// The answer to a query, or the reason for which there is none.
    Told { number: u64, answer: Result<Vec<u8>, String> },
    /// An answer to a ping.
    Pong,
    /// The client's certificate permits it no commands, or nothing at all, or the group does not have the client's
    /// codec, for this reason. Unless commands alone are denied, it is the last message.
    Denied { only_commands: bool, why: String },
    /// The number of the group's shards, where it is not 1. It comes before `Welcome` and `Away`, to a client that has
    /// named a shard.
    Shards(u32),
    /// The members that have the state of the client's shard, readers among them. It comes before each `Welcome` and
    /// `Members`.
    Holders(Members),
    /// A request that this node has not applied itself: its answer came with the state of another. The node tells it to
    /// clients that [listen](ToNode::Listen).
    NotApplied { number: u64 },
    /// A watch has begun, or goes on, behind this place; with the answer to its query.
    Watching { number: u64, at: ChangePlace, answer: Option<Vec<u8>> },
    /// The changes that a watch asks for, up to this place.
    Changes { number: u64, upto: ChangePlace, changes: Vec<ToldChange> },
    /// A watch can't go on.
    WatchEnded { number: u64, why: WatchEnd },
}

/// A change as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ToldChange {
    pub(crate) at: ChangePlace,
    pub(crate) key: Vec<u8>,
    pub(crate) change: Vec<u8>,
}

impl ToldChange {
    /// The bytes that a change takes of a watch's credit.
    pub(crate) fn cost(&self) -> u64 {
        ToldChange::cost_of(self.key.len() + self.change.len())
    }

    /// The cost of a change whose key and bytes are so long.
    pub(crate) fn cost_of(bytes: usize) -> u64 {
        32 + bytes as u64
    }
}

/// The reason for which a watch ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WatchEnd {
    /// The change with number `needed` is not kept any more; the oldest that is has the number `oldest`.
    TooFarBehind { needed: u64, oldest: u64 },
    /// The place with this number, from which it was to go on, is of another history.
    OtherHistory(u64),
    /// There is no answer to its query, or no further watch, for this reason.
    Refused(String),
}

/// The name of a shard in a [`ToNode::Hello`]: that of its group, and behind a slash the shard's number. The name of a
/// group alone stands for its only shard. Behind another slash, the name of a shard may have the codec of the
/// application's bytes, which are rkyv's without it. Names of groups have no slash.
pub(crate) struct ShardName;

impl ShardName {
    pub(crate) fn of(group: &str, shard: u32) -> String {
        format!("{group}/{shard}")
    }

    /// Returns the name of a shard whose bytes travel in a codec.
    pub(crate) fn in_codec(group: &str, shard: u32, codec: &str) -> String {
        format!("{}/{codec}", ShardName::of(group, shard))
    }

    /// Divides a name into that of the group or shard, and that of the codec, if there is one.
    pub(crate) fn split_codec(name: &str) -> (&str, Option<&str>) {
        match name.match_indices('/').nth(1) {
            Some((at, _)) => (&name[..at], Some(&name[at + 1..])),
            None => (name, None),
        }
    }

    /// Returns the group and the shard, if one is named. None if there can be no such shard.
    pub(crate) fn parse(name: &str) -> Option<(&str, Option<u32>)> {
        match name.split_once('/') {
            None => Some((name, None)),
            Some((group, shard)) => Some((group, Some(shard.parse().ok()?))),
        }
    }
}

/// A [`RequestOutcome`] as it travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WireOutcome {
    Reply(Vec<u8>),
    NoCommand,
    NoReply,
    Skipped,
}

impl From<&RequestOutcome> for WireOutcome {
    fn from(answer: &RequestOutcome) -> WireOutcome {
        match answer {
            RequestOutcome::Reply(bytes) => WireOutcome::Reply(bytes.to_vec()),
            RequestOutcome::NoCommand => WireOutcome::NoCommand,
            RequestOutcome::NoReply => WireOutcome::NoReply,
            RequestOutcome::Skipped => WireOutcome::Skipped,
        }
    }
}

/// The consistency that an answer to a query must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// A linearizable read: the answer shows everything that any caller was told before the query.
    #[default]
    Linearizable,
    /// A look at the replica as it is: the answer may be behind.
    Local,
}

/// The members that serve a group, as of a view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Members {
    /// The view's epoch; 0 if the node has none.
    pub(crate) epoch: u64,
    /// The members by rank, each with the addresses at which it listens, as `host:port`; none on one host.
    pub(crate) members: Vec<(u32, Vec<String>)>,
}

/// Sends a message.
pub(crate) fn write(to: &mut impl Write, message: &impl Serialize) -> Result<(), FrameError> {
    frame::write(to, message, u32::MAX as usize)
}

/// Receives a message in which the application's bytes are `max` at most.
pub(crate) fn read<T: DeserializeOwned>(from: &mut impl Read, max: usize) -> Result<T, FrameError> {
    frame::read(from, max.saturating_add(OVERHEAD_BYTES))
}

/// Receives a message as [`read`] does, but only after `reserve` has given a permit for as many bytes. Returns None if
/// it gives none.
pub(super) fn read_within<T: DeserializeOwned, S>(
    from: &mut impl Read,
    max: usize,
    reserve: impl FnOnce(usize) -> Option<S>,
) -> Result<Option<(T, S)>, FrameError> {
    let mut len = [0; 4];
    from.read_exact(&mut len).map_err(|_| FrameError::Closed)?;
    let (bytes, limit) = (u32::from_le_bytes(len) as usize, max.saturating_add(OVERHEAD_BYTES));
    if bytes > limit {
        return Err(FrameError::TooLong { bytes, limit });
    }
    let Some(permit) = reserve(bytes) else { return Ok(None) };
    Ok(Some((frame::read(&mut (&len[..]).chain(from), limit)?, permit)))
}

#[cfg(all(test, not(squall_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_of_shards_are_told_from_those_of_groups() {
        assert_eq!([0, 12].map(|shard| ShardName::of("bank", shard)), ["bank/0", "bank/12"]);
        let parsed = ["bank", "bank/12", "bank/", "bank/-1", "bank/1/2"].map(ShardName::parse);
        assert_eq!(parsed, [Some(("bank", None)), Some(("bank", Some(12))), None, None, None]);
        assert_eq!(ShardName::split_codec(&ShardName::in_codec("bank", 3, "json")), ("bank/3", Some("json")));
        assert_eq!(["bank", "bank/3"].map(ShardName::split_codec), [("bank", None), ("bank/3", None)]);
    }

    #[test]
    fn what_is_longer_than_the_reader_allows_is_refused() {
        let session = SessionId { number: 1, key: 2 };
        let mut bytes = Vec::new();
        let command = vec![5; 2 * OVERHEAD_BYTES];
        let request = ToNode::Request { session, number: 3, acknowledged: 4, command };
        write(&mut bytes, &request).unwrap();
        assert!(matches!(read::<ToNode>(&mut &bytes[..], 0), Err(FrameError::TooLong { .. })));
        assert_eq!(read::<ToNode>(&mut &bytes[..], 2 * OVERHEAD_BYTES).unwrap(), request);
    }

    proptest! {
        #[test]
        fn garbled_messages_are_errors_not_panics(
            at in any::<proptest::sample::Index>(), with in any::<u8>(), cut in any::<proptest::sample::Index>(),
        ) {
            let session = SessionId { number: 1, key: 2 };
            let mut bytes = Vec::new();
            write(&mut bytes, &ToNode::Request { session, number: 3, acknowledged: 4, command: vec![5; 9] }).unwrap();
            let members = Members { epoch: 1, members: vec![(1, vec!["localhost:1".to_owned()])] };
            write(&mut bytes, &ToClient::Members(members)).unwrap();
            let at = at.index(bytes.len());
            bytes[at] = with;
            bytes.truncate(4.max(cut.index(2 * bytes.len()).min(bytes.len())));
            let _ = read::<ToClient>(&mut &bytes[..], 0);
            let mut from = &bytes[..];
            if read::<ToNode>(&mut from, 0).is_ok() {
                let _ = read::<ToClient>(&mut from, 0);
            }
        }

        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let framed = [&(bytes.len() as u32).to_le_bytes()[..], &bytes].concat();
            let _ = read::<ToNode>(&mut &framed[..], 0);
            let _ = read::<ToClient>(&mut &framed[..], 0);
        }
    }
}
