//! The data that a member of a durable group gives to one that lacks it: the end of its log, a state, or certain
//! records.
//!
//! A suffix travels behind the head of a state ([`state`](super::state)), which says where it ends. It consists of
//! batches of records ([`Reader::export`]), each behind its length in 4 bytes, little-endian.

use std::{io::Write, sync::Arc, time::Duration};

use crossbeam::channel::bounded;
use squall_membership::{self as membership, ClusterId, Epoch};
use squall_ordered::log::{Body, ChainValue, End, Position, ReadError, Reader, Record};

use crate::{
    capture::{
        exchange::Wanted,
        state::{self, LogPlace},
    },
    durable::batches::BATCH_BYTES,
    durable::{
        disk::Disk,
        log_writer::{DiskLog, LogWriter},
        recovery::{place, position},
    },
    state_transfer::control::ReplicaControl,
    state_transfer::wire::{Divergence, LogEnd, OfferKind, PreparedOffer, RequestedPart},
};

/// The size up to which a suffix is cheaper than a state, since the application can notice the capture of a state. In
/// bytes.
const SMALL_BYTES: u64 = 64 << 20;

/// The size up to which a suffix is taken for cheaper than a state of unknown size. In bytes.
const LARGE_BYTES: u64 = 1 << 30;

/// The time for which a replica may be busy with one call.
const PATIENCE: Duration = Duration::from_secs(10);

/// Prepares the requested data, or returns the reason for which it can't. It may wait for the delivery thread.
pub(crate) fn offer(control: &dyn ReplicaControl, part: RequestedPart) -> Result<PreparedOffer, String> {
    let have = match part {
        RequestedPart::Records { from, to } => {
            let log_writer = control.log_writer().ok_or("the group is not durable, so it has no records")?;
            return records(log_writer, position(from), position(to));
        }
        RequestedPart::State { have, .. } => have,
    };
    let plan = plan(control.log_writer(), have, control.history().retains())?;
    let (reply, answer) = bounded(1);
    let reply = move |captured| {
        // The thread that asked may have ended.
        let _ = reply.send(captured);
    };
    control.capture(plan.wanted, Box::new(reply));
    let captured = answer.recv_timeout(PATIENCE).map_err(|_| format!("it is not there within {PATIENCE:?}"))?;
    plan.give(captured.map_err(|error| error.to_string())?)
}

/// Returns the records between two places of a shard's log, as they travel.
#[cfg(feature = "sim")]
pub(crate) fn records_of(control: &dyn ReplicaControl, from: Position, to: Position) -> Result<Vec<u8>, String> {
    let mut records = Vec::new();
    let write = offer(control, RequestedPart::records(from, to))?.write;
    write(&mut records).map_err(|error| error.to_string())?;
    Ok(records)
}

/// The choice of the data that a member gets that lacks something.
pub(crate) struct TransferPlan {
    /// The part to capture for it.
    pub(crate) wanted: Wanted,
    /// This node's log, in a durable group.
    log_writer: Option<Arc<LogWriter>>,
    /// The common part of the other log and this one.
    common: Option<Common>,
    /// The bytes of log that the group's members mean to keep: if the other member lacks no more than that, it keeps
    /// its log.
    retains: u64,
}

impl TransferPlan {
    /// Returns the data for that member, once the part was captured.
    pub(crate) fn give(self, captured: state::Captured) -> Result<PreparedOffer, String> {
        let worth = worth(captured.bytes, self.retains);
        match (&self.log_writer, self.common) {
            (Some(log_writer), Some(Common { cut, bytes })) if bytes <= worth => {
                suffix(log_writer, cut, captured, bytes)
            }
            (log_writer, _) => whole(log_writer.as_ref(), captured),
        }
    }
}

/// Returns the most bytes of records that a member gives in place of a state of `state` bytes, if that is known. A
/// state in their place costs the other member the history that its group means to keep.
fn worth(state: Option<u64>, retains: u64) -> u64 {
    state.unwrap_or(LARGE_BYTES).max(SMALL_BYTES).max(retains)
}

/// Returns a state, as it travels, with the chain of signatures that the log had at its place.
fn whole(log_writer: Option<&Arc<LogWriter>>, captured: state::Captured) -> Result<PreparedOffer, String> {
    let mut chain = None;
    if let (Some(log_writer), Some(LogPlace { end, .. })) = (log_writer, &captured.logged) {
        let at = end.position;
        let answer = log_writer.run(move |log| log.chain_at(at));
        chain = answer.ok_or("its log can't be read any more")?.map_err(|error| error.to_string())?;
    }
    let offer =
        OfferKind::State { epoch: captured.epoch, seq: captured.seq, chain: chain.map(|ChainValue(bytes)| bytes) };
    Ok(PreparedOffer { offer, bytes: captured.bytes, write: Box::new(move |to| captured.write(to)) })
}

/// Plans what a member whose log this is gives to one whose log ends at `have`, if it has any.
pub(crate) fn plan(
    log_writer: Option<&Arc<LogWriter>>,
    have: Option<LogEnd>,
    retains: u64,
) -> Result<TransferPlan, String> {
    let common = log_writer.zip(have).map(|(log_writer, have)| common(log_writer, have)).transpose()?.flatten();
    // Whatever the state's size, these records are sent, so a captured state would be of no use.
    let is_small = common.as_ref().is_some_and(|common| common.bytes <= worth(Some(0), retains));
    let wanted = if is_small { Wanted::Place } else { Wanted::State };
    Ok(TransferPlan { wanted, log_writer: log_writer.cloned(), common, retains })
}

/// The common part of two logs.
struct Common {
    /// The place where they part, at the latest.
    cut: End,
    /// The bytes of the longer one behind that place.
    bytes: u64,
}

/// Returns the common part of this log and one that ends at `have`. Returns None if this log does not go back that far,
/// or the other is of a life of the group that this one does not come from.
fn common_with(log: &DiskLog, own: ClusterId, have: LogEnd) -> Result<Option<Common>, ReadError> {
    let LogEnd { life, end } = have;
    let have = position(end);
    if have < log.begin().position {
        return Ok(None);
    }
    // A log whose last view is of this life has nothing of any other life but the part from which this life continues.
    if have != Position::START && life != own && life_at(log, have.epoch)? != Some(life) {
        return Ok(None);
    }
    // Within an epoch, all logs are the beginnings of one order. At that order's end a later view follows in this log,
    // which was cut there.
    let end_of_epoch = log.at_position(Position { seq: membership::Seq(u64::MAX), ..have })?;
    let cut = log.at_position(have.min(end_of_epoch.position))?;
    Ok(Some(Common { cut, bytes: log.bytes_behind(cut.position)? }))
}

/// Returns the life of the group to which a log's view of an epoch belongs, if the log has a record of that view.
fn life_at(log: &DiskLog, epoch: Epoch) -> Result<Option<ClusterId>, ReadError> {
    let before = Position::new(Epoch(epoch.0.saturating_sub(1)), membership::Seq(u64::MAX));
    if before < log.begin().position {
        return Ok(None);
    }
    let mut reader = log.read(before, Position::MAX)?;
    Ok(match reader.next_record()? {
        Some(Record { position, body: Body::View(view), .. }) if position.epoch == epoch => Some(view.life),
        _ => None,
    })
}

fn common(log_writer: &Arc<LogWriter>, have: LogEnd) -> Result<Option<Common>, String> {
    let own = log_writer.life();
    let answer = log_writer.run(move |log| (common_with(log, own, have), log.persisted()));
    let (common, end) = answer.ok_or("its log can't be read any more")?;
    let asks = position(have.end);
    if have.life == own && asks.epoch >= end.position.epoch && asks > end.position {
        return Err(format!("its log ends at {}, and the node that asks has more: {asks}", end.position));
    }
    Ok(common.unwrap_or_else(|error| {
        tracing::warn!(%error, "a member gets a state, since the log can't be read");
        None
    }))
}

fn suffix(
    log_writer: &Arc<LogWriter>,
    cut: End,
    captured: state::Captured,
    bytes: u64,
) -> Result<PreparedOffer, String> {
    let end = captured.logged.as_ref().ok_or("the group is not durable")?.end;
    let mut reader = read(log_writer, cut.position, end.position)?;
    let head = captured.without_state();
    let offer = OfferKind::Suffix(Divergence { at: place(cut.position), version: cut.version, time: cut.time.0 });
    let write = move |to: &mut dyn Write| {
        head.write(to)?;
        write_records(&mut reader, to)
    };
    Ok(PreparedOffer { offer, bytes: Some(bytes), write: Box::new(write) })
}

pub(crate) fn records(log_writer: &Arc<LogWriter>, from: Position, to: Position) -> Result<PreparedOffer, String> {
    let mut reader = read(log_writer, from, to)?;
    let write = move |out: &mut dyn Write| write_records(&mut reader, out);
    Ok(PreparedOffer { offer: OfferKind::Records, bytes: None, write: Box::new(write) })
}

fn read(log_writer: &Arc<LogWriter>, from: Position, to: Position) -> Result<Reader<Disk>, String> {
    // The job is queued behind everything that was appended when the state was captured.
    let reader = log_writer.run(move |log| log.read(from, to));
    reader.ok_or("its log can't be read any more")?.map_err(|error| error.to_string())
}

fn write_records(reader: &mut Reader<Disk>, to: &mut dyn Write) -> std::io::Result<()> {
    loop {
        let records = reader.export(BATCH_BYTES).map_err(std::io::Error::other)?;
        if records.is_empty() {
            return Ok(());
        }
        to.write_all(&(records.len() as u32).to_le_bytes())?;
        to.write_all(&records)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_that_a_group_keeps_are_given_however_short_the_state_is() {
        assert_eq!(worth(Some(1), u64::MAX), u64::MAX);
        assert_eq!(worth(Some(1), 4 * LARGE_BYTES), 4 * LARGE_BYTES);
    }

    #[test]
    fn records_that_a_group_need_not_keep_are_given_if_they_are_few_or_fewer_than_the_state() {
        assert_eq!(worth(Some(1), 0), SMALL_BYTES);
        assert_eq!(worth(Some(2 * SMALL_BYTES), 0), 2 * SMALL_BYTES);
        assert_eq!(worth(None, 0), LARGE_BYTES);
    }
}
