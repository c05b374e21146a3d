//! Polled memory word by word.

use std::{
    ptr::NonNull,
    sync::atomic::{AtomicU64, Ordering},
};

use super::Region;

/// A part of a polled [`Region`], checked once, for a caller that reads and writes many of its words.
#[derive(Clone, derive_more::Debug)]
#[debug("Window({} words of {region:?})", self.words().len())]
pub struct Window {
    /// Keeps the memory alive and mapped.
    region: Region,
    words: NonNull<[AtomicU64]>,
}

// SAFETY: the words are those of `Region::words`, which threads may share, with the region that they belong to.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// A window of `words`, which belong to the region.
    pub(super) fn new(region: Region, words: NonNull<[AtomicU64]>) -> Window {
        Window { region, words }
    }

    /// The region that it is a part of.
    #[inline]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The words. Those that a peer wrote before a word that was [loaded](Region::load) are there.
    #[inline]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the region's memory, which does not move, stays as long as the window.
        unsafe { self.words.as_ref() }
    }

    /// Hints that a word will be read soon, so that it is fetched meanwhile. Does nothing if there is no such word.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        #[cfg(target_arch = "x86_64")]
        if let Some(word) = self.words().get(at) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint for an address that may be read, which changes nothing that a program sees.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(word).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }
}

/// The number of words that are copied in one go.
const BLOCK: usize = 8;

/// Copies bytes out of the words that cover them, each word by itself.
///
/// # Panics
///
/// If there are fewer words.
#[inline]
pub fn read_words(words: &[AtomicU64], into: &mut [u8]) {
    let words = &words[..into.len().div_ceil(8)];
    let (into_blocks, into) = into.as_chunks_mut::<{ 8 * BLOCK }>();
    let (blocks, words) = words.split_at(BLOCK * into_blocks.len());
    for (words, into) in blocks.as_chunks::<BLOCK>().0.iter().zip(into_blocks) {
        let bytes = words.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        into.copy_from_slice(bytes.as_flattened());
    }
    let (into_words, rest) = into.as_chunks_mut();
    for (word, into) in words.iter().zip(into_words) {
        *into = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    if let (false, Some(last)) = (rest.is_empty(), words.last()) {
        rest.copy_from_slice(&last.load(Ordering::Relaxed).to_ne_bytes()[..rest.len()]);
    }
}

/// Copies bytes into the words that cover them, each word by itself; the last is filled up with zeros.
///
/// # Panics
///
/// If there are fewer words.
#[inline]
pub fn write_words(words: &[AtomicU64], from: &[u8]) {
    let words = &words[..from.len().div_ceil(8)];
    let (from_blocks, from) = from.as_chunks::<{ 8 * BLOCK }>();
    let (blocks, words) = words.split_at(BLOCK * from_blocks.len());
    for (words, from) in blocks.as_chunks::<BLOCK>().0.iter().zip(from_blocks) {
        for (word, from) in words.iter().zip(from.as_chunks().0) {
            word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
        }
    }
    let (from_words, rest) = from.as_chunks();
    for (word, from) in words.iter().zip(from_words) {
        word.store(u64::from_ne_bytes(*from), Ordering::Relaxed);
    }
    if let (false, Some(last)) = (rest.is_empty(), words.last()) {
        let mut bytes = [0; 8];
        bytes[..rest.len()].copy_from_slice(rest);
        last.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RegionKey, RegionKind};

    #[test]
    fn bytes_of_any_length_come_back_and_touch_no_other_word() {
        let region = Region::heap(RegionKind::Polled, RegionKey(1), 512);
        let window = region.window(64, 384);
        for len in 0..=256 {
            region.write(0, &[0xff; 512]);
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            write_words(&window.words()[3..], &bytes);
            let mut back = vec![0; len];
            read_words(&window.words()[3..], &mut back);
            assert_eq!(back, bytes);
            let mut all = [0; 512];
            region.read(0, &mut all);
            let (begin, end) = (88, 88 + len.next_multiple_of(8));
            assert!(all[..begin].iter().chain(&all[end..]).all(|&byte| byte == 0xff), "{len} bytes");
            assert_eq!(all[begin..begin + len], bytes);
            assert!(all[begin + len..end].iter().all(|&byte| byte == 0), "{len} bytes");
        }
    }
}
