//! The mark of a log that was begun anew in the place of one that was lost or damaged.
//!
//! Such a log may end before the end of what its node once had on disk, though nothing is missing from the log itself.
//! So it proves nothing, and does not count, until its node has the shard's whole state on disk again. The mark is an
//! empty file beside the log. It is made before the log is begun, and removed before the node reports that it is
//! complete.

use std::io;

use squall_ordered::log::Storage;

/// The name of the file.
pub(crate) const NAME: &str = "begun-anew";

/// Tells whether the log is marked.
pub(crate) fn is_marked(disk: &impl Storage) -> io::Result<bool> {
    Ok(disk.list()?.iter().any(|name| name == NAME))
}

pub(crate) fn mark(disk: &impl Storage) -> io::Result<()> {
    disk.create(NAME, 0)?;
    disk.sync_directory()
}

/// Removes the mark, durably.
pub(crate) fn clear(disk: &impl Storage) -> io::Result<()> {
    if is_marked(disk)? {
        disk.remove(NAME)?;
    }
    disk.sync_directory()
}
