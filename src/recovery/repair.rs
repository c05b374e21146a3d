//! Putting another member's records in the place of damaged ones.

use std::sync::Arc;

use squall_ordered::log::{Damage, Position};

use super::take::read_batch;
use crate::journal::Journal;

/// Replaces damaged records of a log by those that `fetch` gets from another member: the ones that take a log from one place to
/// another, as a source of [records](crate::control::transfer::Gift::Records) sends them.
///
/// Nothing is written unless it is what is missing. Damage that has no end can't be repaired so: the log must be cut there.
pub(crate) fn repair(
    journal: &Arc<Journal>,
    damage: &Damage,
    fetch: impl FnOnce(Position, Position) -> Result<Vec<u8>, String>,
) -> Result<(), String> {
    let before = damage.before.ok_or("there is no knowing where it ends")?;
    let sent = fetch(damage.after, before)?;
    let mut batches = sent.as_slice();
    let mut records = Vec::new();
    while let Some(batch) = read_batch(&mut batches).map_err(|error| error.to_string())? {
        if !records.is_empty() {
            return Err("what is damaged is more than what travels at once".to_owned());
        }
        records = batch;
    }
    let of = damage.clone();
    let answers = journal.ask(move |log| log.replace_damaged(&of, &records));
    let replaced = journal.wait(&answers).ok_or("the log can't be written any more")?;
    replaced.map_err(|error| error.to_string())?;
    tracing::warn!(%damage, "damaged records were replaced by another member's");
    Ok(())
}
