//! The mark of a log that was begun anew in the place of one that was lost or damaged.
//!
//! Such a log may end before what its node once had on disk, though it lacks nothing that it had itself. So it proves nothing, and
//! counts for nothing, until its node has the shard's whole state on disk again. The mark is an empty file beside the log: it is made
//! before the log is begun, and removed before the node says that it is complete.

use std::io;

use squall_ordered::log::Storage;

/// The file.
pub(crate) const NAME: &str = "begun-anew";

/// Whether the log is marked.
pub(crate) fn is_marked(disk: &impl Storage) -> io::Result<bool> {
    Ok(disk.list()?.iter().any(|name| name == NAME))
}

/// Marks the log, durably.
pub(crate) fn mark(disk: &impl Storage) -> io::Result<()> {
    disk.create(NAME, 0)?;
    disk.sync_directory()
}

/// Takes the mark away, durably.
pub(crate) fn clear(disk: &impl Storage) -> io::Result<()> {
    if is_marked(disk)? {
        disk.remove(NAME)?;
    }
    disk.sync_directory()
}
