//! Copies between pieces of shared memory, which other threads and processes read and write at the same time.

use std::{
    ptr,
    sync::atomic::{AtomicU64, Ordering, fence},
};

use super::stream::{STREAM_BYTES, copy_past_cache};

/// One end of a copy.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// The address where it begins.
    pub(super) at: *mut u8,
    /// Whether the memory is polled: accessed in whole aligned words, atomically.
    pub(super) polled: bool,
    /// Whether it lies in memory that is too large to stay in the cache.
    pub(super) uncached: bool,
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
    if !from.polled && !to.polled {
        // SAFETY: the caller's promise. By the rule of bulk regions nothing in this process refers to the target before
        // the completion, and what a peer writes meanwhile into the source makes for other bytes only, which the
        // contract permits.
        return unsafe {
            match to.uncached && len >= STREAM_BYTES {
                true => copy_past_cache(from.at, to.at, len),
                false => ptr::copy_nonoverlapping(from.at, to.at, len),
            }
        };
    }
    if to.polled {
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
        if from.polled {
            // SAFETY: a polled end is readable up to a whole word.
            let word: [u8; 8] = unsafe { load(from, offset) }.to_ne_bytes();
            bytes[..rest].copy_from_slice(&word[..rest]);
        } else {
            // SAFETY: `rest` bytes remain of the source.
            unsafe { ptr::copy_nonoverlapping(from.at.add(offset), bytes.as_mut_ptr(), rest) };
        }
        if to.polled {
            // SAFETY: a polled end is writable up to a whole word.
            unsafe { store(to, offset, u64::from_ne_bytes(bytes)) };
        } else {
            // SAFETY: `rest` bytes remain of the target.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to.at.add(offset), rest) };
        }
    }
    if from.polled {
        fence(Ordering::Acquire);
    }
}

/// # Safety
///
/// As [`copy`] asks of its source, for the word at `offset`.
#[inline]
unsafe fn load(from: End, offset: usize) -> u64 {
    // SAFETY: the caller's promise.
    let at = unsafe { from.at.add(offset) }.cast::<u64>();
    if from.polled {
        // SAFETY: aligned, mapped, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(at) }.load(Ordering::Relaxed)
    } else {
        // SAFETY: mapped, of any alignment.
        unsafe { at.read_unaligned() }
    }
}

/// # Safety
///
/// As [`copy`] asks of its target, for the word at `offset`.
#[inline]
unsafe fn store(to: End, offset: usize, word: u64) {
    // SAFETY: the caller's promise.
    let at = unsafe { to.at.add(offset) }.cast::<u64>();
    if to.polled {
        // SAFETY: aligned, mapped, and accessed by atomics only.
        unsafe { AtomicU64::from_ptr(at) }.store(word, Ordering::Relaxed);
    } else {
        // SAFETY: mapped, of any alignment.
        unsafe { at.write_unaligned(word) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_past_the_cache_is_copied_the_same() {
        let source: Vec<u8> = (0..=250).cycle().take(STREAM_BYTES + 100).collect();
        for (skip, len) in [(0, STREAM_BYTES), (1, STREAM_BYTES + 99), (3, STREAM_BYTES - 1)] {
            let mut target = vec![0xee; STREAM_BYTES + 200];
            let from = End { at: source.as_ptr().cast_mut(), polled: false, uncached: false };
            let to = End { at: target[skip..].as_mut_ptr(), polled: false, uncached: true };
            // SAFETY: `skip + len` lies within the target, `len` within the source, which is only read.
            unsafe { copy(from, to, len) };
            assert!(target[skip..skip + len] == source[..len], "{len} bytes to {skip}");
            assert!(target[..skip].iter().chain(&target[skip + len..]).all(|&byte| byte == 0xee));
        }
    }

    #[repr(align(8))]
    struct Aligned([u8; 64]);

    #[test]
    fn all_kinds_of_ends_and_lengths_copy_the_same_bytes() {
        for (from_polled, to_polled) in [(false, false), (false, true), (true, false), (true, true)] {
            for len in 0..=48 {
                let mut from = Aligned(std::array::from_fn(|i| i as u8 + 1));
                let mut to = Aligned([0xee; 64]);
                let from = End { at: from.0.as_mut_ptr(), polled: from_polled, uncached: false };
                let end = End { at: to.0.as_mut_ptr(), polled: to_polled, uncached: false };
                // SAFETY: both are 64 aligned bytes of this test's own.
                unsafe { copy(from, end, len) };
                let expected: Vec<u8> = (1..=len as u8).collect();
                assert_eq!(to.0[..len], expected, "{len} bytes, {from_polled} to {to_polled}");
                let filled = if to_polled { len.next_multiple_of(8) } else { len };
                assert!(to.0[len..filled].iter().all(|&b| b == 0), "a partial word is filled up with zeros");
                assert!(to.0[filled..].iter().all(|&b| b == 0xee), "nothing beyond the range is touched");
            }
        }
    }
}
