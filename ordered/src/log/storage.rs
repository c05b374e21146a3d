//! What a log needs of a directory.

use std::{fmt, io, path::PathBuf};

/// A directory that one log, and nothing else, has.
///
/// # What an implementor must guarantee
///
/// - A file that was created reads as zeros wherever nothing was written, and writing within the size that it was created
///   with needs no more space.
/// - What was written to a file before [`sync`](Storage::sync) returned success survives a crash. Of what was written after
///   that, each sector of 512 bytes survives or not, on its own.
/// - A file's name, or that it has none any more, survives a crash once [`sync_directory`](Storage::sync_directory) has
///   returned success; before that, it may or may not. A renaming happens or does not: at no time has the new name no file.
/// - After a failed `sync`, nothing is promised of what it should have written, whatever a second one says.
pub trait Storage {
    /// An open file.
    type File: fmt::Debug;

    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of `bytes` bytes, with the space for them. One that has the name is replaced.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens a file, for reading and writing.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// A file's size in bytes.
    fn size(&self, file: &Self::File) -> io::Result<u64>;

    /// Reads exactly what `into` has room for, from `offset` on.
    fn read_at(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Says that an open file will be read from front to back, so that what comes next is fetched while the last is looked at.
    fn read_through(&self, _file: &Self::File) {}

    /// Writes all of `bytes` from `offset` on.
    fn write_at(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's contents and size durable.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Makes a file's contents durable, and forgets what memory still shows of writes that failed, of this or an earlier
    /// process: what is read from here on is what a crash would leave.
    fn reload(&self, file: &Self::File) -> io::Result<()>;

    /// Makes durable which files there are, under which names.
    fn sync_directory(&self) -> io::Result<()>;

    /// Gives a file another name. One that has it already is gone then.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Who has it open can still use it.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// How many bytes new files may still take; `u64::MAX` where that can't be known.
    fn free(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    /// What to call a file in messages.
    fn path(&self, name: &str) -> PathBuf;
}
