//! Registered memory.
//!
//! Memory that a peer may write is never a `&[u8]`: it is read through atomic words, or copied out by bytes that are
//! atomic each. So any thread may use any range of a region at any time: what it reads may be a mixture of old and new,
//! and no more than that can go wrong. A layer that knows more of its memory can make a slice of an
//! [`address`](Region::address), and answers for it in `unsafe` code.

mod window;

use std::{
    any::Any,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

pub use self::window::{Window, read_words, write_words};
use crate::bytes;

/// A region's use, which decides how bytes are placed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Tables, rings and counters: read by their owner while peers write. Aligned words are stored atomically.
    Polled,
    /// Message bodies: read only after a completion or an announcing word, so they may be received in place. A reader
    /// that comes earlier gets any mixture of bytes.
    Bulk,
    /// Bulk memory that peers fetch from, and may not write.
    Lent,
    /// A size without bytes: transfers of it take their time and move nothing. Reads give zeros. Only the simulator
    /// moves it.
    Phantom,
}

impl RegionKind {
    /// Whether its bytes are accessed one by one, without regard to words.
    #[inline]
    pub(crate) fn is_bulk(self) -> bool {
        matches!(self, RegionKind::Bulk | RegionKind::Lent)
    }

    /// The most that peers may do.
    #[inline]
    pub(crate) fn peer_access(self) -> PeerAccess {
        match self {
            RegionKind::Lent => PeerAccess::Read,
            RegionKind::Polled | RegionKind::Bulk | RegionKind::Phantom => PeerAccess::Write,
        }
    }
}

/// The access of a peer to a region. One that may write may also read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PeerAccess {
    Read,
    Write,
}

/// The key that a peer must present to reach a region. It is random, so it can't be guessed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug)]
#[debug("RegionKey({_0:016x})")]
pub struct RegionKey(pub u64);

/// A region of a peer that an endpoint may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    /// The key by which an [`Op`](crate::Op) names the region.
    pub key: RegionKey,
    /// Its kind.
    pub kind: RegionKind,
    /// Its size in bytes.
    pub bytes: usize,
}

impl RemoteRegion {
    /// Whether a peer has this access to `len` bytes at `offset`: they lie inside, and are whole words if the region is
    /// polled.
    #[inline]
    pub(crate) fn admits(&self, access: PeerAccess, offset: usize, len: usize) -> bool {
        let is_inside = offset <= self.bytes && len <= self.bytes - offset;
        let is_whole = self.kind != RegionKind::Polled || (offset.is_multiple_of(8) && len.is_multiple_of(8));
        is_inside && is_whole && access <= self.kind.peer_access()
    }
}

/// A handle to registered local memory; clones name the same memory, from any thread.
///
/// # Panics
///
/// All accessors panic when the range lies outside the region, and in polled regions when the offset is not a multiple
/// of 8. Such an offset is a bug of the caller, which checks numbers from a peer first.
#[derive(Clone, derive_more::Debug)]
#[debug("Region({:?}, {} bytes, {:?})", _0.kind, _0.bytes, _0.key)]
pub struct Region(Arc<Memory>);

struct Memory {
    /// The memory's beginning, aligned to 8 bytes at least; dangling for `Phantom`.
    base: NonNull<u8>,
    bytes: usize,
    kind: RegionKind,
    key: RegionKey,
    /// Keeps the memory behind `base` alive and mapped.
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: all access to `base` is atomic, by words in polled memory and by bytes in bulk memory, or goes through an
// `address`, whose user's `unsafe` code answers for it. `owner` is Send and Sync.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Region {
    /// A region over memory that a backend mapped.
    ///
    /// # Safety
    ///
    /// `base` points to `bytes` readable and writable bytes (rounded up to a multiple of 8), aligned to 8, that stay so
    /// until `owner` is dropped, and that this process accesses only through `Region`s of one kind.
    pub(crate) unsafe fn from_raw(
        kind: RegionKind,
        key: RegionKey,
        base: NonNull<u8>,
        bytes: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Region {
        debug_assert!(base.as_ptr().addr().is_multiple_of(8));
        Region(Arc::new(Memory { base, bytes, kind, key, owner }))
    }

    /// A region of this process's own zeroed memory that no peer in another process can reach; `Phantom` takes none.
    ///
    /// For backends, and for tests of data structures that live in a region.
    ///
    /// # Panics
    ///
    /// If `bytes` are more than any allocation has.
    pub fn heap(kind: RegionKind, key: RegionKey, bytes: usize) -> Region {
        const LINE: usize = 64;
        let bytes_of_words = match kind {
            RegionKind::Phantom => Some(0),
            _ => bytes.checked_next_multiple_of(8).and_then(|whole| whole.checked_add(LINE)),
        };
        let words = bytes_of_words.expect("a region of memory has less than the size of the address space") / 8;
        // Zeros from the allocator: its pages take no memory until they are used. Vectors of aligned types would be
        // written.
        let memory = Box::<[u64]>::new_zeroed_slice(words);
        // SAFETY: zeros are valid words. A Vec, since a Box that is moved claims its memory for itself, and pointers
        // from before are void.
        let mut memory = unsafe { memory.assume_init() }.into_vec();
        let first = memory.as_mut_ptr().cast::<u8>();
        let base = first.wrapping_add(first.align_offset(LINE) * usize::from(words > 0));
        let base = NonNull::new(base).expect("a Vec's pointer is not null");
        // SAFETY: `base` points into the Vec's memory, less than a line behind its beginning, so that `bytes` rounded
        // up to whole words follow. The memory does not move when the Vec does, and is only dropped with `owner`.
        // Nothing else has the Vec.
        unsafe { Region::from_raw(kind, key, base, bytes, Box::new(memory)) }
    }

    /// The region's kind.
    pub fn kind(&self) -> RegionKind {
        self.0.kind
    }

    /// The region's key.
    pub fn key(&self) -> RegionKey {
        self.0.key
    }

    /// The region's size in bytes.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether the region has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// The region's description, as a peer learns it.
    pub fn describe(&self) -> RemoteRegion {
        RemoteRegion { key: self.key(), kind: self.kind(), bytes: self.len() }
    }

    /// The owner that keeps the memory alive, as the backend gave it.
    pub(crate) fn owner(&self) -> &(dyn Any + Send + Sync) {
        &*self.0.owner
    }

    /// The owner that keeps the memory alive, if this is the only handle to the region.
    pub(crate) fn into_owner(self) -> Result<Box<dyn Any + Send + Sync>, Region> {
        Arc::try_unwrap(self.0).map(|memory| memory.owner).map_err(Region)
    }

    /// Whether there are other handles to the region.
    #[cfg_attr(not(feature = "verbs"), expect(dead_code))]
    pub(crate) fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The memory's beginning.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.0.base
    }

    /// Whether `len` bytes at `offset` lie inside.
    #[inline]
    pub(crate) fn holds(&self, offset: usize, len: usize) -> bool {
        offset <= self.0.bytes && len <= self.0.bytes - offset
    }

    fn is_phantom(&self) -> bool {
        self.0.kind == RegionKind::Phantom
    }

    /// Checks a range of words in a region that is not polled. Panics unless it is a phantom.
    #[cold]
    fn check_no_words(&self, offset: usize, len: usize) {
        assert!(self.is_phantom(), "the words of bulk memory are not accessed each by itself");
        self.check(offset, len);
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        if !self.holds(offset, len) {
            self.refuse(offset, len);
        }
    }

    /// Panics for a range that is out of bounds. It is cold and apart, so that the check of every word can be inlined.
    #[cold]
    #[inline(never)]
    fn refuse(&self, offset: usize, len: usize) -> ! {
        let bytes = self.0.bytes;
        let is_inside = offset.checked_add(len).is_some_and(|end| end <= bytes);
        assert!(is_inside, "{len} bytes at {offset} lie outside a region of {bytes} bytes");
        panic!("offset {offset} is not a multiple of 8");
    }

    /// The words that cover `offset..offset + len`; the last may reach beyond the range, never beyond the allocation.
    #[inline]
    fn words(&self, offset: usize, len: usize) -> &[AtomicU64] {
        self.check(offset, len);
        if !offset.is_multiple_of(8) {
            self.refuse(offset, len);
        }
        debug_assert_eq!(self.0.kind, RegionKind::Polled);
        // SAFETY: the range was checked, the allocation is rounded up to whole words, the base is aligned to 8, and
        // every access in this process to polled memory is by such words.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr().add(offset).cast::<AtomicU64>(), len.div_ceil(8)) }
    }

    /// Reads the word at `offset` (acquire): what was written before it is visible after.
    ///
    /// # Panics
    ///
    /// Besides the bounds, if the region is bulk.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        if self.0.kind != RegionKind::Polled {
            self.check_no_words(offset, 8);
            return 0;
        }
        self.words(offset, 8)[0].load(Ordering::Acquire)
    }

    /// Stores the word at `offset` (release).
    ///
    /// # Panics
    ///
    /// Besides the bounds, if the region is bulk.
    #[inline]
    pub fn store(&self, offset: usize, word: u64) {
        if self.0.kind != RegionKind::Polled {
            return self.check_no_words(offset, 8);
        }
        self.words(offset, 8)[0].store(word, Ordering::Release);
    }

    /// A part of a polled region, for a caller that reads and writes many of its words.
    ///
    /// # Panics
    ///
    /// Besides the bounds, if the region is of another kind.
    pub fn window(&self, offset: usize, len: usize) -> Window {
        assert_eq!(self.kind(), RegionKind::Polled, "only polled memory is looked at word by word");
        Window::new(self.clone(), NonNull::from(self.words(offset, len)))
    }

    /// Copies out `into.len()` bytes from `offset`; in a polled region word by word.
    ///
    /// There, each word is whole. The range is not: it may change meanwhile if a peer or another thread writes it.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        match self.0.kind {
            RegionKind::Polled => {}
            RegionKind::Phantom => {
                self.check(offset, into.len());
                return into.fill(0);
            }
            RegionKind::Bulk | RegionKind::Lent => {
                self.check(offset, into.len());
                // SAFETY: the range was checked, and `into` is exclusive memory, thus no part of a region.
                return unsafe {
                    bytes::copy(self.0.base.as_ptr().add(offset), into.as_mut_ptr(), into.len());
                };
            }
        }
        read_words(self.words(offset, into.len()), into);
        fence(Ordering::Acquire);
    }

    /// Copies `from` in at `offset`; in a polled region word by word, and a last partial word is filled up with zeros.
    ///
    /// Earlier writes are visible to a reader (acquire) of any word of it.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        match self.0.kind {
            RegionKind::Polled => {}
            RegionKind::Phantom => return self.check(offset, from.len()),
            RegionKind::Bulk | RegionKind::Lent => {
                self.check(offset, from.len());
                // SAFETY: the range was checked, and `from` does not change, so that it is no part of the range.
                return unsafe { bytes::write(from, self.0.base.as_ptr().add(offset)) };
            }
        }
        fence(Ordering::Release);
        write_words(self.words(offset, from.len()), from);
    }

    /// Copies `len` bytes to another bulk or lent region, or to a place of this one that does not overlap. Phantoms
    /// move nothing.
    ///
    /// # Panics
    ///
    /// Besides the bounds, if either region is polled.
    pub fn copy_bulk(&self, offset: usize, to: &Region, to_offset: usize, len: usize) {
        self.check(offset, len);
        to.check(to_offset, len);
        assert!(
            self.kind() != RegionKind::Polled && to.kind() != RegionKind::Polled,
            "polled memory is copied by words"
        );
        if self.is_phantom() || to.is_phantom() {
            return;
        }
        // SAFETY: both ranges were checked. If they overlap against the rule, any mixture of their bytes will do.
        unsafe { bytes::copy(self.0.base.as_ptr().add(offset), to.0.base.as_ptr().add(to_offset), len) };
    }

    /// The address of `len` bytes at `offset`; dangling in a phantom, which has none.
    ///
    /// Code that accesses memory by it sees to it that nothing writes there meanwhile: no peer, no posted work, no
    /// other thread.
    pub fn address(&self, offset: usize, len: usize) -> NonNull<u8> {
        self.check(offset, len);
        if self.is_phantom() {
            return NonNull::dangling();
        }
        // SAFETY: the range was checked.
        unsafe { self.0.base.add(offset) }
    }

    /// Copies `len` bytes (a multiple of 8, as are both offsets) to another region, word by word.
    ///
    /// Earlier writes are visible to a reader (acquire) of any word of it.
    ///
    /// # Panics
    ///
    /// Besides the bounds, if either region is bulk.
    #[inline]
    pub fn copy_words(&self, offset: usize, to: &Region, to_offset: usize, len: usize) {
        assert!(len.is_multiple_of(8), "length {len} is not a multiple of 8");
        if self.is_phantom() || to.is_phantom() {
            self.check(offset, len);
            return to.check(to_offset, len);
        }
        assert!(self.kind() == to.kind() && self.kind() == RegionKind::Polled, "bulk memory is not copied by words");
        fence(Ordering::Release);
        for (from, to) in self.words(offset, len).iter().zip(to.words(to_offset, len)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::check::check_size;

    fn panics<T>(call: impl FnOnce() -> T) -> bool {
        catch_unwind(AssertUnwindSafe(call)).is_err()
    }

    #[test]
    fn sizes_near_the_end_of_the_address_space_are_refused() {
        for bytes in [usize::MAX, usize::MAX - 7, usize::MAX - 63, usize::MAX - 64, isize::MAX as usize] {
            for kind in [RegionKind::Polled, RegionKind::Bulk, RegionKind::Lent] {
                assert!(panics(|| Region::heap(kind, RegionKey(1), bytes)), "{bytes} bytes");
                assert!(check_size(kind, bytes).is_err(), "{bytes} bytes");
            }
            let phantom = Region::heap(RegionKind::Phantom, RegionKey(1), bytes);
            assert!(phantom.holds(bytes, 0) && phantom.holds(bytes - 1, 1) && !phantom.holds(bytes, 1));
            assert!(panics(|| phantom.load(usize::MAX - 6)));
        }
    }

    #[test]
    fn ranges_whose_end_overflows_lie_outside() {
        for kind in [RegionKind::Polled, RegionKind::Bulk, RegionKind::Lent, RegionKind::Phantom] {
            let region = Region::heap(kind, RegionKey(1), 64);
            for (offset, len) in [(8, usize::MAX - 7), (usize::MAX - 7, 8), (72, 0), (64, 8)] {
                assert!(!region.holds(offset, len));
                assert!(panics(|| region.address(offset, len)), "{len} bytes at {offset}");
            }
            assert!(panics(|| region.read(usize::MAX - 7, &mut [0; 8])));
            assert!(panics(|| region.write(usize::MAX - 7, &[0; 8])));
        }
    }

    #[test]
    fn words_of_bulk_memory_are_not_accessed_each_by_itself() {
        let bulk = Region::heap(RegionKind::Bulk, RegionKey(1), 64);
        let polled = Region::heap(RegionKind::Polled, RegionKey(2), 64);
        assert!(panics(|| bulk.load(0)));
        assert!(panics(|| bulk.store(0, 1)));
        assert!(panics(|| bulk.copy_words(0, &polled, 0, 8)));
        assert!(panics(|| bulk.window(0, 8)));
        assert!(panics(|| bulk.copy_bulk(0, &polled, 0, 8)));
    }
}
