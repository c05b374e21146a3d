//! All keys of a store at a moment, to be written.

use std::{io, num::NonZeroU64};

use super::{rows::Rows, waiting::FrozenWaiters};
use crate::saved::StateWriter;

/// All keys of a store at a moment.
pub(crate) struct Frozen {
    pub(super) entries: Rows,
    pub(super) version: u64,
    pub(super) births: Box<[u64]>,
    pub(super) waiters: FrozenWaiters,
}

impl Frozen {
    /// Writes the keys, behind the bytes that are in `out` already.
    pub(crate) fn write(self, mut out: StateWriter, to: &mut dyn io::Write) -> io::Result<()> {
        out.number(self.version);
        let births = || self.births.iter().enumerate().filter(|(_, version)| **version > 0);
        out.number(births().count() as u64);
        for (class, &version) in births() {
            out.number(class as u64);
            out.number(version);
        }
        out.number(self.entries.len() as u64);
        for row in self.entries.into_rows() {
            for (key, entry) in &*row {
                out.bytes(key);
                out.number(entry.version);
                out.number(entry.expires_ms.map_or(0, NonZeroU64::get));
                out.value(&entry.value);
                out.spill(to)?;
            }
        }
        self.waiters.write(&mut out, to)?;
        out.finish(to)
    }
}
