//! The check of a part of a log, and its digest, which can be compared with that of other members.

use super::Checked;
use crate::{durable::history::HistoryError, group::log_source::LogSource};

/// The number of damages that are listed.
const MAX_DAMAGES: usize = 100;

/// Reads messages from `from` to `to`, or a little more than `max_bytes` bytes of them.
pub(super) fn check(source: &dyn LogSource, from: u64, to: u64, max_bytes: u64) -> Result<Checked, HistoryError> {
    let mut checked = Checked { to: from.saturating_sub(1), ..Checked::default() };
    let mut log = match source.log(from, to) {
        Err(HistoryError::Damaged(damage)) => {
            // If reading can't begin, the rest of this part is not read.
            (checked.to, checked.damage) = (to, vec![damage.to_string()]);
            return Ok(checked);
        }
        log => log?,
    };
    let mut hash = blake3::Hasher::new();
    while checked.bytes < max_bytes {
        match log.next_entry() {
            Ok(Some(entry)) => {
                let sender = entry.sender().map_or(0, |sender| u64::from(sender.0));
                for word in [entry.version, entry.time.0, entry.epoch.0, entry.seq.0, sender] {
                    hash.update(&word.to_le_bytes());
                }
            }
            Ok(None) => {
                checked.to = to.min(log.next_version() - 1).max(checked.to);
                break;
            }
            // The reader goes on behind the damage.
            Err(HistoryError::Damaged(damage)) if checked.damage.len() < MAX_DAMAGES => {
                checked.damage.push(damage.to_string());
                continue;
            }
            Err(error) => return Err(error),
        }
        let message = log.message();
        hash.update(&(message.len() as u64).to_le_bytes()).update(message);
        checked.messages += 1;
        checked.bytes += message.len() as u64;
        checked.to = log.next_version() - 1;
    }
    checked.digest = checked.damage.is_empty().then(|| *hash.finalize().as_bytes());
    Ok(checked)
}
