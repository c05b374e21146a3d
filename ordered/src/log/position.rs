//! Places in a log, and times.

use std::time::{Duration, SystemTime};

use squall_membership::{Epoch, Seq};

/// A place in a shard's order across all epochs: that of a message, or a bound. Before the bound lie the messages of
/// earlier epochs and the first `seq` turns of `epoch`.
///
/// So a log that ends with the message at `(e, s)` ends at `(e, s + 1)`. The state at `(e, s)` is the one to which this
/// message is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{epoch} {seq}")]
pub struct Position {
    /// The epoch.
    pub epoch: Epoch,
    /// The place in its order.
    pub seq: Seq,
}

impl Default for Position {
    fn default() -> Position {
        Position::START
    }
}

impl Position {
    /// The place before everything.
    pub const START: Position = Position { epoch: Epoch(0), seq: Seq(0) };

    /// The place beyond everything.
    pub const MAX: Position = Position { epoch: Epoch(u64::MAX), seq: Seq(u64::MAX) };

    /// The place with the number `seq` of an epoch.
    pub fn new(epoch: Epoch, seq: Seq) -> Position {
        Position { epoch, seq }
    }

    pub(crate) fn next(self) -> Position {
        Position { seq: Seq(self.seq.0.saturating_add(1)), ..self }
    }
}

/// The end that a log has, or had once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{position} (version {version}, {time})")]
pub struct End {
    /// The place before which its last record lies.
    pub position: Position,
    /// The number of its last message; the first has 1. Alike in all members' logs, and goes on across views.
    pub version: u64,
    /// The time of its last record.
    pub time: Hlc,
}

impl End {
    /// The end of a log that holds nothing yet.
    pub const START: End = End { position: Position::START, version: 0, time: Hlc(0) };
}

/// A time of a hybrid logical clock: the sender's wall clock, in nanoseconds since 1970 (UTC), raised above the time of
/// the record before where it is not later by itself. Alike in all members' logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Display)]
#[display("{}.{:09} s", _0 / 1_000_000_000, _0 % 1_000_000_000)]
pub struct Hlc(pub u64);

impl Hlc {
    /// Returns the time of a record behind one of this time, if its sender's clock said `sent`: times neither stand
    /// still nor go back.
    ///
    /// A sender's clock counts up to the year 2262 only: a later time, which is wrong, would leave too few for those
    /// that follow.
    #[inline]
    pub fn next(self, sent: Hlc) -> Hlc {
        const LATEST_SENT: Hlc = Hlc(i64::MAX as u64);
        sent.min(LATEST_SENT).max(Hlc(self.0.saturating_add(1)))
    }
}

impl From<SystemTime> for Hlc {
    /// Times before 1970 become the first time that there is, and times beyond the year 2554 the last.
    fn from(time: SystemTime) -> Hlc {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Hlc(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Hlc> for SystemTime {
    fn from(Hlc(nanoseconds): Hlc) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_can_not_be_leaves_room_for_those_that_follow() {
        let absurd = Hlc(1).next(Hlc(u64::MAX));
        let next = absurd.next(Hlc(2));
        assert!(Hlc(1) < absurd && absurd < next && next < next.next(Hlc(u64::MAX)));
        assert_eq!(Hlc(5).next(Hlc(9)), Hlc(9));
        assert_eq!(Hlc(5).next(Hlc(3)), Hlc(6));
    }
}
