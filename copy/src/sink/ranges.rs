//! The hashing and copying of ranges of files.

use std::{
    fs::File,
    io,
    ops::Range,
    os::{fd::AsRawFd, unix::fs::FileExt},
};

use rustix::io::Errno;

/// The number of bytes that are hashed at once.
const HASH_BYTES: usize = 1 << 20;

/// The number of bytes that are read and written at once where the kernel does not copy: they stay in a core's cache.
const SCRATCH_BYTES: usize = 128 << 10;

/// A failure of a copy, by the file that failed.
#[derive(Debug)]
pub(super) enum CopyRangeError {
    Read(io::Error),
    Write(io::Error),
}

/// Hashes ranges of a file, one after the other.
pub(super) fn hash_contents(file: &File, ranges: impl Iterator<Item = Range<u64>>) -> io::Result<[u8; 32]> {
    let mut hasher = blake3::Hasher::new();
    let mut scratch = vec![0; HASH_BYTES];
    for range in ranges {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(HASH_BYTES as u64) as usize;
            file.read_exact_at(&mut scratch[..len], at)?;
            hasher.update(&scratch[..len]);
            at += len as u64;
        }
    }
    Ok(hasher.finalize().into())
}

/// Copies bytes from file to file; on some filesystems they share them then.
pub(super) fn copy_range(
    from: &File,
    mut from_at: u64,
    to: &File,
    mut at: u64,
    mut len: u64,
) -> Result<(), CopyRangeError> {
    let mut scratch = Vec::new();
    while len > 0 {
        if scratch.is_empty() {
            match rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut at), len as usize) {
                Ok(0) => return Err(CopyRangeError::Read(io::ErrorKind::UnexpectedEof.into())),
                Ok(copied) => len -= copied as u64,
                Err(Errno::INTR) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(CopyRangeError::Write(error.into())),
                // Not on these filesystems, or in this sandbox; or one of the files fails, which is seen now.
                Err(_) => scratch.resize(len.min(SCRATCH_BYTES as u64) as usize, 0),
            }
            continue;
        }
        let part = &mut scratch[..len.min(SCRATCH_BYTES as u64) as usize];
        from.read_exact_at(part, from_at).map_err(CopyRangeError::Read)?;
        to.write_all_at(part, at).map_err(CopyRangeError::Write)?;
        let copied = part.len() as u64;
        (from_at, at, len) = (from_at + copied, at + copied, len - copied);
    }
    Ok(())
}

/// Lets the kernel begin to write a range to the disk, so that a later sync has less to wait for. What fails is told by
/// the sync.
pub(super) fn start_writeback(file: &File, at: u64, len: u64) {
    let (Ok(at), Ok(len)) = (i64::try_from(at), i64::try_from(len)) else { return };
    // SAFETY: the call takes numbers only; the descriptor is open as long as `file` is borrowed.
    let _ = unsafe { libc::sync_file_range(file.as_raw_fd(), at, len, libc::SYNC_FILE_RANGE_WRITE) };
}
