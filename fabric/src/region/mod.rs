//! Registered memory.
//!
//! Memory that a peer may write is never a `&[u8]`: it is read through atomic words or copied out.

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

/// A region's use, which decides how bytes are placed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RegionKind {
    /// Tables, rings and counters: read by their owner while peers write. Aligned words are stored atomically.
    Polled,
    /// Message bodies: read only after a completion or an announcing word, so they may be received in place.
    Bulk,
    /// A size without bytes: transfers of it take their time and move nothing. Reads give zeros. Only the simulator
    /// moves it.
    Phantom,
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
    /// Whether `len` bytes at `offset` lie inside.
    #[inline]
    pub(crate) fn holds(&self, offset: usize, len: usize) -> bool {
        offset <= self.bytes && len <= self.bytes - offset
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

// SAFETY: all access to `base` goes through atomic words, through the raw copies of bulk memory, whose callers keep the
// rule of `RegionKind::Bulk` (no reads before the completion), or through an `address`, whose user's `unsafe` code
// answers for it. `owner` is Send and Sync.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Region {
    /// A region over memory that a backend mapped.
    ///
    /// # Safety
    ///
    /// `base` points to `bytes` readable and writable bytes (rounded up to a multiple of 8), aligned to 8, that stay so
    /// until `owner` is dropped, and that this process accesses only through `Region`s.
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
    pub fn heap(kind: RegionKind, key: RegionKey, bytes: usize) -> Region {
        const LINE: usize = 64;
        let words = if kind == RegionKind::Phantom { 0 } else { (bytes.next_multiple_of(8) + LINE) / 8 };
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
        // SAFETY: the range was checked, the allocation is rounded up to whole words, the base is aligned to 8, and
        // every access in this process to memory that is shared goes through atomics.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr().add(offset).cast::<AtomicU64>(), len.div_ceil(8)) }
    }

    /// Reads the word at `offset` (acquire): what was written before it is visible after.
    #[inline]
    pub fn load(&self, offset: usize) -> u64 {
        if self.is_phantom() {
            self.check(offset, 8);
            return 0;
        }
        self.words(offset, 8)[0].load(Ordering::Acquire)
    }

    /// Stores the word at `offset` (release).
    #[inline]
    pub fn store(&self, offset: usize, word: u64) {
        if self.is_phantom() {
            return self.check(offset, 8);
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
    /// There, each word is whole; the range is not: it may change meanwhile if a peer writes it.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        match self.0.kind {
            RegionKind::Polled => {}
            RegionKind::Phantom => {
                self.check(offset, into.len());
                return into.fill(0);
            }
            RegionKind::Bulk => {
                self.check(offset, into.len());
                // SAFETY: the range was checked, `into` is this process's own memory and no part of any region. By the
                // rule of bulk regions nothing writes the range until the reader is done with it.
                return unsafe {
                    std::ptr::copy_nonoverlapping(self.0.base.as_ptr().add(offset), into.as_mut_ptr(), into.len());
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
            RegionKind::Bulk => {
                self.check(offset, from.len());
                // SAFETY: the range was checked, `from` is no part of any region. By the rule of bulk regions nothing
                // else reads or writes the range until its completion.
                return unsafe {
                    std::ptr::copy_nonoverlapping(from.as_ptr(), self.0.base.as_ptr().add(offset), from.len());
                };
            }
        }
        fence(Ordering::Release);
        write_words(self.words(offset, from.len()), from);
    }

    /// Copies `len` bytes to another bulk region, or to a place of this one that does not overlap. Phantoms move
    /// nothing.
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
        // SAFETY: both ranges were checked. By the rule of bulk regions nothing writes either until their user is done
        // with it; `copy` itself permits an overlap.
        unsafe { std::ptr::copy(self.0.base.as_ptr().add(offset), to.0.base.as_ptr().add(to_offset), len) };
    }

    /// The address of `len` bytes at `offset`; dangling in a phantom, which has none.
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
    #[inline]
    pub fn copy_words(&self, offset: usize, to: &Region, to_offset: usize, len: usize) {
        assert!(len.is_multiple_of(8), "length {len} is not a multiple of 8");
        if self.is_phantom() || to.is_phantom() {
            self.check(offset, len);
            return to.check(to_offset, len);
        }
        fence(Ordering::Release);
        for (from, to) in self.words(offset, len).iter().zip(to.words(to_offset, len)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
