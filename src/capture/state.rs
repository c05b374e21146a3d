//! A replica's state on its way to a new member.
//!
//! The bytes that travel, with little-endian numbers:
//!
//! ```text
//!  0..8    "squallSt"
//!  8..12   4, the format's version
//! 12..16   s, the number of senders in the view in which the state was captured
//! 16..24   that view's epoch
//! 24..     s turns of 8 bytes: how many of each sender's the state includes, by rank
//! then     the group's time there, 8 bytes
//! then     e, 8 bytes, and e bytes
//! then     what the application wrote, to the end
//! ```
//!
//! In a durable group, the e bytes are the place of the log; else there are none:
//!
//! ```text
//!  0..32   epoch, place, version and time of its end
//! 32..40   the epoch of the last view of which it had a record; 0 for none
//! 40..44   v, the length of that record
//! 44..     v bytes: the record, as the log has it
//! then     the list of commands that no member applies, as the log has it
//! ```
//!
//! The transport must make sure that it arrives whole.

use std::io::{self, Read, Write};

use squall_membership::{EndReason, Epoch, Seq};
use squall_ordered::log::{End, Hlc, Position, Skips, ViewRecord};

use crate::replica::snapshot::{Snapshot, WriteOut};

/// The last view at a place of a log, and its record.
pub(crate) type LastView = Option<(Epoch, ViewRecord)>;

const MAGIC: &[u8; 8] = b"squallSt";
const VERSION: u32 = 4;
/// More senders than any view has.
const MAX_SENDERS: u32 = 1 << 16;
/// More bytes than any place of a log takes.
const MAX_LOGGED: u64 = 1 << 20;

/// The frontier of a state: the part of the order that it includes. That is all that came before in earlier views, and
/// so many turns of each sender, by rank, of this view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frontier {
    pub(crate) epoch: Epoch,
    pub(crate) turns: Vec<u64>,
}

impl Frontier {
    /// The beginning of a view of so many senders.
    pub(crate) fn begin(epoch: Epoch, senders: usize) -> Frontier {
        Frontier { epoch, turns: vec![0; senders] }
    }

    /// Whether it includes the message at a place of a view's order.
    pub(crate) fn includes(&self, epoch: Epoch, seq: Seq) -> bool {
        if epoch != self.epoch || self.turns.is_empty() {
            return epoch < self.epoch;
        }
        let senders = self.turns.len() as u64;
        seq.0 / senders < self.turns[(seq.0 % senders) as usize]
    }

    /// Whether it includes all that `other` does.
    pub(crate) fn covers(&self, other: &Frontier) -> bool {
        let ahead =
            || self.turns.len() == other.turns.len() && self.turns.iter().zip(&other.turns).all(|(a, b)| a >= b);
        self.epoch > other.epoch || self.epoch == other.epoch && ahead()
    }

    /// Notes that a message was passed.
    pub(crate) fn pass(&mut self, seq: Seq) {
        let senders = self.turns.len() as u64;
        let turns = &mut self.turns[(seq.0 % senders) as usize];
        *turns = (*turns).max(seq.0 / senders + 1);
    }

    /// Returns the number of places of the order that it includes, in ordered mode.
    pub(crate) fn seq(&self) -> Seq {
        Seq(self.turns.iter().sum())
    }
}

/// The place that a replica has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) frontier: Frontier,
    /// The group's time there.
    pub(crate) time: Hlc,
}

/// A place of a durable group's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogPlace {
    /// The place of the log.
    pub(crate) end: End,
    /// The last view there.
    pub(crate) view: LastView,
    /// The commands of the log that no member applies.
    pub(crate) skips: Skips,
}

/// A replica's state, captured between two messages.
pub(crate) struct Captured {
    /// The view in which it was captured.
    pub(crate) epoch: Epoch,
    /// The number of places of that view's order that it includes.
    pub(crate) seq: Seq,
    /// The approximate length of the application's part, if it said so.
    pub(crate) bytes: Option<u64>,
    /// The place of the log, in a durable group.
    pub(crate) logged: Option<LogPlace>,
    reached: Reached,
    write: WriteOut,
}

impl Captured {
    pub(crate) fn new(
        reached: Reached,
        snapshot: Snapshot,
        logged: Option<LogPlace>,
    ) -> Result<Captured, CaptureError> {
        let write = snapshot.write.ok_or(CaptureError::Unsupported)?;
        let (epoch, seq) = (reached.frontier.epoch, reached.frontier.seq());
        Ok(Captured { epoch, seq, bytes: snapshot.bytes, logged, reached, write })
    }

    /// The application's part alone, and the place of the log.
    pub(crate) fn into_snapshot(self) -> (Option<LogPlace>, Snapshot) {
        (self.logged, Snapshot { write: Some(self.write), bytes: self.bytes })
    }

    /// A capture of the replica's place alone.
    pub(crate) fn place(reached: Reached, logged: Option<LogPlace>) -> Captured {
        let (epoch, seq) = (reached.frontier.epoch, reached.frontier.seq());
        Captured { epoch, seq, bytes: Some(0), logged, reached, write: Box::new(|_: &mut dyn Write| Ok(())) }
    }

    /// The same place, without the state.
    pub(crate) fn without_state(self) -> Captured {
        Captured::place(self.reached, self.logged)
    }

    /// Writes it out, on any thread.
    pub(crate) fn write(self, to: &mut dyn Write) -> io::Result<()> {
        let Reached { frontier: Frontier { epoch, turns }, time } = self.reached;
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&(turns.len() as u32).to_le_bytes())?;
        let logged = self.logged.map(encode_place).unwrap_or_default();
        for word in [epoch.0].into_iter().chain(turns).chain([time.0, logged.len() as u64]) {
            to.write_all(&word.to_le_bytes())?;
        }
        to.write_all(&logged)?;
        (self.write)(to)
    }
}

fn encode_place(LogPlace { end: End { position, version, time }, view, skips }: LogPlace) -> Vec<u8> {
    let view_epoch = view.as_ref().map_or(0, |(epoch, _)| epoch.0);
    let words = [position.epoch.0, position.seq.0, version, time.0, view_epoch];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    let record = view.map(|(_, view)| view.encode()).unwrap_or_default();
    bytes.extend((record.len() as u32).to_le_bytes());
    bytes.extend(record);
    bytes.extend(skips.encode());
    bytes
}

/// Decodes a place; None if the bytes are none.
fn decode_place(mut rest: &[u8]) -> Option<LogPlace> {
    let mut word = || -> Option<u64> {
        let (word, behind) = rest.split_first_chunk()?;
        rest = behind;
        Some(u64::from_le_bytes(*word))
    };
    let position = Position::new(Epoch(word()?), Seq(word()?));
    let end = End { position, version: word()?, time: Hlc(word()?) };
    let view_epoch = Epoch(word()?);
    let (len, rest) = rest.split_first_chunk()?;
    let (record, skips) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let view = (view_epoch.0 > 0).then(|| (view_epoch, ViewRecord::decode(record)));
    Some(LogPlace { end, view, skips: Skips::decode(skips)? })
}

/// The reason for which a replica's state was not captured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CaptureError {
    #[error("this node does not hold the group's state: ask another member")]
    NotComplete,
    #[error(
        "the group's state can't be transferred, so no node can join it: implement `Replicated::snapshot` and \
         `Replicated::restore`"
    )]
    Unsupported,
    #[error("the application panicked in `Replicated::snapshot`")]
    Panicked,
    #[error("the group has ended: {0}")]
    Ended(EndReason),
}

/// The reason for which a state was not restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The replica has its state, or is in no view.
    #[error("this node's replica needs no state")]
    NotNeeded,
    #[error("what arrived is no state of a group: {0}")]
    Foreign(&'static str),
    /// The replica is of no use until another state is restored.
    #[error("the state could not be restored: {0}")]
    Failed(#[from] io::Error),
    /// The replica can't be used any more: the node's part in the group must end.
    #[error("the application panicked in `Replicated::restore`, or in what follows it")]
    Panicked,
    /// Logs of one group, of which this node's is not a part of the source's.
    #[error("this node's log is not a part of the source's: they differ at {0}")]
    Differs(End),
    /// This node's log has messages that were acknowledged, and the group goes on without them.
    #[error("{0}")]
    WentBack(String),
    /// The log can't be written or read, or the replica not be rebuilt from it.
    #[error("the state could not be kept: {0}")]
    NotKept(String),
}

/// The part of a written state that comes before the application's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) reached: Reached,
    /// The place of the log, in a durable group.
    pub(crate) logged: Option<LogPlace>,
}

fn read_array<const N: usize>(from: &mut dyn Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads the part that comes before the application's.
pub(crate) fn read_head(from: &mut dyn Read) -> Result<Head, RestoreError> {
    if &read_array(from)? != MAGIC {
        return Err(RestoreError::Foreign("it begins with something else"));
    }
    if u32::from_le_bytes(read_array(from)?) != VERSION {
        return Err(RestoreError::Foreign("another version of squall wrote it: run the same one at all nodes"));
    }
    let senders = u32::from_le_bytes(read_array(from)?);
    if senders > MAX_SENDERS {
        return Err(RestoreError::Foreign("it names more senders than there can be"));
    }
    let mut word = || read_array(from).map(u64::from_le_bytes);
    let epoch = Epoch(word()?);
    let turns = (0..senders).map(|_| word()).collect::<io::Result<_>>()?;
    let (time, extra) = (Hlc(word()?), word()?);
    let mut logged = Vec::new();
    from.take(extra.min(MAX_LOGGED)).read_to_end(&mut logged)?;
    let rest = extra.saturating_sub(MAX_LOGGED);
    if logged.len() as u64 + rest < extra || io::copy(&mut from.take(rest), &mut io::sink())? != rest {
        return Err(RestoreError::Failed(io::ErrorKind::UnexpectedEof.into()));
    }
    let foreign = RestoreError::Foreign("it does not say where the log was");
    let logged = if logged.is_empty() { None } else { Some(decode_place(&logged).ok_or(foreign)?) };
    Ok(Head { reached: Reached { frontier: Frontier { epoch, turns }, time }, logged })
}
