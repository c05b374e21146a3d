//! Copies between pieces of shared memory, which other threads and processes read and write at the same time.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use crate::bytes;

/// The length from which a copy past the cache pays for its beginning and end.
const STREAM_BYTES: usize = 64 << 10;

/// The size from which regions are taken not to stay in the cache between two messages.
pub(super) const UNCACHED_BYTES: usize = 8 << 20;

/// The number of bytes that are copied at a time between polled and bulk memory; whole words.
const CHUNK_BYTES: usize = 1024;

/// The access to an end of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EndKind {
    /// Memory of this thread alone.
    Own,
    /// Memory that is accessed in whole aligned words, atomically.
    Polled,
    /// Memory that is accessed in bytes, atomically.
    Bulk {
        /// Whether it lies in memory that is too large to stay in the cache.
        uncached: bool,
    },
}

/// One end of a copy.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// The address where it begins.
    pub(super) at: *mut u8,
    pub(super) kind: EndKind,
}

impl End {
    fn is_polled(&self) -> bool {
        self.kind == EndKind::Polled
    }

    fn own(at: *mut u8) -> End {
        End { at, kind: EndKind::Own }
    }

    /// # Safety
    ///
    /// As of [`pointer::add`].
    unsafe fn add(self, bytes: usize) -> End {
        // SAFETY: the caller's promise.
        End { at: unsafe { self.at.add(bytes) }, ..self }
    }
}

/// Copies `len` bytes.
///
/// If `to` is polled, earlier writes are visible to a reader (acquire) of any word of it, and a last partial word is
/// filled up with zeros. If `from` is polled, what its writer had written before any word that this finds is visible
/// after.
///
/// # Safety
///
/// Both ends are mapped memory of `len` bytes (`to` writable), rounded up to whole words at an end that is polled,
/// where `at` is also aligned to 8. They do not overlap, unless they are one range of polled memory.
#[inline]
pub(super) unsafe fn copy(from: End, to: End, len: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match (from.kind, to.kind) {
            (EndKind::Own | EndKind::Polled, EndKind::Polled) | (EndKind::Polled, EndKind::Own) => {
                copy_words(from, to, len);
            }
            (EndKind::Polled, EndKind::Bulk { .. }) | (EndKind::Bulk { .. }, EndKind::Polled) => {
                copy_in_chunks(from, to, len);
            }
            (EndKind::Own, EndKind::Own | EndKind::Bulk { .. }) => {
                bytes::write(std::slice::from_raw_parts(from.at, len), to.at);
            }
            (_, EndKind::Bulk { uncached: true }) if len >= STREAM_BYTES => bytes::copy_past_cache(from.at, to.at, len),
            (_, EndKind::Own | EndKind::Bulk { .. }) => bytes::copy(from.at, to.at, len),
        }
    }
}

/// Copies between polled and bulk memory by way of this thread's.
///
/// # Safety
///
/// As of [`copy`].
unsafe fn copy_in_chunks(from: End, to: End, len: usize) {
    let mut chunk = [0; CHUNK_BYTES];
    for done in (0..len).step_by(CHUNK_BYTES) {
        let (own, bytes) = (End::own(chunk.as_mut_ptr()), CHUNK_BYTES.min(len - done));
        // SAFETY: the caller's promise, of a part of whole words that is no longer than the chunk.
        unsafe {
            copy(from.add(done), own, bytes);
            copy(own, to.add(done), bytes);
        }
    }
}

/// Copies by words, between polled memory and this thread's, or two places in polled memory.
///
/// # Safety
///
/// As of [`copy`].
#[inline]
unsafe fn copy_words(from: End, to: End, len: usize) {
    if to.is_polled() {
        fence(Ordering::Release);
    }
    let whole = len & !7;
    let mut offset = 0;
    while offset < whole {
        // SAFETY: `offset..offset + 8` is within `len`, and the ends are as the caller promised.
        unsafe { store(to, offset, load(from, offset)) };
        offset += 8;
    }
    let rest = len - whole;
    if rest > 0 {
        let mut bytes = [0; 8];
        if from.is_polled() {
            // SAFETY: a polled end is readable up to a whole word.
            let word: [u8; 8] = unsafe { load(from, offset) }.to_ne_bytes();
            bytes[..rest].copy_from_slice(&word[..rest]);
        } else {
            // SAFETY: `rest` bytes remain of the source.
            unsafe { ptr::copy_nonoverlapping(from.at.add(offset), bytes.as_mut_ptr(), rest) };
        }
        if to.is_polled() {
            // SAFETY: a polled end is writable up to a whole word.
            unsafe { store(to, offset, u64::from_ne_bytes(bytes)) };
        } else {
            // SAFETY: `rest` bytes remain of the target.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.at.add(offset), rest) };
        }
    }
    if from.is_polled() {
        fence(Ordering::Acquire);
    }
}

/// # Safety
///
/// As [`copy_words`] asks of its source, for the word at `offset`.
#[inline]
unsafe fn load(from: End, offset: usize) -> u64 {
    // SAFETY: the caller's promise.
    let at = unsafe { from.at.add(offset) }.cast::<u64>();
    if from.is_polled() {
        // SAFETY: aligned, mapped, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed)
    } else {
        // SAFETY: this thread's own, of any alignment.
        unsafe { at.read_unaligned() }
    }
}

/// # Safety
///
/// As [`copy_words`] asks of its target, for the word at `offset`.
#[inline]
unsafe fn store(to: End, offset: usize, word: u64) {
    // SAFETY: the caller's promise.
    let at = unsafe { to.at.add(offset) }.cast::<u64>();
    if to.is_polled() {
        // SAFETY: aligned, mapped, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Relaxed);
    } else {
        // SAFETY: this thread's own, of any alignment.
        unsafe { at.write_unaligned(word) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_past_the_cache_is_copied_the_same() {
        let mut source: Vec<u8> = (0..=250).cycle().take(STREAM_BYTES + 100).collect();
        for (skip, len) in [(0, STREAM_BYTES), (1, STREAM_BYTES + 99), (3, STREAM_BYTES - 1)] {
            let mut target = vec![0xee; STREAM_BYTES + 200];
            let from = End { at: source.as_mut_ptr(), kind: EndKind::Bulk { uncached: false } };
            let to = End { at: target[skip..].as_mut_ptr(), kind: EndKind::Bulk { uncached: true } };
            // SAFETY: `skip + len` lies within the target, `len` within the source.
            unsafe { copy(from, to, len) };
            assert!(target[skip..skip + len] == source[..len], "{len} bytes to {skip}");
            assert!(target[..skip].iter().chain(&target[skip + len..]).all(|&byte| byte == 0xee));
        }
    }

    const BYTES: usize = 3 * CHUNK_BYTES;

    #[repr(align(8))]
    struct Aligned([u8; BYTES]);

    #[test]
    fn all_kinds_of_ends_and_lengths_copy_the_same_bytes() {
        const KINDS: [EndKind; 3] = [EndKind::Own, EndKind::Polled, EndKind::Bulk { uncached: false }];
        let pattern = |at: usize| (at % 250) as u8;
        for (from_kind, to_kind) in KINDS.iter().flat_map(|from| KINDS.iter().map(move |to| (*from, *to))) {
            for len in (0..=48).step_by(if cfg!(miri) { 11 } else { 1 }).chain([
                CHUNK_BYTES - 1,
                CHUNK_BYTES,
                CHUNK_BYTES + 9,
                2 * CHUNK_BYTES + 40,
            ]) {
                let mut from = Aligned(std::array::from_fn(pattern));
                let mut to = Aligned([0xee; BYTES]);
                let from = End { at: from.0.as_mut_ptr(), kind: from_kind };
                let end = End { at: to.0.as_mut_ptr(), kind: to_kind };
                // SAFETY: both are aligned bytes of this test's own, more than `len`.
                unsafe { copy(from, end, len) };
                let expected: Vec<u8> = (0..len).map(pattern).collect();
                assert_eq!(to.0[..len], expected, "{len} bytes");
                let filled = if end.is_polled() { len.next_multiple_of(8) } else { len };
                assert!(to.0[len..filled].iter().all(|&b| b == 0), "a partial word is filled up with zeros");
                assert!(to.0[filled..].iter().all(|&b| b == 0xee), "nothing beyond the range is touched");
            }
        }
    }
}
