//! The replacement of damaged records by another member's.

use std::sync::Arc;

use squall_ordered::log::{Damage, Position};

use crate::durable::{batches::read_batch, log_writer::LogWriter};

/// Replaces damaged records of a log by those that `fetch` gets from another member. They are the records that take a
/// log from one place to another, as a source of [records](crate::state_transfer::wire::OfferKind::Records) sends them.
///
/// The records beside the damage are requested, too: they show that the other member has the same log. Nothing but the
/// missing records is written. Damage without a known end can't be repaired in this way: the log must be cut there.
pub(crate) fn repair(
    log_writer: &Arc<LogWriter>,
    damage: &Damage,
    fetch: impl FnOnce(Position, Position) -> Result<Vec<u8>, String>,
) -> Result<(), String> {
    const ENDED: &str = "the log can't be written any more";
    damage.to.ok_or("there is no knowing where it ends")?;
    let of = damage.clone();
    let gap = log_writer.run_at_once(move |log| log.gap(&of)).ok_or(ENDED)?;
    let gap = gap.map_err(|error| error.to_string())?.ok_or("it is not found again")?;
    let (from, to) = gap.places();
    let sent = fetch(from, to)?;
    let (mut rest, mut batches) = (sent.as_slice(), Vec::new());
    while let Some(batch) = read_batch(&mut rest).map_err(|error| error.to_string())? {
        batches.push(batch);
    }
    let records = gap.fill(&batches)?;
    let of = damage.clone();
    let replaced = log_writer.run_at_once(move |log| log.replace_damaged(&of, &records)).ok_or(ENDED)?;
    replaced.map_err(|error| error.to_string())?;
    tracing::warn!(%damage, "damaged records were replaced by another member's");
    Ok(())
}
