//! The operations on a directory that a log needs.

use std::{fmt, io, path::PathBuf};

/// The unit that is written as a whole, or not at all, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// A directory that one log, and nothing else, uses.
///
/// # Guarantees of an implementation
///
/// - A file that was created reads as zeros wherever nothing was written. Writing within the size that it was created
///   with needs no more space.
/// - Bytes that were written to a file before [`sync`](Storage::sync) returned success survive a crash. Of later bytes,
///   each sector of 512 bytes survives or not, on its own.
/// - A file's name, or its removal, survives a crash once [`sync_directory`](Storage::sync_directory) has returned
///   success; before that, it may or may not. A renaming happens or does not: at no time has the new name no file.
/// - After a failed `sync`, nothing is promised of the bytes that it should have written, even if a second one
///   succeeds.
pub trait Storage {
    /// An open file.
    type File: fmt::Debug;

    /// Returns the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of `bytes` bytes, with the space for them. Replaces a file that has the name.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a file, for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Returns a file's size in bytes.
    fn size(&self, file: &Self::File) -> io::Result<u64>;

    /// Reads from `offset` on until `into` is full.
    fn read_at(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Says that an open file will be read from front to back, so that the next bytes are fetched while the last are
    /// used.
    fn read_through(&self, _file: &Self::File) {}

    /// Writes all of `bytes` from `offset` on.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's contents and size durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Makes a file's contents durable, and drops the memory's copy of them, which may show writes that failed, of this
    /// or an earlier process. Later reads return the bytes that a crash would leave.
    fn reload(&self, file: &Self::File) -> io::Result<()>;

    /// Makes the set of files and their names durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Gives a file another name. Replaces a file that has the name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Handles that are open can still use it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Returns the number of bytes that new files may still take; `u64::MAX` where that can't be known.
    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    /// Returns the path that messages show for a file.
    fn path(&self, name: &str) -> PathBuf;
}
