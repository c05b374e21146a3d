//! Copies that pass the cache by.
//!
//! An ordinary store to a line that is not in the cache reads the line first, and later writes it back: with the
//! source's, three bytes move for each that is copied. Non-temporal stores write whole lines to memory, and two move.
//! They are slower where the cache would have kept the target.

/// The length from which a copy past the cache pays for its beginning and end.
pub(super) const STREAM_BYTES: usize = 64 << 10;

/// The size from which regions are taken not to stay in the cache between two messages.
pub(super) const UNCACHED_BYTES: usize = 8 << 20;

/// Copies `len` bytes, past the cache where this processor can. Its stores are ordered before later stores, as ordinary
/// ones are.
///
/// # Safety
///
/// As [`ptr::copy_nonoverlapping`](std::ptr::copy_nonoverlapping).
pub(super) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX; the rest is the caller's promise.
        return unsafe { x86_64::copy(from, to, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::{
        arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256},
        ptr,
    };

    /// The size of a cache line, which a non-temporal store should fill, or it is written in pieces.
    const LINE: usize = 64;

    /// # Safety
    ///
    /// As `ptr::copy_nonoverlapping`.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        let head = to.align_offset(LINE).min(len);
        let lines = (len - head) / LINE;
        let tail = head + lines * LINE;
        // SAFETY: `head..tail` are whole lines within `len`, aligned in the target; head and tail are within `len`.
        unsafe {
            ptr::copy_nonoverlapping(from, to, head);
            let (mut line, mut target) = (from.add(head), to.add(head).cast::<__m256i>());
            for _ in 0..lines {
                let halves = [_mm256_loadu_si256(line.cast()), _mm256_loadu_si256(line.cast::<__m256i>().add(1))];
                _mm256_stream_si256(target, halves[0]);
                _mm256_stream_si256(target.add(1), halves[1]);
                line = line.add(LINE);
                target = target.add(2);
            }
            ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        }
        // Other stores, of a completion above all, do not wait for non-temporal ones by themselves.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_lengths_and_alignments_copy_the_same_bytes_and_no_others() {
        const BYTES: usize = 512;
        let source: Vec<u8> = (0..BYTES).map(|i| (i * 7 + 1) as u8).collect();
        for from in 0..64 {
            for to in 0..64 {
                for len in (0..=200).chain([255, 256, 257, 320]) {
                    let mut target = [0xee; BYTES];
                    // SAFETY: `from + len` and `to + len` are below `BYTES`, of two arrays of this test's own.
                    unsafe { copy_past_cache(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                    let (before, rest) = target.split_at(to);
                    let (copied, after) = rest.split_at(len);
                    assert_eq!(copied, &source[from..from + len], "{len} bytes from {from} to {to}");
                    let untouched = before.iter().chain(after).all(|&byte| byte == 0xee);
                    assert!(untouched, "{len} bytes from {from} to {to} reach beyond the range");
                }
            }
        }
    }
}
