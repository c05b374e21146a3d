//! A replica's state on its way to a new member.
//!
//! What travels, with little-endian numbers:
//!
//! ```text
//!  0..8    "squallSt"
//!  8..12   1, the format's version
//! 12..16   s, the number of senders in the view in which the state was captured
//! 16..24   that view's epoch
//! 24..     s turns of 8 bytes: how many of each sender's the state includes, by rank
//! then     e, 8 bytes, and e bytes, of which this version skips what it does not know
//! then     what the application wrote, to the end
//! ```
//!
//! In a durable group, the e bytes are where the log was:
//!
//! ```text
//!  0..32   epoch, place, version and time of its end
//! 32..40   the epoch of the last view of which it had a record; 0 for none
//! 40..     that record, as the log has it
//! ```
//!
//! Whoever moves it sees to it that it arrives whole.

use std::{
    fmt,
    io::{self, Read, Write},
};

use squall_membership::{EndReason, Epoch, Seq};
use squall_ordered::log::{End, Hlc, Position, ViewRecord};

use crate::recovery::LastView;

const MAGIC: &[u8; 8] = b"squallSt";
const VERSION: u32 = 1;
/// More than any view has.
const MAX_SENDERS: u32 = 1 << 16;
/// More than any place of a log takes.
const MAX_LOGGED: u64 = 1 << 20;

/// What writes a state out.
pub(crate) type WriteOut = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// A replica's state at one moment: what writes it out, later and on another thread.
pub struct Snapshot {
    write: Option<WriteOut>,
    bytes: Option<u64>,
}

impl Snapshot {
    /// A state that `write` writes out. It must not change while the replica does: let it own what it writes.
    pub fn new(write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Snapshot {
        Snapshot { write: Some(Box::new(write)), bytes: None }
    }

    /// A state that is written out already.
    pub fn of_bytes(bytes: impl Into<Vec<u8>>) -> Snapshot {
        let bytes = bytes.into();
        let len = bytes.len() as u64;
        Snapshot::new(move |to| to.write_all(&bytes)).of_about(len)
    }

    /// Says how many bytes will be written, as well as that is known: for whoever watches it arrive.
    pub fn of_about(self, bytes: u64) -> Snapshot {
        Snapshot { bytes: Some(bytes), ..self }
    }

    /// The same, behind what `first` writes. What can't be transferred stays so.
    pub(crate) fn behind(self, first: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static) -> Snapshot {
        let Snapshot { write, bytes } = self;
        let write = write.map(|write| -> WriteOut {
            Box::new(move |to| {
                first(to)?;
                write(to)
            })
        });
        Snapshot { write, bytes }
    }

    /// What writes it out, if it can be.
    pub(crate) fn into_writer(self) -> Option<WriteOut> {
        self.write
    }

    /// The state can't be transferred, so nobody can join the group.
    pub fn unsupported() -> Snapshot {
        Snapshot { write: None, bytes: None }
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.write.is_some() { "Snapshot" } else { "Snapshot(unsupported)" })
    }
}

/// How far a state has come: it includes whatever came before in earlier views, and so many turns of each sender, by rank, of
/// this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) epoch: Epoch,
    pub(crate) turns: Vec<u64>,
}

impl Mark {
    /// Where a view of so many senders begins.
    pub(crate) fn begin(epoch: Epoch, senders: usize) -> Mark {
        Mark { epoch, turns: vec![0; senders] }
    }

    /// Whether it includes the message at a place of a view's order.
    pub(crate) fn includes(&self, epoch: Epoch, seq: Seq) -> bool {
        if epoch != self.epoch || self.turns.is_empty() {
            return epoch < self.epoch;
        }
        let senders = self.turns.len() as u64;
        seq.0 / senders < self.turns[(seq.0 % senders) as usize]
    }

    /// Whether it includes all that the other does.
    pub(crate) fn covers(&self, other: &Mark) -> bool {
        let ahead =
            || self.turns.len() == other.turns.len() && self.turns.iter().zip(&other.turns).all(|(a, b)| a >= b);
        self.epoch > other.epoch || self.epoch == other.epoch && ahead()
    }

    /// Takes note that a message was passed.
    pub(crate) fn pass(&mut self, seq: Seq) {
        let senders = self.turns.len() as u64;
        let turns = &mut self.turns[(seq.0 % senders) as usize];
        *turns = (*turns).max(seq.0 / senders + 1);
    }

    /// In ordered mode, how many places of the order that is.
    pub(crate) fn seq(&self) -> Seq {
        Seq(self.turns.iter().sum())
    }
}

/// A replica's state, captured between two messages.
pub(crate) struct Captured {
    /// The view in which it was captured.
    pub(crate) epoch: Epoch,
    /// How many places of that view's order it includes.
    pub(crate) seq: Seq,
    /// How long the application's part will be, about, if it said so.
    pub(crate) bytes: Option<u64>,
    /// In a durable group, where the log was, and the last view there.
    pub(crate) logged: Option<(End, LastView)>,
    mark: Mark,
    write: WriteOut,
}

impl Captured {
    pub(crate) fn new(
        mark: Mark,
        snapshot: Snapshot,
        logged: Option<(End, LastView)>,
    ) -> Result<Captured, CaptureError> {
        let write = snapshot.write.ok_or(CaptureError::Unsupported)?;
        Ok(Captured { epoch: mark.epoch, seq: mark.seq(), bytes: snapshot.bytes, logged, mark, write })
    }

    /// The application's part alone, and where the log was.
    pub(crate) fn into_image(self) -> (Option<(End, LastView)>, Snapshot) {
        (self.logged, Snapshot { write: Some(self.write), bytes: self.bytes })
    }

    /// Only where the replica is.
    pub(crate) fn place(mark: Mark, logged: Option<(End, LastView)>) -> Captured {
        Captured {
            epoch: mark.epoch,
            seq: mark.seq(),
            bytes: Some(0),
            logged,
            mark,
            write: Box::new(|_: &mut dyn Write| Ok(())),
        }
    }

    /// Where it is, and nothing else.
    pub(crate) fn without_state(self) -> Captured {
        Captured::place(self.mark, self.logged)
    }

    /// Writes it out, on any thread.
    pub(crate) fn write(self, to: &mut dyn Write) -> io::Result<()> {
        let Mark { epoch, turns } = self.mark;
        to.write_all(MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&(turns.len() as u32).to_le_bytes())?;
        let logged = self.logged.map(|(end, view)| encode_logged(end, view)).unwrap_or_default();
        for word in [epoch.0].into_iter().chain(turns).chain([logged.len() as u64]) {
            to.write_all(&word.to_le_bytes())?;
        }
        to.write_all(&logged)?;
        (self.write)(to)
    }
}

impl fmt::Debug for Captured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Captured").field("mark", &self.mark).finish_non_exhaustive()
    }
}

fn encode_logged(end: End, view: LastView) -> Vec<u8> {
    let End { position, version, time } = end;
    let view_epoch = view.as_ref().map_or(0, |(epoch, _)| epoch.0);
    let words = [position.epoch.0, position.seq.0, version, time.0, view_epoch];
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.extend(view.iter().flat_map(|(_, view)| view.encode()));
    bytes
}

/// None if there are too few bytes.
fn decode_logged(bytes: &[u8]) -> Option<(End, LastView)> {
    let (words, record) = bytes.split_at_checked(40)?;
    let word = |n: usize| words[8 * n..8 * n + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    let position = Position::new(Epoch(word(0)), Seq(word(1)));
    let view = (word(4) > 0).then(|| (Epoch(word(4)), ViewRecord::decode(record)));
    Some((End { position, version: word(2), time: Hlc(word(3)) }, view))
}

/// Why a replica's state was not captured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CaptureError {
    #[error("this node does not hold the group's state: ask another member")]
    NotComplete,
    #[error(
        "the group's state can't be transferred, so nobody can join it: implement `Replicated::snapshot` and \
         `Replicated::restore`"
    )]
    Unsupported,
    #[error("the application panicked in `Replicated::snapshot`")]
    Panicked,
    #[error("the group has ended: {0}")]
    Ended(EndReason),
}

/// Why a state was not restored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RestoreError {
    /// The replica has its state, or is in no view.
    #[error("this node's replica needs no state")]
    NotNeeded,
    #[error("what arrived is no state of a group: {0}")]
    Foreign(&'static str),
    /// The replica is of no use until another one is restored.
    #[error("the state could not be restored: {0}")]
    Failed(#[from] io::Error),
    /// The replica can't be used any more: the node's part in the group must end.
    #[error("the application panicked in `Replicated::restore`, or in what follows it")]
    Panicked,
    /// Both logs have been written by one group, but not so.
    #[error("this node's log is not a part of the source's: they differ at {0}")]
    Differs(End),
    /// This node's log has what was acknowledged, and the group goes on without it.
    #[error("{0}")]
    WentBack(String),
    /// The log can't be written or read, or the replica not be rebuilt from it.
    #[error("the state could not be kept: {0}")]
    NotKept(String),
}

/// What comes before the application's part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) mark: Mark,
    /// In a durable group, where the log was, and the last view there.
    pub(crate) logged: Option<(End, LastView)>,
}

/// Reads what comes before the application's part.
pub(crate) fn read_head(from: &mut dyn Read) -> Result<Head, RestoreError> {
    let mut magic = [0; 8];
    from.read_exact(&mut magic)?;
    if &magic != MAGIC {
        return Err(RestoreError::Foreign("it begins with something else"));
    }
    let mut half = || -> io::Result<u32> {
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    };
    if half()? != VERSION {
        return Err(RestoreError::Foreign("another version of squall wrote it: run the same one at all nodes"));
    }
    let senders = half()?;
    if senders > MAX_SENDERS {
        return Err(RestoreError::Foreign("it names more senders than there can be"));
    }
    let mut word = || -> io::Result<u64> {
        let mut bytes = [0; 8];
        from.read_exact(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    };
    let epoch = Epoch(word()?);
    let turns = (0..senders).map(|_| word()).collect::<io::Result<_>>()?;
    let extra = word()?;
    let mut logged = Vec::new();
    from.take(extra.min(MAX_LOGGED)).read_to_end(&mut logged)?;
    let rest = extra.saturating_sub(MAX_LOGGED);
    if logged.len() as u64 + rest < extra || io::copy(&mut from.take(rest), &mut io::sink())? != rest {
        return Err(RestoreError::Failed(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Head { mark: Mark { epoch, turns }, logged: decode_logged(&logged) })
}
