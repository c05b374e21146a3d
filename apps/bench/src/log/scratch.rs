//! A directory that is removed after the run.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::statfs;
use squall_command::{CommandError, TemporaryDirectory};

/// A new directory on the disk that is measured. It is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(TemporaryDirectory);

/// The number by which `statfs` identifies a file system in memory.
const TMPFS_MAGIC: u64 = 0x0102_1994;

impl Scratch {
    /// Makes one in `parent`. Warns if that is in memory.
    pub(crate) fn new(parent: &Path) -> Result<Scratch, CommandError> {
        let failed = |path: &Path, error: io::Error| {
            let path = path.display();
            CommandError::Failed(format!("{path} can't be used for logs: {error}; give another --dir, on a disk"))
        };
        let parent = fs::canonicalize(parent).map_err(|error| failed(parent, error))?;
        if statfs(&parent).is_ok_and(|file_system| file_system.f_type as u64 == TMPFS_MAGIC) {
            tracing::warn!("{} is in memory (tmpfs), so no disk is measured: give a --dir on one", parent.display());
        }
        TemporaryDirectory::new_in(&parent, "bench-log").map(Scratch).map_err(|error| failed(&parent, error))
    }

    /// The path of a directory in it, which is not made.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Removes all that is in it.
    pub(crate) fn clear(&self) {
        for entry in fs::read_dir(self.0.path()).into_iter().flatten().flatten() {
            // An entry that can't be removed stays; the figures are none the worse.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
