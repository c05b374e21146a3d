//! Memory of this process, and the bytes of bulk regions as the system takes and gives them.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;
use smallvec::SmallVec;

use crate::{Region, RegionKey, RegionKind, Slice, Source, mapping::Mapping, random, wait};

/// The size below which regions come from the allocator: a mapping takes whole pages, and a process has only so many.
const MAPPED_BYTES: usize = 64 << 10;

/// The number of ranges that one system call gets.
pub(super) const RANGES: usize = 64;

/// Registers zeroed memory.
pub(super) fn register(kind: RegionKind, bytes: usize) -> Result<Region, Errno> {
    let key = RegionKey(random::number()?);
    if bytes < MAPPED_BYTES {
        return Ok(Region::heap(kind, key, bytes));
    }
    let mapping = Mapping::anonymous(bytes)?;
    // SAFETY: a mapping consists of whole pages, is readable and writable, stays until it is dropped, and nothing else
    // uses it.
    Ok(unsafe { Region::from_raw(kind, key, mapping.base(), bytes, Box::new(mapping)) })
}

/// Gives the bytes of a source in parts that stay as they are: those of a region are copied into `part` before.
pub(super) fn read_parts<E>(
    source: Source<'_>,
    part: &mut [u8],
    mut take: impl FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    match source {
        Source::Inline(bytes) => bytes.chunks(part.len()).try_for_each(take),
        Source::Region(Slice { region, offset, len }) => (0..len).step_by(part.len()).try_for_each(|done| {
            let now = part.len().min(len - done);
            let part = &mut part[..now];
            region.read(offset + done, part);
            take(part)
        }),
    }
}

/// The range of a source, for the system to read.
fn range(source: &Source<'_>) -> libc::iovec {
    let (base, iov_len) = match source {
        Source::Inline(bytes) => (bytes.as_ptr().cast_mut(), bytes.len()),
        Source::Region(Slice { region, offset, len }) => {
            debug_assert!(region.kind().is_bulk(), "the system takes only bulk memory as it is");
            (region.address(*offset, *len).as_ptr(), *len)
        }
    };
    libc::iovec { iov_base: base.cast(), iov_len }
}

/// Gives bytes, of bulk regions or of this process alone, to a socket, without blocking. Returns the number that it
/// took.
pub(super) fn send(socket: BorrowedFd<'_>, sources: &[Source<'_>]) -> Result<usize, Errno> {
    const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let socket = socket.as_raw_fd();
    if let [source] = sources {
        let range = range(source);
        // SAFETY: the system reads the range, whose memory lives as long as `sources`.
        return result(unsafe { libc::send(socket, range.iov_base, range.iov_len, FLAGS) });
    }
    let mut ranges: SmallVec<[libc::iovec; RANGES]> = sources.iter().map(range).collect();
    // SAFETY: zeros are a message without name, ranges and control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = ranges.as_mut_ptr();
    message.msg_iovlen = ranges.len() as _;
    // SAFETY: the system reads the list, and the ranges, whose memory lives as long as `sources`.
    result(unsafe { libc::sendmsg(socket, &raw const message, FLAGS) })
}

/// Receives bytes of a socket into a bulk region, and what comes after them into `behind`. Returns their number.
pub(super) fn receive(
    socket: BorrowedFd<'_>,
    (region, offset, len): (&Region, usize, usize),
    behind: &mut [u8],
) -> Result<usize, Errno> {
    assert!(region.kind().is_bulk(), "the system fills only bulk memory as it is");
    let ranges = [
        libc::iovec { iov_base: region.address(offset, len).as_ptr().cast(), iov_len: len },
        libc::iovec { iov_base: behind.as_mut_ptr().cast(), iov_len: behind.len() },
    ];
    // SAFETY: the system writes within the ranges: memory of the region, which this process accesses by atomics, and
    // memory that is borrowed exclusively.
    result(unsafe { libc::readv(socket.as_raw_fd(), ranges.as_ptr(), ranges.len() as _) })
}

/// The result of a system call that returns a number of bytes.
fn result(bytes: isize) -> Result<usize, Errno> {
    usize::try_from(bytes).map_err(|_| wait::last_error())
}
