//! Copies of bytes that other threads, processes and devices may read and write at the same time.
//!
//! Any thread that has a [`Region`](crate::Region) may access its bytes while a fabric places a peer's there, and a
//! peer may change what this process copies. An ordinary copy that meets a write is a data race, thus undefined. The
//! copies here are not: they load and store each byte atomically (relaxed). A byte that is written meanwhile comes as
//! it was before or after. That all bytes of a message are there is for a completion or an announcing word to say.
//!
//! The compiler turns loops over atomics into single loads and stores. So on x86-64 the copies are assembly, which is
//! as fast as `memcpy`. What it does to memory could be done by atomic loads and stores of single bytes, some of them
//! twice, and that is all that the compiler has to assume.
//!
//! # Past the cache
//!
//! An ordinary store to a line that is not in the cache reads the line first, and later writes it back: with the
//! source's, three bytes move for each that is copied. Non-temporal stores write whole lines to memory, and two move.
//! They are slower where the cache would have kept the target.

/// Copies `len` bytes.
///
/// # Safety
///
/// `from` is memory for atomic loads, and `to` for stores, of `len` bytes. What else accesses them meanwhile does so by
/// these copies, or is outside this process. They do not overlap, unless any mixture of the bytes will do.
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { imp::copy(from, to, len) };
}

/// Copies bytes that nothing changes.
///
/// # Safety
///
/// As of [`copy`], for the target.
#[inline]
pub(crate) unsafe fn write(from: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise, and bytes that are borrowed do not change.
    unsafe { imp::write(from, to) };
}

/// Copies as [`copy`] does, past the cache where this processor can. Its stores are ordered after earlier stores and
/// before later ones, as ordinary ones are.
///
/// # Safety
///
/// As of [`copy`].
pub(crate) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { imp::copy_past_cache(from, to, len) };
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod imp {
    use std::{
        arch::{asm, is_x86_feature_detected, x86_64::_mm_sfence},
        sync::atomic::{AtomicU8, Ordering},
    };

    /// The length from which a loop over long vectors pays for its beginning and end.
    const LONG_BYTES: usize = 512;

    /// The size of a cache line, which a non-temporal store should fill, or it is written in pieces.
    const LINE: usize = 64;

    /// The number of bytes of a turn of the loop over long vectors.
    const TURN: usize = 128;

    /// # Safety
    ///
    /// As of [`copy`](super::copy).
    #[inline]
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: the caller's promise, and the processor has AVX where that is used.
        unsafe {
            match len >= LONG_BYTES && is_x86_feature_detected!("avx") {
                true => copy_long::<false>(from, to, len),
                false => copy_short(from, to, len),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`write`](super::write).
    #[inline]
    pub(super) unsafe fn write(from: &[u8], to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { copy(from.as_ptr(), to, from.len()) };
    }

    /// # Safety
    ///
    /// As of [`copy`](super::copy).
    pub(super) unsafe fn copy_past_cache(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: as above.
        unsafe {
            match is_x86_feature_detected!("avx") {
                true => copy_long::<true>(from, to, len),
                false => copy_short(from, to, len),
            }
        }
    }

    /// # Safety
    ///
    /// As of [`copy`](super::copy).
    #[inline]
    unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
        let Some(last) = len.checked_sub(16) else {
            // SAFETY: the caller's promise.
            return unsafe { copy_few(from, to, len) };
        };
        // SAFETY: vectors begin at multiples of 16 below `last`, and at `last`, and so end within the caller's `len`.
        unsafe {
            asm!(
                "2:",
                "movdqu {vector}, [{from} + {at}]",
                "movdqu [{to} + {at}], {vector}",
                "add {at}, 16",
                "cmp {at}, {last}",
                "jb 2b",
                "movdqu {vector}, [{from} + {last}]",
                "movdqu [{to} + {last}], {vector}",
                vector = out(xmm_reg) _, at = inout(reg) 0usize => _,
                last = in(reg) last, from = in(reg) from, to = in(reg) to,
                options(nostack),
            );
        }
    }

    /// Copies fewer than 16 bytes.
    ///
    /// # Safety
    ///
    /// As of [`copy`](super::copy).
    #[inline]
    unsafe fn copy_few(from: *const u8, to: *mut u8, len: usize) {
        // SAFETY: words begin at the first byte, and end with the last of the caller's `len`.
        unsafe {
            match len {
                8.. => asm!(
                    "mov {first}, [{from}]",
                    "mov {second}, [{from} + {last}]",
                    "mov [{to}], {first}",
                    "mov [{to} + {last}], {second}",
                    first = out(reg) _, second = out(reg) _, last = in(reg) len - 8, from = in(reg) from, to = in(reg) to,
                    options(nostack, preserves_flags),
                ),
                4..8 => asm!(
                    "mov {first:e}, [{from}]",
                    "mov {second:e}, [{from} + {last}]",
                    "mov [{to}], {first:e}",
                    "mov [{to} + {last}], {second:e}",
                    first = out(reg) _, second = out(reg) _, last = in(reg) len - 4, from = in(reg) from, to = in(reg) to,
                    options(nostack, preserves_flags),
                ),
                ..4 => {
                    for at in 0..len {
                        let byte = AtomicU8::from_ptr(from.cast_mut().add(at)).load(Ordering::Relaxed);
                        AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
                    }
                }
            }
        }
    }

    /// The loop over turns of long vectors, with the instruction that stores them.
    macro_rules! copy_turns {
        ($store:literal, $from:expr, $to:expr, $turns:expr) => {
            asm!(
                "2:",
                "vmovdqu ymm0, [rsi]",
                "vmovdqu ymm1, [rsi + 32]",
                "vmovdqu ymm2, [rsi + 64]",
                "vmovdqu ymm3, [rsi + 96]",
                concat!($store, " [rdi], ymm0"),
                concat!($store, " [rdi + 32], ymm1"),
                concat!($store, " [rdi + 64], ymm2"),
                concat!($store, " [rdi + 96], ymm3"),
                "add rsi, 128",
                "add rdi, 128",
                "sub rcx, 1",
                "jnz 2b",
                // Without it, instructions on short vectors would be slow from here on.
                "vzeroupper",
                inout("rsi") $from => _, inout("rdi") $to => _, inout("rcx") $turns => _,
                clobber_abi("sysv64"),
                options(nostack),
            )
        };
    }

    /// # Safety
    ///
    /// As of [`copy`](super::copy).
    #[target_feature(enable = "avx")]
    unsafe fn copy_long<const PAST_CACHE: bool>(from: *const u8, to: *mut u8, len: usize) {
        let head = (to.addr().wrapping_neg() % LINE).min(len);
        let turns = (len - head) / TURN;
        let tail = head + turns * TURN;
        if PAST_CACHE {
            // Nor do they wait for earlier stores: the word that takes back what used this memory before must be first.
            _mm_sfence();
        }
        // SAFETY: `head..tail` are whole turns within the caller's `len`, aligned in the target; head and tail are
        // within `len`. The assembly zeroes the upper halves of vectors, which belong to those that it clobbers.
        unsafe {
            copy_short(from, to, head);
            match (turns, PAST_CACHE) {
                (0, _) => {}
                (_, false) => copy_turns!("vmovdqa", from.add(head), to.add(head), turns),
                (_, true) => copy_turns!("vmovntdq", from.add(head), to.add(head), turns),
            }
            copy_short(from.add(tail), to.add(tail), len - tail);
        }
        if PAST_CACHE {
            // Other stores, of a completion above all, do not wait for non-temporal ones by themselves.
            _mm_sfence();
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
mod imp {
    use std::sync::atomic::{AtomicU8, Ordering};

    /// # Safety
    ///
    /// As of [`copy`](super::copy).
    pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
        for at in 0..len {
            // SAFETY: `at` is within the caller's `len`. A source that is mapped read-only is read by relaxed loads.
            unsafe {
                let byte = AtomicU8::from_ptr(from.cast_mut().add(at)).load(Ordering::Relaxed);
                AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
            }
        }
    }

    /// # Safety
    ///
    /// As of [`write`](super::write).
    pub(super) unsafe fn write(from: &[u8], to: *mut u8) {
        for (at, byte) in from.iter().enumerate() {
            // SAFETY: `at` is within the caller's range.
            unsafe { AtomicU8::from_ptr(to.add(at)) }.store(*byte, Ordering::Relaxed);
        }
    }

    pub(super) use copy as copy_past_cache;
}

#[cfg(test)]
mod tests {
    use super::*;

    type Copy = unsafe fn(*const u8, *mut u8, usize);

    const COPIES: [Copy; 2] = [copy, copy_past_cache];

    #[test]
    fn all_lengths_and_alignments_copy_the_same_bytes_and_no_others() {
        const BYTES: usize = 1024;
        let mut source: Vec<u8> = (0..BYTES).map(|i| (i * 7 + 1) as u8).collect();
        let alignments = if cfg!(miri) { [0, 1, 63].as_slice() } else { &const { alignments() } };
        for &from in alignments {
            for &to in alignments {
                for len in (0..=200).step_by(if cfg!(miri) { 41 } else { 1 }).chain([255, 511, 512, 513, 640, 800]) {
                    for copy in COPIES {
                        let mut target = [0xee; BYTES];
                        // SAFETY: `from + len` and `to + len` are below `BYTES`, of two arrays of this test's own.
                        unsafe { copy(source.as_mut_ptr().add(from), target.as_mut_ptr().add(to), len) };
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

    const fn alignments() -> [usize; 64] {
        let mut all = [0; 64];
        let mut at = 0;
        while at < 64 {
            all[at] = at;
            at += 1;
        }
        all
    }

    #[test]
    fn bytes_that_change_meanwhile_come_old_or_new() {
        const BYTES: usize = if cfg!(miri) { 40 } else { 2000 };
        const ROUNDS: usize = if cfg!(miri) { 20 } else { 2000 };
        let region = crate::Region::heap(crate::RegionKind::Bulk, crate::RegionKey(1), BYTES);
        std::thread::scope(|scope| {
            for fill in [0x00, 0xff] {
                let region = &region;
                scope.spawn(move || (0..ROUNDS).for_each(|_| region.write(0, &[fill; BYTES])));
            }
            let mut bytes = [0; BYTES];
            for _ in 0..ROUNDS {
                region.read(0, &mut bytes);
                assert!(bytes.iter().all(|byte| [0x00, 0xff].contains(byte)));
            }
        });
    }
}
